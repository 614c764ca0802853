"""Mistyped names in Airflow: the sensor creates nothing if the consumer must exist, and the hook reads nothing."""

import asyncio

import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from jetstream_client.errors import ConsumerNotFound, InvalidValue
from tests.airflow_nats_jetstream.steps import CONSUMER, claim, deferred, execute, publish, rendered, sensor


def consumers(hook: JetStreamHook, stream: str) -> list[str]:
    async def names(js: object) -> list[str]:
        return [name async for name in js.stream(stream).consumer_names()]  # type: ignore[attr-defined]

    return hook.run(names)


def test_committed_of_a_mistyped_consumer_is_an_error(hook: JetStreamHook, stream: str) -> None:
    with hook.processing(claim(hook, stream)):
        pass
    with pytest.raises(ConsumerNotFound, match=f"Did you mean '{CONSUMER}'"):
        hook.committed(stream, "wrok")


@pytest.mark.parametrize("strict", [False, "{{ params.create }}"])
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_whose_consumer_must_exist_creates_none(
    hook: JetStreamHook, stream: str, strict: object, deferrable: bool
) -> None:
    publish(hook, stream, 10)
    named = sensor(stream, consumer="wrok", create_consumer=strict, deferrable=deferrable)
    waiting = rendered(named, {"create": False})
    with pytest.raises(ConsumerNotFound, match="'wrok'"):
        execute(waiting)
    assert consumers(hook, stream) == []


async def test_a_trigger_knows_that_the_consumer_must_exist(hook: JetStreamHook, stream: str) -> None:
    await asyncio.to_thread(deferred, sensor(stream, deferrable=True))
    trigger = await asyncio.to_thread(deferred, sensor(stream, create_consumer=False, deferrable=True))
    await asyncio.to_thread(hook.run, lambda js: js.stream(stream).delete_consumer(CONSUMER))
    (event,) = [event async for event in trigger.run()]
    assert event.payload["status"] == "error"
    assert event.payload["type"] == "ConsumerNotFound"
    assert event.payload["error"].startswith(f"consumer '{CONSUMER}'")


def test_a_wrong_value_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidValue, match="create_consumer='no': give True or False"):
        sensor("S", create_consumer="no")
