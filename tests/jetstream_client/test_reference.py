"""The pages about the client: every snippet runs on a real server, and does what it says."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.consuming import Consuming
from jetstream_client.consume.message import Message
from jetstream_client.context import JetStream
from jetstream_client.stream import Stream
from tests.public import PAGES, entries, fields, members
from tests.snippets import Section, sections

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "jetstream.md"
WALK_THROUGH = DOCS / "how-to" / "interest-retention.md"
COMING = DOCS / "coming-from-nats.md"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """Snippets use plain names, so nothing may be left of another snippet's streams."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


NEEDED = {"Streams": "2.12", "Stored messages": "2.12", "Consuming": "2.14", "Publishing": "2.14"}
"""The nats-server version that a section of the reference needs, by its title."""


@pytest.mark.parametrize(
    "section",
    [
        pytest.param(
            each,
            marks=pytest.mark.server(NEEDED.get(each.title, "2.11") if page == PAGE else "2.11"),
            id=f"{each.page.stem}: {each.title}",
        )
        for page in (PAGE, WALK_THROUGH, COMING)
        for each in sections(page)
        if each.source
    ],
)
async def test_the_snippets_of(section: Section, own_server: NatsServer) -> None:
    """Each section starts on an empty server, with ``settings`` and ``js`` defined."""
    settings = ConnectionSettings(servers=own_server.url, request_timeout=30)
    async with connect(settings) as js:
        await section.run(settings=settings, js=js)


ELSEWHERE = {"ConnectionSettings", "Trace", "AccountLimits", "Priority", "Schedule", "Position", "Published"}
"""Values whose fields only docs/reference/python/client.md lists."""


NOUNS = [each.kind for each in entries(PAGES["client"]) if each.kind and each.name not in ELSEWHERE]


@pytest.mark.parametrize("noun", NOUNS)
def test_the_page_has_every_call(noun: type) -> None:
    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", PAGE.read_text(), re.DOTALL))
    names = {*fields(noun), *(name for name, _ in members(noun))}
    assert sorted(name for name in names if not re.search(rf"[.`]{name}\b", code)) == []


def test_the_page_has_every_error_code_and_its_class() -> None:
    rows = re.findall(r"^\| (10\d{3}(?:(?:, | to )10\d{3})*)[^|]* \| `(\w+)`", PAGE.read_text(), re.MULTILINE)
    listed: dict[int, str] = {}
    for codes, kind in rows:
        for each in codes.split(", "):
            first, _, last = each.partition(" to ")
            listed |= dict.fromkeys(range(int(first), int(last or first) + 1), kind)
    assert listed == {code: kind.__name__ for code, kind in errors._BY_CODE.items()}
    for code, kind in listed.items():
        answer = {"code": 400, "err_code": code, "description": "the server's words"}
        error = errors.ApiError.from_response(answer)
        assert type(error).__name__ == kind
        assert {name: getattr(error, name) for name in answer} == answer
    unknown = errors.ApiError.from_response({"code": 418, "err_code": 10999, "description": "new"})
    assert (type(unknown), unknown.code, unknown.err_code, unknown.description) == (errors.ApiError, 418, 10999, "new")


def test_the_page_has_every_error() -> None:
    page = PAGE.read_text()
    never_raised = {"BatchCompleted", "NoResponders"}
    named = {kind.__name__ for kind in kinds(errors.JetStreamError) if kind.__module__ == errors.__name__}
    assert sorted(name for name in named - never_raised if f"`{name}`" not in page) == []


def kinds(kind: type[errors.JetStreamError]) -> Iterator[type[errors.JetStreamError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


def test_the_calls_of_both_clients_exist() -> None:
    """In the tables of coming-from-nats.md: those of nats-py in the second column, ours in the third."""
    theirs = {"nc": Client, "js": JetStreamContext, "sub": JetStreamContext.PullSubscription, "msg": Msg}
    ours = {"js": JetStream, "stream": Stream, "consumer": Consumer, "consuming": Consuming, "message": Message}
    rows = [line.strip("| ").split(" | ") for line in COMING.read_text().splitlines() if line.startswith("| ")]
    found = [
        (nouns[noun], name)
        for row in rows
        if len(row) == 3
        for cell, nouns in zip(row[1:], (theirs, ours), strict=True)
        for noun, name in re.findall(r"`(\w+)\.(\w+)", cell)
        if noun in nouns
    ]
    assert len(found) > 80
    assert [f"{noun.__name__}.{name}" for noun, name in found if not has(noun, name)] == []


def has(noun: type, name: str) -> bool:
    """Whether instances have this attribute; some are only set when one is made."""
    source = "".join(inspect.getsource(kind) for kind in noun.__mro__ if kind is not object)
    return hasattr(noun, name) or re.search(rf"^    {name}: |self\.{name}\b.* = ", source, re.MULTILINE) is not None


async def test_a_wrong_snippet_fails_at_its_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ignored = "# Page\n```python\nraise\n```\n## One\n```sh\nexit 1\n```\n"
    page.write_text(ignored + "text\n```python\nassert await two() == 3\n```\n## Two\n")

    async def two() -> int:
        return 2

    one, other = sections(page)
    assert (one.title, other.title, other.source) == ("One", "Two", "")
    with pytest.raises(AssertionError, match="assert 2 == 3") as failed:
        await one.run(two=two)
    assert (failed.traceback[-1].path, failed.traceback[-1].lineno) == (page, 10)
