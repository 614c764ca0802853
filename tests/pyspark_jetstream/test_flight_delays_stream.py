"""dags/flight_delays_stream.py, run by Airflow's task runner: each run adds the messages published since then."""

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from tests.airflow_nats_jetstream.steps import execute
from tests.dag_file import dag_of


def departures(first: int, last: int) -> list[tuple[str, bytes]]:
    return [
        ("flights.JFK.AA", json.dumps({"carrier": "AA", "dep_delay": number, "year": 2013}).encode())
        for number in range(first, last + 1)
    ]


@pytest.mark.slow
async def test_each_run_adds_what_came_since_the_last(
    spark: SparkSession, settings: ConnectionSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "nats", "extra": {"servers": settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("FLIGHT_DELAYS_STREAM_OUT", str(tmp_path))
    work = dag_of("flight_delays_stream").get_task("delays")
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        try:
            for first, last in ((1, 100), (101, 130)):
                publish_all(settings, departures(first, last))
                assert await asyncio.to_thread(execute, work) == last - first + 1
                written = spark.read.parquet(f"{tmp_path}/departures").orderBy("sequence").collect()
                assert [(row.sequence, row.dep_delay) for row in written] == [(n, n) for n in range(1, last + 1)]
        finally:
            await stream.delete()
