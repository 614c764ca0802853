"""dags/flight_delays.py, run by Airflow's task runner, with its Spark on the cluster."""

import json
from collections import defaultdict
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession

from jetstream_client import connect
from tests.airflow_nats_jetstream.steps import execute
from tests.cluster.conftest import Secured
from tests.cluster.standalone import Standalone
from tests.dag_file import module_of

DEPARTURES = 6_000  # of 336,776


@pytest.fixture
def flight_delays(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DAG's module, which writes to `tmp_path`."""
    who = {"login": secured.settings.user, "password": secured.settings.password}
    connection = {"conn_type": "nats", **who, "extra": {"servers": secured.settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("FLIGHT_DELAYS_OUT", str(tmp_path))
    return module_of("flight_delays")


async def test_each_departure_is_written_once_and_settled(
    spark: SparkSession, cluster: Standalone, secured: Secured, flight_delays: Any, tmp_path: Path
) -> None:
    dag = flight_delays.flight_delays()
    published = list(islice(flight_delays.departures(), DEPARTURES))
    stream, publish, claims, delays = (dag.get_task(name) for name in ("stream", "publish", "claims", "delays"))
    publish.producer = lambda: iter(published)
    claims.deferrable, claims.messages_per_claim = False, DEPARTURES // 2
    execute(stream)
    execute(publish)
    claimed = execute(claims)
    assert [claim["count"] for claim in claimed] == [DEPARTURES // 2] * 2
    for claim in claimed:
        assert execute(delays.unmap({"op_kwargs": {"claim": claim}})) == DEPARTURES // 2
    assert spark.sparkContext.master == cluster.url  # the task's session is this one
    written = deltalake.DeltaTable(tmp_path / "departures")
    rows = written.to_pyarrow_table(columns=["_sequence", "subject", "flight"]).to_pylist()
    expected = [(n, subject, json.loads(data)["flight"]) for n, (subject, data) in enumerate(published, 1)]
    assert sorted(tuple(row.values()) for row in rows) == expected
    by_carrier: defaultdict[str, list[int]] = defaultdict(list)
    for departure in (json.loads(data) for _, data in published):
        by_carrier[departure["carrier"]] += [] if departure["dep_delay"] is None else [departure["dep_delay"]]
    expected_means = {carrier: fmean(known) for carrier, known in by_carrier.items()}
    assert execute(dag.get_task("by_carrier")) == pytest.approx(expected_means)
    async with connect(secured.settings) as js:
        consumer = await js.stream("FLIGHTS").consumer("delays").info()
        assert (consumer.ack_pending, consumer.floor) == (0, DEPARTURES)
