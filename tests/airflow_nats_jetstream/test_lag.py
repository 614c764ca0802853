"""Waiting for a consumer's lag: in the worker and in the triggerer."""

import asyncio
from functools import partial
from typing import Any

import pytest

from airflow_nats_jetstream.compat import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamLagSensor
from jetstream_client.errors import ConsumerNotFound, InvalidValue
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, deferred, execute, publish, resumed, sensor
from tests.airflow_nats_jetstream.test_sensor import fired


def lag(stream: str, **changes: Any) -> JetStreamLagSensor:
    values: dict[str, Any] = {"stream": stream, "consumer": CONSUMER, "deferrable": False, "poke_interval": 0.1}
    return JetStreamLagSensor(task_id="lag", nats_conn_id=CONNECTION, **{**values, "timeout": 60, **changes})


deferring = partial(lag, deferrable=True)


def settle(hook: JetStreamHook, claimed: dict[str, Any]) -> None:
    with hook.processing(claimed):
        pass


def test_the_lag_is_what_waits_and_what_is_not_acknowledged(hook: JetStreamHook, stream: str) -> None:
    claimed = claim(hook, stream, 6)
    publish(hook, stream, 4)
    assert execute(lag(stream, above=9)) == {"lag": 10, "pending": 4, "unacknowledged": 6}
    with pytest.raises(AirflowSensorTimeout):
        execute(lag(stream, below=10, timeout=0))
    with pytest.raises(AirflowSkipException):
        execute(lag(stream, above=10, timeout=0, soft_fail=True))
    with pytest.raises(AirflowRescheduleException):
        execute(lag(stream, below=10, mode="reschedule"))
    settle(hook, claimed)
    assert execute(lag(stream, below=5)) == {"lag": 4, "pending": 4, "unacknowledged": 0}
    settle(hook, execute(sensor(stream))[0])
    assert execute(lag(stream, below=1)) == {"lag": 0, "pending": 0, "unacknowledged": 0}


async def test_the_triggerer_waits_for_it(hook: JetStreamHook, stream: str) -> None:
    claimed = await asyncio.to_thread(claim, hook, stream, 6)
    waiting = asyncio.create_task(fired(await asyncio.to_thread(deferred, deferring(stream, below="1"))))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await asyncio.to_thread(settle, hook, claimed)
    assert resumed(deferring(stream, below=1), await waiting)["lag"] == 0
    never = await fired(await asyncio.to_thread(deferred, deferring(stream, above=0, timeout=0)))
    with pytest.raises(AirflowSensorTimeout, match="was not above 0 within"):
        resumed(deferring(stream, above=0), never)
    with pytest.raises(AirflowSkipException):
        resumed(deferring(stream, above=0, soft_fail=True), never)


async def test_a_consumer_that_is_not_there_is_an_error(hook: JetStreamHook, stream: str) -> None:
    for waiting in (lag, deferring):
        with pytest.raises(ConsumerNotFound, match=CONSUMER):
            await asyncio.to_thread(execute, waiting(stream, below=1, soft_fail=True))
    await asyncio.to_thread(claim, hook, stream, 6)
    trigger = await asyncio.to_thread(deferred, deferring(stream, below=1))
    await asyncio.to_thread(hook.run, lambda js: js.stream(stream).delete_consumer(CONSUMER))
    with pytest.raises(ConsumerNotFound, match=CONSUMER):
        resumed(deferring(stream, below=1, soft_fail=True), await fired(trigger))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "below, above=.*set exactly one"),
        ({"below": 1, "above": 1}, "below, above=.*set exactly one"),
        ({"below": 0}, "below=0"),
        ({"above": -1}, "above=-1"),
        ({"below": "few"}, "whole number"),
        ({"below": 1, "stream": "a.b"}, r"stream='a\.b'"),
        ({"below": 1, "consumer": "a b"}, "consumer='a b'"),
        ({"below": 1, "mode": "reschedule", "deferrable": True}, "mode='reschedule'"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        lag(**{"stream": "A", **changes})
