# SPDX-License-Identifier: Apache-2.0
"""The names of tasks in the ledger: the owner for which a sensor takes claims, and the task that holds a claim.

A retry of a sensor has the same owner; after a clear, it has another owner.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_handoff.ledger.history import Owner


def owner_in_worker(context: Context) -> Owner:
    """Return the owner of the claims that a task instance takes in a worker.

    context:  Airflow's context of the task instance.
    """
    return _owner(context["ti"], cleared(context), context.get("dag_run"))


def cleared(context: Context) -> int:
    """Return a number that is 0 until somebody clears the task instance after a try, and is changed by each such clear.

    ``max_tries`` equals the task's ``retries`` until somebody clears the task. A retry does not change ``max_tries``;
    a clear sets it to the number of tries so far plus ``retries`` (``clear_task_instances`` in Airflow's
    ``models/taskinstance.py``). If somebody edits ``retries`` in the DAG, Airflow leaves ``max_tries`` as it is, so the
    difference says nothing in a run that was never cleared. In a run in which some task was cleared, such an edit looks
    like a clear, or hides one.

    context:  Airflow's context of the task instance, in a worker.
    """
    ti: Any = context["ti"]
    if getattr(context.get("dag_run"), "clear_number", None) == 0:
        return 0
    return int(ti.max_tries - (ti.task.retries or 0))


def owner_in_triggerer(ti: Any) -> Owner:
    """Return the owner of the claims that a sensor takes when it begins in the triggerer.

    Airflow 3.3.2 does not pass ``max_tries`` to the triggerer (``create_runtime_ti`` in
    ``jobs/triggerer_job_runner.py``), so a clear looks like a retry until the run has ended.

    ti:  the trigger's task instance.
    """
    known = ti.get_template_context() if hasattr(ti, "get_template_context") else {}
    return _owner(ti, 0, known.get("dag_run"))


def current_task() -> Owner:
    """Return the task instance that runs in this process; empty outside a task."""
    from airflow.sdk import get_current_context

    try:
        return task_of(get_current_context()["ti"])
    except (RuntimeError, KeyError, AttributeError):  # not in a task, or in a test of a task's method
        return ()


def task_of(ti: Any) -> Owner:
    """Return the name of a task instance and its try in the history of a claim: the names of DAG, run and task, the map
    index, and the number of the try.

    ti:  the task instance.
    """
    return (ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index, ti.try_number)


def _owner(ti: Any, cleared: int, dag_run: Any) -> Owner:
    """Return the owner. The start of the run distinguishes two deployments that have the same DAG with the same run
    ids."""
    start = getattr(dag_run, "start_date", None)
    map_index = -1 if ti.map_index is None else ti.map_index
    return (
        ti.dag_id,
        ti.run_id,
        ti.task_id,
        map_index,
        cleared,
        "" if start is None else start.astimezone(UTC).isoformat(),
    )
