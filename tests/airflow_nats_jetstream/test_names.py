"""Mistyped names in Airflow: the sensor creates nothing if the consumer must exist, and the hook reads nothing."""

import pytest

from airflow_nats_jetstream.compat import TaskDeferred
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from jetstream_client.errors import ConsumerNotFound, InvalidValue
from tests.airflow_nats_jetstream.steps import CONSUMER, claim, execute, publish, rendered, sensor


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
def test_a_sensor_whose_consumer_must_exist_creates_none(hook: JetStreamHook, stream: str, strict: object) -> None:
    publish(hook, stream, 10)
    waiting = rendered(sensor(stream, consumer="wrok", create_consumer=strict), {"create": False})
    with pytest.raises(ConsumerNotFound, match="'wrok'"):
        execute(waiting)
    assert consumers(hook, stream) == []


async def test_a_trigger_knows_that_the_consumer_must_exist(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor(stream, create_consumer=False, deferrable=True))
    trigger = JetStreamPullTrigger(**deferred.value.trigger.serialize()[1])
    (event,) = [event async for event in trigger.run()]
    assert event.payload["status"] == "error"
    assert event.payload["type"] == "ConsumerNotFound"
    assert event.payload["error"].startswith(f"consumer '{CONSUMER}'")


def test_a_wrong_value_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidValue, match="create_consumer='no': give True or False"):
        sensor("S", create_consumer="no")
