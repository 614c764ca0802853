"""Rescheduled sensors, sensors that begin in the triggerer, and mapped sensors, on the real scheduler."""

from dataclasses import replace

from airflow_nats_jetstream.compat import triggers_know_their_run
from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge

DAG, STREAM = "sensing", "SENSING"


def test_sensors_that_wait_without_a_worker_take_what_comes(stack: Stack, judge: Judge) -> None:
    airflow = stack.airflow
    airflow.wait_for_dag(DAG)
    looks, starts = (replace(judge, consumer=name) for name in ("looks", "starts"))
    judge.publish(STREAM, 2)
    run_id = airflow.trigger(DAG)
    until("the pull of the trigger", lambda: starts.pending(STREAM) == (0, 2), 240)
    asked = "TaskInstance: sensing.starts" in stack.scheduler.log.read_text()  # for a worker
    assert asked is not triggers_know_their_run

    def rescheduled() -> bool:
        task = airflow.task(DAG, run_id, "looks")
        return task is not None and task.state == "up_for_reschedule"

    until("the first look to end", rescheduled, 240, every=1)
    assert looks.deliveries(STREAM) == 2
    assert looks.ledger(STREAM) == []
    judge.send([(f"{STREAM}.last", b"")])
    airflow.succeeds(DAG, run_id, 240)
    for each in (looks, starts):
        (claim,) = airflow.xcom(DAG, run_id, each.consumer)
        assert claim["ranges"] == [[1, 3]]
        assert each.tokens(run_id).items() >= {claim["id"]: None}.items()
    assert [airflow.xcom(DAG, run_id, "count", map_index=index) for index in range(4)] == [2, 1, 2, 1]
    for name in ("east", "west"):
        assert replace(judge, consumer=name).settled(STREAM) == [1, 2, 3]
    assert (starts.deliveries(STREAM), looks.deliveries(STREAM)) == (3, 5)
