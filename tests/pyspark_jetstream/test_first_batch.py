"""A streaming query whose first micro-batch is repeated, and a query with the checkpoint of another stream.

Spark asks for the initial offset again until a batch is committed. Except in the last test, the source is asked as
Spark asks it, without Spark.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue, MessagesMissing, StreamRecreated
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from pyspark_jetstream.compat import ReadAllAvailable, ReadMaxRows
from pyspark_jetstream.options import Options
from pyspark_jetstream.stream_reader import JetStreamStreamReader
from tests.pyspark_jetstream.streaming import run_to_the_end

EVERYTHING = ReadAllAvailable()


def publish(stream: Stream, count: int) -> None:
    publish_all(stream.js.settings, ((f"{stream.name}.a", b"x") for _ in range(count)))


def source(stream: Stream, **options: str) -> JetStreamStreamReader:
    """The source of a query. A query that is started again has a new one."""
    given = {"servers": stream.js.settings.servers[0], "stream": stream.name, "startingOffsets": "earliest", **options}
    return JetStreamStreamReader(Options.parse(given), StructType())


def repeated(query: JetStreamStreamReader, end: dict[str, Any]) -> list[int]:
    """The sequences of the first batch, when Spark plans it again."""
    parts: list[Any] = list(query.partitions(query.initialOffset(), end))
    return [sequence for part in parts for sequence in part.value.sequences]


def first_batch(query: JetStreamStreamReader) -> dict[str, Any]:
    return query.latestOffset(query.initialOffset(), EVERYTHING)


async def test_a_first_batch_that_would_begin_later_is_an_error(stream: Stream) -> None:
    """Without the beginning in the offset, 61 to 100 were read and committed."""
    publish(stream, 100)
    end = first_batch(source(stream))
    assert repeated(source(stream), end) == list(range(1, 101))
    await stream.purge(sequence=61)
    with pytest.raises(MessagesMissing, match=r"does not contain 60 .*sequences 1-60"):
        repeated(source(stream), end)
    assert repeated(source(stream, failOnDataLoss="false"), end) == list(range(61, 101))


async def test_a_first_batch_of_latest_is_read_although_the_end_has_moved(stream: Stream) -> None:
    """Without the beginning in the offset, the batch was empty and committed, so that 11 to 15 were never read."""
    publish(stream, 10)
    query = source(stream, startingOffsets="latest")
    start = query.initialOffset()
    publish(stream, 5)
    end = query.latestOffset(start, EVERYTHING)
    publish(stream, 20)
    assert repeated(source(stream, startingOffsets="latest"), end) == [11, 12, 13, 14, 15]


async def test_a_first_batch_is_not_changed_by_another_starting_offset(stream: Stream) -> None:
    publish(stream, 100)
    end = first_batch(source(stream, startingOffsets="51"))
    assert repeated(source(stream, startingOffsets="earliest"), end) == list(range(51, 101))
    assert repeated(source(stream, startingOffsets="81"), end) == list(range(51, 101))


async def test_a_gap_is_no_micro_batch(stream: Stream) -> None:
    """A stream that keeps the last message of each subject: one key is old, another one was written often."""
    await stream.update({"allow_direct": True, "subjects": [f"{stream.name}.>"], "max_msgs_per_subject": 1})
    publish_all(stream.js.settings, ((f"{stream.name}.{'often' if number else 'old'}", b"") for number in range(500)))
    publish(stream, 1)
    query = source(stream, maxOffsetsPerTrigger="10")
    start, batches = query.initialOffset(), []
    while (end := query.latestOffset(start, ReadMaxRows(10))) != start:
        parts: list[Any] = list(query.partitions(start, end))
        batches.append([sequence for part in parts for sequence in part.value.sequences])
        start = end
    assert batches == [[1], [500, 501]]


async def test_an_empty_first_batch_stays_empty(stream: Stream) -> None:
    publish(stream, 10)
    end = first_batch(source(stream, startingOffsets="latest"))
    publish(stream, 20)
    await stream.purge(sequence=21)
    query = source(stream, startingOffsets="latest")
    assert repeated(query, end) == []
    with pytest.raises(MessagesMissing, match="sequences 11-20"):
        query.partitions(end, query.latestOffset(end, EVERYTHING))


async def test_a_stream_that_was_recreated_before_the_first_batch_is_read_from_its_beginning(stream: Stream) -> None:
    publish(stream, 10)
    query = source(stream, startingOffsets="6", failOnDataLoss="false")
    start = query.initialOffset()
    await stream.delete()
    await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
    publish(stream, 8)
    with pytest.raises(StreamRecreated):
        source(stream, startingOffsets="6").latestOffset(start, EVERYTHING)
    end = query.latestOffset(start, EVERYTHING)
    assert repeated(source(stream, startingOffsets="6", failOnDataLoss="false"), end) == list(range(1, 9))


async def test_every_offset_says_where_the_query_began(stream: Stream) -> None:
    publish(stream, 100)
    query = source(stream, startingOffsets="11")
    start = query.initialOffset()
    assert (start["stream"], start["sequence"]) == (stream.name, 10)
    first = query.latestOffset(start, ReadMaxRows(30))
    second = query.latestOffset(first, EVERYTHING)
    assert [(each["sequence"], each["began"]) for each in (first, second)] == [(40, start), (100, start)]
    query.prepareForTriggerAvailableNow()
    assert query.latestOffset(first, EVERYTHING) == second


async def test_offsets_of_earlier_releases_are_read(stream: Stream) -> None:
    publish(stream, 50)
    known = {"created": source(stream).initialOffset()["created"]}
    old, end = {**known, "sequence": 20}, {**known, "sequence": 50}
    query = source(stream)
    assert [each for part in query.partitions(old, end) for each in part.value.sequences] == list(range(21, 51))
    new = query.latestOffset(old, EVERYTHING)
    assert (new["sequence"], new["began"]) == (50, old)
    assert [each for part in query.partitions(old, new) for each in part.value.sequences] == list(range(21, 51))
    assert query.latestOffset(end, EVERYTHING) == end


@pytest.mark.parametrize("loss", ["true", "false"])
async def test_a_checkpoint_of_another_stream_is_refused(stream: Stream, loss: str) -> None:
    """It was called recreated, and with failOnDataLoss=false the query wrote both streams into one output."""
    publish(stream, 5)
    query = source(stream, failOnDataLoss=loss)
    initial = {**query.initialOffset(), "stream": "OTHER", "created": "2026-01-01T00:00:00Z"}
    with pytest.raises(InvalidValue, match=r"checkpoint belongs to stream 'OTHER'.*another checkpointLocation"):
        query.latestOffset(initial, EVERYTHING)
    with pytest.raises(InvalidValue, match="checkpoint belongs to stream 'OTHER'"):
        query.partitions(query.initialOffset(), {**initial, "sequence": 5, "began": initial})


@pytest.mark.slow
async def test_a_query_of_spark_does_not_skip_what_its_first_batch_should_have_read(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    def run(of: str, *, fail: bool = False) -> list[int]:
        seen: list[int] = []

        def take(batch: DataFrame, _: int) -> None:
            if fail:
                raise ValueError("the first batch fails")
            seen.extend(row.sequence for row in batch.collect())

        options = {"servers": settings.servers[0], "stream": of, "startingOffsets": "earliest"}
        messages = spark.readStream.format("jetstream").options(**options).load().select("sequence")
        run_to_the_end(messages.writeStream.foreachBatch(take).option("checkpointLocation", f"{tmp_path}/state"))
        return sorted(seen)

    publish(stream, 100)
    with pytest.raises(Exception, match="the first batch fails"):
        run(stream.name, fail=True)
    await stream.purge(sequence=61)
    with pytest.raises(Exception, match=r"MessagesMissing.*sequences 1-60"):
        run(stream.name)
    other = await stream.js.create_stream({"name": f"{stream.name}X", "subjects": ["other.>"], "allow_direct": True})
    with pytest.raises(Exception, match=f"checkpoint belongs to stream '{stream.name}'"):
        run(other.name)
    await other.delete()
