"""A claim of 100,000 messages of 128 B as an Arrow table, compared with nats-py's ``fetch`` into a table of the same
columns, and with ``claim.read()`` in a Spark session that is warm. Both alternatives read what a claim names, and
neither holds it."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

import nats
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.comparison import LARGE, Comparison
from benchmarks.spark import STREAM, create, drained, session
from jetstream_arrow.claim_batches import ClaimBatches, Claimed
from jetstream_arrow.columns import TYPES
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read.direct import stream_info
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.claim import Claim
from pyspark_jetstream import read_claim

MESSAGES = 100_000


def against_fetch(url: str) -> Comparison:
    claim, settings = _claim(url), ConnectionSettings(servers=url)
    numbers = itertools.count()
    return Comparison("claim.arrow() against fetch into a table", required=15, aim=18).run(
        lambda: _arrow(claim, settings),
        lambda: asyncio.run(_fetched(url, f"fetch{next(numbers)}", 1_000)),
        best=lambda: asyncio.run(_fetched(url, f"fetch{next(numbers)}", LARGE)),
    )


def against_spark(url: str) -> Comparison:
    claim, settings = _claim(url), ConnectionSettings(servers=url)
    with session() as spark:

        def read() -> int:
            return drained(read_claim(spark, claim, servers=url), MESSAGES)

        for _ in range(5):
            read()
        return Comparison("claim.arrow() against claim.read() in a warm Spark", required=1, aim=2).run(
            lambda: _arrow(claim, settings), read
        )


BENCHMARKS = (against_fetch, against_spark)


def _claim(url: str) -> Claim:
    asyncio.run(create(url))
    settings, data = ConnectionSettings(servers=url), os.urandom(128)
    publish_all(settings, ((f"{STREAM}.{number % 16}", data) for number in range(MESSAGES)))
    with Wire.open(settings) as wire:
        created = stream_info(wire, STREAM).created
    return Claim(
        id="5f0c9a7be21d",
        stream=STREAM,
        stream_created=created,
        consumer="c",
        consumer_created=created,
        sequences=Sequences.from_ranges([(1, MESSAGES)]),
        bytes=MESSAGES * len(data),
        consumer_sequence=MESSAGES,
        taken_at=created,
    )


def _arrow(claim: Claim, settings: ConnectionSettings) -> int:
    table = ClaimBatches(Claimed(claim, settings, "error", ""), None, lambda: None).reader().read_all()
    assert table.num_rows == MESSAGES
    return MESSAGES


async def _fetched(url: str, consumer: str, batch: int) -> int:
    connection = await nats.connect(url)
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await connection.jetstream().pull_subscribe(f"{STREAM}.>", durable=consumer, config=unacknowledged)
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    while len(columns["data"]) < MESSAGES:
        for each in await subscription.fetch(batch, timeout=10):
            row = (STREAM, each.subject, each.metadata.sequence.stream, each.metadata.timestamp)
            headers = [(name, [value]) for name, value in each.headers.items()] if each.headers else None
            for column, value in zip(columns.values(), (*row, headers, each.data), strict=True):
                column.append(value)
    await connection.close()
    table = pa.table(columns, schema=pa.schema(TYPES))
    assert table.num_rows == MESSAGES
    return MESSAGES
