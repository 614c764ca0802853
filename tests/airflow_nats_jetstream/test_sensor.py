"""Waiting for messages, in a worker and in the triggerer, and each way in which Airflow ends a wait."""

import asyncio
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.compat import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.triggers import JetStreamPullTrigger, JetStreamTrigger
from demo.nats_server import NatsServer
from jetstream_client.errors import AuthenticationFailed, InvalidValue, JetStreamError, StreamNotFound
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, LedgerUnavailable
from jetstream_handoff.ledger.order import Order
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import (
    ACK_WAIT,
    CONNECTION,
    CONSUMER,
    Supervisor,
    context_of,
    execute,
    info,
    publish,
    pulls,
    record,
    rendered,
    sensor,
)
from tests.airflow_versions import deserialize, serialize
from tests.jetstream_client.until import until

INSTANCE = {"try_number", "max_tries", "map_index", "run_start", "run_id", "clears"}


def trigger_of(stream: str, run_id: str = "run", **changes: Any) -> JetStreamPullTrigger:
    """The trigger of a deferred sensor, as read back from Airflow's database."""
    instance = {name: changes.pop(name) for name in INSTANCE & changes.keys()}
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor(stream, deferrable=True, **changes), run_id=run_id, **instance)
    path, values = deferred.value.trigger.serialize()
    assert path == "airflow_nats_jetstream.triggers.JetStreamPullTrigger"
    stored: Any = deserialize(json.loads(json.dumps(serialize(values))))
    return JetStreamPullTrigger(**stored)


async def fired(trigger: JetStreamTrigger) -> dict[str, Any]:
    """Run a trigger to its end and clean up, as the triggerer does."""
    try:
        (event,) = [event async for event in trigger.run()]
        return dict(event.payload)
    finally:
        await trigger.cleanup()


def resumed(stream: str, event: dict[str, Any], **changes: Any) -> Any:
    task = sensor(stream, deferrable=True, **changes)
    with Supervisor().serves():
        return task.resume_execution("resume", {"event": event}, context_of(task))


def test_waits_in_the_worker(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 50)
    claims = execute(sensor(stream, messages_per_claim=20))
    assert [Claim.from_json(claim).count for claim in claims] == [20, 20, 10]
    assert info(hook, stream).ack_pending == 50


@pytest.mark.parametrize(
    "start",
    [pendulum.datetime(2026, 1, 1, 5, 30, tz="Asia/Kolkata"), "20251231T190000-05", "{{ data_interval_start }}"],
)
def test_a_consumer_begins_at_a_time(hook: JetStreamHook, stream: str, start: Any) -> None:
    """In any time zone, and twice: the second sensor finds a suitable consumer. Durations are ISO 8601."""
    config = {"deliver_policy": "by_start_time", "opt_start_time": start, "ack_wait": "PT1S"}
    times = {"gather": "PT{{ params.seconds }}S", "hand_off_timeout": "PT{{ params.seconds }}M"}
    day = pendulum.datetime(2026, 1, 1, 1, tz="Europe/Berlin")
    for count in (3, 2):
        publish(hook, stream, count)
        task = rendered(sensor(stream, consumer_config=config, **times), {"seconds": 0.1}, data_interval_start=day)
        (claim,) = execute(task, run_id=str(count))
        assert claim["count"] == count
    assert time_nanoseconds(info(hook, stream).config["opt_start_time"]) == day.int_timestamp * 10**9


async def test_a_deferred_sensor_hands_on_claims(hook: JetStreamHook, stream: str) -> None:
    trigger = await asyncio.to_thread(trigger_of, stream)
    waiting = asyncio.create_task(fired(trigger))
    await until(partial(pulls, hook, stream))
    await asyncio.to_thread(publish, hook, stream, 50)
    event = await waiting
    claims = await asyncio.to_thread(resumed, stream, event)
    assert [Claim.from_json(claim).count for claim in claims] == [50]
    assert [record.owner for record in (await ledger(hook, stream)).values()] == [("dag", "run", "claims", -1, 0, "")]


async def test_a_deferred_sensor_keeps_the_order_of_each_key(hook: JetStreamHook, stream: str) -> None:
    """Its trigger stores the key rule. Any key rule divides the messages; these have one key."""
    stop: dict[str, Any] = {"on_poison": "stop_key", "max_failures": 3}
    in_order: dict[str, Any] = {"ordered_by": "{1}", "claims": 4, **stop}
    trigger = await asyncio.to_thread(partial(trigger_of, stream, **in_order))
    await asyncio.to_thread(publish, hook, stream, 50)
    assert trigger.taking["ordered_by"] == "{1}"
    assert trigger.taking["on_poison"] == "stop_key"
    event = await fired(trigger)
    claims = await asyncio.to_thread(partial(resumed, stream, event, **in_order))
    assert [Claim.from_json(claim).count for claim in claims] == [50]
    entries = await asyncio.to_thread(record, hook, stream)
    assert entries
    assert entries.order == Order("{1}", claims=1)


@pytest.mark.parametrize("enough", [{}, {"min_messages": 50}, {"max_wait": timedelta(seconds=1), "min_messages": 2}])
def test_a_deferrable_sensor_takes_in_its_worker_what_waits_already(
    hook: JetStreamHook, stream: str, enough: dict[str, Any]
) -> None:
    publish(hook, stream, 50)
    (claim,) = execute(sensor(stream, deferrable=True, **enough))
    assert (claim["count"], info(hook, stream).ack_pending) == (50, 50)


def never_called(_: object) -> bool:
    raise AssertionError("the worker called the backlog function")


@pytest.mark.parametrize(
    "least", [{"min_messages": 51}, {"min_bytes": 100}, {"backlog": f"{__name__}.never_called"}], ids=str
)
def test_a_deferrable_sensor_pulls_nothing_in_its_worker_that_may_be_too_little(
    hook: JetStreamHook, stream: str, least: dict[str, Any]
) -> None:
    """What it pulled and gave back would be redelivered. How many bytes wait is not known before."""
    publish(hook, stream, 50)
    trigger_of(stream, **least)
    assert (info(hook, stream).pending, info(hook, stream).counter) == (50, 0)


def test_a_deferrable_sensor_pulls_nothing_in_its_worker_that_waits_for_others_of_its_keys(
    hook: JetStreamHook, stream: str
) -> None:
    trigger_of(stream, ordered_by="{1}")
    publish(hook, stream, 50)
    assert len(hook.run(lambda js: js.consumer(stream, CONSUMER).fetch(1))) == 1
    trigger_of(stream, ordered_by="{1}")
    assert (info(hook, stream).pending, info(hook, stream).counter) == (49, 1)


@pytest.mark.parametrize("others", [5, 6])
def test_a_deferrable_sensor_pulls_nothing_in_its_worker_if_max_ack_pending_leaves_too_little_room(
    hook: JetStreamHook, stream: str, others: int
) -> None:
    narrow = {"ack_wait": timedelta(seconds=60), "max_ack_pending": 10}
    trigger_of(stream, consumer_config=narrow, max_messages=10)
    publish(hook, stream, 50)
    assert len(hook.run(lambda js: js.consumer(stream, CONSUMER).fetch(others))) == others
    enough = sensor(stream, deferrable=True, consumer_config=narrow, max_messages=10, min_messages=5)
    if others == 5:
        (claim,) = execute(enough)
        assert claim["count"] == 5
    else:
        with pytest.raises(TaskDeferred):
            execute(enough)
        assert info(hook, stream).counter == others


def test_a_deferrable_sensor_does_not_pin_a_priority_group_in_its_worker(hook: JetStreamHook, stream: str) -> None:
    pinned = {
        "ack_wait": ACK_WAIT,
        "priority_groups": ["g"],
        "priority_policy": "pinned_client",
        "priority_timeout": 120,
    }
    publish(hook, stream, 50)
    trigger_of(stream, consumer_config=pinned, priority={"group": "g"})
    state = info(hook, stream)
    assert (state.counter, [group.get("pinned_client_id") for group in state.raw["priority_groups"]]) == (0, [None])


async def ledger(hook: JetStreamHook, stream: str) -> Any:
    entries = await asyncio.to_thread(record, hook, stream)
    return entries.open if entries else {}


async def test_a_trigger_that_is_started_again_hands_on_the_same_claims(hook: JetStreamHook, stream: str) -> None:
    first = await asyncio.to_thread(trigger_of, stream)
    await asyncio.to_thread(publish, hook, stream, 10)
    events: AsyncIterator[Any] = first.run()
    event = await anext(events)  # then its triggerer dies, and the event is not stored
    second = JetStreamPullTrigger(**first.serialize()[1])
    (first_claim,), (second_claim,) = event.payload["claims"], (await fired(second))["claims"]
    assert second_claim == {**first_claim, "taken_at": second_claim["taken_at"]}
    await first.cleanup()
    assert len(await ledger(hook, stream)) == 1  # nothing is released after the event


async def test_a_retry_hands_on_in_its_worker_what_a_trigger_took(hook: JetStreamHook, stream: str) -> None:
    again: dict[str, Any] = {"retries": 1, "max_tries": 1}
    trigger = await asyncio.to_thread(partial(trigger_of, stream, **again))
    await asyncio.to_thread(publish, hook, stream, 10)
    (taken,) = (await fired(trigger))["claims"]  # Airflow fails the task, and the claims do not reach it
    retry = sensor(stream, deferrable=True, retries=1)
    (claim,) = await asyncio.to_thread(partial(execute, retry, try_number=2, max_tries=1))
    assert claim["id"] == taken["id"]


@pytest.mark.parametrize("mode", ["deferred", "in the worker", "rescheduled"])
async def test_a_retry_hands_on_what_an_earlier_try_took_but_a_cleared_sensor_does_not(
    hook: JetStreamHook, stream: str, mode: str
) -> None:
    start = datetime(2026, 11, 21, 3, tzinfo=UTC)

    async def begun(timeout: float = 60, **instance: Any) -> list[str]:
        """Run a try of the sensor, and return its claims, which never reach Airflow."""
        task = {"retries": 2, "timeout": timeout, "run_start": start, **instance}
        instance = {name: task.pop(name) for name in INSTANCE if name in task}
        own = (
            {"mode": "reschedule", "poke_interval": 1} if mode == "rescheduled" else {"deferrable": mode == "deferred"}
        )
        try:
            claims = await asyncio.to_thread(execute, sensor(stream, **task, **own), **instance)
        except TaskDeferred:
            event = await fired(await asyncio.to_thread(trigger_of, stream, **task, **instance))
            return [claim["id"] for claim in event.get("claims", ())]
        except (AirflowSensorTimeout, AirflowRescheduleException):
            return []
        return [claim["id"] for claim in claims]

    await asyncio.to_thread(publish, hook, stream, 10)
    first = await begun(try_number=1, max_tries=2)
    assert len(first) == 1
    assert await begun(try_number=2, max_tries=2) == first
    # After a clear with 1 or 2 tries before; another deployment's sensor; another map index; another run.
    others: list[dict[str, Any]] = [
        {"max_tries": 3, "clears": 1},
        {"max_tries": 4, "clears": 2},
        {"run_start": start + timedelta(microseconds=1)},
        {"map_index": 0},
        {"run_id": "other"},
    ]
    for other in others:
        assert await begun(1, **{"try_number": 2, "max_tries": 2, **other}) == []
    assert await begun(try_number=3, max_tries=2) == first
    # After an edit of the DAG: Airflow keeps max_tries, and the task has its new retries.
    for retries in (0, 1, 5):
        assert await begun(try_number=3, max_tries=2, retries=retries) == first

    # 1 retry became 0 before the first try. A clear then sets max_tries to 1 try + 0 retries.
    await asyncio.to_thread(publish, hook, stream, 10)
    edited: dict[str, Any] = {"run_id": "edited", "max_tries": 1, "retries": 0}
    assert len(await begun(**edited)) == 1
    assert await begun(1, **edited, try_number=2, clears=1) == []


async def test_a_killed_trigger_gives_back_what_it_pulled(hook: JetStreamHook, stream: str) -> None:
    await asyncio.to_thread(publish, hook, stream, 10)
    trigger = await asyncio.to_thread(trigger_of, stream, min_messages=11)
    waiting = asyncio.create_task(fired(trigger))
    while not await is_pulled(hook, stream):  # noqa: ASYNC110 - the server does not call us
        await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    other = await asyncio.to_thread(trigger_of, stream, "other", timeout=0.9)  # less than ack_wait
    assert (await fired(other))["claims"][0]["count"] == 10


async def is_pulled(hook: JetStreamHook, stream: str) -> bool:
    try:
        return (await asyncio.to_thread(info, hook, stream)).ack_pending == 10
    except JetStreamError:
        return False  # the consumer does not exist yet


def test_a_time_out_fails_or_skips(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(AirflowSensorTimeout, match="fewer than 1"):
        execute(sensor(stream, timeout=1))
    with pytest.raises(AirflowSkipException):
        execute(sensor(stream, timeout=1, soft_fail=True))
    publish(hook, stream, 3)
    with pytest.raises(AirflowSensorTimeout, match="fewer than 4"):
        execute(sensor(stream, timeout=1, min_messages=4))
    assert execute(sensor(stream, timeout=1), run_id="other")[0]["count"] == 3  # released, not kept


async def test_a_trigger_times_out_by_an_event(hook: JetStreamHook, stream: str) -> None:
    trigger = await asyncio.to_thread(trigger_of, stream, timeout=1)
    event = await fired(trigger)
    with pytest.raises(AirflowSensorTimeout):
        resumed(stream, event)
    with pytest.raises(AirflowSkipException):
        resumed(stream, event, soft_fail=True)


async def test_an_error_is_never_a_skip(
    hook: JetStreamHook, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = await asyncio.to_thread(trigger_of, stream)
    server = NatsServer(tmp_path / "nats", "authorization { token: right }")
    server.start()
    try:
        with monkeypatch.context() as changed:
            set_connection(changed, servers=server.url, token="wrong")
            event = await fired(trigger)
    finally:
        server.stop()
    with pytest.raises(AuthenticationFailed, match="correct the token"):
        resumed(stream, event, soft_fail=True)
    with monkeypatch.context() as changed:
        changed.delenv(f"AIRFLOW_CONN_{CONNECTION.upper()}")
        event = await fired(JetStreamPullTrigger(**trigger.serialize()[1]))
    with pytest.raises(JetStreamError, match="isn't defined"):
        resumed(stream, event, soft_fail=True)


def test_a_kill_in_the_worker_gives_back(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 10)
    task = sensor(stream, min_messages=11, timeout=60, consumer_config={"ack_wait": timedelta(seconds=30)})

    def strike() -> None:
        while True:
            time.sleep(0.05)
            try:
                if info(hook, stream).ack_pending == 10:
                    break
            except JetStreamError:
                continue
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow's task runner does it
    try:
        threading.Thread(target=strike).start()
        with pytest.raises(JetStreamError, match="killed"):
            execute(task)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert execute(sensor(stream, timeout=5, consumer_config=None), run_id="other")[0]["count"] == 10


def test_a_task_time_out_in_the_worker_gives_back(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 10)
    config = {"ack_wait": timedelta(seconds=30)}
    task = sensor(
        stream,
        min_messages=11,
        timeout=60,
        execution_timeout=timedelta(seconds=1.5),
        consumer_config=config,
    )
    with pytest.raises(AirflowTaskTimeout):
        execute(task)
    assert execute(sensor(stream, timeout=5, consumer_config=None), run_id="other")[0]["count"] == 10


def test_a_missing_stream_is_said(hook: JetStreamHook) -> None:
    with pytest.raises(StreamNotFound):
        execute(sensor("NOBODY"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"ack_policy": "all", "ack_wait": 10**9},
            "ack_policy='all': it must be 'explicit'.*which already exists in stream '{stream}'",
        ),
        ({"ack_policy": "none"}, "ack_policy='none'"),
        ({"max_deliver": 3, "ack_wait": 10**9}, "max_deliver=3"),
        ({"backoff": [10**9, 2 * 10**9], "max_deliver": 4}, "max_deliver=4|backoff="),
        (
            {"ack_wait": 10**8},
            r"ack_wait=100000000: 0\.1 s are shorter .*at least timedelta\(seconds=0\.5\)\. To change",
        ),
        (
            {"max_ack_pending": 10, "ack_wait": 10**9},
            r"max_ack_pending=10: a batch of max_messages=1000 would never be complete.* or to -1 ",
        ),
        (
            {"filter_subject": "{stream}.1", "ack_wait": 10**9},
            "filter_subject='{stream}.1'.*contains '{stream}.2'.*To change the consumer",
        ),
    ],
)
def test_a_consumer_that_exists_and_is_unsuitable_is_refused(
    hook: JetStreamHook, stream: str, config: dict[str, Any], says: str
) -> None:
    there = {
        "durable_name": CONSUMER,
        "ack_policy": "explicit",
        **{name: each.format(stream=stream) if isinstance(each, str) else each for name, each in config.items()},
    }
    hook.run(lambda js: js.stream(stream).create_consumer(there))
    publish(hook, stream, 10)
    wanted = {"filter_subject": f"{stream}.2"} if "filter_subject" in config else None
    with pytest.raises(ConsumerUnsuitable, match=says.format(stream=stream)) as refused:
        execute(sensor(stream, consumer_config=wanted))
    change = f"To change the consumer, which already exists in stream {stream!r}, use `nats consumer edit` (in Airflow"
    assert change in str(refused.value)
    assert info(hook, stream).delivered == 0


@pytest.mark.parametrize(
    ("other", "config", "says"),
    [
        (
            {},
            {},
            "filter_subject=None.*not allowed on workqueue stream.*another consumer already receives messages of this",
        ),
        (
            {"filter_subject": "Q.1"},
            {"filter_subject": "Q.*"},
            r"filter_subject='Q\.\*'.*already receives some of these messages; .* filters that do not overlap",
        ),
        (None, {"deliver_policy": "new"}, "deliver_policy='new'.*leave deliver_policy out of consumer_config"),
        (None, {"max_ack_pending": 5_000}, "max_ack_pending=5000.*limit of 4000.*set a smaller max_ack_pending"),
        ({"filter_subject": "Q.2", "name": "second"}, {"filter_subject": "Q.3"}, "name='work'.*raise max_consumers"),
    ],
)
def test_a_consumer_that_the_server_refuses_is_explained(
    hook: JetStreamHook, other: dict[str, Any] | None, config: dict[str, Any], says: str
) -> None:
    limits = {"consumer_limits": {"max_ack_pending": 4_000}, "max_consumers": 1 if other and "name" in other else 2}
    queue = {"name": "Q", "subjects": ["Q.>"], "retention": "workqueue", "allow_direct": True, **limits}
    hook.run(lambda js: js.create_stream(queue))
    try:
        if other is not None:
            there = {"durable_name": other.pop("name", "first"), "ack_policy": "explicit", **other}
            hook.run(lambda js: js.stream("Q").create_consumer(there))
        with pytest.raises(ConsumerUnsuitable, match=says):
            execute(sensor("Q", consumer_config={"ack_wait": ACK_WAIT, **config}))
    finally:
        hook.run(lambda js: js.stream("Q").delete())


@pytest.mark.parametrize("denied", ["$JS.API.STREAM.CREATE.KV_airflow_claims", "$KV.airflow_claims.>"])
def test_no_permission_for_the_ledger(
    hook: JetStreamHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    config = """
authorization { users: [
  { user: admin, password: a }
  { user: worker, password: w, permissions: { publish: { deny: "{denied}" } } }
] }
"""
    server = NatsServer(tmp_path / "nats", config.replace("{denied}", denied))
    server.start()

    def use(user: str, password: str) -> JetStreamHook:
        uri = server.url.replace("nats://", f"nats://{user}:{password}@")
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", f"{uri}/?shortest_ack_wait=0.5&request_timeout=1")
        return JetStreamHook(CONNECTION)

    try:
        name = f"S{secrets.token_hex(4)}"
        use("admin", "a").run(
            lambda js: js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        )
        publish(use("admin", "a"), name, 10)
        use("worker", "w")
        with pytest.raises(LedgerUnavailable, match=r"ledger.*no permission to publish on"):
            execute(sensor(name))
        assert info(use("admin", "a"), name).floor == 0
    finally:
        server.stop()


def test_a_template_without_a_value_is_no_period_without_an_end(hook: JetStreamHook, stream: str) -> None:
    """A run without a data interval has no ``data_interval_end``: the messages of later periods would be claimed."""
    task = rendered(sensor(stream, until="{{ params.end }}"), {"end": None})
    for value in ("None", "", None):
        task.until = value
        with pytest.raises(InvalidValue, match=r"^until=.*has no value"):
            execute(task)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stream": "a.b"}, "stream='a.b'"),
        ({"consumer": "a b"}, "consumer='a b'"),
        ({"max_messages": 0}, "max_messages=0"),
        ({"messages_per_claim": 0}, "messages_per_claim=0"),
        ({"ordered_by": "{0}"}, r"ordered_by='\{0\}': give tokens of the subject"),
        ({"ordered_by": "{{ params.key }}", "stream": "{{ params.stream }}"}, "ordered_by="),
        ({"claims": 8}, "claims=8: give ordered_by too"),
        ({"ordered_by": "{2}", "claims": 0}, "claims=0"),
        ({"on_poison": "stop_key", "max_failures": 3}, "on_poison='stop_key': give ordered_by too"),
        ({"on_poison": "stop", "stream": "{{ params.stream }}"}, "on_poison='stop': give one of"),
        ({"ordered_by": "{2}", "messages_per_claim": 9}, "messages_per_claim=9: leave it out with ordered_by"),
        ({"ordered_by": "{2}", "until": "2026-11-21T03:00:00Z"}, "until=.*leave it out with ordered_by"),
        ({"ordered_by": "{2}", "priority": {"group": "g"}}, "priority=.*leave it out with ordered_by"),
        ({"ordered_by": "{3}", "consumer_config": {"filter_subject": "a.*"}}, "the filter 'a.*' has 2 tokens"),
        ({"ordered_by": "{2}", "consumer_config": {"max_ack_pending": -1}}, "max_ack_pending=-1: with ordered_by"),
        ({"min_messages": 0}, "min_messages=0"),
        ({"min_messages": 1_001}, "min_messages=1001"),
        ({"max_messages": "many"}, "whole number"),
        ({"gather": timedelta(seconds=-1)}, "gather"),
        ({"gather": 5}, r"gather=5: .*timedelta\(seconds=5\)"),
        ({"gather": "5s"}, "gather='5s': .*PT5M"),
        ({"gather": "{{ params.gather }}", "hand_off_timeout": 5}, "hand_off_timeout=5"),
        ({"gather": None, "stream": "{{ params.stream }}"}, "gather=None"),
        ({"hand_off_timeout": 900.0}, r"hand_off_timeout=900.*timedelta\(seconds=900\)"),
        ({"hand_off_timeout": timedelta(0)}, "hand_off_timeout"),
        ({"consumer_config": []}, r"consumer_config=\[\]: give a mapping"),
        (
            {"consumer_config": "ack_wait", "stream": "{{ params.stream }}"},
            "consumer_config='ack_wait': give a mapping",
        ),
        ({"priority": False}, "priority=False: give a mapping with the key 'group'"),
        (
            {"priority": ["g"], "stream": "{{ params.stream }}"},
            r"priority=\['g'\]: give a mapping with the key 'group'",
        ),
        ({"backlog": [len]}, "backlog=.*package.module.function"),
        ({"backlog": "enough"}, "backlog='enough': give the import path of a function"),
        ({"consumer_config": {"ack_policy": "all"}}, "ack_policy='all'"),
        ({"consumer_config": {"ack_policy": "none"}}, "ack_policy='none'"),
        ({"consumer_config": {"max_deliver": 5}}, "max_deliver=5"),
        ({"consumer_config": {"backoff": [ACK_WAIT]}}, "backoff"),
        ({"consumer_config": {"deliver_subject": "a"}}, "deliver_subject='a'"),
        ({"consumer_config": {"max_ack_pending": 10}}, "max_ack_pending=10"),
        ({"consumer_config": {"max_batch": 10}}, "max_batch=10: .*max_messages=1000"),
        ({"consumer_config": {"durable_name": "other"}}, "the parameter 'consumer' is"),
        ({"consumer_config": {"filter_subject": "a.>.b"}}, "last token"),
        ({"consumer_config": {"opt_start_time": "2026-01-01"}}, r"consumer_config\['opt_start_time'\]=.*zone"),
        ({"consumer_config": {"ack_wait": "soon"}}, r"consumer_config\['ack_wait'\]='soon': give a duration"),
        ({"consumer_config": {"opt_start_tme": 1}}, r"consumer_config\['opt_start_tme'\]=.*opt_start_time"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    values = {"stream": "A", **changes}
    with pytest.raises((InvalidValue, ConsumerUnsuitable), match=says):
        sensor(**values)


def test_what_is_templated_is_checked_when_it_is_known(hook: JetStreamHook) -> None:
    with DAG("dag", schedule=None):
        task = sensor("{{ params.stream }}", max_messages="{{ params.most }}")
    task.stream, task.max_messages = "a.b", "7"
    with pytest.raises(InvalidValue, match=r"stream='a\.b'"):
        execute(task)
