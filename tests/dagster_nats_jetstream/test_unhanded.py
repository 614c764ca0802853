"""Claims that were taken and cannot be handed on: their messages are redelivered at once, not when their lease ends."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, claimed_op, take_claims
from jetstream_client.errors import ConnectionFailed, InvalidValue
from tests.dagster_nats_jetstream.conftest import Line

TWICE = dg.RetryPolicy(max_retries=1)


class Full(dg.IOManager):
    """Cannot store the second output of each of the first ``failures`` tries."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.stored = 0

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self.stored += 1
        if self.stored == 2 and self.failures:
            self.failures -= 1
            self.stored = 0
            raise OSError("the disk is full")
        context.log.info("%s", obj)

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError


def taking(line: Line, failures: int, policy: Any = None) -> Any:
    take = take_claims(**line.quick(messages_per_claim=2, retry_policy=policy))

    @dg.job(resource_defs={"jetstream": line.resource, "io_manager": Full(failures)})
    def only_take() -> None:
        take()

    return only_take


@pytest.mark.parametrize(("failures", "policy"), [(1, None), (2, TWICE)])
def test_claims_whose_outputs_cannot_be_stored(
    line: Line, instance: dg.DagsterInstance, failures: int, policy: Any
) -> None:
    line.publish(6)
    assert not taking(line, failures, policy).execute_in_process(instance=instance, raise_on_error=False).success
    assert line.open == {}
    again = take_claims(**line.quick(messages_per_claim=2))

    @dg.graph
    def drain() -> None:
        again().map(claimed_op()(counted))

    result = drain.execute_in_process(resources={"jetstream": line.resource}, instance=instance)
    assert [*result.output_for_node("counted").values()] == [2, 2, 2]


def counted(claim: HeldClaim) -> int:
    return claim.count


def test_a_retry_hands_on_the_same_claims(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(6)
    result = taking(line, 1, TWICE).execute_in_process(instance=instance)
    assert result.success
    assert (len(line.open), line.unacknowledged) == (3, 6)


def test_a_claim_that_an_asset_cannot_hold(
    line: Line, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.publish(3)

    def refused(*arguments: Any, **options: Any) -> Iterator[Any]:
        raise ConnectionFailed("the server is away")

    monkeypatch.setattr(HeldClaim, "begin", refused)
    orders = claimed_asset(**line.quick(), name="orders")(counted)
    resources = {"jetstream": line.resource}
    assert not dg.materialize([orders], resources=resources, instance=instance, raise_on_error=False).success
    assert line.open == {}


def test_a_take_has_a_limited_number_of_claims(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    take = take_claims(**line.quick(messages_per_claim=2, max_claims=3))

    @dg.graph
    def drain() -> None:
        take().map(claimed_op()(counted))

    for expected in ([2, 2, 2], [2, 2]):
        result = drain.execute_in_process(resources={"jetstream": line.resource}, instance=instance)
        assert [*result.output_for_node("counted").values()] == expected
    assert line.floor == 10


def test_more_messages_than_the_claims_can_contain_are_refused_when_the_code_is_loaded() -> None:
    with pytest.raises(InvalidValue, match="3 claims of 2 messages contain at most 6"):
        take_claims(stream="ORDERS", consumer="work", max_messages=7, messages_per_claim=2, max_claims=3)
    with pytest.raises(InvalidValue, match="max_claims=0"):
        take_claims(stream="ORDERS", consumer="work", max_claims=0)
    take_claims(stream="ORDERS", consumer="work", messages_per_claim=1, gather=timedelta(seconds=1))
