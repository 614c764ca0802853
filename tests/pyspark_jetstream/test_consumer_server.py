"""A streaming query that acknowledges goes on when its nats-server is killed and started again, on a real Spark."""

import asyncio
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import ConnectionSettings, connect
from tests.pyspark_jetstream.streaming import begin
from tests.pyspark_jetstream.test_consumer_reader import load, publish


@pytest.mark.slow
def test_a_killed_server_does_not_end_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """It is killed while a micro-batch is processed, and while the query waits for messages."""
    server = NatsServer(tmp_path / "server")
    server.start()
    settings = ConnectionSettings(servers=server.url)
    seen: list[int] = []
    processing, may_go_on = threading.Event(), threading.Event()

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True, "retention": "workqueue"})

    async def left() -> int:
        async with connect(settings) as js:
            return int((await js.stream("S").info(patience=60)).state["messages"])

    def work(batch: DataFrame, _: int) -> None:
        if not processing.is_set():
            processing.set()
            may_go_on.wait(240)
        seen.extend(row.sequence for row in batch.collect())  # the first one is read while the server starts again

    try:
        asyncio.run(create())
        publish(settings, "S", 150)
        rows = load(spark, server.url, "S").writeStream.foreachBatch(work)

        def kill() -> None:
            assert processing.wait(240)
            server.kill()
            may_go_on.set()
            server.start()

        killing = threading.Thread(target=kill)
        killing.start()
        query = begin(rows.option("checkpointLocation", f"{tmp_path}/state"))
        killing.join()
        until("all is acknowledged", lambda: query.exception() or not asyncio.run(left()), seconds=240)
        server.kill()
        server.start()
        publish(settings, "S", 50)
        until("all is acknowledged again", lambda: query.exception() or not asyncio.run(left()), seconds=240)
        assert query.exception() is None
        query.stop()
        assert sorted(seen) == [*range(1, 201)]
    finally:
        may_go_on.set()
        server.stop()
