"""The sensor that observes the lag of consumers."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import JetStreamResource, claimed_asset, jetstream_lag_sensor
from jetstream_client.errors import JetStreamError
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line
from tests.dagster_nats_jetstream.test_sensor import Ticks, other, summed
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_the_lag_is_metadata_of_an_asset(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(5)
    asset = claimed_asset(**line.quick(max_messages=3), name="orders")(summed)
    assert dg.materialize([asset], resources={"jetstream": line.resource}, instance=instance).success

    def key(stream: str, consumer: str) -> dg.AssetKey | None:
        return dg.AssetKey("orders") if (stream, consumer) == (line.stream, CONSUMER) else None

    result = Ticks(line, instance, jetstream_lag_sensor(asset_key=key), other)()
    (observed,) = result.asset_events
    assert observed.asset_key == dg.AssetKey("orders")
    numbers = {name.removeprefix("jetstream/"): each.value for name, each in observed.metadata.items()}
    assert 0 < numbers.pop("oldest_seconds") < 600
    assert numbers == {
        "pending": 2,
        "unacknowledged": 0,
        "open_claims": 0,
        "held_claims": 0,
        "dead_letters": 0,
        "barrier_claims": 0,
        "barrier_seconds": 0,
        "stopped_keys": 0,
        "errors": 0,
        "warnings": 0,
        "unknown": 0,
    }
    assert "observed 1 consumer;" in str(result.skip_message)
    assert not result.run_requests


def test_by_default_the_asset_has_the_names_of_stream_and_consumer(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(1)
    asset = claimed_asset(**line.quick(), name="orders")(summed)
    assert dg.materialize([asset], resources={"jetstream": line.resource}, instance=instance).success
    result = Ticks(line, instance, jetstream_lag_sensor(), other)()
    assert dg.AssetKey([line.stream, CONSUMER]) in [each.asset_key for each in result.asset_events]


def test_the_sensor_of_the_page() -> None:
    (example,) = [section for section in sections(PAGE) if section.title == "Lag in Dagster"]
    names: dict[str, Any] = {}
    exec(compile(example.source, PAGE, "exec"), names)
    assert isinstance(names["lag"], dg.SensorDefinition)
    assert names["asset_of"]("ORDERS", "watched") == dg.AssetKey("orders")


def test_a_tick_fails_if_nothing_answers(line: Line, instance: dg.DagsterInstance) -> None:
    silent = Line(line.stream, JetStreamResource(servers="nats://127.0.0.1:1", connect_timeout=0.2))
    with pytest.raises((JetStreamError, dg.DagsterError)):
        Ticks(silent, instance, jetstream_lag_sensor(), other)()


def test_a_ledger_that_does_not_exist_is_said(line: Line, instance: dg.DagsterInstance) -> None:
    none = Line(line.stream, JetStreamResource(servers=line.resource.servers, ledger="there_is_none"))
    assert "0 errors, 1 warning" in Ticks(none, instance, jetstream_lag_sensor(), other).skipped()
