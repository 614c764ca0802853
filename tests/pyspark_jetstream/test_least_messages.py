"""Micro-batches with a smallest number of messages: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

import asyncio
import time
from typing import Any

import pytest
from pyspark.sql.types import StructType

from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from pyspark_jetstream import compat
from pyspark_jetstream.compat import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark_jetstream.options import Options
from pyspark_jetstream.source import DefaultSource
from pyspark_jetstream.stream_reader import JetStreamStreamReader
from tests.pyspark_jetstream.test_stream_reader import publish


def reader(stream: Stream, **options: str) -> JetStreamStreamReader:
    given = {"servers": ",".join(stream.js.settings.servers), "stream": stream.name, "startingOffsets": "earliest"}
    return JetStreamStreamReader(Options.parse({**given, **options}), StructType())


def end(of: JetStreamStreamReader, start: dict[str, Any]) -> int:
    """The end of the next micro-batch, as Spark asks for it."""
    return int(of.latestOffset(start, of.getDefaultReadLimit())["sequence"])


async def test_a_micro_batch_waits_for_enough_messages(stream: Stream) -> None:
    of = reader(stream, minOffsetsPerTrigger="10")
    publish(stream.js.settings, stream, 9)
    start = of.initialOffset()
    assert of.getDefaultReadLimit() == ReadMinRows(10)
    assert of.latestOffset(start, ReadMinRows(10)) == start
    publish(stream.js.settings, stream, 4)
    assert end(of, start) == 13
    assert end(of, of.latestOffset(start, ReadMinRows(10))) == 13


async def test_too_few_messages_wait_no_longer_than_the_delay(stream: Stream) -> None:
    of = reader(stream, minOffsetsPerTrigger="10", maxTriggerDelay="2s")
    start = of.initialOffset()
    published = time.monotonic()
    publish(stream.js.settings, stream, 3)
    while end(of, start) == 0:
        assert time.monotonic() - published < 60
        await asyncio.sleep(0.05)
    assert time.monotonic() - published >= 1.9
    assert end(reader(stream, minOffsetsPerTrigger="10", maxTriggerDelay="2s"), start) == 3  # also after a restart


async def test_the_smallest_and_the_largest_number_together(stream: Stream) -> None:
    of = reader(stream, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    publish(stream.js.settings, stream, 35)
    start = of.initialOffset()
    assert of.getDefaultReadLimit() == ReadMaxRows(20)
    first = of.latestOffset(start, ReadMaxRows(20))
    second = of.latestOffset(first, ReadMaxRows(20))
    assert (first["sequence"], second["sequence"]) == (20, 35)
    publish(stream.js.settings, stream, 5)
    assert end(of, second) == 35  # 5 are too few


async def test_a_query_that_ends_waits_for_nothing(stream: Stream) -> None:
    of = reader(stream, minOffsetsPerTrigger="10")
    publish(stream.js.settings, stream, 3)
    start = of.initialOffset()
    assert of.latestOffset(start, ReadAllAvailable())["sequence"] == 3  # the trigger once
    of.prepareForTriggerAvailableNow()
    assert end(of, start) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9: give at most max"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay='5m'.*give both, or neither"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "300"}, "maxTriggerDelay='300': give a whole number and one"),
    ],
)
def test_bad_limits_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        Options.parse({"servers": "nats://127.0.0.1:4222", "stream": "S"} | options)


def test_a_batch_and_an_older_spark_have_no_smallest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"servers": "nats://127.0.0.1:4222", "stream": "S", "minOffsetsPerTrigger": "5"}
    with pytest.raises(InvalidValue, match=r"minOffsetsPerTrigger=5: .* leave it out of spark.read"):
        DefaultSource(given).reader(StructType())
    monkeypatch.setattr(compat, "ADMISSION_CONTROL", False)
    with pytest.raises(InvalidValue, match=r"minOffsetsPerTrigger=5: .* needs Spark 4.2; leave .* processingTime"):
        DefaultSource(given).streamReader(StructType())
