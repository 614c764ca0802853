"""DataFrames whose rows the executors write to the files of a table."""

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, explode, lit, sequence

from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_tables.delta_files import files_of
from jetstream_tables.errors import RowsInvalid, TableFailed
from jetstream_tables.spread import Task
from pyspark_jetstream import held_claim
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.spread import SpreadFrame
from tests.jetstream_tables.conftest import object_store
from tests.jetstream_tables.formats import Delta, DeltaOnS3, Format, Iceberg, OnS3
from tests.jetstream_tables.object_store import SECRET, ObjectStore
from tests.jetstream_tables.steps import Dying, Killed, counted, die, once

__all__ = ["object_store"]

COUNT = 300


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a claim is, its rows stay with the executors."""
    monkeypatch.setattr(held_claim, "SPREAD_FROM", 0)

    def collected(self: SpreadFrame) -> Any:
        raise AssertionError("the driver collects the rows")

    monkeypatch.setattr(SpreadFrame, "collected", collected)


@pytest.fixture(params=[Delta, pytest.param(Iceberg, marks=pytest.mark.slow)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Format]:
    with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def delta_on_s3(object_store: ObjectStore, tmp_path: Path) -> Iterator[DeltaOnS3]:
    OnS3.store = object_store
    with DeltaOnS3(tmp_path) as made:
        yield made


Begin = Callable[[], HeldClaim]


@pytest.fixture
async def begin(settings: ConnectionSettings, stream: Stream) -> Any:
    """Begin to process the same 300 messages, each time in a claim of another consumer."""
    publish_all(settings, ((f"{stream.name}.a", b"%d" % number) for number in range(COUNT)))
    claims: list[Claim] = []
    for consumer in ("one", "two"):
        take = Take(stream.js, Taking(stream=stream.name, consumer=consumer, owner=("test",), max_messages=COUNT))
        await take.prepare()
        claims += await take.take(10)
        take.handed_on()
    with ExitStack() as held:

        def begin() -> HeldClaim:
            made = held.enter_context(HeldClaim.begin(settings, claims.pop(0), try_number=1))
            made.connection = "nats_tests"
            return made

        yield begin


def rows(spark: SparkSession, held: HeldClaim) -> DataFrame:
    shop = concat(lit("a b/%=ü "), col("sequence") % 3)
    return held.read(spark).select("sequence", "timestamp", shop.alias("shop"), (10 * col("sequence")).alias("amount"))


def files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*.parquet") if "_delta_log" not in each.parts]


async def test_executors_write_and_the_driver_commits(spark: SparkSession, begin: Begin, lake: Format) -> None:
    held, again = begin(), begin()
    assert counted(held.append_to(lake.table(), rows(spark, held))) == (COUNT, 0)
    assert counted(again.append_to(lake.table(), rows(spark, again))) == (0, COUNT)
    found = sorted(lake.query('"_sequence", shop, amount'))
    assert found == [(each, f"a b/%=ü {each % 3}", 10 * each) for each in range(1, COUNT + 1)]
    again.settle()


async def test_only_what_is_not_in_the_table_is_written(spark: SparkSession, begin: Begin, lake: Format) -> None:
    held, again = begin(), begin()
    odd = rows(spark, held).where("sequence % 2 = 1")
    assert counted(held.append_to(lake.table(), odd, every_message=False)) == (COUNT // 2, 0)
    assert counted(again.append_to(lake.table(), rows(spark, again))) == (COUNT // 2, COUNT // 2)
    assert lake.sequences() == [*range(1, COUNT + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("exists", [True, False])
async def test_two_attempts_at_once(spark: SparkSession, begin: Begin, lake: Format, exists: bool) -> None:
    """The second one commits between the files and the commit of the first one, which then writes others."""
    first, second = begin(), begin()
    if exists:
        first.append_to(lake.table(), rows(spark, first).where("sequence <= 10"), every_message=False)

    def overtake() -> None:
        some = rows(spark, second).where("sequence <= 100")
        second.append_to(lake.table(), some, every_message=False)

    table = Dying(lake.table(), before=once(overtake))
    done = first.append_to(table, rows(spark, first).where("sequence > 10" if exists else "true"))
    assert counted(done) == (COUNT - 100, 90 if exists else 100)
    assert lake.sequences() == [*range(1, COUNT + 1)]


async def test_a_frame_that_differs_each_time(spark: SparkSession, begin: Begin, lake: Format) -> None:
    """The messages that count are those whose files are committed, and not those of another evaluation."""
    held = begin()
    given = rows(spark, held).where("rand() < 0.5")
    done = held.append_to(lake.table(), given, every_message=False)
    assert 0 < done.new.count < COUNT
    assert lake.sequences() == [*done.new]


@pytest.mark.parametrize("point", ["before", "after"])
async def test_a_driver_that_is_killed(spark: SparkSession, begin: Begin, lake: Format, point: str) -> None:
    first, second = begin(), begin()
    with pytest.raises(Killed):
        first.append_to(Dying(lake.table(), **{point: die}), rows(spark, first))
    assert lake.sequences() == ([*range(1, COUNT + 1)] if point == "after" else [])
    assert counted(second.append_to(lake.table(), rows(spark, second)))[0] == (0 if point == "after" else COUNT)
    assert lake.sequences() == [*range(1, COUNT + 1)]


@pytest.mark.slow
async def test_an_executor_that_is_killed(spark: SparkSession, begin: Begin, lake: Format, tmp_path: Path) -> None:
    """After it has written some of its rows, in the first try of each task."""
    held = begin()
    flag = str(tmp_path / "killed")

    def dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not Path(flag).exists():
            Path(flag).touch()
            os._exit(1)

    frame = rows(spark, held)
    assert counted(held.append_to(lake.table(), frame.mapInArrow(dies, frame.schema))) == (COUNT, 0)
    assert lake.sequences() == [*range(1, COUNT + 1)]


async def test_rows_that_do_not_fit(spark: SparkSession, begin: Begin, lake: Format) -> None:
    held = begin()
    given = rows(spark, held)
    lacking = given.where("sequence <> 7")
    with pytest.raises(RowsInvalid, match=f"messages 7 of claim {held.id} have no row"):
        held.append_to(lake.table(), lacking)
    with pytest.raises(RowsInvalid, match="column sequence contains nulls"):
        held.append_to(lake.table(), given.selectExpr("nullif(sequence, 7) as sequence", "timestamp", "shop", "amount"))
    with pytest.raises(RowsInvalid, match="are not in claim"):
        held.append_to(lake.table(), given.selectExpr("sequence + 1 as sequence", "timestamp", "shop", "amount"))
    assert lake.query() == []
    assert counted(held.append_to(lake.table(), lacking, rejected={"bad": [7]})) == (COUNT - 1, 0)
    assert held.rejected == Sequences.of([7])


async def test_a_message_with_rows_in_several_tasks(spark: SparkSession, begin: Begin, lake: Format) -> None:
    held = begin()
    many = rows(spark, held).withColumn("amount", explode(sequence(lit(1), lit(3)))).repartition(4)
    assert counted(held.append_to(lake.table(), many)) == (COUNT, 0)
    assert lake.sequences() == sorted([*range(1, COUNT + 1)] * 3)


@pytest.mark.slow
async def test_a_delta_table_keeps_its_layout(spark: SparkSession, begin: Begin, tmp_path: Path) -> None:
    """Columns in another order and of other types, partitions with characters that paths cannot have, properties."""
    held, again = begin(), begin()
    delta = Delta(tmp_path)
    identity = [("_stream", pa.string()), ("_sequence", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC"))]
    columns = pa.schema([("amount", pa.int64()), ("shop", pa.string()), *identity])
    properties = {"delta.dataSkippingNumIndexedCols": "1", "delta.appendOnly": "true"}
    deltalake.DeltaTable.create(delta.uri("orders"), columns, partition_by=["shop"], configuration=properties)
    held.append_to(delta.table(), rows(spark, held).where("sequence <= 200"), every_message=False)
    again.append_to(delta.table(), rows(spark, again))
    table = delta.load()
    assert table.metadata().configuration == properties
    added = table.get_add_actions(flatten=True)
    assert set(pa.table(added)["partition.shop"].to_pylist()) == {f"a b/%=ü {each}" for each in range(3)}
    assert [each for each in pa.table(added).column_names if each.startswith("min.")] == ["min.amount"]
    assert sorted(table.to_pyarrow_table()["_sequence"].to_pylist()) == [*range(1, COUNT + 1)]
    before = len(files(tmp_path))
    deltalake.DeltaTable(delta.uri("orders")).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert len(files(tmp_path)) == before == len(table.file_uris())
    assert delta.sequences() == [*range(1, COUNT + 1)]


async def test_credentials_reach_the_executors(
    spark: SparkSession, begin: Begin, delta_on_s3: DeltaOnS3, caplog: pytest.LogCaptureFixture
) -> None:
    held = begin()
    with caplog.at_level(logging.DEBUG):
        assert counted(held.append_to(delta_on_s3.table(), rows(spark, held))) == (COUNT, 0)
    assert delta_on_s3.sequences() == [*range(1, COUNT + 1)]
    assert SECRET not in caplog.text


async def test_an_executor_whose_write_fails_says_no_credentials(
    spark: SparkSession, begin: Begin, delta_on_s3: DeltaOnS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver can read the table, and the executors get a wrong key."""
    held = begin()
    wrong = replace(delta_on_s3.store.s3, secret_access_key="planted/secret", session_token="planted/token")

    def files(*of: Any) -> Any:
        made = files_of(*of)
        assert made is not None
        found = replace(made, options=wrong.storage_options())
        assert "planted" not in repr(Task(found, "S", pa.schema([]), None))
        return found

    monkeypatch.setattr("jetstream_tables.delta.files_of", files)
    with pytest.raises(TableFailed, match=r"files of table s3://lake/.* could not be written") as failed:
        held.append_to(delta_on_s3.table(), rows(spark, held))
    assert "planted" not in "".join(traceback.format_exception(failed.value))
    assert delta_on_s3.query() == []


@pytest.mark.slow
async def test_orphans_are_vacuumed(spark: SparkSession, begin: Begin, tmp_path: Path) -> None:
    first, second = begin(), begin()
    delta = Delta(tmp_path)
    with pytest.raises(Killed):
        first.append_to(Dying(delta.table(), before=die), rows(spark, first))
    second.append_to(delta.table(), rows(spark, second))
    assert len(files(tmp_path)) > len(delta.load().file_uris())
    delta.load().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(files(tmp_path)) == len(delta.load().file_uris())
    assert delta.sequences() == [*range(1, COUNT + 1)]


async def test_a_table_with_constraints_is_written_by_the_driver(
    spark: SparkSession, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because the executors do not know them."""
    held = begin()
    delta = Delta(tmp_path)
    held.append_to(delta.table(), rows(spark, held).where("sequence <= 10"), every_message=False)
    delta.load().alter.add_constraint({"positive": "amount > 0"})
    with pytest.raises(AssertionError, match="the driver collects the rows"):
        held.append_to(delta.table(), rows(spark, held).where("sequence > 10"))
    monkeypatch.setattr(SpreadFrame, "collected", lambda self: self._frame.toArrow())
    assert counted(held.append_to(delta.table(), rows(spark, held).where("sequence > 10"))) == (COUNT - 10, 0)
    assert delta.sequences() == [*range(1, COUNT + 1)]
