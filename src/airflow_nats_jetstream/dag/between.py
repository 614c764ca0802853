# SPDX-License-Identifier: Apache-2.0
"""The tasks between a pull sensor and the tasks that settle its claims, and the states of these tasks in a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

_AGAIN = (None, "removed", "up_for_retry", "restarting")
"""States of a task instance whose next try, if there is one, begins after the tasks upstream of it have ended. Airflow
gives them to an instance that was never scheduled or was cleared, that no longer exists, that waits for a retry, and
that was cleared while it ran."""
_EARLY = ("one_success", "one_failed", "one_done")
"""Trigger rules with which a task begins before all tasks directly upstream have ended."""
_TASK_IDS = 100  # of one request, whose URL contains them
_NAMED = 5  # tasks in an error message


def takes(task: Any) -> bool:
    """Return whether a task of a DAG takes claims: a pull sensor, mapped or not."""
    return getattr(_class_of(task), "takes_claims", False)


def passes_on(task: Any) -> bool:
    """Return whether a task takes claims or passes them on, and so does not work on them."""
    return takes(task) or getattr(_class_of(task), "passes_claims_on", False)


def settles(task: Any) -> bool:
    """Return whether a task of a DAG settles a claim on which other tasks have worked, mapped or not."""
    return getattr(_class_of(task), "settles_claims", False)


def holds(task: Any) -> bool:
    """Return whether a task of a DAG holds a claim and settles it for its own work, mapped or not."""
    return getattr(_class_of(task), "holds_claims", False) and not settles(task)


def settling(sensor: Any) -> list[Any]:
    """Return the settling tasks downstream of a pull sensor."""
    return [task for task in _relatives(sensor, upstream=False) if settles(task)]


def taking(settle: Any) -> list[Any]:
    """Return the pull sensors upstream of a settling task."""
    return [task for task in _relatives(settle, upstream=True) if takes(task)]


def between(sensor: Any, settle: Any) -> set[str]:
    """Return the ids of the tasks downstream of a pull sensor and upstream of a settling task."""
    found: set[str] = sensor.get_flat_relative_ids(upstream=False) & settle.get_flat_relative_ids(upstream=True)
    return found


def depending(sensor: Any) -> set[str]:
    """Return the ids of the tasks whose success becomes the settlement of the sensor's claims: all settling tasks
    downstream, and the tasks between them and the sensor. And the tasks between the sensor and a task that holds a
    claim, which may use what they have made of the claims. Those that may begin before the sensor has ended know no
    claim."""
    holding = [task for task in _relatives(sensor, upstream=False) if holds(task)]
    after = _begin_after(sensor)[0] if holding else set()
    return _settled(sensor).union(*(between(sensor, task) & after for task in holding))


def _settled(sensor: Any) -> set[str]:
    ends = settling(sensor)
    return {task.task_id for task in ends}.union(*(between(sensor, task) for task in ends))


def begun(sensor: Any, ti: RuntimeTaskInstance, *, first: bool) -> dict[str, str]:
    """Return the tasks that would settle claims that they have not seen, each with its state, such as ``is success``.

    These are the tasks of :func:`depending` that have begun in this run, and will not begin again after the sensor.
    A skipped task counts as begun, because the skip may count as its success. But before the first take of a run, a
    task can have been skipped only for a reason that has nothing to do with the claims.

    first:  whether this try is one of the first take: nobody has cleared the sensor in this run.
    """
    again = (*_AGAIN, "skipped") if first else _AGAIN
    return {name: f"is {state}" for name, state in states(sensor, ti, depending(sensor)).items() if state not in again}


def states(task: Any, ti: RuntimeTaskInstance, others: Collection[str]) -> dict[str, str | None]:
    """Return the states of other tasks in the run of a task instance, by names such as ``load`` and ``load[1]``.

    A task in the same mapped task group works on the same claim only if it has the same map index, so its other
    instances are left out. Instances that Airflow has not created yet are missing.

    task:    the task of the instance.
    ti:      the task instance.
    others:  the ids of the other tasks.
    """
    same = [each for each in sorted(others) if _in_its_group(task, each)]
    rest = [each for each in sorted(others) if each not in same]
    found: dict[str, str | None] = {}
    for ids, map_index in ((same, ti.map_index), (rest, None)):
        for start in range(0, len(ids), _TASK_IDS):
            some = ids[start : start + _TASK_IDS]
            answer = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=some, map_index=map_index)
            found |= {_name(key, some): _text(state) for key, state in answer.get(ti.run_id, {}).items()}
    return found


def early(sensor: Any) -> list[str]:
    """Return the ids of the tasks with whose trigger rules a settling task downstream, or a task between it and the
    sensor, may begin before the sensor has ended."""
    dependents = _settled(sensor)
    return sorted(_begin_after(sensor)[1] & dependents) if dependents else []


def _begin_after(sensor: Any) -> tuple[set[str], set[str]]:
    """Return the ids of the tasks that begin after the sensor has ended, with itself; and of those directly downstream
    of them that may begin before, because of their trigger rules."""
    after, before = {sensor.task_id}, set()
    left = {each: sensor.dag.get_task(each) for each in sensor.get_flat_relative_ids(upstream=False)}
    while ready := {each: task for each, task in left.items() if not task.upstream_task_ids & left.keys()}:
        for task_id, task in ready.items():
            rule, upstream = _text(task.trigger_rule), task.upstream_task_ids & after
            if upstream and rule != "always" and (rule not in _EARLY or upstream == task.upstream_task_ids):
                after.add(task_id)
            elif upstream:
                before.add(task_id)
        left = {each: task for each, task in left.items() if each not in ready}
    return after, before


def early_work(sensor_id: str, task_ids: Collection[str]) -> str:
    """Return the message for tasks of :func:`early`."""
    return (
        f"because of its trigger rule, {', '.join(task_ids)} may begin before the sensor {sensor_id} has handed on its "
        "claims, although its success settles these claims; give it a trigger rule that waits for all tasks upstream, "
        "such as all_success or all_done"
    )


def listed(named: Mapping[str, str]) -> str:
    """Return tasks and their states for a message: ``load is success, check is failed``."""
    shown = [f"{name} {state}" for name, state in list(named.items())[:_NAMED]]
    more = len(named) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _relatives(task: Any, *, upstream: bool) -> list[Any]:
    if not task.has_dag():  # as in a test of a single task
        return []
    return [task.dag.get_task(each) for each in sorted(task.get_flat_relative_ids(upstream=upstream))]


def _in_its_group(task: Any, other_id: str) -> bool:
    group = task.get_closest_mapped_task_group()
    other = task.dag.get_task(other_id).get_closest_mapped_task_group()
    return group is not None and other is not None and group.group_id == other.group_id


def _name(key: str, task_ids: Collection[str]) -> str:
    """Return the name of a task instance from Airflow's key: the task's id, or ``<id>_<map index>``."""
    mapped = None if key in task_ids else re.fullmatch(r"(.+)_(\d+)", key)
    return f"{mapped[1]}[{mapped[2]}]" if mapped else key


def _text(state: Any) -> str | None:
    value = getattr(state, "value", state)
    return None if value is None else str(value)


def _class_of(task: Any) -> type:
    found: type = getattr(task, "operator_class", type(task))
    return found
