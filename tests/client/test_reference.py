"""The pages about the client: every snippet runs on a real server, and does what it says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_nats_jetstream.client import ConnectionSettings, connect
from airflow_nats_jetstream.client.account import AccountInfo
from airflow_nats_jetstream.client.batch import Batch
from airflow_nats_jetstream.client.consume import Consuming, PullMessages
from airflow_nats_jetstream.client.consumer import Consumer, ConsumerInfo, Pull
from airflow_nats_jetstream.client.context import JetStream
from airflow_nats_jetstream.client.fast_batch import FastBatch
from airflow_nats_jetstream.client.message import Message
from airflow_nats_jetstream.client.ordered import OrderedConsumer
from airflow_nats_jetstream.client.protocol import AckSubject
from airflow_nats_jetstream.client.publish import PubAck
from airflow_nats_jetstream.client.publish_async import AsyncPublisher, PublishFuture
from airflow_nats_jetstream.client.push import PushConsumer
from airflow_nats_jetstream.client.route import Route
from airflow_nats_jetstream.client.stored import StoredMessage
from airflow_nats_jetstream.client.stream import Stream, StreamInfo
from demo.nats_server import NatsServer
from tests.snippets import Section, sections

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "jetstream.md"
WALK_THROUGH = DOCS / "how-to" / "interest-retention.md"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Snippets use plain names; nobody else's streams may listen to the same subjects."""
    server = NatsServer(tmp_path_factory.mktemp("reference"))
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "section",
    [each for page in (PAGE, WALK_THROUGH) for each in sections(page) if each.source],
    ids=lambda each: each.title,
)
async def test_the_snippets_of(section: Section, own_server: NatsServer) -> None:
    """Each section starts on an empty server, with ``settings`` and ``js`` defined."""
    settings = ConnectionSettings(servers=own_server.url, request_timeout=30)
    async with connect(settings) as js:
        for name in (await js.api("STREAM.NAMES"))["streams"] or ():
            await js.api(f"STREAM.DELETE.{name}")
        await section.run(settings=settings, js=js)


SHARED = {
    *("configure", "require", "require_feature", "require_headers_of", "acknowledged"),  # of a context
    *("parse", "close", "keep_open", "deliver", "lost", "js", "tokens"),
}
"""What the client's own files use of each other."""


NOUNS = [
    *(JetStream, AccountInfo, Stream, StreamInfo, StoredMessage, Consumer, ConsumerInfo, PushConsumer, OrderedConsumer),
    *(
        Pull,
        PullMessages,
        Consuming,
        Message,
        AckSubject,
        PubAck,
        AsyncPublisher,
        PublishFuture,
        Batch,
        FastBatch,
        Route,
    ),
]


@pytest.mark.parametrize("noun", NOUNS)
def test_the_page_has_every_call(noun: type) -> None:
    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", PAGE.read_text(), re.DOTALL))
    ours = [kind for kind in noun.__mro__ if kind.__module__.startswith("airflow_nats_jetstream")]
    names = {name for kind in ours for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}
    calls = {name for name in names if not name.startswith("_")} - SHARED
    assert sorted(name for name in calls if not re.search(rf"[.`]{name}\b", code)) == []


async def test_a_wrong_snippet_fails_at_its_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ignored = "# Page\n```python\nraise\n```\n## One\n```sh\nexit 1\n```\n"
    page.write_text(ignored + "text\n```python\nassert await two() == 3\n```\n## Two\n")

    async def two() -> int:
        return 2

    one, other = sections(page)
    assert (one.title, other.title, other.source) == ("One", "Two", "")
    with pytest.raises(AssertionError) as failed:
        await one.run(two=two)
    assert (failed.traceback[-1].path, failed.traceback[-1].lineno) == (page, 10)
