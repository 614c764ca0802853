# SPDX-License-Identifier: Apache-2.0
"""The rules for a whole DAG about what is between a pull sensor and the tasks that process or settle its claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_nats_jetstream.dag.between import early, early_work, settles, takes
from airflow_nats_jetstream.dag.mapping import check_possible, most_claims
from airflow_nats_jetstream.holding import JetStreamHeld
from airflow_nats_jetstream.template import OfClaim, absent, templated
from jetstream_client.errors import InvalidValue


def no_setup_or_teardown(dag: Any) -> Iterator[str]:
    """A sensor that Airflow clears without the work, and a settling task whose failure nobody sees."""
    for task in dag.tasks:
        if takes(task) and task.is_setup:
            yield (
                f"the pull sensor {task.task_id!r} is a setup, so a clear of a task also clears the sensor, but not "
                "the tasks between them, which have then worked on other messages; leave out as_setup() and "
                "as_teardown(setups=…), because the settling task runs after every end of the work anyway"
            )
        if settles(task) and task.is_teardown:
            yield (
                f"the settling task {task.task_id!r} is a teardown, so the run succeeds although it fails, and Airflow "
                "runs it after a person has marked the run; leave out as_teardown(), because its trigger rule is "
                "all_done, and it fails if the work has failed"
            )


def work_begins_after_its_claims(dag: Any) -> Iterator[str]:
    """Work on a claim that may begin before the sensor has handed it on."""
    for sensor in filter(takes, dag.tasks):
        if begins_early := early(sensor):
            yield early_work(sensor.task_id, begins_early)


def claims_can_be_mapped(dag: Any) -> Iterator[str]:
    """A take of more claims than Airflow can map."""
    for sensor in filter(takes, dag.tasks):
        limit = most_claims(sensor)
        if limit is None or (absent(sensor.max_messages) and absent(sensor.claims)):
            continue
        counts = [sensor.max_messages, sensor.messages_per_claim, sensor.claims]
        if templated(counts):
            continue
        most, size, by_key = (None if absent(each) else int(each) for each in counts)
        try:
            check_possible(most or 1, size, limit, by_key)
        except InvalidValue as wrong:
            yield f"the pull sensor {sensor.task_id!r}: {wrong}"


def runs_do_not_wait_for_each_other(dag: Any) -> Iterator[str]:
    """A task that waits for an earlier run, while its claim waits for the task."""
    for sensor in filter(takes, dag.tasks):
        downstream = [dag.get_task(each) for each in sorted(sensor.get_flat_relative_ids(upstream=False))]
        on_claims = [task for task in downstream if _works_on_a_claim(task)]
        before = {each for task in on_claims for each in task.get_flat_relative_ids(upstream=True)}
        for task in downstream:
            if task.depends_on_past and (task in on_claims or task.task_id in before):
                waits = "wait_for_downstream" if task.wait_for_downstream else "depends_on_past"
                yield (
                    f"task {task.task_id!r} has {waits}=True, so a run waits for an earlier one with messages that it "
                    f"has already taken; set {waits}=False on this task, and to keep the order of the runs set "
                    f"wait_for_downstream=True on the pull sensor {sensor.task_id!r} only, or give the DAG "
                    "max_active_runs=1 instead"
                )


RULES = (
    no_setup_or_teardown,
    work_begins_after_its_claims,
    claims_can_be_mapped,
    runs_do_not_wait_for_each_other,
)
"""All of these rules. Each is called with a DAG, and yields what is wrong."""


def _works_on_a_claim(task: Any) -> bool:
    return issubclass(task.operator_class if isinstance(task, MappedOperator) else type(task), OfClaim | JetStreamHeld)
