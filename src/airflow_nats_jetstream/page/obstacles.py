# SPDX-License-Identifier: Apache-2.0
"""Why the tasks of a run do not start, by Airflow's own dependencies: a full pool, a task that depends on its past or
waits for downstream tasks of an earlier run, a limit of tasks, or a run that does not run. And why no sensor of a DAG
takes messages: a service that is dead, a DAG that is gone, a run that failed, or one that is only due later."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.api.common.airflow_health import get_airflow_health
from airflow.models.dag import DagModel
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
from jetstream_client.quantities import lasting

if TYPE_CHECKING:
    from airflow.ti_deps.deps.base_ti_dep import BaseTIDep
    from sqlalchemy.orm import Session

    from jetstream_handoff.watch.view import Overview, Symptom

log = logging.getLogger(__name__)

Run = tuple[str, str, bool]
"""The ids of a DAG and of a run, and whether the question is why no later run takes messages, or why tasks of this run
do not start."""

KINDS = ("unheld", "awaiting_retry")
"""The kinds of findings about a claim whose task does not start."""
UNTAKEN = ("no_puller", "released")
"""The kinds of findings that a run of the DAG resolves, because its sensor takes the messages."""
OVER = {"failed": "failed", "upstream_failed": "was not run", "skipped": "was skipped", "removed": "was removed"}
"""How the state of a task is said that does nothing more."""
MOST = 10
"""The largest number of runs whose tasks do not start, and of tasks of each, that are looked at."""
MOST_DAGS = 100
"""The largest number of DAGs that take no messages, and are looked at."""
_DEPENDENCIES = (PrevDagrunDep(), PoolSlotsAvailableDep(), DagTISlotsAvailableDep(), TaskConcurrencyDep())
_UPSTREAM = TriggerRuleDep()

REMOVE = "Remove this obstacle, or release the claim to have its messages redelivered now."
USE = (
    "Make sure that a task of the DAG gets the claims of the sensor (.expand) and is not skipped; then release the "
    "claim, so that the next sensor takes its messages."
)


class Obstacle(NamedTuple):
    """What keeps tasks from starting, or sensors from taking messages.

    cause:    one sentence.
    remedy:   what to do.
    planned:  whether everything is as intended: the newest run has taken and succeeded, and the next is due later.
    """

    cause: str
    remedy: str
    planned: bool = False


def runs_of(found: Overview) -> tuple[Run, ...]:
    """Return the runs of the tasks that do not start, and those that took messages last where no sensor takes any,
    according to the findings; not more than ``MOST`` and ``MOST_DAGS``."""
    found_runs = [run for view in found.consumers for each in view.findings if (run := run_of(each))]
    runs = dict.fromkeys(found_runs)
    return (*[run for run in runs if not run[2]][:MOST], *[run for run in runs if run[2]][:MOST_DAGS])


def run_of(finding: Symptom) -> Run | None:
    """Return what to ask about a finding; None if nothing is."""
    key = key_of(finding.by) if finding.kind in (*KINDS, *UNTAKEN) else None
    return (key[0], key[1], finding.kind in UNTAKEN) if key else None


async def obstacles(runs: Iterable[Run]) -> dict[Run, Obstacle]:
    """Return for each run what keeps its tasks from starting, or later runs from taking messages. One without an
    obstacle, or that this Airflow does not know, is left out."""
    runs = tuple(runs)
    return await run_in_threadpool(_obstacles, runs) if runs else {}


def _obstacles(runs: Iterable[Run]) -> dict[Run, Obstacle]:
    found = {}
    health = get_airflow_health()
    for run in runs:
        dag_id, run_id, later = run
        services = _dead(health, "scheduler", *(["triggerer"] if later else []))
        try:
            with create_session(scoped=False) as session:
                why = _of_dag if later else _of_run
                found[run] = next(why(dag_id, run_id, services, session), None)
                session.rollback()  # whatever Airflow's dependencies do, this only looks
        except Exception:
            log.exception("the page does not know what run %s of DAG %s waits for", run_id, dag_id)
    return {run: obstacle for run, obstacle in found.items() if obstacle}


def _dead(health: dict[str, Any], *services: str) -> Iterator[Obstacle]:
    """Each of these services of Airflow that has run, and has stopped."""
    for name in services:
        beat = health[name].get(f"latest_{name}_heartbeat")
        if beat and health[name]["status"] == "unhealthy":
            ago = lasting((datetime.now(UTC) - datetime.fromisoformat(beat)).total_seconds())
            yield Obstacle(f"Airflow's {name} does not run: its last heartbeat was {ago} ago.", f"Start the {name}.")


def _of_dag(dag_id: str, run_id: str, services: Iterator[Obstacle], session: Session) -> Iterator[Obstacle]:
    model = session.get(DagModel, dag_id)
    if model is None:
        return
    if model.is_stale:
        yield Obstacle(
            f"DAG {dag_id} is no longer among the DAGs of Airflow.",
            "Start a run of the DAG that takes from this consumer now, or put the file of this one back.",
        )
    yield from services
    newest = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1))
    state = _state(newest) if newest else ""
    if newest and state == "failed":
        yield Obstacle(
            f"Run {newest.run_id} of DAG {dag_id} has failed{_over(newest, session)}.",
            "Read the log of what failed and repair the cause; then clear it, or start another run.",
        )
    due = model.next_dagrun_create_after
    if newest and (newest.run_id, state) == (run_id, "success") and due is not None and due > datetime.now(UTC):
        at = due.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield Obstacle(f"The next run of DAG {dag_id} is due at {at}.", "", planned=True)


def _state(run: DagRun) -> str:
    return str(getattr(run.state, "value", run.state))


def _over(run: DagRun, session: Session) -> str:
    """Which task of a run has failed, or was skipped, as the end of a sentence."""
    ti = TaskInstance
    of = select(ti.task_id, ti.map_index, ti.state).where(ti.dag_id == run.dag_id, ti.run_id == run.run_id)
    for state, said in OVER.items():
        tasks = session.execute(of.where(ti.state == state).order_by(ti.task_id, ti.map_index).limit(2)).all()
        if tasks:
            name = tasks[0].task_id + (f"[{tasks[0].map_index}]" if tasks[0].map_index >= 0 else "")
            return f": task {name} {said}" + (", and others" if len(tasks) > 1 else "")
    return ""


def _of_run(dag_id: str, run_id: str, services: Iterator[Obstacle], session: Session) -> Iterator[Obstacle]:
    known = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if known is None:
        return
    state = _state(known)
    if state in ("success", "failed"):
        over = _over(known, session) or ": no task of it has held the claim"
        yield Obstacle(f"Run {run_id} of DAG {dag_id} has ended ({state}){over}.", USE)
        return
    yield from services
    if state != "running":
        cause = f"Run {run_id} of DAG {dag_id} is not running but {state}, so Airflow starts none of its tasks."
        yield Obstacle(cause, REMOVE)
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
                why = f"Airflow does not start task {name} of run {run_id}, DAG {dag_id}: {reason.rstrip('.')}."
                yield Obstacle(why, REMOVE)


def _reasons(dependency: BaseTIDep, ti: TaskInstance, session: Session) -> Iterator[str]:
    for status in dependency.get_dep_statuses(ti, dep_context=DepContext(), session=session):
        if not status.passed:
            yield str(status.reason)
