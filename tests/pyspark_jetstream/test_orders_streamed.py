"""dags/orders_streamed.py, run by Airflow's task runner: each run appends the orders that were published since then."""

import asyncio
import json
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from tests.airflow_nats_jetstream.steps import execute
from tests.dag_file import dag_of


def orders(first: int, last: int) -> list[tuple[str, bytes]]:
    return [("orders.new", json.dumps({"shop": "north", "amount": number}).encode()) for number in range(first, last)]


@pytest.mark.slow
async def test_each_run_appends_what_came_since_the_last(
    spark: SparkSession, settings: ConnectionSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "nats", "extra": {"servers": settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("ORDERS_STREAMED_OUT", str(tmp_path))
    orders_streamed = dag_of("orders_streamed")
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        try:
            for first, last in ((0, 100), (100, 130), (130, 130)):  # the last run is a task that was cleared
                publish_all(settings, orders(first, last))
                if first == 0:
                    publish_all(settings, [("orders.new", b"{}")])
                new = last - first + (first == 0)
                assert await asyncio.to_thread(execute, orders_streamed.get_task("orders")) == new
                written = deltalake.DeltaTable(f"{tmp_path}/orders").to_pyarrow_table()
                assert sorted(written["amount"].to_pylist()) == [*range(last)]
                info = await stream.consumer("streamed").info(patience=60)
                assert (info.pending, info.ack_pending) == (0, 0)
            malformed = deltalake.DeltaTable(f"{tmp_path}/malformed").to_pyarrow_table()
            assert malformed["data"].to_pylist() == [b"{}"]
        finally:
            await stream.delete()
