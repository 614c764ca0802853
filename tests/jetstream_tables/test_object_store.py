"""What is special about tables in an object store: conditional puts, credentials, and servers that do not answer."""

import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from pyarrow import fs
from pyiceberg.catalog.sql import SqlCatalog

from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_tables import S3, DeltaTable, IcebergTable
from jetstream_tables.conditional_put import _HONOURED
from jetstream_tables.errors import TableFailed, TableUnsuitable
from jetstream_tables.table import ExactTable
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import DeltaOnS3, OnS3
from tests.jetstream_tables.object_store import BUCKET, ObjectStore
from tests.jetstream_tables.repeats import repeats
from tests.jetstream_tables.steps import begin, rows
from tests.jetstream_tables.without_conditions import WithoutConditions

AT_ONCE = 4


@pytest.fixture
def delta(object_store: ObjectStore, tmp_path: Path) -> Iterator[DeltaOnS3]:
    OnS3.store = object_store
    with DeltaOnS3(tmp_path) as made:
        yield made


def at_once(uri: str, options: dict[str, str], number: int) -> list[str]:
    """Commit with several handles that have seen the same version."""
    barrier = Barrier(AT_ONCE)

    def commit(handle: deltalake.DeltaTable) -> str:
        properties = CommitProperties(app_transactions=[Transaction("it", number)])
        row = pa.table({"_sequence": [number]})
        barrier.wait()
        try:
            deltalake.write_deltalake(handle, row, mode="append", commit_properties=properties)
        except CommitFailedError:
            return "refused"
        return "committed"

    handles = [deltalake.DeltaTable(uri, storage_options=options) for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sorted(threads.map(commit, handles))


def test_of_commits_at_once_one_succeeds(delta: DeltaOnS3) -> None:
    """What the tables build on: the library puts a version only if it does not exist, and the server refuses others."""
    delta.append(pa.table({"_sequence": [0]}))
    for number in range(1, 5):
        done = at_once(delta.uri("orders"), delta.store.s3.storage_options(), number)
        assert done == ["committed", *["refused"] * (AT_ONCE - 1)]
    assert delta.sequences() == [*range(5)]


@pytest.fixture
def careless(delta: DeltaOnS3, tmp_path: Path) -> Iterator[DeltaTable]:
    """A table on a server that ignores conditions."""
    server = WithoutConditions(tmp_path / "proxy", delta.store.port)
    server.start()
    options = S3(region="us-east-1", endpoint=f"http://127.0.0.1:{server.port}").storage_options()
    yield DeltaTable(delta.uri("orders"), {**options, "AWS_SKIP_SIGNATURE": "true"})
    server.stop()


def objects(delta: DeltaOnS3) -> list[str]:
    found = delta.store.files().get_file_info(fs.FileSelector(delta.place, recursive=True, allow_not_found=True))
    return [each.path for each in found if each.type == fs.FileType.File]


async def test_a_server_that_ignores_conditions(
    stream: Stream, delta: DeltaOnS3, careless: DeltaTable, holds: ExitStack
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with pytest.raises(TableUnsuitable, match=r"the S3 server http://127.0.0.1:\d+ ignores conditional puts"):
        held.append_to(careless, rows(held))
    assert objects(delta) == []


def test_without_conditions_rows_are_lost(delta: DeltaOnS3, careless: DeltaTable) -> None:
    """The control: several of the commits succeed, and one row is in the table."""
    delta.append(pa.table({"_sequence": [0]}))
    options = dict(careless.storage_options)  # type: ignore[arg-type]
    done = [at_once(careless.uri, options, number).count("committed") for number in range(1, 5)]
    assert sum(done) > len(done) == len(delta.sequences()) - 1


async def test_a_server_is_asked_once(stream: Stream, delta: DeltaOnS3, holds: ExitStack) -> None:
    _HONOURED.clear()
    await publish(stream, 20)
    one, two = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    one.append_to(delta.table(), rows(one))
    assert {(delta.store.s3.endpoint, BUCKET)} == _HONOURED
    assert [each for each in objects(delta) if "_jetstream" in each] == []
    two.append_to(delta.table(), rows(two))
    assert delta.sequences() == [*range(1, 21)]


@pytest.mark.parametrize("name", ["conditional_put", "AWS_CONDITIONAL_PUT", "aws_conditional_put"])
def test_conditional_puts_stay_on(name: str) -> None:
    with pytest.raises(TableUnsuitable, match=f"storage option {name} is disabled, so two commits at once"):
        DeltaTable("s3://lake/orders", {name: "disabled"}).target()


def test_a_catalog_that_was_loaded_has_its_object_store() -> None:
    with pytest.raises(InvalidValue, match="give the catalog's name or its properties"):
        IcebergTable(object(), "a.b", S3())  # type: ignore[arg-type]


def test_credentials_of_the_environment_are_not_mixed_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs takes from the environment what it is not given, and an access key fits its own token only."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "planted")
    with pytest.raises(InvalidValue, match="the environment has AWS_SESSION_TOKEN") as raised:
        DeltaTable("s3://lake/orders", S3("id", "secret")).target()
    assert "planted" not in str(raised.value)
    assert S3("id", "secret", "token").storage_options()["AWS_SESSION_TOKEN"] == "token"
    assert S3().storage_options() == {}


PLANTED = ("planted-id", "planted/secret+1", "planted/token+/2==")


def s3(endpoint: str, *known: str) -> S3:
    key, secret, token = (*known, *PLANTED[len(known) :])
    return S3(key, secret, token, "us-east-1", endpoint)


def tables(folder: Path, where: S3, bucket: str = BUCKET) -> list[ExactTable]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/c.sqlite", "warehouse": f"s3://{bucket}/w"}
    return [
        DeltaTable(f"s3://{bucket}/orders", {**where.storage_options(), "max_retries": "0", "timeout": "1s"}),
        IcebergTable({**catalog, "s3.request-timeout": "1"}, "lake.orders", lambda: where),
    ]


CASES = ["a wrong key", "a wrong secret", "an answer that repeats them", "no bucket", "no server", "a frozen server"]


@pytest.mark.parametrize("case", CASES)
async def test_credentials_are_in_no_message(
    stream: Stream, holds: ExitStack, object_store: ObjectStore, case: str, request: pytest.FixtureRequest
) -> None:
    tmp_path, caplog = request.getfixturevalue("tmp_path"), request.getfixturevalue("caplog")
    with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.sqlite", warehouse="x") as catalog:
        catalog.create_namespace("lake")
    request.getfixturevalue("monkeypatch").setattr(
        "jetstream_tables.append.FAILURES", 1 if case == "a frozen server" else 2
    )
    there = object_store.s3
    endpoint, key, secret = str(there.endpoint), str(there.access_key_id), str(there.secret_access_key)
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    where = {
        "a wrong key": s3(endpoint),
        "a wrong secret": s3(endpoint, key),
        "an answer that repeats them": s3(holds.enter_context(repeats())),
        "no bucket": there,
        "no server": s3("http://127.0.0.1:1"),
        "a frozen server": there,
    }[case]
    if case == "a frozen server":
        object_store.freeze()
        holds.callback(object_store.thaw)
    for table in tables(tmp_path, where, "missing" if case == "no bucket" else BUCKET):
        caplog.clear()
        with caplog.at_level(logging.DEBUG), pytest.raises(TableFailed) as failed:
            held.append_to(table, rows(held))
        said = [repr(table), repr(table.target()), repr(where), caplog.text, str(failed.value)]
        said += traceback.format_exception(failed.value)
        assert failed.value.__context__ is None  # Dagster shows it although it is hidden
        assert [each for each in said if any(secret in each for secret in (*PLANTED, "planted", secret))] == []
        assert "\x1b" not in str(failed.value)
        assert "\n" not in str(failed.value)
