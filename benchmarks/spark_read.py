"""Reading the departures into Spark, against nats-py ``fetch`` in the driver and ``createDataFrame``.

Once as bare messages, once as the DAG publishes them, with two headers: answering direct gets, nats-server 2.15 spends
three times as long on a message that has headers of its own.
"""

import asyncio
import itertools
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig
from pyspark.sql import DataFrame

from airflow_nats_jetstream.client import ConnectionSettings
from airflow_nats_jetstream.client.bulk import publish_all
from benchmarks.comparison import Comparison
from benchmarks.departures import departures
from pyspark_jetstream import spark_session

MESSAGES = 336_776
SCHEMA = "subject STRING, sequence BIGINT, data BINARY"


def bare(url: str) -> Comparison:
    asyncio.run(_stream(url))
    publish_all(ConnectionSettings(servers=url), departures())
    return _compare(url, Comparison("read into Spark", required=6, aim=8))


def with_headers(url: str) -> Comparison:
    asyncio.run(_stream(url))
    publish_all(ConnectionSettings(servers=url), departures(), stream="FLIGHTS", scope="once")
    return _compare(url, Comparison("read into Spark, two headers a message", required=5, aim=6))


def _compare(url: str, comparison: Comparison) -> Comparison:
    spark = spark_session(master="local[2]", config={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    consumers = itertools.count()

    def ours() -> int:
        messages = spark.read.format("jetstream").schema(SCHEMA)  # the columns that the alternative makes
        return _drain(messages.option("servers", url).option("stream", "FLIGHTS").load())

    def baseline() -> int:
        rows = asyncio.run(_fetched(url, f"baseline{next(consumers)}"))
        return _drain(spark.createDataFrame(rows, SCHEMA))

    try:
        ours()  # both start warm: a JVM that has compiled, workers that have started
        return comparison.run(ours, baseline)
    finally:
        spark.stop()


def _drain(messages: DataFrame) -> int:
    """Read everything and keep nothing."""
    messages.write.format("noop").mode("overwrite").save()
    return MESSAGES


async def _stream(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name="FLIGHTS", subjects=["flights.>"], allow_direct=True)
    await connection.close()


async def _fetched(url: str, consumer: str) -> list[tuple[str, Any, bytes]]:
    connection = await nats.connect(url)
    # Without acknowledgements: ours sends none either, and waiting for them would be the alternative's loss.
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await connection.jetstream().pull_subscribe("flights.>", durable=consumer, config=unacknowledged)
    rows: list[tuple[str, Any, bytes]] = []
    while len(rows) < MESSAGES:
        messages = await subscription.fetch(1_000, timeout=10)
        rows += [(each.subject, each.metadata.sequence.stream, each.data) for each in messages]
    await connection.close()
    return rows
