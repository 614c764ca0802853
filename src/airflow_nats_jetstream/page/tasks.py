# SPDX-License-Identifier: Apache-2.0
"""What Airflow's database knows about the tasks and DAGs that the ledger names.

A task is named only to users who may see its DAG, also if the DAG does not exist here. Anybody who may write to the
ledger can name any task, so a task is linked, with its state, only if it exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select, tuple_
from starlette.concurrency import run_in_threadpool

from airflow_nats_jetstream.compat import teams_of
from airflow_nats_jetstream.spark.application import XCOM_KEY
from jetstream_handoff.ledger.history import Owner, readable

Key = tuple[str, str, str, int]
"""DAG, run, task and map index."""

MOST = 500
"""The largest number of tasks in one query."""
HIDDEN = "a task of a DAG that you may not see"
"""The name of a task for users who may not see its DAG."""
LONGEST_NAME = 250
"""The longest name of a DAG, run or task in Airflow."""


@dataclass(frozen=True)
class Dag:
    """A DAG that the user may see."""

    dag_id: str
    paused: bool

    def to_json(self) -> dict[str, Any]:
        return {"dag_id": self.dag_id, "paused": self.paused}


@dataclass(frozen=True)
class Tasks:
    """What Airflow says about some owners.

    tries:    for each task that exists in this Airflow, the number of its newest try, and its state.
    dags:     the DAGs that exist in this Airflow and that the user may see.
    visible:  the ids of the DAGs that the user may see, whether they exist or not.
    """

    tries: Mapping[Key, tuple[int, str | None]] = field(default_factory=dict)
    dags: Mapping[str, Dag] = field(default_factory=dict)
    visible: frozenset[str] = frozenset()

    def name(self, owner: Owner) -> str:
        """Return an owner in a readable form, or ``HIDDEN``. An owner that cannot belong to a DAG is shown."""
        dag_id = dag_of(owner)
        return readable(owner) if dag_id is None or dag_id in self.visible else HIDDEN

    def task(self, owner: Owner, *, attempt: bool = False) -> dict[str, Any] | None:
        """Return a task as JSON; None if the owner is not a task of this Airflow, or if the user may not see its DAG.

        attempt:  whether the owner names the attempt of a task. Its last number is then the number of the try.
        """
        key = key_of(owner)
        known = self.tries.get(key) if key else None
        if key is None or known is None or key[0] not in self.visible:
            return None
        newest, state = known
        number = owner[4] if attempt and len(owner) > 4 and isinstance(owner[4], int) else newest
        return {
            "text": readable(owner),
            "dag_id": key[0],
            "run_id": key[1],
            "task_id": key[2],
            "map_index": key[3],
            "try_number": number,
            "state": state if number == newest else None,
        }

    def is_newest_try(self, attempt: Owner) -> bool:
        """Whether an attempt is the newest try of its task, and the user may see it."""
        key = key_of(attempt)
        known = self.tries.get(key) if key else None
        return known is not None and attempt[0] in self.visible and attempt[4:5] == known[:1]

    def dag(self, owner: Owner) -> dict[str, Any] | None:
        """Return the DAG of an owner as JSON; None if the user may not see it, or if it does not exist."""
        key = key_of(owner)
        dag = self.dags.get(key[0]) if key else None
        return dag.to_json() if dag else None


def dag_of(owner: Owner) -> str | None:
    """Return the id of the DAG that an owner belongs to; None if its first value cannot be the id of a DAG."""
    first = owner[0] if owner else ""
    return first if isinstance(first, str) and 0 < len(first) <= LONGEST_NAME and first.isprintable() else None


def key_of(owner: Owner) -> Key | None:
    """Return the key of the task that an owner names; None if it cannot be the name of a task."""
    if len(owner) < 4:
        return None
    dag_id, run_id, task_id, map_index = owner[:4]
    names = (dag_id, run_id, task_id)
    if not all(isinstance(each, str) and 0 < len(each) <= LONGEST_NAME and each.isprintable() for each in names):
        return None
    if not isinstance(map_index, int) or not -1 <= map_index < 1 << 31:
        return None
    return str(dag_id), str(run_id), str(task_id), map_index


async def known(owners: Iterable[Owner], user: Any) -> Tasks:
    """Look up tasks in Airflow's database, with one query for tasks and one for DAGs.

    owners:  the owners of claims, and the attempts that hold them.
    user:    the user for whom they are shown.
    """
    named = set(owners)
    keys = sorted({key for owner in named if (key := key_of(owner))})
    dag_ids = sorted({dag_id for owner in named if (dag_id := dag_of(owner))})
    return await run_in_threadpool(_known, keys, dag_ids, user) if dag_ids else Tasks()


async def may_see(dag_id: str, user: Any) -> bool:
    """Whether a user may see the tasks of a DAG. True for a string that cannot be the id of a DAG, because the claims
    of such owners are shown to everybody who may read the connection."""
    return dag_of((dag_id,)) is None or dag_id in (await known([(dag_id,)], user)).visible


def _known(keys: list[Key], dag_ids: list[str], user: Any) -> Tasks:
    ti = TaskInstance
    with create_session(scoped=False) as session:
        rows = session.execute(
            select(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.try_number, ti.state).where(
                tuple_(ti.dag_id, ti.run_id, ti.task_id, ti.map_index).in_(keys[:MOST])
            )
        )
        tries = {(row[0], row[1], row[2], row[3]): (row[4], _text(row[5])) for row in rows}
        found = session.execute(select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(dag_ids)))
        paused = {dag_id: bool(is_paused) for dag_id, is_paused in found}
        teams = teams_of(paused, session)
    allowed = get_auth_manager().is_authorized_dag
    visible = frozenset(
        dag_id
        for dag_id in dag_ids
        if allowed(
            method="GET",
            access_entity=DagAccessEntity.TASK_INSTANCE,
            details=DagDetails(id=dag_id, team_name=teams.get(dag_id)),
            user=user,
        )
    )
    dags = {dag_id: Dag(dag_id, is_paused) for dag_id, is_paused in paused.items() if dag_id in visible}
    return Tasks(tries, dags, visible)


async def spark_of(owner: Owner) -> dict[str, str] | None:
    """Return the Spark application that works for a task instance, as its worker reported it; None if it reported
    none, or if the address is not one of a web page.

    owner:  the attempt.
    """
    key = key_of(owner)
    value = await run_in_threadpool(_xcom, key) if key else None
    if not isinstance(value, dict) or not isinstance(value.get("application"), str):
        return None
    return {"application": value["application"][:LONGEST_NAME], "url": web_address(value.get("url"))}


def web_address(text: object) -> str:
    """Return the text if it is the address of a web page, otherwise an empty string."""
    if not isinstance(text, str) or len(text) > 2_000 or not text.isprintable() or " " in text:
        return ""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return ""
    return text if good else ""


def _xcom(key: Key) -> Any:
    """Return the value that the newest try pushed. A custom XCom backend may store something else, which is ignored."""
    dag_id, run_id, task_id, map_index = key
    with create_session(scoped=False) as session:
        value = session.scalar(
            select(XComModel.value).where(
                XComModel.dag_id == dag_id,
                XComModel.run_id == run_id,
                XComModel.task_id == task_id,
                XComModel.map_index == map_index,
                XComModel.key == XCOM_KEY,
            )
        )
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _text(state: Any) -> str | None:
    return None if state is None else str(getattr(state, "value", state))
