"""Reading as a stream on a real Spark: each message once in spite of kills, or an error."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from demo.service import until
from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from pyspark_jetstream import DefaultSource, compat
from tests.pyspark_jetstream.streaming import begin, run_to_the_end


def publish(settings: ConnectionSettings, stream: Stream, count: int) -> None:
    publish_all(settings, ((f"{stream.name}.{number % 3}", b"%d" % number) for number in range(count)))


def load(spark: SparkSession, settings: ConnectionSettings, stream: Stream, **options: str) -> DataFrame:
    given = {"servers": settings.servers[0], "stream": stream.name, "startingOffsets": "earliest"} | options
    return spark.readStream.format("jetstream").options(**given).load()


def run(messages: DataFrame, folder: Path) -> StreamingQuery:
    """Read all messages that are available now."""
    writer = messages.select("sequence").writeStream.format("parquet").option("checkpointLocation", f"{folder}/state")
    return run_to_the_end(writer, f"{folder}/out")


def sequences(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.sequence for row in spark.read.parquet(f"{folder}/out").collect())


def sizes(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


async def test_each_run_reads_what_came_since_the_last(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    publish(settings, stream, 250)
    messages = load(spark, settings, stream)
    assert sizes(run(messages, tmp_path)) == [250]
    publish(settings, stream, 30)
    await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": 260, "no_erase": True})
    assert sizes(run(messages, tmp_path)) == [29]
    assert sizes(run(messages, tmp_path)) == []
    assert sequences(spark, tmp_path) == [number for number in range(1, 281) if number != 260]


async def test_begins_by_default_with_what_is_published_from_now_on(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    publish(settings, stream, 10)
    options = {"connection": "nats_tests", "stream": stream.name, "subjects": f"{stream.name}.0, {stream.name}.2"}
    messages = spark.readStream.format("jetstream").options(**options).load()
    writer = messages.select("sequence").writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/state")
    query = begin(writer, f"{tmp_path}/out")
    try:
        publish(settings, stream, 5)
        until("it has read", lambda: sum(sizes(query)) == 3, seconds=240)
    finally:
        query.stop()
    assert sequences(spark, tmp_path) == [11, 13, 14]


async def named_and_then(
    spark: SparkSession, stream: Stream, folder: Path, change: Callable[[Stream], Awaitable[None]], named: str
) -> list[int]:
    """Let a query that has read 100 messages go on, first without and then with loss allowed. Returns all it read."""
    settings = stream.js.settings
    publish(settings, stream, 100)
    run(load(spark, settings, stream), folder)
    publish(settings, stream, 100)
    await change(stream)
    with pytest.raises(Exception, match=named):
        run(load(spark, settings, stream), folder)
    run(load(spark, settings, stream, failOnDataLoss="false"), folder)
    return sequences(spark, folder)


async def test_what_was_removed_before_it_was_read_is_named(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    async def removed(stream: Stream) -> None:
        await stream.purge(sequence=151)

    read = await named_and_then(spark, stream, tmp_path, removed, "MessagesMissing.*does not contain 50 .*101-150")
    assert read == [*range(1, 101), *range(151, 201)]


async def test_a_recreated_stream_is_named(spark: SparkSession, stream: Stream, tmp_path: Path) -> None:
    async def recreated(stream: Stream) -> None:
        await stream.delete()
        await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
        publish(stream.js.settings, stream, 20)

    read = await named_and_then(spark, stream, tmp_path, recreated, "StreamRecreated.*was recreated")
    assert read == sorted([*range(1, 101), *range(1, 21)])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"claim": "{}"}, "claim"),
        ({"endingOffsets": "7"}, "endingOffsets"),
        ({"endingTimestamp": "2026-11-21T03:00:00Z"}, "endingTimestamp.*a streaming query has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"startingOffsets": "yesterday"}, "startingOffsets"),
        ({"subjects": "a..b"}, "subjects"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], named: str) -> None:
    given = {"servers": "nats://127.0.0.1:4222", "stream": "S"} | options
    with pytest.raises(InvalidValue, match=named):
        DefaultSource(given).streamReader(StructType())


def test_a_limit_is_refused_where_spark_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "ADMISSION_CONTROL", False)
    given = {"servers": "nats://127.0.0.1:4222", "stream": "S", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(InvalidValue, match=rf"Spark {pyspark.__version__} cannot limit .* needs Spark 4.2; leave"):
        DefaultSource(given).streamReader(StructType())


def test_a_bad_option_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """Only one of them, because Spark starts a Python process for each query, which takes time."""
    options = {"servers": "nats://127.0.0.1:4222", "stream": "S", "endingOffsets": "7"}
    with pytest.raises(Exception, match="a streaming query has no end; to stop at the stream's current end, use the"):
        run(spark.readStream.format("jetstream").options(**options).load(), tmp_path)
