# SPDX-License-Identifier: Apache-2.0
"""Why the tasks of a run do not start, by Airflow's own dependencies: a full pool, a task that depends on its past or
waits for downstream tasks of an earlier run, a limit of tasks, or a run that does not run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.ti_deps.dep_context import DepContext
from airflow.ti_deps.deps.dag_ti_slots_available_dep import DagTISlotsAvailableDep
from airflow.ti_deps.deps.pool_slots_available_dep import PoolSlotsAvailableDep
from airflow.ti_deps.deps.prev_dagrun_dep import PrevDagrunDep
from airflow.ti_deps.deps.task_concurrency_dep import TaskConcurrencyDep
from airflow.ti_deps.deps.trigger_rule_dep import TriggerRuleDep
from airflow.utils.session import create_session
from sqlalchemy import or_, select
from starlette.concurrency import run_in_threadpool

from airflow_nats_jetstream.page.tasks import key_of

if TYPE_CHECKING:
    from airflow.ti_deps.deps.base_ti_dep import BaseTIDep
    from sqlalchemy.orm import Session

    from jetstream_handoff.watch.view import Overview

log = logging.getLogger(__name__)

Run = tuple[str, str]
"""The ids of a DAG and of a run."""

KINDS = ("unheld", "awaiting_retry")
"""The kinds of findings about a claim whose task does not start."""
MOST = 10
"""The largest number of runs, and of tasks of a run, that are looked at."""
_DEPENDENCIES = (PrevDagrunDep(), PoolSlotsAvailableDep(), DagTISlotsAvailableDep(), TaskConcurrencyDep())
_UPSTREAM = TriggerRuleDep()


def runs_of(found: Overview) -> tuple[Run, ...]:
    """Return the runs of the tasks that do not start, according to the findings; not more than ``MOST``."""
    findings = (each for view in found.consumers for each in view.findings)
    keys = (key_of(each.by) for each in findings if each.kind in KINDS)
    return tuple(dict.fromkeys(key[:2] for key in keys if key))[:MOST]


async def obstacles(runs: Iterable[Run]) -> dict[Run, str]:
    """Return for each run, in one sentence, what keeps a task of it from starting. A run without an obstacle, or that
    this Airflow does not know, is left out."""
    runs = tuple(runs)
    return await run_in_threadpool(_obstacles, runs) if runs else {}


def _obstacles(runs: Iterable[Run]) -> dict[Run, str]:
    found = {}
    for run in runs:
        try:
            with create_session(scoped=False) as session:
                found[run] = next(_of_run(run, session), "")
                session.rollback()  # whatever Airflow's dependencies do, this only looks
        except Exception:
            log.exception("the page does not know why the tasks of run %s of DAG %s do not start", run[1], run[0])
    return {run: text for run, text in found.items() if text}


def _of_run(run: Run, session: Session) -> Iterator[str]:
    dag_id, run_id = run
    known = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if known is None:
        return
    state = str(getattr(known.state, "value", known.state))
    if state != "running":
        yield f"Run {run_id} of DAG {dag_id} is not running but {state}, so Airflow starts none of its tasks."
        return
    dag = SerializedDagModel.get_dag(dag_id, session=session)
    ti = TaskInstance
    waiting = select(ti).where(
        ti.dag_id == dag_id, ti.run_id == run_id, or_(ti.state.is_(None), ti.state.in_(("scheduled", "up_for_retry")))
    )
    for each in session.scalars(waiting.order_by(ti.task_id, ti.map_index).limit(MOST)) if dag else ():
        if dag is None or not dag.has_task(each.task_id):
            continue
        each.task = dag.get_task(each.task_id)
        if each.state is None and any(_reasons(_UPSTREAM, each, session)):
            continue  # it waits for a task of its run
        for dependency in _DEPENDENCIES:
            for reason in _reasons(dependency, each, session):
                name = each.task_id + (f"[{each.map_index}]" if each.map_index >= 0 else "")
                yield f"Airflow does not start task {name} of run {run_id}, DAG {dag_id}: {reason.rstrip('.')}."


def _reasons(dependency: BaseTIDep, ti: TaskInstance, session: Session) -> Iterator[str]:
    for status in dependency.get_dep_statuses(ti, dep_context=DepContext(), session=session):
        if not status.passed:
            yield str(status.reason)
