# SPDX-License-Identifier: Apache-2.0
"""How a task ends its claim: it settles the claim after everything of the task that can still fail, or gives it back
after an error."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, get_args

import structlog
from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from airflow_nats_jetstream.compat import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTerminated,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskAwaitingInput,
    TaskDeferred,
)
from airflow_nats_jetstream.operators import tries
from jetstream_client.errors import InvalidValue
from jetstream_handoff.hold.ending import Fail, How, Skip, end_hold
from jetstream_handoff.rules.missing import is_final, reason_of

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from pyspark_jetstream.held_claim import HeldClaim

OnSkip = Literal["release", "settle"]
ELSEWHERE = (DagRunTriggerException, TaskAwaitingInput, TaskDeferred)
"""Exceptions after which Airflow continues the task outside of this process."""
NO_RETRY = (AirflowFailException, AirflowSensorTimeout, AirflowTaskTerminated)
"""Errors after which Airflow does not retry the task."""

SKIPPED = "jetstream_skipped"
"""The key of a recorded value that says that a task has skipped its work (True), or which tasks it has skipped."""

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
    from jetstream_handoff.ledger.record import check_value

    check_value(recorded)
    if getattr(context["ti"], "task", None) is not task:  # another task executes this operator, and Airflow ends that
        end_hold(held, How.SUCCEEDED, value=recorded)
        return
    pushed = finish(task, context, value)
    try:
        end_hold(held, How.SUCCEEDED, value=recorded)
    except BaseException:
        if not held.ended:
            _withdraw(context["ti"], pushed)
        raise


def finish(task: Any, context: Any, value: Any) -> list[str]:
    """Do what Airflow's task runner does after ``execute`` (``_execute_task`` and ``_run_task_and_map_outcome`` in
    ``airflow/sdk/execution_time/task_runner.py``), so that it is not done again. Returns the keys of the XComs.

    Airflow executes a copy of the operator in each try (``prepare_for_execution``), so the changes do not last.

    task:     the operator.
    context:  Airflow's context.
    value:    the value that the task returns.
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


def skips_again(value: Any) -> None:
    """Skip as an earlier try has skipped, if the value that it recorded says so.

    Raises:
        AirflowSkipException: it skipped its work and settled the claim.
        DownstreamTasksSkipped: it has succeeded and skipped other tasks.
    """
    if not (isinstance(value, dict) and value.keys() == {SKIPPED}):
        return
    if value[SKIPPED] is True:
        raise AirflowSkipException("an earlier try of this task skipped its work and settled the claim")
    tasks = [tuple(each) if isinstance(each, list) else each for each in value[SKIPPED]]
    raise DownstreamTasksSkipped(tasks=tasks)  # type: ignore[no-untyped-call]


def end(held: HeldClaim, error: BaseException, task: Any, ti: Any) -> None:
    """End the hold after the work, or what Airflow does after it, has raised an exception.

    held:   the claim.
    error:  the exception, which the caller raises after this.
    task:   the operator, with ``on_skip``.
    ti:     the task instance.

    Raises:
        HoldLost: the claim was lost before.
        AirflowFailException: the exception asks Airflow to continue the task where the claim cannot be held, or
            messages of the claim no longer exist, so that a retry would fail as well.
    """
    how, next_try = _how(error, task, ti)
    value = {SKIPPED: True}
    if isinstance(error, DownstreamTasksSkipped):
        value = recordable(held, {SKIPPED: error.tasks})
    decided = end_hold(held, how, next_try=next_try, value=value, reason=tries.reason(error, ti), cause=error)
    if isinstance(decided, Skip):
        log.warning(
            "the work on the claim was skipped: its messages are redelivered to the next run. If there is nothing to "
            "do for them, set on_skip='settle'",
            claim=held.id,
        )
    elif isinstance(decided, Fail) and isinstance(error, ELSEWHERE):
        raise AirflowFailException(
            f"{task.task_type} ended with {type(error).__name__}, after which Airflow would continue the task where "
            "the claim cannot be held; do this in a separate task downstream, or hold the claim around a deferrable "
            "operator with holding()"
        ) from None
    elif isinstance(decided, Fail) and how is How.UNREADABLE:
        raise AirflowFailException(f"claim {held.id} cannot be read: {reason_of(error)}") from error


def _how(error: BaseException, task: Any, ti: Any) -> tuple[How, timedelta | None]:
    """Return how the work ended that has raised this exception, and how long it takes until the next try, if any."""
    if isinstance(error, AirflowSkipException):
        return (How.NOTHING_TO_DO if getattr(task, "on_skip", "release") == "settle" else How.SKIPPED), None
    if isinstance(error, DownstreamTasksSkipped):  # for Airflow the task has succeeded
        return How.SUCCEEDED, None
    if isinstance(error, AirflowRescheduleException):
        return How.LATER, tries.until(error)
    if is_final(error) and not isinstance(error, ELSEWHERE):
        return How.UNREADABLE, None
    return How.FAILED, None if isinstance(error, (*ELSEWHERE, *NO_RETRY)) else tries.next_try(error, task, ti)


def recordable(held: HeldClaim, value: Any) -> Any:
    """Return a value if the ledger can record it, else None."""
    from jetstream_handoff.ledger.record import check_value

    try:
        check_value(value)
    except InvalidValue as wrong:
        log.info("the claim is settled without a recorded value", claim=held.id, reason=str(wrong))
        return None
    return value


def check_on_skip(value: str) -> None:
    """Check a task's ``on_skip``. Raises InvalidValue."""
    if value not in get_args(OnSkip):
        raise InvalidValue("on_skip", value, f"give one of {', '.join(map(repr, get_args(OnSkip)))}")
