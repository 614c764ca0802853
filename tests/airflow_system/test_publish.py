"""Publishing on the real scheduler: the retry of a killed task, and the cleared task, know what was stored before."""

from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.judge import Judge


def test_a_killed_task_is_tried_again_and_cleared(stack: Stack) -> None:
    each_once = {f"PUBLISHING.{number}": 1 for number in range(5_000)}
    judge = Judge(stack.nats.url, Path(stack.environment["HANDOFF_OUT"]))
    judge.create("PUBLISHING", duplicate_window=0.1)
    stack.airflow.wait_for_dag("publishing")
    run_id = stack.airflow.trigger("publishing")
    stack.airflow.succeeds("publishing", run_id, 60)
    told = stack.airflow.xcom("publishing", run_id, "publish")
    assert told["duplicates"] > 0
    assert told["stored"] + told["duplicates"] == 5_000
    assert judge.subjects("PUBLISHING") == each_once
    stack.airflow.clear("publishing", run_id, "publish")
    stack.airflow.succeeds("publishing", run_id, 60)
    assert stack.airflow.xcom("publishing", run_id, "publish")["stored"] == 0
    assert judge.subjects("PUBLISHING") == each_once
