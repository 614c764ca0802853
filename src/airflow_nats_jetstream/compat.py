# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between the supported versions of Airflow, 3.1 and later. No other module knows their
differences, and :mod:`~airflow_nats_jetstream.airflow_version` refuses older ones.

What moved is imported through Airflow's own provider for this (``airflow.providers.common.compat``), which every
Airflow 3.1 has; what that provider lacks is tried at its new place first. docs/upgrading.md lists what works in another
way below Airflow 3.3.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import airflow_nats_jetstream.airflow_version  # noqa: F401

# isort: split

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowPlugin,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskDeferred,
    conf,
)
from airflow.sdk.log import mask_secret
from airflow.triggers.base import BaseTrigger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Context
    from airflow.sdk.exceptions import AirflowRescheduleException, AirflowTaskTerminated, TaskAwaitingInput
    from airflow.sdk.execution_time.context import NEVER_EXPIRE
    from sqlalchemy.orm import Session
else:
    try:
        from airflow.sdk.exceptions import AirflowRescheduleException, AirflowTaskTerminated
    except ImportError:  # 3.1
        from airflow.exceptions import AirflowRescheduleException, AirflowTaskTerminated
    try:
        from airflow.sdk.exceptions import TaskAwaitingInput
        from airflow.sdk.execution_time.context import NEVER_EXPIRE
    except ImportError:  # 3.1 and 3.2
        NEVER_EXPIRE = timedelta.max

        class TaskAwaitingInput(BaseException):
            """Never raised, because this Airflow cannot let a task wait for a person in this way."""


__all__ = [
    "NEVER_EXPIRE",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowPlugin",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTerminated",
    "AirflowTaskTimeout",
    "DagRunTriggerException",
    "DownstreamTasksSkipped",
    "TaskAwaitingInput",
    "TaskDeferred",
    "amask_secret",
    "conf",
    "connection_form",
    "connection_from_secrets",
    "forgotten",
    "is_async_callable",
    "kill",
    "mask_secret",
    "stats",
    "task_state",
    "teams_of",
    "tells_asset_events",
    "tells_triggers",
    "triggers_know_their_run",
]

tells_triggers = hasattr(BaseTrigger, "on_kill")
"""Whether Airflow tells a trigger that a user has cleared or marked its task (from 3.3 on). Otherwise a trigger that is
cancelled has to ask for the state of its task."""

triggers_know_their_run = hasattr(BaseTrigger, "task")
"""Whether a trigger that starts a task is told the run of the task (from 3.3 on), which names the owner of claims."""


async def amask_secret(secret: Any) -> None:
    """Mask a secret in the logs of this process, on an event loop.

    secret:  a string, or a list of them.
    """
    try:
        from airflow.sdk.log import amask_secret as mask
    except ImportError:  # 3.1 and 3.2
        from asgiref.sync import sync_to_async

        await sync_to_async(mask_secret)(secret)
    else:
        await mask(secret)


def task_state(context: Context) -> Any:
    """Return what a task remembers over its retries: an object with ``get``, ``set`` and ``delete``.

    From Airflow 3.3 on, this is the task state store. Below it, the state is in Airflow's Variables
    (:class:`~airflow_nats_jetstream.variable_state.VariableState`), because an XCom is deleted when a retry begins. An
    earlier try may have run before Airflow was upgraded, so that a later one also reads the Variables.

    context:  Airflow's context of the task instance, in a worker.
    """
    known: Mapping[str, Any] = context
    store = known.get("task_state_store")
    if store is not None and known["ti"].try_number <= 1:
        return store
    from airflow_nats_jetstream.variable_state import Upgraded, VariableState

    earlier = VariableState(known["ti"])
    return earlier if store is None else Upgraded(store, earlier)


def forgotten(state: Any, context: Context) -> str:
    """Return why the state of the task may have been deleted although its run is not over; empty if it was not.

    state:    what :func:`task_state` has returned.
    context:  Airflow's context of the task instance.
    """
    ask = getattr(state, "forgotten", None)
    return "" if ask is None else str(ask(context.get("dag_run")))


async def kill(trigger: BaseTrigger) -> bool:
    """Let a trigger kill its job. Returns False if its class cannot do that, as most cannot below Airflow 3.3.

    trigger:  the trigger of any provider.
    """
    on_kill = getattr(trigger, "on_kill", None)
    if on_kill is not None:
        await on_kill()
    return on_kill is not None


def is_async_callable(function: Any) -> bool:
    """Return whether a function, or an object that can be called, is asynchronous.

    function:  what a task decorates.
    """
    try:
        from airflow.sdk.bases.decorator import is_async_callable as found
    except ImportError:  # 3.1
        with suppress(Exception):
            function = inspect.unwrap(function)
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return bool(found(function))  # type: ignore[no-untyped-call]


def stats() -> Any:
    """Return Airflow's metrics of this process. From Airflow 3.2 on there are two of them: a task's process initialises
    the SDK's, and every other process initialises the core's. A task's process may have been forked from another."""
    task = hasattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS")
    server = os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "server"
    try:
        if "airflow.jobs.triggerer_job_runner" in sys.modules or (server and not task):
            from airflow.observability import stats as found
        else:
            from airflow.sdk.observability import stats as found  # type: ignore[no-redef]
    except ImportError:  # 3.1 has one for both
        from airflow import stats as found  # type: ignore[no-redef]
    return found if hasattr(found, "incr") else found.Stats  # 3.3 has functions in place of a class


def tells_asset_events() -> bool:
    """Return whether Airflow tells listeners which task has updated an asset (from 3.2 on)."""
    try:
        from airflow.listeners.spec import asset
    except ImportError:  # a worker without Airflow's core
        return False
    return hasattr(asset, "on_asset_event_emitted")


def teams_of(dag_ids: Iterable[str], session: Session) -> Mapping[str, str | None]:
    """Return the team of each DAG, in a deployment with several teams; empty below Airflow 3.2, which has none.

    dag_ids:  the ids of the DAGs.
    session:  a session of Airflow's database.
    """
    from airflow.models.dag import DagModel

    look_up = getattr(DagModel, "get_dag_id_to_team_name_mapping", None)
    return {} if look_up is None else dict(look_up(list(dag_ids), session=session))


def connection_from_secrets(conn_id: str, team: str | None) -> Any:
    """Look up a connection in the api-server.

    conn_id:  the id of the connection.
    team:     the team that it belongs to, which Airflow 3.1 does not ask for.

    Raises:
        AirflowException: Airflow has no such connection.
    """
    from airflow.models.connection import Connection

    look_up = Connection.get_connection_from_secrets
    return look_up(conn_id, **({"team_name": team} if "team_name" in inspect.signature(look_up).parameters else {}))


def connection_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the connection form as Airflow 3.1 asks the hook for them. Later versions read the provider
    info instead.

    fields:  the fields, as in the provider info.
    """
    from wtforms import BooleanField, PasswordField, StringField  # type: ignore[import-untyped]

    form = {}
    for name, field in fields.items():
        schema = field["schema"]
        kind = PasswordField if schema.get("format") == "password" else StringField
        form[name] = made = (BooleanField if "boolean" in schema["type"] else kind)(
            field["label"], description=field["description"]
        )
        # The api-server puts its own classes in the place of those of wtforms, which know no numbers and no long texts.
        if (shown := getattr(made, "param", None)) is not None:
            shown.schema.update(schema)
    return form
