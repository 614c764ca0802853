"""Claims whose messages have vanished, in steps on a real server."""

from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, claimed_op
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from tests.dagster_nats_jetstream.conftest import Line
from tests.dagster_nats_jetstream.test_assets import materialize
from tests.dagster_nats_jetstream.test_endings import failures_of
from tests.dagster_nats_jetstream.test_ops import draining, execute


def read_the_rest(line: Line, claim: HeldClaim) -> list[int]:
    """Read a claim, of which one message has vanished since it was taken."""

    async def vanish(js: JetStream) -> None:
        await js.stream(line.stream).delete_message(2)

    if not vanished:
        vanished.append(claim.id)
        line.run(vanish)
    return [message.sequence for message in claim.messages()]


vanished: list[str] = []


@pytest.fixture(autouse=True)
def not_yet() -> None:
    vanished.clear()


@pytest.mark.parametrize("missing", ["error", "skip"])
def test_an_op(line: Line, instance: dg.DagsterInstance, missing: Any) -> None:
    line.publish(3)
    tries: list[str] = []

    @claimed_op(missing=missing, retry_policy=dg.RetryPolicy(max_retries=3))
    def process(claim: HeldClaim) -> list[int]:
        tries.append(claim.attempt_id)
        return read_the_rest(line, claim)

    result = execute(line, draining(line, process), instance)
    assert (result.success, len(tries)) == (missing == "skip", 1)
    if result.success:
        (receipt,) = line.committed
        assert (receipt.skipped, receipt.processed) == (Sequences.of([2]), Sequences.of([1, 3]))
        assert (line.floor, receipt.value["outputs"]) == (3, {"result": [1, 3]})
    else:
        assert "set missing='skip'" in failures_of(result)
        assert (line.committed, line.failures, line.unacknowledged) == ([], [], 2)


@pytest.mark.parametrize("missing", ["error", "skip"])
def test_an_asset(line: Line, instance: dg.DagsterInstance, missing: Any) -> None:
    line.publish(3)

    @claimed_asset(**line.quick(missing=missing), retry_policy=dg.RetryPolicy(max_retries=3))
    def orders(claim: HeldClaim) -> list[int]:
        return read_the_rest(line, claim)

    result = materialize(line, orders, instance)
    assert result.success == (missing == "skip")
    assert [receipt.skipped for receipt in line.committed] == ([Sequences.of([2])] if result.success else [])


def test_the_choice_is_checked_when_the_code_location_is_loaded() -> None:
    for decorator in (claimed_op, lambda **each: claimed_asset(stream="S", consumer="c", **each)):
        with pytest.raises(InvalidValue, match="give 'error' or 'skip'"):
            decorator(missing="ignore")  # type: ignore[arg-type]
