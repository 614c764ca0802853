"""Messages rejected by a task's function, and failures that are counted, as Airflow runs them."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from airflow.sdk import DAG
from pyspark.sql import Row

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSkipException, AirflowTaskTimeout
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator, jetstream_task
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_handoff.errors import DeadLettersUnsuitable, HoldLost
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.selection import Selection, select
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    CONSUMER,
    claim,
    execute,
    info,
    publish,
    receipt,
    record,
    sensor,
)


def process(body: Any, value: Any, **changes: Any) -> JetStreamProcessOperator:
    return JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": value}, nats_conn_id=CONNECTION, **changes
    )


def letters(hook: JetStreamHook, stream: str, name: str | None = None) -> list[tuple[int, str]]:
    """Original sequence and reason of the confirmed dead letters."""

    async def read(js: JetStream) -> list[tuple[int, str]]:
        with suppress(StreamNotFound):
            found = select(DeadLetters(js, stream, name), Selection(everything=True))
            return [(each.head.sequence, each.head.reason) async for each in found if each.head]
        return []

    return hook.run(read)


@pytest.fixture(autouse=True)
def _none_left(hook: JetStreamHook, stream: str) -> Iterator[None]:
    yield
    for name in (f"DEAD_{stream}", f"OTHER_{stream}"):
        with suppress(StreamNotFound):
            hook.run(partial(_delete, name))


async def _delete(name: str, js: JetStream) -> None:
    await js.stream(name).delete()


def test_the_body_rejects(hook: JetStreamHook, stream: str, caplog: pytest.LogCaptureFixture) -> None:
    value = claim(hook, stream)
    caplog.set_level(logging.INFO)
    with DAG("dag", schedule=None):

        @jetstream_task(nats_conn_id=CONNECTION, dead_letters=f"OTHER_{stream}")
        def work(claim: HeldClaim) -> int:
            claim.reject(np.int64(2), "no date")
            claim.reject([row.sequence for row in [Row(sequence=3), Row(sequence=2)]], "no weight")
            claim.reject(np.array([5, 6]), "no height")
            return claim.count - claim.rejected.count

        task: Any = work(value)  # type: ignore[arg-type] # it arrives held
    assert execute(task.operator) == 6
    assert info(hook, stream).floor == 10
    assert letters(hook, stream, f"OTHER_{stream}") == [
        (2, "no date"),
        (3, "no weight"),
        (5, "no height"),
        (6, "no height"),
    ]
    (done,) = hook.committed(stream, CONSUMER)
    assert list(done.processed) == [1, 4, 7, 8, 9, 10]
    assert f"copied 1 message of claim {done.claim_id} to stream OTHER_{stream} (no date)" in caplog.text
    assert "is acknowledged: 6 messages processed, 4 dead-lettered" in caplog.text


def test_what_cannot_be_rejected_is_an_error_at_once(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    seen = []

    def body(claim: HeldClaim) -> None:
        for wrong in (11, [1, 11], ["3"], "3", [Row(sequence=3)], 0):
            with pytest.raises(InvalidValue, match="sequences"):
                claim.reject(wrong, "no date")  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="reason"):
            claim.reject(3, "")
        seen.append(claim)
        raise AirflowSkipException("nothing to settle")

    with pytest.raises(AirflowSkipException):
        execute(process(body, value))
    assert letters(hook, stream) == []
    with pytest.raises((HoldLost, RuntimeError)):
        seen[0].reject(3, "too late")


def test_a_block_rejects(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    with hook.processing(value) as held:
        held.reject([3], "no date")
    assert letters(hook, stream) == [(3, "no date")]
    assert info(hook, stream).ack_pending == 0


def test_an_unsuitable_stream_fails_the_task_and_settles_nothing(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    hook.run(lambda js: js.create_stream({"name": f"OTHER_{stream}", "subjects": [f"dead.{stream}.>"]}))
    with pytest.raises(DeadLettersUnsuitable, match="max_msgs_per_subject"):
        execute(process(lambda claim: claim.reject(3, "no date"), value, dead_letters=f"OTHER_{stream}"), max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    assert info(hook, stream).ack_pending == 10


@pytest.mark.parametrize(
    ("error", "max_tries", "failed"),
    [
        (OSError("secret"), 0, True),
        (OSError("secret"), 1, False),
        (AirflowFailException("secret"), 1, True),
        (AirflowSkipException("no"), 0, False),
    ],
)
def test_which_errors_count(hook: JetStreamHook, stream: str, error: Exception, max_tries: int, failed: bool) -> None:
    value = claim(hook, stream, 1)

    def body(claim: HeldClaim) -> None:
        raise error

    with pytest.raises(type(error)):
        execute(process(body, value), max_tries=max_tries)
    (failures,) = [record(hook, stream).failures]  # type: ignore[union-attr]
    assert bool(failures) == failed
    if failed:
        assert failures[value["id"]].reason == f"{type(error).__name__} in dag.work, run run, try 1"
        assert execute(sensor(stream, max_failures=2), run_id="other")[0]["ranges"] == [[1, 1]]


def test_the_last_time_out_counts(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream, 1)

    def body(claim: HeldClaim) -> None:
        time.sleep(30)

    with pytest.raises(AirflowTaskTimeout):
        execute(process(body, value, execution_timeout=timedelta(seconds=1)), max_tries=0)
    assert receipt(hook, stream, value["id"]).state == "failed"  # type: ignore[union-attr]
    with pytest.raises(Exception, match="fewer than 1"):
        execute(sensor(stream, timeout=1.5, max_failures=1, dead_letters=f"OTHER_{stream}"), run_id="other")
    reason = "failed 1 times alone, the last time: AirflowTaskTimeout in dag.work, run run, try 1"
    assert letters(hook, stream, f"OTHER_{stream}") == [(1, reason)]
    assert info(hook, stream).floor == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_failures": 0}, "max_failures=0"),
        ({"max_failures": "many"}, "max_failures='many'"),
        ({"dead_letters": "a.b"}, "dead_letters='a.b'"),
        ({"dead_letters": "A"}, "another stream"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        sensor("A", **changes)


def test_the_name_of_the_stream_is_checked_when_the_dag_is_parsed() -> None:
    def body(claim: HeldClaim) -> None: ...

    with pytest.raises(InvalidValue, match="dead_letters"):
        process(body, None, dead_letters="a b")
    process(body, None, dead_letters="{{ params.dead }}")


def test_what_is_templated_is_known_late(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 3)
    with DAG("dag", schedule=None):
        task = sensor(stream, max_failures="{{ params.most }}", dead_letters="{{ params.dead }}")
    task.max_failures, task.dead_letters = "None", "None"
    assert len(execute(task)) == 1
    task.max_failures = "0"
    with pytest.raises(InvalidValue, match="max_failures='0'"):
        execute(task)
