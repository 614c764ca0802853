"""The lag of consumers as the metrics of a real triggerer, also when it is killed."""

from pathlib import Path

import pytest

from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge
from tests.airflow_system.metrics import Metrics
from tests.airflow_system.run import Run

LOOKS = "airflow.jetstream.looks,nats_conn_id=nats_default"


@pytest.mark.slow
def test_the_lag_is_reported_also_after_a_kill_of_the_triggerer(
    stack: Stack, judge: Judge, metrics: Metrics, tmp_path: Path
) -> None:
    """It takes a run, and a triggerer that takes the trigger of a dead one over."""
    run = Run(stack, judge, tmp_path / "gate", 100)
    of = f",stream={run.stream},consumer={judge.consumer}"

    def reported(name: str, value: float) -> None:
        gauge = f"airflow.jetstream.lag.{name}{of}"
        until(f"{name} to be {value}", lambda: metrics.gauges.get(gauge) == value, 240, every=0.2)

    run.start()
    run.at_work()
    reported("held_claims", 1)
    reported("unacknowledged", run.count)
    judge.publish(run.stream, 7)
    reported("pending", 7)
    stack.triggerer.kill()
    looks = metrics.counters[LOOKS]
    run.open_the_gate()
    run.ends()
    stack.triggerer.start()
    until("a look of the next triggerer", lambda: metrics.counters[LOOKS] > looks + 1, 240, every=0.5)
    reported("unacknowledged", 0)
    reported("open_claims", 0)
    reported("pending", 7)
    assert metrics.gauges[f"airflow.jetstream.lag.oldest_seconds{of}"] > 0
    assert not stack.airflow.runs("lag")
