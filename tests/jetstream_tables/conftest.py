"""A stream, and an empty table of each format."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jetstream_handoff.hold import settle
from tests.jetstream_handoff.conftest import js, settings, stream
from tests.jetstream_tables.formats import FORMATS, Format

__all__ = ["js", "settings", "stream"]


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let settling not wait until a claim is a second old, because the server here is not killed."""
    monkeypatch.setattr(settle, "BELIEVED", 0)


@pytest.fixture
def holds() -> Iterator[ExitStack]:
    """Attempts that are held until the end of the test, as by processes that were killed or stand still."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Format]:
    with request.param(tmp_path) as made:
        yield made
