"""Spark with JetStream, compared with what works without this package: nats-py in the driver.

The simple alternative reads with ``fetch`` and ``createDataFrame``, the best one with its largest sensible batch and an
Arrow table. They write with ``collect`` or ``toArrow`` and ``publish_async``, and with message ids, because without
them a job that runs again would store everything twice. The limit of reading is a Python
data source that yields Arrow batches made before. All measurements begin after the JVM has compiled and the workers
have started.

The alternatives handle a sample, because their rate does not depend on the number of messages.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.comparison import LARGE, Comparison
from jetstream_arrow.reading import ROWS
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream import spark_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STREAM = "EVENTS"
BYTES = "subject STRING, sequence BIGINT, data BINARY"
WITH_HEADERS = f"{BYTES}, headers MAP<STRING, ARRAY<STRING>>"


@dataclass(frozen=True)
class Load:
    """Messages of one kind, and how many times faster reading them must be."""

    what: str
    size: int
    messages: int
    sample: int
    required: float
    aim: float
    headers: int = 0

    @property
    def schema(self) -> str:
        return WITH_HEADERS if self.headers else BYTES

    def publish(self, url: str) -> None:
        asyncio.run(create(url))
        headers = {f"Name-{number}": f"value {number}" for number in range(self.headers)}
        data = os.urandom(self.size)
        messages = ((f"{STREAM}.{number % 16}", data, headers) for number in range(self.messages))
        publish_all(ConnectionSettings(servers=url), messages)


LOADS = (
    Load("128 B", 128, 1_000_000, 60_000, required=15, aim=22),
    Load("1 KiB", 1 << 10, 400_000, 60_000, required=10, aim=15),
    Load("64 KiB", 64 << 10, 16_000, 4_000, required=3, aim=5),
    Load("128 B with two headers", 128, 300_000, 60_000, required=7, aim=10, headers=2),
)


def read(load: Load, url: str) -> Comparison:
    load.publish(url)
    numbers = itertools.count()
    with session() as spark:
        spark.dataSource.register(Prebuilt)

        def ours() -> int:
            messages = spark.read.format("jetstream").schema(load.schema)  # the same columns as the alternative
            return drained(messages.option("servers", url).option("stream", STREAM).load(), load.messages)

        def alternative() -> int:
            rows = asyncio.run(_fetched(url, f"driver{next(numbers)}", load))
            return drained(spark.createDataFrame(rows, load.schema), load.sample)

        def best() -> int:
            """Arrow columns instead of rows, which Spark need not pickle."""
            batch = min(LARGE, (64 << 20) // load.size)
            columns = zip(*asyncio.run(_fetched(url, f"driver{next(numbers)}", load, batch)), strict=True)
            types = spark.createDataFrame([], load.schema).toArrow().schema
            return drained(spark.createDataFrame(pa.table([*map(list, columns)], schema=types)), load.sample)

        def limit() -> int:
            prebuilt = spark.read.format("prebuilt").schema(load.schema)
            return drained(prebuilt.options(size=load.size, messages=load.messages).load(), load.messages)

        ours(), limit()
        return Comparison(f"read {load.what}", load.required, load.aim).run(ours, alternative, limit, best)


def wire(url: str) -> Comparison:
    """Compare reading outside Spark with nats-py's ``fetch(100)``. By published figures,
    nats.go's ``Consume`` is 8.8 times as fast as ``fetch(100)``."""
    load = LOADS[0]
    load.publish(url)
    numbers = itertools.count()
    settings = ConnectionSettings(servers=url)
    with Wire.open(settings) as connection:
        created = direct.stream_info(connection, STREAM).created

    def ours() -> int:
        wanted = Sequences.from_ranges([(1, load.messages)])
        return sum(len(batch) for batch in by_consumer.read(settings, STREAM, wanted, created))

    def alternative() -> int:
        return len(asyncio.run(_fetched(url, f"wire{next(numbers)}", load, batch=100)))

    def best() -> int:
        return len(asyncio.run(_fetched(url, f"wire{next(numbers)}", load, LARGE)))

    return Comparison("read 128 B outside Spark", required=8.8, aim=10).run(ours, alternative, best=best)


def write(url: str) -> Comparison:
    asyncio.run(create(url))
    messages = 300_000
    with session() as spark:
        rows = spark.range(0, messages, 1, 2).selectExpr(
            f"concat('{STREAM}.', id % 16) as subject", "cast(lpad(id, 128, '0') as binary) as data"
        )

        def ours() -> int:
            rows.write.format("jetstream").option("servers", url).option("stream", STREAM).mode("append").save()
            return messages

        def alternative() -> int:
            return asyncio.run(_published(url, rows.limit(60_000)))

        def best() -> int:
            return asyncio.run(_published(url, rows.limit(60_000), arrow=True))

        ours()
        return Comparison("write 128 B", required=4, aim=8).run(ours, alternative, best=best)


BENCHMARKS: Sequence[Callable[[str], Comparison]] = (
    *(functools.partial(read, load) for load in LOADS),
    wire,
    write,
)


class Prebuilt(DataSource):
    """A data source of Arrow batches that are prepared before they are read."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Prebuilt(schema.fieldNames(), int(self.options["size"]), int(self.options["messages"]))


class _Prebuilt(DataSourceReader):
    def __init__(self, columns: list[str], size: int, messages: int) -> None:
        self._columns, self._size, self._messages = columns, size, messages

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        from jetstream_arrow.columns import record_batch

        count = min(ROWS, max(1, (1 << 20) // self._size))
        header = b"Name-0: value 0\r\nName-1: value 1\r\n"
        messages = RawMessages.of([RawMessage(1, b"EVENTS.1", b"1", header, bytes(self._size))] * count)
        batch = record_batch(messages, STREAM, self._columns)
        for _ in range(self._messages // 2 // count):
            yield batch


@contextmanager
def session() -> Iterator[SparkSession]:
    spark = spark_session(
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "4g",  # the simple alternative needs it for 4,000 messages of 64 KiB
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def drained(messages: DataFrame, count: int) -> int:
    """Read all messages without storing them."""
    messages.write.format("noop").mode("overwrite").save()
    return count


async def create(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name=STREAM, subjects=[f"{STREAM}.>"], allow_direct=True)
    await connection.close()


async def _fetched(url: str, consumer: str, load: Load, batch: int = 1_000) -> list[tuple[Any, ...]]:
    connection = await nats.connect(url)
    # Without acknowledgements, because our way sends none either, and they would slow the alternative down.
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await connection.jetstream().pull_subscribe(f"{STREAM}.>", durable=consumer, config=unacknowledged)
    rows: list[tuple[Any, ...]] = []
    while len(rows) < load.sample:
        for each in await subscription.fetch(batch, timeout=10):
            row = each.subject, each.metadata.sequence.stream, each.data
            headers = {name: [value] for name, value in (each.headers or {}).items()}
            rows.append((*row, headers) if load.headers else row)
    await connection.close()
    return rows


async def _published(url: str, rows: DataFrame, *, arrow: bool = False) -> int:
    connection = await nats.connect(url)
    js = connection.jetstream(publish_async_max_pending=4_000)
    run = secrets.token_hex(6)
    answers = []
    messages = zip(*rows.toArrow().to_pydict().values(), strict=True) if arrow else rows.collect()
    for number, (subject, data) in enumerate(messages):
        answers.append(await js.publish_async(subject, bytes(data), headers={"Nats-Msg-Id": f"{run}{number}"}))
    stored = sum(not answer.duplicate for answer in await asyncio.gather(*answers))
    await connection.close()
    return stored
