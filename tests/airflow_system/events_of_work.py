"""Events in which a second piece of work gets a claim: it fails and names the first, and nothing is taken over."""

from collections.abc import Iterator
from dataclasses import replace

from demo.service import until
from tests.airflow_system.event import Row
from tests.airflow_system.events import event
from tests.airflow_system.run import Run

_SEPARATE = "Give each task a sensor with a separate consumer, or do both in one task. The second one's log names both."


def refused(run: Run, task_id: str) -> None:
    """Return when a task has failed in its only try, for the reason that its log gives."""
    until("the refusal", lambda: run.state(task_id) == "failed", 240)
    task = run.task(task_id)
    assert task is not None
    assert task.try_number == 1
    log = run.stack.airflow.log(run.dag_id, run.id, task)
    assert "OtherWork" in log or "has not processed its messages" in log or "must not take it over" in log, log


@event(
    "A second task is mapped over the same claims, after the first",
    Row("work success, again failed", "done", "0", body=1),
    in_all=1,
    why="The first task settled the claim. The second has not done its work, so it does not return that value.",
    remedy=_SEPARATE,
)
def second_task_afterwards(run: Run) -> Iterator[None]:
    run.dag_id, run.shown = "one_after_another", ("work", "again")
    run.open_the_gate()
    run.start()
    refused(run, "again")
    assert run.ends() == "failed"
    yield


@event(
    "A second task is mapped over the same claims, at the same time",
    Row("work running, again failed", "held", "all", body=1, when="while the first one works"),
    Row("work success, again failed", "done", "0", body=1),
    in_all=1,
    why="The first task that holds the claim keeps it. Only a retry of the first would take it over.",
    remedy=_SEPARATE,
)
def second_task_meanwhile(run: Run) -> Iterator[None]:
    run.dag_id, run.shown = "one_next_to_another", ("work", "again")
    run.start()
    run.at_work()
    run.open_the_other_gate()
    refused(run, "again")
    yield
    run.open_the_gate()
    assert run.ends() == "failed"
    yield


@event(
    "A claim is passed to another DAG, which is triggered twice with it",
    Row("success", "done", "0", body=1, when="the first run"),
    Row("failed", "done", "0", body=1, when="the second run"),
    in_all=1,
    why="Another DAG can process a claim. A second run is another piece of work, so it fails and names the first.",
    remedy="Nothing, if the first run has done the work. To do it again, clear that run's task, with `reprocess`.",
)
def passed_to_another_dag(run: Run) -> Iterator[None]:
    run.dag_id = "only_taken"
    run.open_the_gate()
    run.start()
    assert run.ends() == "success"
    (claim,) = run.stack.airflow.xcom(run.dag_id, run.id, "claims")
    for state in ("success", "failed"):
        given = replace(run, dag_id="given").claim(run.count, claim=claim)
        run.dag_id, run.id = given.dag_id, given.id
        assert run.ends() == state
        yield
    refused(run, "work")
