"""Other ends of a step, and claims that go another way than from a take to one op."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_op, jetstream_sensor, take_claims
from dagster_nats_jetstream.runs import TAKE_OVER
from tests.dagster_nats_jetstream.conftest import Line
from tests.dagster_nats_jetstream.test_ops import draining, execute
from tests.dagster_nats_jetstream.test_sensor import Ticks, other


def failures_of(result: Any) -> str:
    events = result.filter_events(lambda event: event.is_step_failure)
    return "".join(str(event.step_failure_data.error) for event in events)


def test_a_hook_that_fails_comes_after_the_work(line: Line, instance: dg.DagsterInstance) -> None:
    """Dagster records its error, and the step has succeeded."""
    line.publish(3)
    called: list[int] = []

    @dg.success_hook
    def broken(context: dg.HookContext) -> None:
        called.append(len(line.committed))
        raise RuntimeError("a hook")

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        return claim.count

    take = take_claims(**line.quick())

    @dg.graph
    def drain() -> None:
        take().map(process.with_hooks({broken}))

    result = execute(line, drain, instance)
    assert result.success
    assert (called, line.floor) == ([1], 3)


@pytest.mark.parametrize("most", [1, 0])
def test_a_retry_that_is_requested_after_an_output(line: Line, instance: dg.DagsterInstance, most: int) -> None:
    line.publish(3)
    tries: list[str] = []

    @claimed_op()
    def process(claim: HeldClaim) -> Iterator[Any]:
        tries.append(claim.attempt_id)
        yield dg.Output(claim.count)
        if len(tries) == 1:
            raise dg.RetryRequested(max_retries=most)

    result = execute(line, draining(line, process), instance)
    assert result.success == bool(most)
    assert [receipt.attempt_id for receipt in line.committed] == tries[1:]
    assert (line.open, line.unacknowledged) == ({}, 0 if most else 3)


def test_a_claim_whose_op_is_skipped_is_not_settled(line: Line, instance: dg.DagsterInstance) -> None:
    """Dagster skips a step whose input was not yielded, and the run succeeds. The sensor requests another run."""
    line.publish(3)

    @dg.op(out=dg.Out(dict, is_required=False))
    def none_of_them(claim: dict[str, Any]) -> Iterator[Any]:
        yield from ()

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        return claim.count

    take = take_claims(**line.quick())

    @dg.graph
    def drain() -> None:
        take().map(lambda claim: process(none_of_them(claim)))

    assert execute(line, drain, instance).success
    assert (line.committed, line.unacknowledged, len(line.open)) == ([], 3, 1)
    tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[other])), other)
    assert TAKE_OVER in tick.request().tags


def test_an_op_that_is_mapped_twice(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)
    worked: list[str] = []

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        worked.append(claim.id)
        return claim.count

    take = take_claims(**line.quick())

    @dg.graph
    def drain() -> None:
        claims = take()
        claims.map(process.alias("first"))
        claims.map(process.alias("second"))

    result = execute(line, drain, instance)
    assert not result.success
    assert "was settled by drain / " in failures_of(result)
    assert len(worked) == len(line.committed) == 1


@pytest.mark.parametrize("settled", [False, True])
def test_a_claim_that_is_passed_to_another_job(line: Line, instance: dg.DagsterInstance, settled: bool) -> None:
    """The first op that holds it does the work. Any other one fails, also if it has the same name."""
    line.publish(3)
    passed: list[dict[str, Any]] = []
    worked: list[str] = []
    take = take_claims(**line.quick())

    @dg.op
    def keep(claim: dict[str, Any]) -> dict[str, Any]:
        passed.append(claim)
        return claim

    @claimed_op()
    def process(context: dg.OpExecutionContext, claim: HeldClaim) -> int:
        worked.append(context.job_name)
        return claim.count

    @dg.graph
    def taking() -> None:
        claims = take().map(keep)
        if settled:
            claims.map(process)

    @dg.op(out=dg.DynamicOut(dict))
    def given() -> Iterator[Any]:
        yield dg.DynamicOutput(passed[0], mapping_key=passed[0]["id"])

    @dg.graph
    def later() -> None:
        given().map(process)

    assert execute(line, taking, instance).success
    result = execute(line, later, instance)
    assert result.success != settled
    assert worked == (["taking"] if settled else ["later"])
    assert line.floor == 3
    if settled:
        assert "was settled by taking / " in failures_of(result)


def test_an_op_that_was_renamed_between_two_tries(line: Line, instance: dg.DagsterInstance) -> None:
    """It does not take the outputs of the old name for its own."""
    line.publish(3)

    def counted(claim: HeldClaim) -> int:
        return claim.count

    old, new = claimed_op(name="old")(counted), claimed_op(name="new")(counted)
    first = execute(line, draining(line, old).to_job(name="drain"), instance)
    (receipt,) = line.committed
    claim = line.claim(receipt)

    @dg.op(out=dg.DynamicOut(dict))
    def given() -> Iterator[Any]:
        yield dg.DynamicOutput(claim, mapping_key=receipt.claim_id)

    @dg.graph(name="drain")
    def again() -> None:
        given().map(new)

    # In the same run, for an instance that does not know that it has ended.
    with dg.DagsterInstance.ephemeral() as forgetful:
        result = execute(line, again.to_job(), forgetful, run_id=first.run_id)
        assert not result.success
        assert "was settled by drain / " in failures_of(result)
