"""A stream, and an empty table of each format."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import jetstream_tables.postgres
from demo.postgres import Postgres
from tests.jetstream_handoff.conftest import js, settings, stream
from tests.jetstream_tables.formats import FORMATS, ON_S3, Format, OnS3, Sql
from tests.jetstream_tables.object_store import ObjectStore

__all__ = ["js", "settings", "stream"]


@pytest.fixture
def holds() -> Iterator[ExitStack]:
    """Attempts that are held until the end of the test, as by processes that were killed or stand still."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the run. If root starts it, it runs as another user, who cannot enter the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = Postgres(folder / "server", folder / "s")
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One S3 server for the run."""
    server = ObjectStore(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop(patience=0)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Format]:
    if request.param is Sql:
        Sql.server = request.getfixturevalue("postgres")
        monkeypatch.setattr(jetstream_tables.postgres, "LONGEST_PAUSE", 1)
    if request.param in ON_S3:
        OnS3.store = request.getfixturevalue("object_store")
    with request.param(tmp_path) as made:
        yield made
