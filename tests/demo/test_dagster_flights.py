"""demo/dagster_flights.py: what can be tested in one process, without Spark. `make dagster` runs all of it."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from demo import dagster_flights
from demo.nats_server import NatsServer

STREAM = {"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True}


def test_the_definitions_load() -> None:
    dg.Definitions.validate_loadable(dagster_flights.defs)


def test_only_committed_output_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dagster_flights, "OUT", tmp_path / "out")
    for folder, delay in (("attempt=dead-1-aaaaaaaa", 1_000), ("attempt=settled", 8)):
        (tmp_path / "out" / folder).mkdir(parents=True)
        rows = pa.table({"sequence": [1, 2], "carrier": ["UA", "UA"], "dep_delay": [delay, delay + 2]})
        pq.write_table(rows, tmp_path / "out" / folder / "part.parquet")
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        jetstream = JetStreamResource(servers=server.url)
        jetstream.ensure_stream(STREAM)
        jetstream.publish("FLIGHTS", [("flights.JFK.UA", b"{}")] * 2, scope="test")

        @claimed_asset(stream="FLIGHTS", consumer="delays")
        def delays(claim: HeldClaim) -> None:
            (tmp_path / "out" / "attempt=settled").rename(tmp_path / "out" / f"attempt={claim.attempt_id}")

        result = dg.materialize([delays, dagster_flights.by_carrier], resources={"jetstream": jetstream})
        (materialized,) = result.asset_materializations_for_node("by_carrier")
        assert materialized.metadata["UA"].value == 9
    finally:
        server.stop()
