"""Unit tests of a DAG on a real nats-server, without services of Airflow. docs/how-to/test-a-dag.md explains them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_nats_jetstream.hooks import JetStreamHook
from jetstream_testing.stream import StreamUnderTest

FILE = Path(__file__).parents[2] / "dags" / "flights_arriving.py"  # your DAG


@pytest.fixture
def flights(jetstream_stream: Callable[..., StreamUnderTest]) -> StreamUnderTest:
    """The stream of the DAG."""
    return jetstream_stream("FLIGHTS", ["flights.>"])


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DAG as Airflow parses it."""
    monkeypatch.setenv("FLIGHTS_ARRIVING_OUT", str(tmp_path))
    bag = DagBag(FILE)
    assert bag.import_errors == {}
    return bag.dags["flights_arriving"]


def test_the_dag_is_parsed(dag: Any) -> None:
    assert set(dag.task_ids) == {"claims", "count_by_carrier"}
    assert dag.get_task("count_by_carrier").upstream_task_ids == {"claims"}


def test_flights_are_counted(
    dag: Any,
    flights: StreamUnderTest,
    jetstream_claims_of: Callable[..., Any],
    jetstream_hook: JetStreamHook,
    tmp_path: Path,
) -> None:
    subjects = ("flights.JFK.UA", "flights.LGA.UA", "flights.EWR.AA")
    flights.publish([(subject, b"{}") for subject in subjects])
    [claim] = jetstream_claims_of(dag.get_task("claims"))

    count_by_carrier = dag.get_task("count_by_carrier").python_callable
    with jetstream_hook.processing(claim) as held:
        held.value = count_by_carrier(held)

    assert claim.settled
    assert claim.unacknowledged == 0
    assert claim.receipt.value == {"UA": 2, "AA": 1}
    written = tmp_path / f"{claim.receipt.attempt_id}.json"
    assert json.loads(written.read_text()) == {"UA": 2, "AA": 1}


def test_a_flight_without_a_carrier_is_kept(
    dag: Any,
    jetstream_claim: Callable[..., Any],
    jetstream_hook: JetStreamHook,
) -> None:
    claim = jetstream_claim([("flights.JFK", b"{}")])

    count_by_carrier = dag.get_task("count_by_carrier").python_callable
    with pytest.raises(IndexError), jetstream_hook.processing(claim) as held:
        count_by_carrier(held)

    assert not claim.settled
    assert claim.unacknowledged == 1  # it will be redelivered
