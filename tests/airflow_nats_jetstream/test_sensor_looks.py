"""A rescheduled sensor, a sensor with a backlog function, and a sensor of a priority group."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.sdk import DAG

from airflow_nats_jetstream.compat import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    triggers_know_their_run,
)
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue, JetStreamError, StreamNotFound
from jetstream_client.info import ConsumerInfo
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.pace import Pace
from tests.airflow_nats_jetstream.steps import (
    ACK_WAIT,
    CONSUMER,
    State,
    Supervisor,
    context_of,
    execute,
    info,
    publish,
    pulls,
    record,
    sensor,
)
from tests.airflow_nats_jetstream.test_sensor import fired, resumed, trigger_of
from tests.airflow_versions import DagSerialization, TaskInstanceDTO, smart_decode_trigger_kwargs
from tests.jetstream_client.until import until

LONG = {"ack_wait": timedelta(minutes=1)}
"""A lease that outlasts the test: only what is negatively acknowledged is redelivered."""
GROUP = {"ack_wait": ACK_WAIT, "priority_groups": ["g"], "priority_policy": "overflow"}


def looks(stream: str, state: State | None = None, **changes: Any) -> Any:
    """Run a rescheduled sensor once, and return its claims, or None if Airflow must run it again."""
    task = sensor(stream, **{"mode": "reschedule", "consumer_config": LONG, "timeout": 600, **changes})
    try:
        return execute(task, state=state)
    except AirflowRescheduleException:
        return None


SEEN: list[tuple[str, int]] = []


def enough(seen: ConsumerInfo) -> bool:
    """A DAG author's backlog function."""
    SEEN.append((seen.raw["stream_name"], seen.pending))
    return seen.pending >= 7 and seen.ack_pending == 0


def any_backlog(seen: ConsumerInfo) -> bool:
    return seen.pending > 0


def broken(_: ConsumerInfo) -> bool:
    raise RuntimeError("no such day")


ENOUGH = f"{__name__}.enough"


def test_a_rescheduled_sensor_hands_on_what_is_there(hook: JetStreamHook, stream: str) -> None:
    assert looks(stream) is None
    publish(hook, stream, 50)
    claims = looks(stream, messages_per_claim=20)
    assert [Claim.from_json(claim).count for claim in claims] == [20, 20, 10]
    assert info(hook, stream).ack_pending == 50
    ledger = record(hook, stream)
    assert ledger is not None
    assert ledger.open.keys() == {claim["id"] for claim in claims}
    assert looks(stream, task_id="other") is None  # and takes no messages from them


def test_nothing_is_kept_between_two_looks(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 9)
    for _ in range(2):
        assert looks(stream, min_messages=10) is None
        assert record(hook, stream) is None
    assert execute(sensor(stream, consumer_config=None), run_id="other")[0]["count"] == 9
    publish(hook, stream, 10)
    assert looks(stream, min_messages=10)[0]["count"] == 10


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Simulate a machine that needs a millisecond to renew each lease. Returns parameters of a sensor, whose consumer's
    leases are too short for that."""
    renew = answers.in_progress

    async def slowly(ledger: Ledger, sequences: Sequence[int], counter: int) -> None:
        await renew(ledger, sequences, counter)
        await asyncio.sleep(0.001 * len(sequences))

    monkeypatch.setattr(answers, "in_progress", slowly)
    return {"consumer_config": {"ack_wait": timedelta(seconds=0.5)}, "gather": timedelta(seconds=2)}


def until_claimed(stream: str, state: State, **changes: Any) -> Any:
    for _ in range(9):
        if claims := looks(stream, state, **changes):
            return claims
    raise AssertionError("every look pulled the same messages and dropped them")


def test_a_backlog_that_looks_cannot_keep_leased_is_taken_in_parts(
    hook: JetStreamHook, stream: str, slow: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    publish(hook, stream, 1_000)
    state = State()
    (claim,) = until_claimed(stream, state, max_messages=1_500, **slow)
    assert caplog.text.count("dropping a batch") > 1  # because a single drop says nothing
    assert claim["count"] <= 500
    assert Pace.from_json(state.get("jetstream_pace")) == Pace()  # if the task is cleared, it begins anew


def test_looks_that_cannot_keep_min_messages_leased_end_with_an_error(
    hook: JetStreamHook, stream: str, slow: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    publish(hook, stream, 1_000)
    state = State()
    with pytest.raises(ConsumerUnsuitable, match=r"3 times in a row, the lease ended before min_messages=1500"):
        until_claimed(stream, state, min_messages=1_500, max_messages=1_500, **slow)
    assert caplog.text.count("dropping a batch") == 3
    assert state.get("jetstream_pace") is None  # so that a retry does not fail at its first drop


def test_a_look_that_died_before_its_claims_were_stored_hands_them_on(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 10)
    first = looks(stream)
    publish(hook, stream, 5)
    assert [claim["id"] for claim in looks(stream)] == [claim["id"] for claim in first]  # the same task instance


def test_a_rescheduled_sensor_ends_as_airflows_do(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(AirflowSensorTimeout):
        looks(stream, timeout=0)
    with pytest.raises(AirflowSkipException):
        looks(stream, timeout=0, soft_fail=True)
    with pytest.raises(StreamNotFound):
        looks("NOBODY", soft_fail=True)


def test_the_backlog_is_asked_before_anything_is_pulled(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 6)
    assert looks(stream, backlog=ENOUGH) is None
    assert info(hook, stream).delivered == 0
    with pytest.raises(AirflowSensorTimeout, match="fewer than 1"):
        execute(sensor(stream, backlog=ENOUGH, poke_interval=0, timeout=1, consumer_config=None))
    assert info(hook, stream).delivered == 0
    publish(hook, stream, 1)
    assert looks(stream, backlog=ENOUGH)[0]["count"] == 7


async def test_the_backlog_is_asked_in_the_triggerer(hook: JetStreamHook, stream: str) -> None:
    trigger = await asyncio.to_thread(trigger_of, stream, backlog=ENOUGH, poke_interval=0, timeout=60)
    waiting = asyncio.create_task(fired(trigger))
    await asyncio.to_thread(publish, hook, stream, 6)
    await until(lambda: SEEN.count((stream, 6)) > 1)  # and it did not pull after the first call of the function
    assert (await asyncio.to_thread(info, hook, stream)).delivered == 0
    await asyncio.to_thread(publish, hook, stream, 2)
    claims = await asyncio.to_thread(resumed, stream, await waiting)
    assert [claim["count"] for claim in claims] == [8]


async def test_a_predicate_that_fails_is_an_error(hook: JetStreamHook, stream: str) -> None:
    trigger = await asyncio.to_thread(trigger_of, stream, backlog=f"{__name__}.broken")
    event = await fired(trigger)
    with pytest.raises(JetStreamError, match="RuntimeError: no such day"):
        resumed(stream, event, soft_fail=True)


@pytest.mark.parametrize("path", ["nobody.knows", "json.nothing", "airflow_nats_jetstream.__doc__"])
def test_a_function_that_is_not_there_is_said_before_the_sensor_waits(stream: str, path: str) -> None:
    with pytest.raises(InvalidValue, match=f"backlog='{path}'"):
        execute(sensor(stream, backlog=path, deferrable=True))


async def test_a_sensor_of_a_group_is_served_past_its_bound(hook: JetStreamHook, stream: str) -> None:
    values: dict[str, Any] = {"consumer_config": GROUP, "priority": Priority("g", min_pending=7), "timeout": 60}
    await asyncio.to_thread(publish, hook, stream, 6)
    trigger = await asyncio.to_thread(trigger_of, stream, **values)
    waiting = asyncio.create_task(fired(trigger))
    await until(partial(pulls, hook, stream))  # and the server has not served this pull at once
    assert (await asyncio.to_thread(info, hook, stream)).delivered == 0
    await asyncio.to_thread(publish, hook, stream, 2)
    assert (await waiting)["claims"][0]["count"] >= 2  # until the bound is reached


def test_a_templated_group(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 8)
    task = sensor(stream, consumer_config=GROUP, priority={"group": "{{ params.g }}", "min_pending": "{{ params.n }}"})
    task.priority = {"group": "g", "min_pending": "9"}
    task.timeout = 1
    with pytest.raises(AirflowSensorTimeout):
        execute(task)
    task.priority = {"group": "g", "min_pending": "8"}
    task.timeout = 60
    assert execute(task)[0]["count"] >= 1


START = datetime(2026, 11, 21, 3, tzinfo=UTC)


def in_triggerer(task: Any, try_number: int) -> Any:
    """A task instance as Airflow's triggerer makes it: with its run, but without ``max_tries``."""
    encoded = DagSerialization.to_dict(task.dag)
    ti: dict[str, Any] = {
        "id": uuid4(),
        "dag_id": "dag",
        "run_id": "run",
        "task_id": "claims",
        "try_number": try_number,
        "map_index": -1,
        "dag_version_id": uuid4(),
        "pool_slots": 1,
        "priority_weight": 1,
        "queue": "default",
    }
    run: dict[str, Any] = {
        "dag_id": "dag",
        "run_id": "run",
        "run_type": "manual",
        "state": "running",
        "logical_date": None,
        "data_interval_start": None,
        "data_interval_end": None,
        "run_after": START,
        "start_date": START,
        "end_date": None,
        "consumed_asset_events": [],
        "partition_key": None,
    }
    return TriggerRunner.create_runtime_ti(TaskInstanceDTO(**ti), encoded, run)


def started(stream: str, try_number: int = 2, **changes: Any) -> tuple[JetStreamPullTrigger, Any]:
    """The trigger that the scheduler makes from the serialized DAG, as the triggerer receives it; and the task."""
    with DAG("dag", schedule=None) as dag:
        task = sensor(stream, deferrable=True, start_from_trigger=True, **changes)
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    found = DagSerialization.from_dict(stored).get_task(task.task_id)
    assert found.start_from_trigger
    arguments = found.start_trigger_args
    assert arguments is not None
    assert arguments.trigger_kwargs is not None
    assert arguments.trigger_cls == "airflow_nats_jetstream.triggers.JetStreamPullTrigger"
    row = Trigger(classpath=arguments.trigger_cls, kwargs=arguments.trigger_kwargs)
    values = Trigger._decrypt_kwargs(row.encrypted_kwargs)
    decode: Any = smart_decode_trigger_kwargs
    trigger = JetStreamPullTrigger(**{name: decode(value) for name, value in values.items()})
    trigger.task_instance = in_triggerer(task, try_number)
    return trigger, (task, arguments.next_method)


async def test_a_sensor_that_starts_from_its_trigger(hook: JetStreamHook, stream: str) -> None:
    if not triggers_know_their_run:
        with pytest.raises(InvalidValue, match=r"start_from_trigger=True.*use Airflow 3\.3"):
            started(stream)
        return
    await asyncio.to_thread(publish, hook, stream, 5)
    trigger, (task, next_method) = started(stream, timeout=60, backlog=f"{__name__}.any_backlog")
    event = await fired(trigger)
    with Supervisor().serves():
        claims = task.resume_execution(next_method, {"event": event}, context_of(task))
    assert [claim["count"] for claim in claims] == [5]
    entries = await asyncio.to_thread(record, hook, stream)
    assert entries is not None
    assert [entry.owner for entry in entries.open.values()] == [("dag", "run", "claims", -1, 0, START.isoformat())]
    retried, _ = started(stream, timeout=60, try_number=3)
    assert (await fired(retried))["claims"][0]["id"] == claims[0]["id"]
    late, (task, next_method) = started(stream, timeout=1)
    late.task_instance = context_of(task, run_id="late")["ti"]
    event = await fired(late)
    with pytest.raises(AirflowSensorTimeout):
        task.resume_execution(next_method, {"event": event}, context_of(task))


def test_a_mapped_sensor_starts_in_a_worker() -> None:
    with DAG("dag", schedule=None) as dag:
        values = {"start_from_trigger": True} if triggers_know_their_run else {}
        JetStreamPullSensor.partial(task_id="claims", consumer="c", **values).expand(stream=["A", "B"])
    found = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("claims")
    assert found.start_trigger_args is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "reschedule", "deferrable": True}, "mode='reschedule'"),
        ({"start_from_trigger": True}, "start_from_trigger=True.*(deferrable|Airflow 3.3)"),
        (
            {"start_from_trigger": True, "deferrable": True, "stream": "{{ ds }}"},
            "start_from_trigger.*(no te|3.3)",
        ),
        ({"start_from_trigger": True, "deferrable": True, "nats_conn_id": "{{ ds }}"}, "start_from_trigger=True"),
        ({"backlog": "no path"}, "backlog='no path'"),
        ({"priority": {"level": 1}}, "priority=.*give a mapping with the key 'group'"),
        ({"priority": {"group": "g", "size": 1}}, "priority=.*min_pending"),
        ({"priority": {"group": "g", "level": "low"}}, "whole number"),
        ({"priority": {"group": "g", "level": 10}}, "level=10"),
        ({"consumer_config": GROUP}, "priority_groups=.*set priority"),
        ({"consumer_config": GROUP, "priority": {"group": "h"}}, "priority_groups=.*'h'"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidValue, ConsumerUnsuitable), match=says):
        sensor(**{"stream": "A", **changes})


def test_a_consumer_whose_groups_do_not_fit_is_refused(hook: JetStreamHook, stream: str) -> None:
    there = {"durable_name": CONSUMER, "ack_policy": "explicit", **GROUP}
    hook.run(lambda js: js.stream(stream).create_consumer(there))
    with pytest.raises(ConsumerUnsuitable, match="set priority"):
        execute(sensor(stream))
    with pytest.raises(ConsumerUnsuitable, match="the group 'h', which 'priority' names, is not in this list"):
        execute(sensor(stream, consumer_config=None, priority={"group": "h"}))
