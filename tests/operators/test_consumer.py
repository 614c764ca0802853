"""Resetting a consumer from a DAG, on a real server."""

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_nats_jetstream.client.errors import ConsumerNotFound, InvalidValue
from airflow_nats_jetstream.hooks import HeldClaim, JetStreamHook
from airflow_nats_jetstream.operators.consumer import JetStreamResetConsumerOperator
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from tests.operators.steps import CONNECTION, CONSUMER, claim, execute, info, publish, receipt, record, sensor


def reset(stream: str, **changes: Any) -> JetStreamResetConsumerOperator:
    values = {"task_id": "reset", "stream": stream, "consumer": CONSUMER, "nats_conn_id": CONNECTION}
    return JetStreamResetConsumerOperator(**{**values, **changes})


def process(value: Any) -> Any:
    def body(claim: HeldClaim) -> int:
        return claim.count

    work = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": value}, nats_conn_id=CONNECTION
    )
    return execute(work)


def test_everything_from_the_sequence_is_processed_again(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airflow_nats_jetstream.handoff.reset.QUIET", 0.5)
    done = claim(hook, stream, 10)
    process(done)
    publish(hook, stream, 5)
    (held,) = execute(sensor(stream), run_id="held")
    before = info(hook, stream).raw, record(hook, stream)
    task = reset(stream, sequence="{{ params.sequence }}")
    task.render_template_fields({"params": {"sequence": 4}})
    task.dry_run()
    wanted = {"stream": stream, "consumer": CONSUMER, "sequence": 4, "superseded": [held["id"]]}
    assert str({**wanted, "forgotten": done["ranges"], "pending": 0}) in capsys.readouterr().out
    assert record(hook, stream) == before[1]
    assert info(hook, stream).raw["delivered"] == before[0]["delivered"]

    answer = execute(task)
    assert answer.items() >= {**wanted, "pending": 12}.items()
    assert (info(hook, stream).counter, info(hook, stream).floor) == (0, 3)
    with pytest.raises(AirflowFailException, match="superseded"):
        process(held)
    assert receipt(hook, stream, held["id"]).state == "superseded"  # type: ignore[union-attr]
    (again,) = execute(sensor(stream), run_id="again")
    assert again["ranges"] == [[4, 15]]
    assert process(again) == 12
    assert info(hook, stream).floor == 15


def test_what_is_wrong_is_said_when_the_dag_is_parsed() -> None:
    for changes, says in (
        ({"stream": "a b"}, "stream"),
        ({"consumer": "a.b"}, "consumer"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": "five"}, "sequence"),
        ({"sequence": 1.5}, "sequence"),
    ):
        with pytest.raises(InvalidValue, match=says):
            reset(**{"stream": "S", **changes})  # type: ignore[arg-type]
    reset("{{ params.stream }}", sequence="{{ params.sequence }}")


def test_a_consumer_that_is_not_there(hook: JetStreamHook, stream: str) -> None:
    claim(hook, stream)
    with pytest.raises(ConsumerNotFound):
        execute(reset(stream, consumer="nobody"))
    task = reset(stream, sequence="{{ 1 - 1 }}")
    task.render_template_fields({})
    with pytest.raises(InvalidValue, match="above 0"):
        execute(task)
    assert info(hook, stream).ack_pending == 10
