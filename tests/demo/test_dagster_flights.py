"""demo/dagster_flights.py: what can be tested in one process, without Spark. `make dagster` runs all of it."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dags import flight_delays
from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from demo import dagster_flights
from demo.nats_server import NatsServer
from jetstream_tables import DeltaTable

STREAM = {"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True}


def test_the_definitions_load() -> None:
    dg.Definitions.validate_loadable(dagster_flights.defs)


def test_each_departure_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt fails after its rows were appended, and the second one appends them again."""
    monkeypatch.setattr(flight_delays, "TABLE", str(tmp_path / "departures"))
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        jetstream = JetStreamResource(servers=server.url)
        jetstream.ensure_stream(STREAM)
        jetstream.publish("FLIGHTS", [("flights.JFK.UA", b"{}"), ("flights.JFK.UA", b"{ }")], scope="test")
        attempts: list[int] = []

        @claimed_asset(stream="FLIGHTS", consumer="delays", retry_policy=dg.RetryPolicy(max_retries=1))
        def delays(claim: HeldClaim) -> None:
            rows = claim.arrow(["sequence", "timestamp"]).read_all()
            rows = rows.append_column("carrier", pa.array(["UA", "UA"])).append_column("dep_delay", pa.array([8, 10]))
            attempts.append(claim.append_to(DeltaTable(flight_delays.TABLE), rows).new.count)
            if len(attempts) == 1:
                raise OSError("the disk is full")

        result = dg.materialize([delays, dagster_flights.by_carrier], resources={"jetstream": jetstream})
        (materialized,) = result.asset_materializations_for_node("by_carrier")
        assert materialized.metadata["UA"].value == 9
        assert attempts == [2, 0]
    finally:
        server.stop()
