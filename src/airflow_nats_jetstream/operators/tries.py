"""The tries of a task: whether Airflow will try again, when at the latest, and what a failure is called."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_nats_jetstream.held import HeldClaim

RETRY_SLACK = timedelta(minutes=5)
"""How long a retry may wait for a worker, beyond its delay, before its messages are delivered again."""


def is_last(ti: Any) -> bool:
    """Whether Airflow does not try again when this try of the task instance fails."""
    return bool(ti.try_number > ti.max_tries)


def lease(task: BaseOperator, ti: Any) -> timedelta:
    """How long the messages wait for the next try: the longest delay that Airflow may make, and the slack."""
    delay = task.retry_delay
    if backoff := float(task.retry_exponential_backoff or 0):
        delay *= max(backoff, 2.0) ** ti.try_number
        longest = task.max_retry_delay
        if isinstance(longest, timedelta):
            delay = min(delay, longest)
    return min(delay, timedelta(days=1)) + RETRY_SLACK


def give_back(held: HeldClaim, error: BaseException, task: BaseOperator, ti: Any) -> None:
    """The work on a claim failed: its messages wait for the next try, or this was the last one.

    Released without a delay they would go to the sensor of another run first.
    """
    if is_last(ti):
        held.fail(reason(error, ti))
    else:
        held.release(lease(task, ti))


def reason(error: BaseException, ti: Any) -> str:
    """What a dead letter says of a failure. Where to look, not the error's text: that may hold a secret."""
    index = "" if ti.map_index in (None, -1) else f"[{ti.map_index}]"
    return f"{type(error).__name__} in {ti.dag_id}.{ti.task_id}{index}, run {ti.run_id}, try {ti.try_number}"
