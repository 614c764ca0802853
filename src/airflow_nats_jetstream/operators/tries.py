# SPDX-License-Identifier: Apache-2.0
"""The tries of a task: whether this try is the last one, how long a claim waits for the next try, and the reason of a
failure."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from jetstream_handoff.durations import RETRY_SLACK

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_nats_jetstream.compat import AirflowRescheduleException

log = logging.getLogger(__name__)


def is_last(ti: Any) -> bool:
    """Return whether this try is the last one: Airflow does not retry the task instance if this try fails.

    ti:  the task instance.
    """
    return bool(ti.try_number > ti.max_tries)


def lease(task: BaseOperator, ti: Any) -> timedelta:
    """Return the lease that lasts until the next try: the longest delay that Airflow may use, plus 5 minutes.

    task:  the operator, for its ``retry_delay``, ``retry_exponential_backoff`` and ``max_retry_delay``.
    ti:    the task instance, for the number of its try.
    """
    delay = task.retry_delay
    if backoff := float(task.retry_exponential_backoff or 0):
        delay *= max(backoff, 2.0) ** ti.try_number
        longest = task.max_retry_delay
        if isinstance(longest, timedelta):
            delay = min(delay, longest)
    return min(delay, timedelta(days=1)) + RETRY_SLACK


def until(later: AirflowRescheduleException) -> timedelta:
    """Return the lease that lasts until a rescheduled task runs again, plus 5 minutes.

    later:  the exception with which the task is rescheduled.
    """
    wait: timedelta = later.reschedule_date - datetime.now(UTC)
    return max(wait, timedelta()) + RETRY_SLACK


def next_try(error: BaseException, task: BaseOperator, ti: Any) -> timedelta | None:
    """Return how long it takes at most until Airflow retries the task after an error; None if it does not, because this
    was the last try, or the task's ``retry_policy`` says so.

    Without this delay, the sensor of another run would take the messages of a released claim before the retry.

    error:  the exception that the work raised.
    task:   the operator.
    ti:     the task instance.
    """
    action, delay = _decided(error, task, ti)
    if is_last(ti) or action == "fail":
        return None
    return lease(task, ti) if action != "retry" or delay is None else delay + RETRY_SLACK


def _decided(error: BaseException, task: BaseOperator, ti: Any) -> tuple[str, timedelta | None]:
    """Return what the task's ``retry_policy`` decides, and the delay that it chooses.

    Airflow evaluates the policy once more, and ignores its errors as well.
    """
    policy = getattr(task, "retry_policy", None)
    if policy is None:
        return "default", None
    try:
        decision = policy.evaluate(exception=error, try_number=ti.try_number, max_tries=ti.max_tries)
    except Exception as wrong:  # noqa: BLE001 - the policy's own
        log.warning(
            "the task's retry_policy cannot be evaluated (%s); the claim waits for a retry", type(wrong).__name__
        )
        return "default", None
    return decision.action.value, decision.retry_delay


def reason(error: BaseException, ti: Any) -> str:
    """Return the reason that a dead letter gives for a failure.

    The reason names the error's class, and the task, run and try whose log to read. It leaves out the error's message,
    which may contain a secret.

    error:  the exception that the work raised.
    ti:     the task instance.
    """
    index = "" if ti.map_index in (None, -1) else f"[{ti.map_index}]"
    return f"{type(error).__name__} in {ti.dag_id}.{ti.task_id}{index}, run {ti.run_id}, try {ti.try_number}"
