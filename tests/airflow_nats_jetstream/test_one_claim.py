"""A task that is given all claims of a sensor instead of one: it fails, and their messages are redelivered at once."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import BaseOperator

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.operators.spark_submit import JetStreamSparkSubmitOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor
from jetstream_handoff.errors import ClaimInvalid
from tests.airflow_nats_jetstream.steps import CONNECTION, execute, publish, record, rendered, sensor


def work(claim: Any) -> None:  # pragma: no cover - it must not be called
    raise AssertionError(claim)


def process(value: Any) -> BaseOperator:
    return JetStreamProcessOperator(
        task_id="work", python_callable=work, op_kwargs={"claim": value}, nats_conn_id=CONNECTION
    )


def hold_a_command(value: Any) -> BaseOperator:
    made = holding(BashOperator)(
        task_id="work", bash_command="echo {{ claim.id }}", claim=value, nats_conn_id="{{ params.connection }}"
    )
    return rendered(made, {"connection": CONNECTION})  # type: ignore[no-any-return]


def settle(value: Any) -> BaseOperator:
    return JetStreamSettleOperator(task_id="settle", claim=value, nats_conn_id=CONNECTION)


def spark(value: Any) -> BaseOperator:
    return JetStreamSparkSubmitOperator(task_id="work", application="/job.py", claim=value, nats_conn_id=CONNECTION)


def hold(value: Any) -> BaseOperator:
    return JetStreamHoldSensor(task_id="hold", claim=value, nats_conn_id=CONNECTION)


@pytest.fixture(autouse=True)
def nothing_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of other tasks are those of Airflow's API server."""
    monkeypatch.setattr(JetStreamSettleOperator, "_undone", lambda *_: ({}, False))


def as_it_is(claims: Any) -> Any:
    return claims


def of_a_mapped_sensor(claims: Any) -> Any:
    return [claims[:1], claims[1:]]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((make, as_it_is) for make in (process, hold_a_command, settle, spark, hold)),
        (process, json.dumps),
        (process, of_a_mapped_sensor),
    ],
)
def test_the_messages_of_a_list_are_redelivered_at_once(
    hook: JetStreamHook, stream: str, make: Callable[[Any], BaseOperator], given: Callable[[Any], Any]
) -> None:
    publish(hook, stream, 6)
    claims = execute(sensor(stream, messages_per_claim=2, consumer_config={"ack_wait": timedelta(seconds=60)}))
    with hook.processing(claims[1]) as held:
        with pytest.raises(AirflowFailException, match=r"\.expand\(claim=claims\).*pick one claim of the list"):
            execute(make(given(claims)), max_tries=3)
        again = execute(sensor(stream, timeout=5, consumer_config={}), run_id="other")
        assert [each["ranges"] for each in again] == [[[1, 2], [5, 6]]]  # 15 minutes before their lease ends
        assert held.lost == ""
    assert claims[0]["id"] not in record(hook, stream).open  # type: ignore[union-attr]


def test_a_block_that_is_given_a_list_says_so(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 2)
    claims = execute(sensor(stream, messages_per_claim=1, consumer_config={"ack_wait": timedelta(seconds=60)}))
    with pytest.raises(ClaimInvalid, match=r"\.expand\(claim=claims\)"), hook.processing(claims):
        pass
    assert not record(hook, stream).open  # type: ignore[union-attr]


def test_a_claim_of_another_ledger_is_left_alone(hook: JetStreamHook, stream: str) -> None:
    """What was settled, or is not known, has nothing that could be withdrawn."""
    publish(hook, stream, 2)
    claims = execute(sensor(stream, messages_per_claim=1, consumer_config={"ack_wait": timedelta(seconds=60)}))
    with hook.processing(claims[0]):
        pass
    with pytest.raises(AirflowFailException):
        execute(process([*claims, {**claims[0], "stream": "MISSING"}, {"v": 9}]))
    assert [done.claim_id for done in hook.committed(stream, "work")] == [claims[0]["id"]]


def test_the_messages_of_a_list_that_a_template_has_spoiled_are_redelivered_at_once(
    hook: JetStreamHook, stream: str
) -> None:
    publish(hook, stream, 6)
    claims = execute(sensor(stream, consumer_config={"ack_wait": timedelta(seconds=60)}))
    task = holding(BashOperator)(
        task_id="work", bash_command="true", claim="{{ params.claims }}", nats_conn_id=CONNECTION
    )
    with pytest.raises(AirflowFailException, match=r"not JSON; .*; in a template, add the filter tojson"):
        rendered(task, {"claims": claims[0]})
    assert record(hook, stream).open  # type: ignore[union-attr]  # of one claim, the template can be corrected
    with pytest.raises(AirflowFailException, match="not JSON"):
        rendered(task, {"claims": claims})
    assert not record(hook, stream).open  # type: ignore[union-attr]
