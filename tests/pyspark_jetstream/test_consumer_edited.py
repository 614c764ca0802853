"""A streaming query that acknowledges, on a real Spark: its consumer is edited while it runs, and when that is undone
it goes on with its checkpoint in another folder, without the folder in which sources may keep data, under another
name and with other columns."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from tests.pyspark_jetstream.streaming import begin, run_to_the_end
from tests.pyspark_jetstream.test_consumer_reader import load, publish, waiting


@pytest.mark.slow  # test_reader_edited.py edits the consumer of a reader without Spark
async def test_a_query_whose_consumer_is_edited_goes_on_when_that_is_undone(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    """Three queries, one after the other, because a query takes seconds to start."""
    seen: list[int] = []

    def edit(max_ack_pending: int) -> None:
        async def update() -> None:
            async with connect(settings) as js:
                await js.stream(stream.name).consumer("revenue").update({"max_ack_pending": max_ack_pending})

        asyncio.run(update())

    def work(batch: DataFrame, _: int) -> None:
        seen.extend(row.sequence for row in batch.collect())
        if len(seen) == 100:
            edit(20)

    def writer(folder: str, columns: Sequence[str]) -> DataStreamWriter:
        rows = load(spark, settings.servers[0], stream.name).select(*columns)
        return rows.writeStream.foreachBatch(work).option("checkpointLocation", f"{tmp_path}/{folder}")

    publish(settings, stream.name, 250)
    edited = r"because of max_ack_pending=20: .* use `nats consumer edit`.*maxOffsetsPerTrigger=100"
    for _ in range(2):  # while it runs, and when it is started again
        with pytest.raises(Exception, match=edited):
            begin(writer("state", ["sequence"])).awaitTermination(240)
        processed = len(seen)
        assert sorted(seen) == [*range(1, processed + 1)]
        async with asyncio.timeout(60):  # what is committed is acknowledged, and no more
            while (await stream.consumer("revenue").info(patience=60)).floor < processed:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
        assert (await stream.consumer("revenue").info(patience=60)).floor == processed
    await asyncio.to_thread(edit, 1_000)
    shutil.move(tmp_path / "state", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "sources", ignore_errors=True)  # Spark's; it contains nothing of ours
    run_to_the_end(writer("moved", ["subject", "sequence"]).queryName("renamed"))
    assert sorted(seen) == [*range(1, 251)]
    assert (await waiting(stream))[1:] == (0, 0)
