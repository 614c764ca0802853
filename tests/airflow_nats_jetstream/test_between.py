"""A pull sensor hands claims on only if the tasks that settle them have not begun, and releases what it cannot hand on.

The states are those that Airflow gives: tests/airflow_system/events.py causes them on the real one.
"""

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow.sdk.execution_time.comms import SetXCom

from airflow_nats_jetstream.compat import AirflowFailException, TaskDeferred
from airflow_nats_jetstream.dag.between import between, depending, early
from airflow_nats_jetstream.dag.mapping import bounded, most_claims
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor, handed_on
from jetstream_client.errors import ConsumerNotFound, InvalidValue, JetStreamError
from jetstream_handoff.take.taking import Taking
from tests.airflow_nats_jetstream.one_run import OneRun
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    Supervisor,
    context_of,
    execute,
    info,
    publish,
    record,
    sensor,
    whole,
)

LEASE = {"ack_wait": timedelta(seconds=5)}
MODES: dict[str, dict[str, Any]] = {
    "what waits already": {"deferrable": True},
    "poke": {},
    "reschedule": {"mode": "reschedule"},
}
"""How a sensor takes in its worker."""


def in_a_dag(stream: str, *, rules: dict[str, str] | None = None, **changes: Any) -> JetStreamPullSensor:
    """A sensor upstream of `load`, `check` and `settle`, with a side branch."""
    rules = rules or {}
    with DAG("dag", schedule=None):
        claims = sensor(stream, **{"consumer_config": LEASE, "timeout": 60, **changes})
        load, check, before, aside = (
            EmptyOperator(task_id=name, trigger_rule=rules.get(name, "all_success"))
            for name in ("load", "check", "before", "aside")
        )
        settle = JetStreamSettleOperator(task_id="settle", claim=claims.output, nats_conn_id=CONNECTION)
        claims >> load >> check >> settle
        before >> check
        claims >> aside
    return claims


def untouched(hook: JetStreamHook, stream: str) -> bool:
    """Whether nobody has pulled: the sensor would have created its consumer."""
    with pytest.raises(ConsumerNotFound):
        info(hook, stream)
    return True


BEGUN = ["success", "failed", "running", "queued", "scheduled", "deferred", "up_for_reschedule", "upstream_failed"]


@pytest.mark.parametrize(
    ("task_id", "state"), [*(("load", each) for each in BEGUN), ("check", "success"), ("settle", "success")]
)
def test_nothing_is_taken_when_the_work_has_begun(
    hook: JetStreamHook, stream: str, run: OneRun, task_id: str, state: str
) -> None:
    publish(hook, stream, 10)
    run.states = {task_id: state, "before": "success", "aside": "success"}
    with pytest.raises(AirflowFailException, match=rf"\({task_id} is {state}\).*clear the sensor with Downstream"):
        execute(in_a_dag(stream), max_tries=1, clears=1)
    assert untouched(hook, stream)


def with_stages(stream: str) -> JetStreamPullSensor:
    """A sensor upstream of `stage`, which prepares the claim for `work`, and of `cluster`, which knows no claim."""

    def publish_staged(claim: Any, staged: str) -> None: ...

    with DAG("dag", schedule=None):
        claims = sensor(stream, consumer_config=LEASE, timeout=60)
        stage, cluster = EmptyOperator(task_id="stage"), EmptyOperator(task_id="cluster", trigger_rule="one_success")
        work = JetStreamProcessOperator(
            task_id="work", python_callable=publish_staged, op_kwargs={"claim": claims.output, "staged": ""}
        )
        held = holding(BashOperator)(task_id="held", bash_command="true", claim="{{ params.claim }}")
        claims >> stage >> [work, held]
        [EmptyOperator(task_id="other"), claims] >> cluster >> work
    return claims


def test_nothing_is_taken_when_a_stage_of_a_task_that_holds_the_claim_has_begun(
    hook: JetStreamHook, stream: str, run: OneRun
) -> None:
    """Otherwise that task, when it is cleared, too, would settle the new claim with what was made of the old one."""
    publish(hook, stream, 10)
    run.states = {"stage": "success", "cluster": "success", "work": "success"}
    with pytest.raises(AirflowFailException, match=r"\(stage is success\).*clear the sensor with Downstream"):
        execute(with_stages(stream), max_tries=1, clears=1)
    assert untouched(hook, stream)


def test_tasks_that_know_no_claim_may_have_begun(hook: JetStreamHook, stream: str, run: OneRun) -> None:
    """A cluster that is started as soon as one of several sensors has messages. And a task that holds a new claim
    begins again in any case, or leaves it alone."""
    publish(hook, stream, 10)
    run.states = {"stage": None, "cluster": "success", "work": "success"}
    claims = with_stages(stream)
    assert (depending(claims), early(claims)) == ({"stage"}, [])
    (claim,) = execute(claims, max_tries=1, clears=1)
    assert claim["count"] == 10


@pytest.mark.parametrize("state", [None, "removed", "up_for_retry", "restarting"])
def test_claims_are_handed_on_to_work_that_begins_after_them(
    hook: JetStreamHook, stream: str, run: OneRun, state: str | None
) -> None:
    publish(hook, stream, 10)
    run.states = {"load": state, "check_0": state, "settle_0": state}
    (claim,) = execute(in_a_dag(stream), max_tries=1, clears=3)
    assert run.xcoms["claims", handed_on.KEY] == [{"claims": [claim["id"]], "clears": 3}]


def test_a_task_that_was_skipped_before_the_first_take_does_not_matter(
    hook: JetStreamHook, stream: str, run: OneRun
) -> None:
    """A branch that does not know the claims chose another way. After a clear, the skip may be of other claims."""
    publish(hook, stream, 10)
    run.states = {"check": "skipped"}
    with pytest.raises(AirflowFailException, match="check is skipped"):
        execute(in_a_dag(stream), max_tries=1, clears=1)
    (claim,) = execute(in_a_dag(stream))
    assert claim["count"] == 10


@pytest.mark.parametrize("soft_fail", [False, True])
@pytest.mark.parametrize("mode", ["deferred", *MODES])
def test_what_was_taken_is_released_when_the_work_has_begun_meanwhile(  # noqa: PLR0917
    hook: JetStreamHook, stream: str, run: OneRun, mode: str, soft_fail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``soft_fail``, Airflow would make a skip of an AirflowFailException."""
    error = JetStreamError if soft_fail else AirflowFailException
    answers = iter([{}, {"load": "success"}])
    monkeypatch.setattr(OneRun, "states", property(lambda _: next(answers)), raising=False)
    if mode == "deferred":
        waiting = in_a_dag(stream, deferrable=True, soft_fail=soft_fail)
        with pytest.raises(TaskDeferred):
            execute(waiting)
        publish(hook, stream, 10)
        claims = execute(sensor(stream, consumer_config=LEASE))  # as the trigger takes them
        event = {"event": {"status": "claims", "claims": claims}}
        with pytest.raises(error, match="load is success"):
            waiting.resume_execution("resume", event, context_of(waiting))
    else:
        publish(hook, stream, 10)
        with pytest.raises(error, match="load is success"):
            execute(in_a_dag(stream, **MODES[mode], soft_fail=soft_fail))
    kept = record(hook, stream)
    assert kept is not None
    assert not kept.open
    (claim,) = execute(sensor(stream, consumer_config=LEASE), run_id="other")
    assert (claim["count"], info(hook, stream).floor) == (10, 0)


def refuses_claims(msg: SetXCom) -> None:
    if msg.key == "return_value":
        raise RuntimeError("the XCom is too large")


def fails(context: Any, result: Any) -> None:
    raise OSError(f"{len(result)} claims cannot be reported")


@pytest.mark.parametrize(
    ("changes", "refuses", "says"),
    [({}, refuses_claims, "the XCom is too large"), ({"post_execute": fails}, None, "1 claims cannot be reported")],
)
def test_what_airflow_refuses_after_the_take_is_released(
    hook: JetStreamHook, stream: str, changes: dict[str, Any], refuses: Any, says: str
) -> None:
    publish(hook, stream, 10)
    supervisor = Supervisor(refuses) if refuses else Supervisor()
    with pytest.raises((OSError, RuntimeError), match=says):
        whole(sensor(stream, consumer_config=LEASE, **changes), supervisor)
    kept = record(hook, stream)
    assert kept is not None
    assert not kept.open
    (again,) = execute(sensor(stream, consumer_config=LEASE), run_id="other")
    assert again["count"] == 10


def test_post_execute_and_the_push_are_done_once(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 10)
    calls: list[Any] = []
    done = whole(sensor(stream, consumer_config=LEASE, post_execute=lambda _, result: calls.append(result)))
    assert done.pushes == 1
    assert calls == [done.xcoms["return_value"]]


def test_claims_that_another_try_hands_on_are_not_released(hook: JetStreamHook, stream: str) -> None:
    """Two processes of one task may be alive: the later one hands the claims on again."""
    publish(hook, stream, 10)
    claims: list[Any] = []

    def meanwhile(_: Any, result: list[Any]) -> None:
        claims.extend([*result, *execute(sensor(stream, consumer_config=LEASE), try_number=2)])
        raise OSError("too late")

    with pytest.raises(OSError, match="too late"):
        whole(sensor(stream, consumer_config=LEASE, post_execute=meanwhile))
    assert claims[0]["id"] == claims[1]["id"]
    kept = record(hook, stream)
    assert kept is not None
    assert list(kept.open) == [claims[0]["id"]]


def test_the_tasks_between_a_sensor_and_its_settling_tasks() -> None:
    claims = in_a_dag("S")
    assert between(claims, claims.dag.get_task("settle")) == {"load", "check"}
    assert depending(claims) == {"load", "check", "settle"}
    assert depending(sensor("S")) == set()


@pytest.mark.parametrize(
    ("rules", "begins_early"),
    [
        ({}, []),
        ({"check": "all_done"}, []),
        ({"check": "none_failed_min_one_success"}, []),
        ({"load": "one_done"}, []),  # it has one upstream task only
        ({"check": "one_success"}, ["check"]),
        ({"check": "one_done"}, ["check"]),
        ({"load": "always"}, ["load"]),
    ],
)
def test_work_that_may_begin_before_its_claims_is_refused(
    hook: JetStreamHook, stream: str, run: OneRun, rules: dict[str, str], begins_early: list[str]
) -> None:
    claims = in_a_dag(stream, rules=rules)
    assert early(claims) == begins_early
    run.states = {}
    if begins_early:
        with pytest.raises(AirflowFailException, match="before the sensor claims has handed on"):
            execute(claims)
        assert untouched(hook, stream)


def mapped_over(grouped: bool = False, **changes: Any) -> JetStreamPullSensor:
    with DAG("dag", schedule=None):
        claims = sensor("S", **changes)

        @task
        def work(claim: Any) -> None: ...

        @task_group
        def each(claim: Any) -> None:
            work(claim)

        (each if grouped else work).expand(claim=claims.output)
    return claims


@pytest.mark.parametrize("grouped", [False, True])
def test_a_take_is_bounded_by_what_airflow_maps(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "16")
    assert most_claims(mapped_over(grouped)) == 16
    assert most_claims(in_a_dag("S")) is None
    assert most_claims(sensor("S")) is None


def test_an_impossible_combination_is_refused() -> None:
    taking = Taking(stream="S", consumer="C", owner=("o",), max_messages=100, messages_per_claim=6)
    assert bounded(taking, None) == bounded(taking, 17) == taking
    with pytest.raises(InvalidValue, match=r"up to 17 claims.*max_messages=96 or less, or messages_per_claim=7 or"):
        bounded(taking, 16)


def test_claims_of_failed_messages_are_bounded_too() -> None:
    """A triggerer with an older release does not know the bound, so it is given only if it matters."""
    taking = Taking(stream="S", consumer="C", owner=("o",), max_messages=100, messages_per_claim=10, max_failures=3)
    assert bounded(taking, 110).max_claims is None
    assert "max_claims" not in bounded(taking, 110).to_json()
    limited = bounded(taking, 109)
    assert Taking.from_json(limited.to_json()).max_claims == 109


def test_the_sensor_refuses_before_it_takes(hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hook, stream, 10)
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "4")
    waiting = mapped_over(consumer_config=LEASE, max_messages="10", messages_per_claim="2")
    waiting.stream = stream
    with pytest.raises(InvalidValue, match="max_map_length=4"):
        execute(waiting)
    assert untouched(hook, stream)


def test_claims_of_an_earlier_try_that_are_too_many_are_released(
    hook: JetStreamHook, stream: str, run: OneRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hook, stream, 10)
    assert len(execute(sensor(stream, consumer_config=LEASE, messages_per_claim=2))) == 5
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "4")
    waiting = mapped_over(consumer_config=LEASE, max_messages=4, messages_per_claim=1)
    waiting.stream = stream
    with pytest.raises(JetStreamError, match=r"5 claims cannot be handed on.*max_map_length=4"):
        execute(waiting, try_number=2)
    assert len(execute(waiting, try_number=3)) == 4
