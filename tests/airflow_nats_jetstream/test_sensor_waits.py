"""A sensor with ``max_wait``: "a thousand messages or ten minutes", deferred, in a worker, and rescheduled."""

import asyncio
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.compat import AirflowSensorTimeout
from airflow_nats_jetstream.hooks import JetStreamHook
from jetstream_client.errors import InvalidValue
from jetstream_client.times import time_nanoseconds
from tests.airflow_nats_jetstream.steps import execute, info, publish, pulls, rendered, sensor
from tests.airflow_nats_jetstream.test_sensor import fired, resumed, trigger_of
from tests.airflow_nats_jetstream.test_sensor_looks import LONG, looks
from tests.jetstream_client.until import until

TWO = timedelta(seconds=2)
WAITS: dict[str, Any] = {"min_messages": 1_000, "max_wait": TWO, "consumer_config": LONG}


def waited(hook: JetStreamHook, stream: str) -> float:
    """For how many seconds the first message has been in the stream, by the clock that it shares with the server."""

    async def stored(js: Any) -> str:
        return str((await js.stream(stream).get_message(1)).time)

    return time.time() - time_nanoseconds(hook.run(stored)) / 1e9


@pytest.mark.parametrize("mode", ["deferred", "in the worker", "rescheduled"])
async def test_999_messages_are_taken_after_max_wait(hook: JetStreamHook, stream: str, mode: str) -> None:
    await asyncio.to_thread(publish, hook, stream, 999)
    if mode == "deferred":
        event = await fired(await asyncio.to_thread(trigger_of, stream, **WAITS))
        claims = await asyncio.to_thread(resumed, stream, event)
    elif mode == "in the worker":
        claims = await asyncio.to_thread(execute, sensor(stream, **WAITS))
    else:
        while not (claims := await asyncio.to_thread(looks, stream, **WAITS)):
            assert await asyncio.to_thread(waited, hook, stream) < 60
    assert [claim["count"] for claim in claims] == [999]
    assert await asyncio.to_thread(waited, hook, stream) >= TWO.total_seconds()
    assert (await asyncio.to_thread(info, hook, stream)).ack_pending == 999  # nothing is acknowledged


async def test_a_triggerer_that_takes_over_does_not_begin_to_count_again(hook: JetStreamHook, stream: str) -> None:
    await asyncio.to_thread(publish, hook, stream, 5)
    waits = {**WAITS, "max_wait": timedelta(seconds=10)}
    first = await asyncio.to_thread(trigger_of, stream, **waits)
    dies = asyncio.create_task(fired(first))

    async def pulled() -> bool:
        return (await asyncio.to_thread(info, hook, stream)).ack_pending == 5

    await until(partial(pulls, hook, stream))
    await until(pulled)
    dies.cancel()
    await asyncio.wait([dies])
    while await asyncio.to_thread(waited, hook, stream) < 10:  # noqa: ASYNC110 - it is the clock that is waited for
        await asyncio.sleep(0.1)
    began = time.monotonic()
    event = await fired(type(first)(**first.serialize()[1]))
    assert [claim["count"] for claim in event["claims"]] == [5]
    assert time.monotonic() - began < 10


def test_a_time_out_ends_the_wait_without_a_claim(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 5)
    waits = {**WAITS, "max_wait": timedelta(seconds=30), "min_bytes": 10**9}
    task = sensor(stream, timeout=40, **waits)
    task.timeout = 1
    with pytest.raises(InvalidValue, match="max_wait"):
        execute(task)
    waits.pop("max_wait")
    with pytest.raises(
        AirflowSensorTimeout, match="fewer than 1000 messages or 1000000000 bytes were taken within 1 s"
    ):
        execute(sensor(stream, timeout=1, **waits))
    assert info(hook, stream).floor == 0
    (claim,) = execute(sensor(stream, consumer_config=None), run_id="other")
    assert claim["count"] == 5


def test_templates_give_the_limits(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 5)
    limits = {"min_messages": "{{ params.n }}", "min_bytes": "{{ params.size }}", "max_wait": "PT{{ params.wait }}S"}
    task = rendered(sensor(stream, **limits), {"n": 100, "size": 10**6, "wait": 1})
    (claim,) = execute(task)
    assert claim["count"] == 5
    nothing = {"min_bytes": "{{ params.size }}", "max_wait": "{{ params.wait }}"}
    publish(hook, stream, 2)
    (claim,) = execute(rendered(sensor(stream, **nothing), {"size": None, "wait": None}), run_id="other")
    assert claim["count"] == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_wait": TWO}, "max_wait=.*leave max_wait out, or give min_messages of 2 or more, or min_bytes"),
        ({"max_wait": TWO, "stream": "{{ params.stream }}"}, "max_wait=.*leave max_wait out"),
        ({"max_wait": timedelta(seconds=60), "min_messages": 5}, "max_wait=.*timeout=60 s.*soft_fail=True"),
        ({"max_wait": "PT2M", "min_bytes": 5}, "max_wait=.*timeout=60 s"),
        ({"max_wait": timedelta(seconds=-1), "min_messages": 5}, "max_wait="),
        ({"max_wait": timedelta(0), "min_messages": 5}, "max_wait="),
        ({"max_wait": 600, "min_messages": 5}, r"max_wait=600: .*timedelta\(seconds=600\)"),
        ({"max_wait": "10 minutes", "min_messages": 5}, "max_wait='10 minutes'"),
        ({"min_bytes": 0}, "min_bytes=0"),
        ({"min_bytes": "much"}, "min_bytes='much'.*whole number"),
    ],
)
def test_bad_limits_are_refused_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says), DAG("dag", schedule=None):
        sensor(**{"stream": "A", **changes})


def test_with_soft_fail_a_time_out_may_come_first() -> None:
    """A DAG that runs every five minutes may look whether there is enough, and be skipped otherwise."""
    sensor("A", max_wait=timedelta(minutes=10), min_messages=1_000, timeout=60, soft_fail=True)
