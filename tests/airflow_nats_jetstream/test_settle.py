"""Work in several tasks: the claim is held meanwhile, settled if all tasks succeed, and failed otherwise."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, task_group
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.serde import deserialize, serialize

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor
from airflow_nats_jetstream.triggers import JetStreamHoldTrigger
from jetstream_client.errors import InvalidValue, JetStreamError
from tests.airflow_nats_jetstream.steps import CONNECTION, context_of, execute, info, publish, receipt, record, sensor
from tests.airflow_nats_jetstream.test_sensor import fired
from tests.jetstream_client.until import until
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "several-tasks.md"
LEASE = {"ack_wait": timedelta(seconds=5)}


def taking(stream: str, **changes: Any) -> JetStreamPullSensor:
    """A sensor for a busy machine: pulled messages may wait for two seconds before they are entered."""
    return sensor(stream, **{"consumer_config": LEASE, "timeout": 60, **changes})


def claim(hook: JetStreamHook, stream: str, **changes: Any) -> Any:
    publish(hook, stream, 10)
    return execute(taking(stream, **changes))[0]


class Run:
    """The states of a run's tasks. Real ones need Airflow's API server: tests/airflow_system uses it."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {"extract": "success", "load": "success"}
        self.asked: list[tuple[str, int | None]] = []

    def __call__(
        self, dag_id: str, run_ids: list[str], task_ids: list[str], map_index: int | None = None
    ) -> dict[str, dict[str, Any]]:
        assert (dag_id, run_ids) == ("dag", ["run"])
        self.asked += [(task_id, map_index) for task_id in task_ids]
        return {"run": {key: state for key, state in self.states.items() if key.split("_")[0] in task_ids}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run()
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", run)
    return run


def settle(claimed: Any, work: str = "extract load", **changes: Any) -> JetStreamSettleOperator:
    """The settling task, downstream of the sensor and of the work."""
    with DAG("dag", schedule=None):
        claims = sensor("S", task_id="claims")
        settling = JetStreamSettleOperator(task_id="settle", claim=claimed, nats_conn_id=CONNECTION, **changes)
        claims >> settling
        for name in work.split():
            claims >> EmptyOperator(task_id=name) >> settling
    return settling


def test_work_that_succeeded_is_settled(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = claim(hook, stream)
    assert execute(settle(claimed, value={"rows": 10})) == {"rows": 10}
    after = info(hook, stream)
    assert (after.ack_pending, after.floor) == (0, 10)
    kept = receipt(hook, stream, claimed["id"])
    assert kept is not None
    assert (kept.state, kept.value) == ("done", {"rows": 10})
    assert run.asked == [("extract", None), ("load", None)]


@pytest.mark.parametrize(
    ("states", "work", "says"),
    [
        ({"load": "failed"}, "extract load", "load is failed"),
        ({"load": "upstream_failed"}, "extract load", "load is upstream_failed"),
        ({"load": "skipped"}, "extract load", "load is skipped"),
        ({"load": "running"}, "extract load", "load is running"),
        ({"load": None}, "extract load", "load is None"),
        ({"load_0": "success", "load_1": "failed"}, "load", "load_1 is failed"),
        ({}, "extract load check", "check has not run"),
        ({}, "", "no task that works on the claim is directly upstream"),
    ],
)
def test_anything_else_gives_back(  # noqa: PLR0917
    hook: JetStreamHook, stream: str, run: Run, states: dict[str, Any], work: str, says: str
) -> None:
    claimed = claim(hook, stream)
    run.states |= states
    with pytest.raises(AirflowFailException, match=says):
        execute(settle(claimed, work))
    assert info(hook, stream).floor == 0
    kept, counted = receipt(hook, stream, claimed["id"]), record(hook, stream)
    assert counted is not None
    assert (kept is not None and kept.state == "failed") == bool(counted.failures) == ("failed" in says)
    assert (claimed["id"] in counted.open and counted.open[claimed["id"]].is_released) == ("failed" not in says)
    assert execute(taking(stream), run_id="other")[0]["count"] == 10


def test_skipped_work_is_settled_on_demand(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = claim(hook, stream)
    run.states["load"] = "skipped"
    execute(settle(claimed, settle_skipped=True))
    assert info(hook, stream).floor == 10


def test_a_cleared_task_finds_its_claim_settled(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = claim(hook, stream)
    execute(settle(claimed, value="first"))
    assert execute(settle(claimed, value="second"), try_number=2) == "first"
    with pytest.raises(AirflowFailException, match="on_settled='fail'"):
        execute(settle(claimed, on_settled="fail"), try_number=2)
    run.states["load"] = "failed"
    with pytest.raises(AirflowFailException, match="load is failed"):
        execute(settle(claimed), try_number=3)
    assert info(hook, stream).floor == 10


def test_a_claim_that_came_too_late_is_not_settled(hook: JetStreamHook, stream: str, run: Run) -> None:
    late = claim(hook, stream, hand_off_timeout=timedelta(seconds=1))
    (other,) = execute(taking(stream), run_id="other")
    with pytest.raises(AirflowFailException, match="superseded"):
        execute(settle(late))
    assert info(hook, stream).floor == 0
    execute(settle(other))
    assert info(hook, stream).floor == 10


def test_a_value_that_cannot_be_recorded_settles_nothing(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = claim(hook, stream)
    with pytest.raises(InvalidValue):
        execute(settle(claimed, value="x" * 10_000))
    assert info(hook, stream).floor == 0
    execute(settle(claimed), try_number=2)
    assert info(hook, stream).floor == 10


def test_in_a_mapped_group_the_work_on_its_own_claim_counts(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = claim(hook, stream)
    made: list[BaseOperator] = []

    with DAG("dag", schedule=None):

        @task_group
        def each(one: Any) -> None:
            work = EmptyOperator(task_id="extract")
            made.append(JetStreamSettleOperator(task_id="settle", claim=one, nats_conn_id=CONNECTION))
            work >> made[0]

        each.expand(one=[claimed])
    (settling,) = made
    settling.claim = claimed
    run.states = {"each.extract_3": "success"}
    execute(settling, map_index=3)
    assert run.asked == [("each.extract", 3)]


def test_its_rule_is_all_done_or_a_teardowns() -> None:
    assert settle({}).trigger_rule == "all_done"
    with DAG("dag", schedule=None):
        claims = sensor("S", task_id="claims")
        teardown = JetStreamSettleOperator(task_id="settle", claim=claims.output)
        teardown.as_teardown(setups=claims)
    assert teardown.trigger_rule == "all_done_setup_success"


def test_the_pages_example_parses() -> None:
    (section,) = (each for each in sections(PAGE) if each.source)
    names: dict[str, Any] = {"__name__": "dag"}
    exec(section.source, names)
    settling = names["settle"]
    assert settling._work() == ["check", "claim"]
    assert "hold" not in settling.upstream_task_ids
    assert settling.is_teardown


def hold(claimed: Any, **changes: Any) -> JetStreamHoldSensor:
    return JetStreamHoldSensor(task_id="hold", claim=claimed, nats_conn_id=CONNECTION, **changes)


def trigger_of(claimed: Any, **changes: Any) -> JetStreamHoldTrigger:
    """The trigger of a deferred sensor, as read back from Airflow's database."""
    with pytest.raises(TaskDeferred) as deferred:
        execute(hold(claimed, **changes))
    path, values = deferred.value.trigger.serialize()
    assert path == "airflow_nats_jetstream.triggers.JetStreamHoldTrigger"
    stored: Any = deserialize(json.loads(json.dumps(serialize(values))))
    return JetStreamHoldTrigger(**stored)


def resumed(event: dict[str, Any], **changes: Any) -> Any:
    task = hold({}, **changes)
    return task.resume_execution("resume", {"event": event}, context_of(task))


def leased(hook: JetStreamHook, stream: str) -> Any:
    """A claim whose messages are redelivered after one second."""
    return claim(hook, stream, hand_off_timeout=timedelta(seconds=1))


async def held(hook: JetStreamHook, stream: str, claimed: Any) -> None:
    """Return when an attempt or a keeper holds the claim."""

    async def has_token() -> bool:
        entries = await asyncio.to_thread(record, hook, stream)
        return bool(entries and entries.open[claimed["id"]].token)

    await until(has_token)


async def test_what_is_held_does_not_come_again(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)
    holding = asyncio.create_task(fired(trigger_of(claimed)))
    await held(hook, stream, claimed)
    with pytest.raises(AirflowSensorTimeout):
        await asyncio.to_thread(execute, taking(stream, timeout=7), run_id="other")
    await asyncio.to_thread(execute, settle(claimed))
    assert resumed(await holding) == "done"
    after = await asyncio.to_thread(info, hook, stream)
    assert (after.floor, after.counter) == (10, 10)  # each message was delivered once


async def test_a_hold_that_moves_to_another_triggerer_goes_on(hook: JetStreamHook, stream: str, run: Run) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)
    trigger = trigger_of(claimed)
    first = asyncio.create_task(fired(trigger))
    await held(hook, stream, claimed)
    first.cancel()
    await asyncio.wait([first])
    with pytest.raises(AirflowSensorTimeout):  # a lease remains
        await asyncio.to_thread(execute, taking(stream, timeout=7), run_id="other")
    second = asyncio.create_task(fired(JetStreamHoldTrigger(**trigger.serialize()[1])))
    await held(hook, stream, claimed)
    run.states["load"] = "failed"
    with pytest.raises(AirflowFailException, match="load is failed"):
        await asyncio.to_thread(execute, settle(claimed))
    assert resumed(await second) == "failed"
    assert (await asyncio.to_thread(info, hook, stream)).floor == 0


async def test_a_hold_does_not_take_the_claim_from_who_settles(hook: JetStreamHook, stream: str) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)

    async def keep_while_settling() -> dict[str, Any]:
        with hook.holding(claimed, try_number=1) as attempt:
            holding = asyncio.create_task(fired(trigger_of(claimed)))
            await asyncio.sleep(6)
            assert not attempt.lost
            await asyncio.to_thread(attempt.settle)
        return await holding

    assert (await keep_while_settling())["status"] == "done"


async def test_a_hold_ends_when_the_messages_are_somebody_elses(hook: JetStreamHook, stream: str) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)
    await asyncio.to_thread(execute, taking(stream), run_id="other")
    event = await fired(trigger_of(claimed))
    with pytest.raises(AirflowFailException, match="superseded"):
        resumed(event)


async def test_the_longest_hold_lets_go(hook: JetStreamHook, stream: str) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)
    event = await fired(trigger_of(claimed, timeout=3))
    with pytest.raises(AirflowSensorTimeout):
        resumed(event)
    with pytest.raises(AirflowSkipException):
        resumed(event, soft_fail=True)
    (other,) = await asyncio.to_thread(execute, taking(stream), run_id="other")
    assert other["count"] == 10


def test_what_is_no_claim_is_said(stream: str) -> None:
    with pytest.raises(AirflowFailException):
        execute(hold({"id": "x"}))
    with pytest.raises(InvalidValue, match="mode='reschedule'"):
        hold({}, mode="reschedule")
    with pytest.raises((AirflowFailException, JetStreamError)):
        execute(hold({"id": "x"}, deferrable=False))
