# SPDX-License-Identifier: Apache-2.0
"""How a task ends its claim: it settles the claim after everything of the task that can still fail, or gives it back
after an error."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTerminated,
)

from airflow_nats_jetstream.operators import tries
from jetstream_handoff.errors import HoldLost

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_nats_jetstream.held import HeldClaim

NO_RETRY = (AirflowFailException, AirflowSensorTimeout, AirflowTaskTerminated)
"""Errors after which Airflow does not retry the task."""

log = structlog.get_logger("task")


def settle(held: HeldClaim, recorded: Any, value: Any, task: Any, context: Context) -> None:
    """Settle a claim, after all that Airflow does when a task's work has returned and that can still fail.

    held:      the claim.
    recorded:  the value to record with the settlement.
    value:     the value that the task returns.
    task:      the operator.
    context:   Airflow's context.

    The task's ``post_execute`` is called and its XComs are pushed here. Airflow does not repeat either, except that it
    pushes a value over which another task is mapped once more. If the claim cannot be settled, the XComs are deleted,
    because they may name the output of an attempt that does not count.
    """
    from jetstream_handoff.record import check_value

    check_value(recorded)
    if getattr(context["ti"], "task", None) is not task:  # another task executes this operator, and Airflow ends that
        held.settle(recorded)
        return
    pushed = _finish(task, context, value)
    try:
        held.settle(recorded)
    except BaseException:
        if not held.ended:
            _withdraw(context["ti"], pushed)
        raise


def _finish(task: Any, context: Any, value: Any) -> list[str]:
    """Do what Airflow's task runner does after ``execute`` (``_execute_task`` and ``_run_task_and_map_outcome`` in
    ``airflow/sdk/execution_time/task_runner.py``), so that it is not done again. Returns the keys of the XComs.

    Airflow executes a copy of the operator in each try (``prepare_for_execution``), so the changes do not last.
    """
    from airflow.sdk.execution_time.callback_runner import create_executable_runner
    from airflow.sdk.execution_time.context import context_get_outlet_events

    # The runner's own function: only it pushes the length by which Airflow refuses a value that is too long to map over
    # (https://github.com/apache/airflow/blob/3.3.2/task-sdk/src/airflow/sdk/execution_time/task_runner.py).
    from airflow.sdk.execution_time.task_runner import _push_xcom_if_needed

    ti, events = context["ti"], context_get_outlet_events(context)
    if (hook := task._post_execute_hook) is not None:
        create_executable_runner(hook, events, logger=log).run(context, value)
        task._post_execute_hook = None
    if getattr(task.post_execute, "__func__", None) is not BaseOperator.post_execute:
        create_executable_runner(task.post_execute, events, logger=log).run(context)
        task.post_execute = MethodType(BaseOperator.post_execute, task)
    if (template := context.get("map_index_template")) is not None:
        task.dag.get_template_env().from_string(template).render(context)
    _push_xcom_if_needed(value, ti, log)
    if value is None or not task.do_xcom_push:
        return []
    # A task over whose output another is mapped must push once more: without a value, Airflow would fail it.
    task.do_xcom_push = not ti.is_mapped and next(task.iter_mapped_dependants(), None) is not None
    return [BaseXCom.XCOM_RETURN_KEY, *(value if task.multiple_outputs else ())]


def _withdraw(ti: Any, keys: list[str]) -> None:
    """Delete XComs. An error is only logged, because the error that led here matters more."""
    from airflow.sdk.execution_time.xcom import XCom

    for key in keys:
        try:
            XCom.delete(key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)
        except Exception as error:  # noqa: BLE001 - whatever Airflow or a backend raises
            log.warning("an XCom of an attempt that has not settled its claim was not deleted", key=key, error=error)


def give_back(held: HeldClaim, error: BaseException, task: BaseOperator, ti: Any) -> None:
    """End the hold after the work, or what Airflow does after it, has raised an error.

    held:   the claim.
    error:  the error, which the caller raises.
    task:   the operator.
    ti:     the task instance.

    Raises:
        HoldLost: the claim was lost before.
    """
    if held.killed or held.ended:
        return
    if held.lost:
        raise HoldLost(f"claim {held.id} is no longer held: {held.lost}") from error
    if isinstance(error, AirflowSkipException):
        held.fail(tries.reason(error, ti), blame=False)
    elif isinstance(error, NO_RETRY):
        held.fail(tries.reason(error, ti))
    else:
        tries.give_back(held, error, task, ti)
