"""How much slower a streaming query is that acknowledges the messages of a consumer, with the option ``consumer``.

    python -m benchmarks streaming

Both queries write the same messages to Parquet files, with the trigger availableNow. The time begins with the second
micro-batch, when all workers have started, and ends with the query: then all messages are acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.comparison import ROUNDS, Comparison
from benchmarks.spark import session
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from tests.pyspark_jetstream.streaming import run_to_the_end

REQUIRED = {20_000: 0.5, 100_000: 0.2}
"""By micro-batch: what was reached on two cores. With 100,000 messages, the aim would leave 0.67 s of processor time to
take and acknowledge them, which cost 1.9 s, 1.1 s of it in nats-server."""
AIM = 0.6
BATCHES = 5
SIZE = 100


def compare(url: str, retention: str, batch: int) -> Comparison:
    what = f"stream with retention {retention} through Spark, acknowledging micro-batches of {batch:,}"
    found = Comparison(what, REQUIRED[batch], AIM)
    with session() as spark:
        for _ in range(ROUNDS):
            asyncio.run(filled(url, retention, batch * BATCHES))
            found.baseline.append(rate(spark, url, batch, {"startingOffsets": "earliest"}))
            found.ours.append(rate(spark, url, batch, {"consumer": "revenue"}))
    return found


BENCHMARKS: tuple[Callable[[str], Comparison], ...] = tuple(
    partial(compare, retention=retention, batch=batch) for retention in ("limits", "workqueue") for batch in REQUIRED
)


async def filled(url: str, retention: str, count: int) -> None:
    """Create a new stream ``S`` with so many messages."""
    settings = ConnectionSettings(servers=url)
    async with connect(settings) as js:
        async for name in js.stream_names():
            await js.stream(name).delete()
        await js.create_stream({"name": "S", "subjects": ["S.>"], "retention": retention, "allow_direct": True})
    data = os.urandom(SIZE)
    await asyncio.to_thread(publish_all, settings, (("S.x", data) for _ in range(count)))


def rate(spark: SparkSession, url: str, batch: int, options: dict[str, str]) -> float:
    """Messages a second of a query that reads the stream."""
    given = {"servers": url, "stream": "S", "maxOffsetsPerTrigger": str(batch), **options}
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.readStream.format("jetstream").options(**given).load().select("sequence", "data").writeStream
        query = run_to_the_end(rows.option("checkpointLocation", f"{folder}/state"), f"{folder}/out")
        ended = time.time()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        count = sum(int(each["numInputRows"]) for each in progress)
        if count != batch * BATCHES:
            raise AssertionError(f"{count} of {batch * BATCHES} messages were read")
        began = datetime.fromisoformat(progress[1]["timestamp"]).timestamp()
        return (count - int(progress[0]["numInputRows"])) / (ended - began)
