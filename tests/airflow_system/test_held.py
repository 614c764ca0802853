"""A share of `make held`: an operator that knows nothing of claims defers while its claim is held."""

from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.held_run import HeldRun


def test_a_held_operator_defers_and_settles(stack: Stack, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    stack.airflow.wait_for_dag("held_waiting")
    run = HeldRun(stack, tmp_path, "held_waiting")
    attempt = run.deferred()
    run.open()
    receipt = run.ends_well(attempt)
    assert receipt["value"] == {"folder": attempt, "said": "echo done"}
    assert run.stack.airflow.xcom(run.dag_id, run.id, "work") == receipt["value"]
    assert run.jobs == [attempt]
    link = run.stack.airflow.links(run.dag_id, run.id, "work")["JetStream"]
    assert link == f"https://console.example.com/{run.stream}/work"
