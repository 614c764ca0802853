"""Whom a sensor takes claims for: what survives a retry of its task, but not a clear."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_handoff.record import Owner


def owner_in_worker(context: Context) -> Owner:
    """The owner of what a task instance takes. ``max_tries`` is the task's ``retries`` until somebody clears the task.

    A retry leaves ``max_tries`` as it is; a clear sets it to the tries so far plus ``retries``
    (``clear_task_instances`` in Airflow's ``models/taskinstance.py``).
    """
    ti: Any = context["ti"]
    return _owner(ti, ti.max_tries - (ti.task.retries or 0), context.get("dag_run"))


def owner_in_triggerer(ti: Any) -> Owner:
    """The same for a sensor that begins in the triggerer, where Airflow 3.3.2 does not tell ``max_tries``
    (``create_runtime_ti`` in ``jobs/triggerer_job_runner.py``): a clear looks like a retry until its run has ended.
    """
    known = ti.get_template_context() if hasattr(ti, "get_template_context") else {}
    return _owner(ti, 0, known.get("dag_run"))


def _owner(ti: Any, cleared: int, dag_run: Any) -> Owner:
    """The run's start distinguishes two deployments that have the same DAG with the same run ids."""
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
