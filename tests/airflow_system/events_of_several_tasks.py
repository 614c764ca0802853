"""Events in which several tasks work on a claim: it is settled only for work that began after it was handed on."""

from collections.abc import Iterator

from tests.airflow_system.event import Row
from tests.airflow_system.events import event
from tests.airflow_system.run import Run


def in_several_tasks(run: Run, dag_id: str = "several") -> None:
    """Choose the DAG in which `check` works on the claim after `work`, and `settle` settles it. Show `settle`."""
    run.dag_id, run.shown = dag_id, ("settle",)


@event(
    "Several tasks work on a claim, the last of them fails, and a user clears it with *Downstream*",
    Row("settle failed", "failed", "all", body=1, when="the check has failed"),
    Row("settle failed", "failed", "all", body=1, when="cleared"),
    in_all=2,
    why="The claim has failed, and its messages belong to the next take. Settling fails again, and so does the run.",
    remedy="Clear the pull sensor with *Downstream*, so that all tasks work on the claims that it takes.",
)
def last_task_cleared(run: Run) -> Iterator[None]:
    in_several_tasks(run)
    run.open_the_gate()
    bad = run.gate.with_suffix(".bad")
    bad.touch()
    run.start()
    assert run.ends() == "failed"
    yield
    bad.unlink()
    run.stack.airflow.clear(run.dag_id, run.id, "check", downstream=True)
    assert run.ends() == "failed"
    yield


@event(
    "Several tasks have worked on a claim, and a user clears the sensor alone, and later the settling task",
    Row("claims failed", "done", "all", body=1, when="the sensor was cleared"),
    Row("settle upstream_failed", "done", "all", body=1, when="the settling task was cleared"),
    in_all=1,
    why=(
        "The tasks between them have worked on other messages than the sensor would take now. So the sensor takes "
        "nothing, fails, and names these tasks."
    ),
    remedy="Clear the sensor with *Downstream*, or start a new run. The messages wait, and any other run takes them.",
)
def sensor_cleared_alone(run: Run) -> Iterator[None]:
    in_several_tasks(run)
    run.open_the_gate()
    run.start()
    run.ends()
    assert run.judge.ledger(run.stream) == ["done"]
    run.judge.publish(run.stream, run.count)
    run.stack.airflow.clear(run.dag_id, run.id, "claims")
    run.ends()
    run.shown = ("claims",)
    yield
    run.stack.airflow.clear(run.dag_id, run.id, "settle")
    assert run.ends() == "failed"
    run.shown = ("settle",)
    yield


@event(
    "A task has staged the output of a claim and another one has held and settled it; a user clears the sensor alone, "
    "and later the second task",
    Row("claims failed", "done", "all", body=1, when="the sensor was cleared"),
    Row("publish upstream_failed", "done", "all", body=1, when="the second task was cleared"),
    in_all=1,
    why=(
        "The second task would settle the new messages with what was staged of the old ones. So the sensor takes "
        "nothing, fails, and names the first task."
    ),
    remedy="Clear the sensor with *Downstream*, or start a new run. The messages wait, and any other run takes them.",
)
def sensor_cleared_without_the_stage(run: Run) -> Iterator[None]:
    run.dag_id, run.shown = "staged", ("claims",)
    run.open_the_gate()
    run.start()
    run.ends()
    assert run.judge.ledger(run.stream) == ["done"]
    run.judge.publish(run.stream, run.count)
    run.stack.airflow.clear(run.dag_id, run.id, "claims")
    run.ends()
    yield
    run.stack.airflow.clear(run.dag_id, run.id, "publish")
    assert run.ends() == "failed"
    run.shown = ("publish",)
    yield


@event(
    "A branch chooses one of two ways to work on a claim, each with a settling task",
    Row("settle success, settle_rest skipped", "done", "0", body=1),
    in_all=1,
    why="The settling task whose work was skipped leaves the claim to the other one, and is skipped.",
    remedy="Nothing. If the work of both was skipped, the settling task that runs last fails and releases the claim.",
)
def branch_between_settling_tasks(run: Run) -> Iterator[None]:
    run.dag_id, run.shown = "branched", ("settle", "settle_rest")
    run.open_the_gate()
    run.start()
    assert run.ends() == "success"
    yield


@event(
    "Several tasks have worked on a claim, and a user clears the sensor with *Downstream*",
    Row("settle success", "done, done", "0", body=1),
    in_all=1,
    why="All tasks between the sensor and the settling task work on the new claim, which is then settled.",
    remedy="Nothing. If no messages wait, the sensor waits until some arrive.",
)
def sensor_cleared_with_downstream(run: Run) -> Iterator[None]:
    in_several_tasks(run)
    run.open_the_gate()
    run.start()
    run.ends()
    run.judge.publish(run.stream, run.count)
    run.stack.airflow.clear(run.dag_id, run.id, "claims", downstream=True)
    assert run.ends() == "success"
    yield


@event(
    "A user marks the run as failed while the first of several tasks works, and later clears the settling task",
    Row("settle skipped", "open", "all", body=1, when="marked"),
    Row("settle failed", "failed", "all", body=1, when="the settling task was cleared"),
    in_all=2,
    why=(
        "Airflow fails the task that runs and skips the others. Even with `settle_skipped=True`, such a skip does not "
        "count as work that was done."
    ),
    remedy="Start a new run. Until somebody clears a task, the messages wait until the lease of the claim ends.",
)
def run_marked_failed(run: Run) -> Iterator[None]:
    in_several_tasks(run, "several_skipping")
    run.start()
    run.at_work()
    run.stack.airflow.mark_run(run.dag_id, run.id, "failed")
    assert run.ends() == "failed"
    yield
    run.stack.airflow.clear(run.dag_id, run.id, "settle")
    assert run.ends() == "failed"
    yield
