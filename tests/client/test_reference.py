"""docs/reference/jetstream.md: every snippet runs on a real server, and does what it says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_nats_jetstream.client import ConnectionSettings, connect
from demo.nats_server import NatsServer
from tests.snippets import Section, sections

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "jetstream.md"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Snippets use plain names; nobody else's streams may listen to the same subjects."""
    server = NatsServer(tmp_path_factory.mktemp("reference"))
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("section", [each for each in sections(PAGE) if each.source], ids=lambda each: each.title)
async def test_the_snippets_of(section: Section, own_server: NatsServer) -> None:
    """Each section starts on an empty server, with ``settings`` and ``js`` defined."""
    settings = ConnectionSettings(servers=own_server.url, request_timeout=30)
    async with connect(settings) as js:
        for name in (await js.api("STREAM.NAMES"))["streams"] or ():
            await js.api(f"STREAM.DELETE.{name}")
        await section.run(settings=settings, js=js)


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
