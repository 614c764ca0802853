"""Rows in Airflow's database, through its models: triggers, and the task instances that are deferred to them.

Importing this module reads Airflow's configuration, so the environment must already be that of the stack.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import func, select

from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from benchmarks.sensors.triggers import ConnectedTrigger, PlainTrigger, SleepingTrigger
from demo.stack import CONNECTION

STREAM = "WAITING"
TASK = "sensor"
LONG = 3600.0  # seconds, the time-out of the sensors


class Resumed(NamedTuple):
    """A task instance whose event is stored. ``at`` is when it was stored, in seconds since 1970."""

    number: int
    at: float
    event: dict[str, Any]


def trigger(way: str, number: int, run: str, server: str, wake: float) -> BaseTrigger:
    """Return the trigger of the sensor with this number. ``wake``: when a SleepingTrigger fires, seconds since 1970."""
    if way == "asleep":
        return SleepingTrigger(wake)
    consumer = "w0" if way == "one" else f"w{number}"
    if way == "plain":
        return PlainTrigger(server, STREAM, consumer)
    owner = ["waiting", run, TASK, number, 1]
    taking = {"stream": STREAM, "consumer": consumer, "owner": owner, "max_messages": 1}
    ours = ConnectedTrigger if way == "connected" else JetStreamPullTrigger
    return ours(CONNECTION, taking, time.time() + LONG)


def defer(run: str, triggers: Sequence[BaseTrigger]) -> None:
    """Defer all task instances of a run, as Airflow does it."""
    with create_session() as session:
        of_the_run = select(TaskInstance).where(TaskInstance.run_id == run).order_by(TaskInstance.map_index)
        for instance, waiting in zip(session.scalars(of_the_run).all(), triggers, strict=True):
            row = Trigger.from_object(waiting)
            session.add(row)
            session.flush()
            instance.trigger_id = row.id
            instance.state = TaskInstanceState.DEFERRED
            instance.next_method = "resume"
            instance.next_kwargs = {}
            instance.try_number = 1


def deferred(run: str) -> int:
    """Return the number of task instances that wait for their trigger."""
    with create_session() as session:
        waits = (TaskInstance.run_id == run, TaskInstance.state == TaskInstanceState.DEFERRED)
        return session.scalar(select(func.count()).select_from(TaskInstance).where(*waits)) or 0


def resumed(run: str) -> list[Resumed]:
    with create_session() as session:
        found = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run)).all()
        return [
            Resumed(each.map_index, each.scheduled_dttm.timestamp(), (each.next_kwargs or {})["event"])
            for each in found
            if each.state == TaskInstanceState.SCHEDULED and each.scheduled_dttm is not None
        ]
