"""A micro-batch appended to a table that contains each message once."""

from pathlib import Path

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_tables import DeltaTable
from jetstream_tables.errors import RowsInvalid
from pyspark_jetstream import append_batch
from tests.jetstream_tables.formats import Delta, Format, Iceberg
from tests.pyspark_jetstream.test_consumer_reader import publish


@pytest.fixture
async def batch(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> DataFrame:
    """What ``foreachBatch`` gets: ten messages."""
    publish(settings, stream.name, 10)
    return spark.read.format("jetstream").options(servers=settings.servers[0], stream=stream.name).load()


@pytest.mark.parametrize("kind", [Delta, Iceberg])
async def test_a_table_gets_each_message_once(batch: DataFrame, tmp_path: Path, kind: type[Format]) -> None:
    rows = batch.select("sequence", "timestamp", col("data").cast("string").cast("int").alias("amount"))
    with kind(tmp_path) as place:
        first = append_batch(place.table(), batch, rows.where("sequence <= 4"), every_message=False)
        assert (first.new, first.already) == (Sequences(((1, 4),)), Sequences())
        assert not batch.storageLevel.useMemory  # as it was before
        for new in (Sequences(((5, 10),)), Sequences()):
            again = append_batch(place.table(), batch, rows)
            assert (again.new, again.already) == (new, Sequences(((1, 10),)) - new)
        assert sorted(place.query('"_sequence", amount')) == [(number + 1, number) for number in range(10)]


async def test_without_rows_the_messages_are_appended(batch: DataFrame, tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"))
    assert append_batch(table, batch.drop("headers")).new == Sequences(((1, 10),))
    found = deltalake.DeltaTable(table.name).to_pyarrow_table()
    assert sorted(found["data"].to_pylist()) == [b"%d" % number for number in range(10)]


async def test_an_empty_micro_batch_changes_nothing(batch: DataFrame, tmp_path: Path) -> None:
    done = append_batch(DeltaTable(str(tmp_path / "t")), batch.where("sequence > 99"))
    assert (done.new, done.already, done.version) == (Sequences(), Sequences(), None)
    assert not (tmp_path / "t").exists()


async def test_rows_that_are_not_those_of_the_micro_batch_are_refused(batch: DataFrame, tmp_path: Path) -> None:
    table = DeltaTable(str(tmp_path / "t"))
    ours = batch.where("sequence <= 4")
    rows = batch.select("sequence", "timestamp")
    with pytest.raises(
        RowsInvalid, match=r"rows of sequences 5-10 are not in claim \(micro-batch of sequences 1 to 4\)"
    ):
        append_batch(table, ours, rows)
    with pytest.raises(RowsInvalid, match=r"messages 4 of claim .* have no row"):
        append_batch(table, ours, rows.where("sequence < 4"))
    with pytest.raises(RowsInvalid, match="another timestamp than the server"):
        append_batch(
            table, ours, rows.where("sequence <= 4").withColumn("timestamp", lit("2026-11-21").cast("timestamp"))
        )
    with pytest.raises(InvalidValue, match="column 'timestamp' is missing; give the DataFrame that foreachBatch gets"):
        append_batch(table, batch.drop("timestamp"))
    with pytest.raises(InvalidValue, match="messages of several streams; call this once for the messages of each"):
        append_batch(table, batch.union(batch.withColumn("stream", lit("other"))))
    assert not (tmp_path / "t").exists()
