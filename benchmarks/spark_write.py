"""Writing rows of 128 B with Spark, against collecting them and nats-py ``publish_async`` in the driver.

Both wait for every answer, and give every message an id: without one a job that runs again stores everything twice.
"""

import asyncio
import secrets

import nats
from pyspark.sql import DataFrame

from benchmarks.comparison import Comparison
from pyspark_jetstream import spark_session

MESSAGES = 300_000


def compare(url: str) -> Comparison:
    asyncio.run(_stream(url))
    spark = spark_session(master="local[2]", config={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, MESSAGES, 1, 2).selectExpr(
        "concat('events.', id % 16) as subject", "cast(lpad(id, 128, '0') as binary) as data"
    )

    def ours() -> int:
        rows.write.format("jetstream").option("servers", url).option("stream", "EVENTS").mode("append").save()
        return MESSAGES

    def baseline() -> int:
        return asyncio.run(_published(url, rows))

    try:
        ours()  # both start warm: a JVM that has compiled, workers that have started
        return Comparison("write from Spark", required=4, aim=8).run(ours, baseline)
    finally:
        spark.stop()


async def _stream(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name="EVENTS", subjects=["events.>"])
    await connection.close()


async def _published(url: str, rows: DataFrame) -> int:
    connection = await nats.connect(url)
    js = connection.jetstream(publish_async_max_pending=4_000)
    run = secrets.token_hex(6)
    answers = []
    for number, (subject, data) in enumerate(rows.collect()):
        answers.append(await js.publish_async(subject, bytes(data), headers={"Nats-Msg-Id": f"{run}{number}"}))
    stored = sum(not answer.duplicate for answer in await asyncio.gather(*answers))
    await connection.close()
    assert stored == MESSAGES
    return stored
