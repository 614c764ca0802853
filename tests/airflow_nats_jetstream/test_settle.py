"""Work in several tasks: the claim is held meanwhile, settled if all tasks succeed, and failed otherwise."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, task_group

from airflow_nats_jetstream.all_claims import AllClaims
from airflow_nats_jetstream.compat import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor, handed_on
from airflow_nats_jetstream.triggers import JetStreamHoldTrigger
from jetstream_client.errors import InvalidValue, JetStreamError
from tests.airflow_nats_jetstream.one_run import OneRun
from tests.airflow_nats_jetstream.steps import CONNECTION, context_of, execute, info, publish, receipt, record, sensor
from tests.airflow_nats_jetstream.test_sensor import fired
from tests.airflow_versions import deserialize, serialize
from tests.jetstream_client.until import until
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "several-tasks.md"
LEASE = {"ack_wait": timedelta(seconds=5)}


def taking(stream: str, **changes: Any) -> JetStreamPullSensor:
    """A sensor for a busy machine: pulled messages may wait for two seconds before they are entered."""
    return sensor(stream, **{"consumer_config": LEASE, **changes})


def claim(hook: JetStreamHook, stream: str, **changes: Any) -> Any:
    publish(hook, stream, 10)
    return execute(taking(stream, **changes))[0]


def dag_of(claimed: Any, work: str = "extract load", **changes: Any) -> tuple[Any, JetStreamSettleOperator]:
    """The sensor, and the settling task downstream of it and of the work."""
    with DAG("dag", schedule=None):
        claims = taking(claimed.get("stream", "S"))
        settling = JetStreamSettleOperator(task_id="settle", claim=claimed, nats_conn_id=CONNECTION, **changes)
        claims >> settling
        for name in work.split():
            claims >> EmptyOperator(task_id=name) >> settling
    return claims, settling


def settle(run: OneRun, claimed: Any, work: str = "extract load", **changes: Any) -> JetStreamSettleOperator:
    """The settling task of a claim that the sensor has handed on."""
    run.push(handed_on.KEY, {"claims": [claimed["id"]], "clears": 0})
    return dag_of(claimed, work, **changes)[1]


def test_a_task_that_only_passes_claims_on_is_no_work(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    settling = settle(run, claimed, "")
    settling.dag.get_task("claims") >> AllClaims(task_id="every", claims=[], nats_conn_id=CONNECTION) >> settling
    run.states["every"] = "success"
    with pytest.raises(AirflowFailException, match="no task that works on the claim is directly upstream"):
        execute(settling)
    assert info(hook, stream).floor == 0


@pytest.mark.parametrize(
    "wrong", [{"settle_skipped": "{{ params.skips }}"}, {"settle_skipped": "no"}, {"on_settled": "reprocess"}]
)
@pytest.mark.parametrize("make", [partial(JetStreamSettleOperator, claim={}), JetStreamSettleOperator.partial])
def test_what_decides_is_checked_when_the_dag_is_parsed(make: Any, wrong: dict[str, str]) -> None:
    """A string would count as True, so that messages of skipped work were acknowledged."""
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        make(task_id="settle", **wrong)


def test_a_skip_names_what_counts_it(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    run.states["load"] = "skipped"
    with pytest.raises(AirflowFailException, match=r"load is skipped\); .*settle_skipped=True; .*none_failed_min_one"):
        execute(settle(run, claimed))


def test_work_that_succeeded_is_settled(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    assert execute(settle(run, claimed, value={"rows": 10})) == {"rows": 10}
    after = info(hook, stream)
    assert (after.ack_pending, after.floor) == (0, 10)
    kept = receipt(hook, stream, claimed["id"])
    assert kept is not None
    assert (kept.state, kept.value) == ("done", {"rows": 10})
    assert run.asked == [("extract", None), ("load", None), ("claims", None)]


@pytest.mark.parametrize(
    ("states", "work", "says"),
    [
        ({"load": "failed"}, "extract load", "load is failed"),
        ({"load": "upstream_failed"}, "extract load", "load is upstream_failed"),
        ({"load": "skipped"}, "extract load", "load is skipped"),
        ({"load": "running"}, "extract load", "load is running"),
        ({"load": None}, "extract load", "load is None"),
        ({"load_0": "success", "load_1": "failed"}, "load", r"load\[1\] is failed"),
        ({}, "extract load check", "check has not run"),
        ({}, "", "no task that works on the claim is directly upstream"),
    ],
)
def test_anything_else_gives_back(  # noqa: PLR0917
    hook: JetStreamHook, stream: str, run: OneRun, states: dict[str, Any], work: str, says: str
) -> None:
    claimed = claim(hook, stream)
    run.states |= states
    with pytest.raises(AirflowFailException, match=says):
        execute(settle(run, claimed, work))
    assert info(hook, stream).floor == 0
    kept, counted = receipt(hook, stream, claimed["id"]), record(hook, stream)
    assert counted is not None
    assert (kept is not None and kept.state == "failed") == bool(counted.failures) == ("failed" in says)
    assert (claimed["id"] in counted.open and counted.open[claimed["id"]].is_released) == ("failed" not in says)
    assert execute(taking(stream), run_id="other")[0]["count"] == 10


def test_skipped_work_is_settled_on_demand(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    run.states["load"] = "skipped"
    execute(settle(run, claimed, settle_skipped=True))
    assert info(hook, stream).floor == 10


@pytest.mark.parametrize(
    ("states", "changes", "says"),
    [
        ({"extract": "failed"}, {}, "extract is failed"),
        ({"extract": "upstream_failed"}, {}, "extract is upstream_failed"),
        ({"extract": None}, {}, "extract is None"),
        ({"extract": "running"}, {}, "extract is running"),
        ({}, {"clears": 1}, "load is skipped, which does not count in a run that was cleared"),
        ({}, {"teardown": True}, "load is skipped, which does not count in a teardown"),
    ],
)
def test_a_skip_does_not_count_when_other_work_has_not_been_done(  # noqa: PLR0917
    hook: JetStreamHook, stream: str, run: OneRun, states: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    """A person who marks a run as failed fails the task that runs, and skips those downstream of it."""
    claimed = claim(hook, stream)
    run.states |= {"load": "skipped"} | states
    settling = settle(run, claimed, settle_skipped=True)
    settling.dag.get_task("extract") >> settling.dag.get_task("load")
    settling.upstream_task_ids.discard("extract")  # it is not directly upstream
    settling.is_teardown = changes.pop("teardown", False)
    with pytest.raises(AirflowFailException, match=says):
        execute(settling, **changes)
    assert info(hook, stream).floor == 0


def test_instances_of_a_task_that_no_longer_exist_do_not_count(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    run.states = {"claims": "success", "load_0": "success", "load_1": "removed"}
    execute(settle(run, claimed, "load"))
    assert info(hook, stream).floor == 10


def test_a_claim_that_no_sensor_upstream_handed_on_is_not_settled(
    hook: JetStreamHook, stream: str, run: OneRun
) -> None:
    """Its tasks may have worked on another claim: in this run, or in another DAG that has been cleared since."""
    claimed = claim(hook, stream)
    settling = settle(run, claimed)
    run.push(handed_on.KEY, {"claims": ["0" * 12], "clears": 0})
    with pytest.raises(AirflowFailException, match="was not handed on by a pull sensor upstream"):
        execute(settling, run_start=datetime(2020, 1, 1, tzinfo=UTC))
    assert info(hook, stream).floor == 0


def test_the_claim_of_an_earlier_release_is_settled_unless_the_run_was_cleared(
    hook: JetStreamHook, stream: str, run: OneRun
) -> None:
    claimed = claim(hook, stream)
    settling = settle(run, claimed)
    run.xcoms = {("claims", "return_value"): [[claimed]]}
    with pytest.raises(AirflowFailException, match="handed on by an earlier release in a run that was cleared"):
        execute(settling, clears=1)
    assert info(hook, stream).floor == 0
    (again,) = execute(taking(stream), run_id="other")
    run.xcoms = {("claims", "return_value"): [[again]]}
    execute(dag_of(again)[1])
    assert info(hook, stream).floor == 10


def test_a_claim_from_the_conf_of_the_run_is_settled_also_after_a_clear(
    hook: JetStreamHook, stream: str, run: OneRun
) -> None:
    claimed = claim(hook, stream)
    settling = dag_of(claimed)[1]
    settling.dag.get_task("claims").downstream_task_ids.clear()
    for task in settling.dag.tasks:
        task.upstream_task_ids.discard("claims")
    execute(settling, conf={"any": {"claim": claimed}}, clears=2)
    assert info(hook, stream).floor == 10


@pytest.mark.parametrize("state", ["failed", "running", None])
def test_a_claim_of_a_sensor_that_did_not_succeed_is_not_settled(
    hook: JetStreamHook, stream: str, run: OneRun, state: str | None
) -> None:
    claimed = claim(hook, stream)
    run.states["claims"] = state
    with pytest.raises(AirflowFailException, match=f"claims is {state}"):
        execute(settle(run, claimed))
    assert info(hook, stream).floor == 0
    counted = record(hook, stream)
    assert counted is not None
    assert not counted.failures  # nothing that worked on the messages has failed


def test_a_cleared_task_finds_its_claim_settled(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    execute(settle(run, claimed, value="first"))
    assert execute(settle(run, claimed, value="second"), try_number=2) == "first"
    with pytest.raises(AirflowFailException, match="on_settled='fail'"):
        execute(settle(run, claimed, on_settled="fail"), try_number=2)
    run.states["load"] = "failed"
    with pytest.raises(AirflowFailException, match="load is failed"):
        execute(settle(run, claimed), try_number=3)
    assert info(hook, stream).floor == 10


def test_a_claim_that_came_too_late_is_not_settled(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    late = claim(hook, stream, hand_off_timeout=timedelta(seconds=1))
    (other,) = execute(taking(stream), run_id="other")
    with pytest.raises(AirflowFailException, match="superseded"):
        execute(settle(run, late))
    assert info(hook, stream).floor == 0
    execute(settle(run, other))
    assert info(hook, stream).floor == 10


def test_a_value_that_cannot_be_recorded_settles_nothing(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = claim(hook, stream)
    with pytest.raises(InvalidValue):
        execute(settle(run, claimed, value="x" * 10_000))
    assert info(hook, stream).floor == 0
    execute(settle(run, claimed), try_number=2)
    assert info(hook, stream).floor == 10


def test_in_a_mapped_group_the_work_on_its_own_claim_counts(hook: JetStreamHook, stream: str, run: OneRun) -> None:
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
    execute(settling, map_index=3, run_start=datetime.now(UTC))
    assert run.asked == [("each.extract", 3)]


def test_its_rule_is_all_done() -> None:
    """Also that of a mapped one, which the scheduler knows only by the arguments of ``partial``."""
    assert dag_of({})[1].trigger_rule == "all_done"
    with DAG("dag", schedule=None) as dag:
        JetStreamSettleOperator.partial(task_id="all").expand(claim=[{}])
        JetStreamSettleOperator.partial(task_id="other", trigger_rule="all_success").expand(claim=[{}])
    assert [dag.get_task(each).trigger_rule for each in ("all", "other")] == ["all_done", "all_success"]


def test_the_pages_example_parses() -> None:
    (section,) = (each for each in sections(PAGE) if each.source)
    names: dict[str, Any] = {"__name__": "dag"}
    exec(section.source, names)
    settling = names["settle"]
    assert settling._work() == ["check", "claim"]
    assert "hold" not in settling.upstream_task_ids
    assert not settling.is_teardown
    assert not names["claims"].is_setup


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


async def test_what_is_held_does_not_come_again(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    claimed = await asyncio.to_thread(leased, hook, stream)
    holding = asyncio.create_task(fired(trigger_of(claimed)))
    await held(hook, stream, claimed)
    with pytest.raises(AirflowSensorTimeout):
        await asyncio.to_thread(execute, taking(stream, timeout=7), run_id="other")
    await asyncio.to_thread(execute, settle(run, claimed))
    assert resumed(await holding) == "done"
    after = await asyncio.to_thread(info, hook, stream)
    assert (after.floor, after.counter) == (10, 10)  # each message was delivered once


async def test_a_hold_that_moves_to_another_triggerer_goes_on(hook: JetStreamHook, stream: str, run: OneRun) -> None:
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
        await asyncio.to_thread(execute, settle(run, claimed))
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
