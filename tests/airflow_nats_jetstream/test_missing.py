"""Claims whose messages have vanished, in tasks on a real server."""

from typing import Any

import pytest

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, info, receipt, record


def process(value: Any, **changes: Any) -> JetStreamProcessOperator:
    given = {"task_id": "work", "nats_conn_id": CONNECTION, **changes}
    return JetStreamProcessOperator(python_callable=read, op_kwargs={"claim": value}, **given)


def read(claim: HeldClaim) -> list[int]:
    return [message.sequence for message in claim.messages()]


def vanish(hook: JetStreamHook, stream: str, *sequences: int) -> None:
    for sequence in sequences:
        hook.run(lambda js, gone=sequence: js.stream(stream).delete_message(gone))  # type: ignore[misc]


def test_a_read_that_cannot_succeed_is_not_tried_again(hook: JetStreamHook, stream: str) -> None:
    """Without this, each of the task's retries held the claim and failed in the same way."""
    value = claim(hook, stream, 5)
    vanish(hook, stream, 2, 4)
    with pytest.raises(AirflowFailException, match=r"sequences 2, 4.*retry does not help.*set missing='skip'"):
        execute(process(value), max_tries=5)
    failed, left = receipt(hook, stream, value["id"]), record(hook, stream)
    assert failed is not None
    assert left is not None
    assert (failed.state, failed.reason.partition(" ")[0]) == ("failed", "MessagesMissing")
    assert not left.failures  # the messages that still exist are not to blame
    assert info(hook, stream).floor == 0


def test_what_is_skipped_is_named_in_the_receipt(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream, 5)
    vanish(hook, stream, 2, 4)
    assert execute(process(value, missing="skip")) == [1, 3, 5]
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.skipped, done.processed) == (Sequences.of([2, 4]), Sequences.of([1, 3, 5]))
    assert info(hook, stream).floor == 5


def test_the_hook_takes_the_choice_too(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream, 5)
    vanish(hook, stream, 1)
    with hook.processing(value, missing="skip") as held:
        held.value = read(held)
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.skipped, done.value) == (Sequences.of([1]), [2, 3, 4, 5])


def test_a_settled_claim_is_processed_again_without_what_has_vanished(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream, 5)
    execute(process(value))
    vanish(hook, stream, 3)
    with pytest.raises(AirflowFailException, match=r"cannot be processed again, because .*sequences 3"):
        execute(process(value, on_settled="reprocess"), try_number=2)
    assert execute(process(value, on_settled="reprocess", missing="skip"), try_number=3) == [1, 2, 4, 5]


def test_the_choice_is_checked_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidValue, match="missing='ignore': give 'error' or 'skip'"):
        process({}, missing="ignore")
