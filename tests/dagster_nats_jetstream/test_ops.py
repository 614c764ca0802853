"""Ops on claims, in one process."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, claimed_op, publish_messages, purge_stream, take_claims
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import Superseded
from tests.dagster_nats_jetstream.conftest import Line


def execute(line: Line, job: Any, instance: dg.DagsterInstance, **options: Any) -> Any:
    resources = {"jetstream": line.resource}
    return job.execute_in_process(resources=resources, instance=instance, raise_on_error=False, **options)


def draining(line: Line, process: Any, **options: Any) -> Any:
    take = take_claims(**line.quick(**options))

    @dg.graph
    def drain() -> None:
        take().map(process)

    return drain


def test_each_claim_of_a_batch_is_settled_by_its_own_step(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        return claim.count

    result = execute(line, draining(line, process, messages_per_claim=4), instance)
    assert sorted(result.output_for_node("process").values()) == [2, 4, 4]
    assert sorted(receipt.value["outputs"]["result"] for receipt in line.committed) == [2, 4, 4]
    assert line.unacknowledged == 0


def test_claims_keep_the_order_of_each_key(line: Line, instance: dg.DagsterInstance) -> None:
    """Any key rule divides the messages; these have one key."""
    line.publish(10)

    @claimed_op()
    def process(claim: HeldClaim) -> list[int]:
        return [message.sequence for message in claim.messages()]

    result = execute(line, draining(line, process, ordered_by="{1}", claims=3), instance)
    assert list(result.output_for_node("process").values()) == [list(range(1, 11))]
    with pytest.raises(InvalidValue, match="messages_per_claim=4: leave it out with ordered_by"):
        take_claims(**line.quick(ordered_by="{1}", messages_per_claim=4))
    with pytest.raises(InvalidValue, match="on_poison='stop_key': give max_failures too"):
        take_claims(**line.quick(ordered_by="{1}", on_poison="stop_key"))


@pytest.mark.parametrize("limit", [{"min_messages": 1_000}, {"min_bytes": 10**6}])
def test_fewer_messages_are_enough_after_max_wait(
    line: Line, instance: dg.DagsterInstance, limit: dict[str, int]
) -> None:
    line.publish(10)

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        return claim.count

    result = execute(line, draining(line, process, max_wait=timedelta(seconds=1), **limit), instance)
    assert list(result.output_for_node("process").values()) == [10]
    assert (len(line.committed), line.unacknowledged) == (1, 0)


def test_a_settled_step_returns_what_it_recorded(line: Line, instance: dg.DagsterInstance) -> None:
    """As after a kill between the settlement and the step's last event."""
    line.publish(10)
    worked: list[str] = []

    @claimed_op(out={"rows": dg.Out(int), "name": dg.Out(str, is_required=False)})
    def process(claim: HeldClaim) -> Any:
        worked.append(claim.id)
        yield dg.Output(claim.count, "rows")

    @dg.graph
    def drain() -> None:
        take_claims(**line.quick())().map(process)

    first = execute(line, drain, instance)
    assert first.success
    (receipt,) = line.committed
    claim = line.claim(receipt)

    @dg.op(out=dg.DynamicOut(dict))
    def given() -> Iterator[Any]:
        yield dg.DynamicOutput(claim, mapping_key=receipt.claim_id)

    @dg.graph(name="drain")
    def again() -> None:
        given().map(process)

    # The same step of the same run, for an instance that does not know that it has ended.
    with dg.DagsterInstance.ephemeral() as forgetful:
        result = execute(line, again.to_job(), forgetful, run_id=first.run_id)
        assert result.output_for_node("process", "rows") == {receipt.claim_id: 10}
    assert worked == [receipt.claim_id]

    result = execute(line, again, instance)  # in another run it is another piece of work
    assert not result.success
    assert worked == [receipt.claim_id]


@pytest.mark.parametrize(
    ("out", "value", "recorded"),
    [
        ({"rows": dg.Out(), "name": dg.Out()}, (3, "a"), {"rows": 3, "name": "a"}),
        ({"rows": dg.Out()}, [3, "a"], {"rows": [3, "a"]}),
        ({"rows": dg.Out(dg.Nothing)}, None, {"rows": None}),
        ({}, None, {}),
    ],
)
def test_outputs_are_returned_as_in_any_op(
    line: Line, instance: dg.DagsterInstance, out: Any, value: Any, recorded: Any
) -> None:
    line.publish(10)

    @claimed_op(out=out)
    def process(claim: HeldClaim) -> Any:
        return value

    assert execute(line, draining(line, process), instance).success
    (receipt,) = line.committed
    assert receipt.value == {"op": 'op "process"', "outputs": recorded}


@pytest.mark.parametrize("several", [False, True])
def test_a_returned_output_has_the_name_of_its_position(
    line: Line, instance: dg.DagsterInstance, several: bool
) -> None:
    line.publish(10)
    outputs = (dg.Output(3, metadata={"a": 1}), dg.Output("x", "name"))

    @claimed_op(out={"rows": dg.Out(int), **({"name": dg.Out(str)} if several else {})})
    def process(claim: HeldClaim) -> Any:
        return outputs if several else outputs[0]

    result = execute(line, draining(line, process), instance)
    (receipt,) = line.committed
    assert receipt.value["outputs"] == ({"rows": 3, "name": "x"} if several else {"rows": 3})
    (rows,) = result.filter_events(
        lambda event: event.is_successful_output and event.event_specific_data.output_name == "rows"
    )
    assert rows.event_specific_data.metadata["a"].value == 1


def test_a_claim_without_all_outputs_is_not_settled(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_op(out={"rows": dg.Out(), "name": dg.Out()})
    def process(claim: HeldClaim) -> Iterator[Any]:
        yield dg.Output(claim.count, "rows")

    assert not execute(line, draining(line, process), instance).success
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 10)


def test_bad_durations_are_refused_when_the_code_is_loaded(line: Line) -> None:
    number: Any = 30
    with pytest.raises(InvalidValue, match="wait=30"):
        take_claims(**line.of(), wait=number)
    with pytest.raises(InvalidValue, match="longest_hold=30"):
        claimed_op(longest_hold=number)


def test_dynamic_outputs_are_refused_when_the_code_is_loaded() -> None:
    def process(claim: HeldClaim) -> Any: ...

    with pytest.raises(InvalidValue, match="out='DynamicOut'"):
        claimed_op(out=dg.DynamicOut())(process)


def test_outputs_that_are_too_large_together_are_refused(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_op(out={"first": dg.Out(str), "second": dg.Out(str)})
    def process(claim: HeldClaim) -> Any:
        return "x" * 5_000, "y" * 5_000

    result = execute(line, draining(line, process), instance)
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "InvalidValue" in str(failure.step_failure_data.error)
    assert line.committed == []


NOT_RECORDED = {"not JSON": object(), "too large": "x" * 9_000, "another key": {1: 2}, "a tuple": {"pair": (1, 2)}}


@pytest.mark.parametrize("value", NOT_RECORDED.values(), ids=NOT_RECORDED)
def test_an_output_that_cannot_be_recorded_is_refused_before_it_is_stored(
    line: Line, instance: dg.DagsterInstance, value: Any
) -> None:
    line.publish(10)

    @claimed_op()
    def process(claim: HeldClaim) -> Any:
        return value

    result = execute(line, draining(line, process), instance)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "InvalidValue" in str(failure.step_failure_data.error)
    assert line.committed == []
    assert result.filter_events(lambda event: event.is_successful_output and event.step_key != "take_claims") == []


def test_a_claim_has_one_op(line: Line, instance: dg.DagsterInstance) -> None:
    """A second op would get what the first one has recorded, would not be called, and would succeed."""
    line.publish(3)
    worked: list[str] = []

    @claimed_op()
    def archive(claim: HeldClaim) -> str:
        worked.append("archive")
        return "archived"

    @claimed_op()
    def bill(claim: HeldClaim) -> str:
        worked.append("bill")
        return "billed"

    @dg.graph
    def both() -> None:
        claims = take_claims(**line.quick())()
        claims.map(archive)
        claims.map(bill)

    result = execute(line, both, instance)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "One task processes a claim" in str(failure.step_failure_data.error)
    assert len(worked) == len(line.committed) == 1


def checked_graph(line: Line, passed: bool, kind: Any = dg.Nothing) -> Any:
    """An asset that is a graph. The check that its op yields is a blocking one of the asset."""

    @claimed_op(out={"result": dg.Out(), "few": dg.Out(kind)}, retry_policy=dg.RetryPolicy(max_retries=passed))
    def process(claim: HeldClaim) -> Iterator[Any]:
        yield dg.Output(claim.count, "result")
        yield dg.AssetCheckResult(check_name="few", passed=passed)

    @dg.op
    def first(claims: list[Any]) -> dict[str, Any]:
        return dict(claims[0])

    take = take_claims(**line.quick())

    @dg.graph_asset(check_specs=[dg.AssetCheckSpec("few", asset="orders", blocking=True)])
    def orders() -> Any:
        result, few = process(first(take().collect()))
        return {"result": result, "orders_few": few}

    return orders


def test_a_claim_whose_blocking_check_failed_is_not_settled(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(1)
    resources = {"jetstream": line.resource}
    asset = checked_graph(line, passed=False)
    result = dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)
    assert not result.success
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 1)
    (failure,) = line.failures
    assert failure.reason.startswith("blocking checks failed")


@pytest.mark.parametrize("kind", [dg.Nothing, dg.Any])
def test_a_settled_step_with_a_check_is_retried(
    line: Line, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """As after a kill between the settlement and the step's last event. Dagster requires an output for the check."""
    line.publish(3)
    settle = HeldClaim.settle

    def dies(self: HeldClaim, value: Any) -> None:
        settle(self, value)
        raise RuntimeError("as a kill")

    monkeypatch.setattr(HeldClaim, "settle", dies)
    resources = {"jetstream": line.resource}
    assert dg.materialize([checked_graph(line, passed=True, kind=kind)], resources=resources, instance=instance).success
    (receipt,) = line.committed
    assert receipt.value["outputs"] == {"result": 3}


@pytest.mark.parametrize("event", [dg.MaterializeResult(value=3), dg.AssetCheckResult(check_name="few", passed=True)])
def test_what_cannot_be_recorded_is_refused(line: Line, instance: dg.DagsterInstance, event: Any) -> None:
    line.publish(3)

    @claimed_op(retry_policy=dg.RetryPolicy(max_retries=1))
    def process(claim: HeldClaim) -> Iterator[Any]:
        yield event
        yield dg.Output(claim.count)

    assert not execute(line, draining(line, process), instance).success
    assert (line.committed, line.open, len(line.failures)) == ([], {}, 1)


def test_a_direct_call_touches_nothing(line: Line, instance: dg.DagsterInstance) -> None:
    """Nobody could know for whom the claim was taken, and whether its run has ended."""

    def count(context: dg.OpExecutionContext, claim: HeldClaim) -> int:
        return claim.count

    line.publish(4)
    process: Any = claimed_op()(count)
    take: Any = take_claims(**line.quick())
    assert execute(line, draining(line, process), instance).success
    (receipt,) = line.committed
    line.publish(3)
    asset: Any = claimed_asset(**line.quick())(count)
    with dg.build_op_context(resources={"jetstream": line.resource}) as context:
        calls: tuple[Any, ...] = (
            lambda: asset(context),
            lambda: take(context),
            lambda: process(context, line.claim(receipt)),
        )
        for call in calls:
            with pytest.raises(InvalidValue, match=r"direct call.*in a test with dg\.materialize"):
                list(call())
    assert (len(line.committed), line.open, line.unacknowledged) == (1, {}, 0)


def test_a_retry_holds_the_claim_again(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    tries: list[str] = []

    @claimed_op(retry_policy=dg.RetryPolicy(max_retries=2))
    def process(claim: HeldClaim) -> int:
        tries.append(claim.attempt_id)
        if len(tries) < 3:
            raise RuntimeError("no")
        return claim.count

    assert execute(line, draining(line, process), instance).success
    (receipt,) = line.committed
    assert receipt.attempt_id == tries[2]


def test_the_retry_policy_may_be_that_of_the_job(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    tries: list[str] = []

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        tries.append(claim.id)
        if len(tries) == 1:
            raise RuntimeError("no")
        return claim.count

    job = draining(line, process).to_job(op_retry_policy=dg.RetryPolicy(max_retries=1))
    assert execute(line, job, instance).success
    assert len(tries) == 2


class Busy(dg.IOManager):
    """Asks for a retry the first time that it stores an output of a claim."""

    asked = False

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ARG002
        if not self.asked:
            self.asked = True
            raise dg.RetryRequested(max_retries=1)

    def load_input(self, context: dg.InputContext) -> Any: ...


def test_the_io_manager_may_ask_for_a_retry(line: Line, instance: dg.DagsterInstance) -> None:
    """The op has no retry policy."""
    line.publish(3)

    @claimed_op(out=dg.Out(io_manager_key="busy"))
    def process(claim: HeldClaim) -> int:
        return claim.count

    resources = {"jetstream": line.resource, "busy": Busy()}
    assert draining(line, process).execute_in_process(resources=resources, instance=instance).success
    (receipt,) = line.committed
    assert receipt.attempt_id.rpartition("-")[0].endswith("-2")


def test_an_error_of_another_claim_fails_the_claim(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(1)

    @claimed_op(retry_policy=dg.RetryPolicy(max_retries=1))
    def process(claim: HeldClaim) -> int:
        raise Superseded("another claim")

    assert not execute(line, draining(line, process, max_failures=3), instance).success
    assert (line.open, len(line.failures)) == ({}, 1)


def test_a_claim_of_somebody_else_fails_without_a_retry(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    tries: list[str] = []

    @claimed_op(retry_policy=dg.RetryPolicy(max_retries=2))
    def process(claim: HeldClaim) -> int:
        tries.append(claim.attempt_id)
        with HeldClaim.begin(line.settings, claim.claim, try_number=9, piece=claim._hold.work.piece) as thief:
            thief.settle("stolen")
        return claim.count

    result = execute(line, draining(line, process), instance)
    assert not result.success
    assert len(tries) == 1
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "AlreadyDone: claim" in str(failure.step_failure_data.error)
    (receipt,) = line.committed
    assert receipt.value == "stolen"


class Failing:
    """A source of messages that is away the first time, in the middle."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.away = True

    def __call__(self) -> Iterator[tuple[str, bytes]]:
        for number in range(20_000):
            if self.away and number == 15_000:
                self.away = False
                raise RuntimeError("the source is away")
            yield self.subject, b"%d" % number


def test_a_repeated_publish_stores_nothing_twice(line: Line, instance: dg.DagsterInstance) -> None:
    readings = Failing(f"{line.stream}.a")
    policy = dg.RetryPolicy(max_retries=1)
    publishing = publish_messages(readings, stream=line.stream, name="readings", retry_policy=policy)

    @dg.op
    def first() -> None: ...

    @dg.graph
    def publish() -> None:
        publishing(start=first())

    result = execute(line, publish, instance)
    published = result.output_for_node("readings.readings_publish")
    assert published["stored"] + published["duplicates"] == 20_000
    assert 0 < published["duplicates"] <= 15_000
    assert execute(line, publishing, instance).success  # in another run, with nothing before it
    state = line.run(lambda js: js.stream(line.stream).info()).state
    assert state["messages"] == 40_000


def test_each_step_of_a_mapped_publish_is_a_work_of_its_own(line: Line, instance: dg.DagsterInstance) -> None:
    publishing = publish_messages(partial(iter, [(f"{line.stream}.a", b"x")]), stream=line.stream)

    @dg.op(out=dg.DynamicOut())
    def two() -> Iterator[Any]:
        yield from (dg.DynamicOutput(1, mapping_key=key) for key in "ab")

    @dg.graph
    def both() -> None:
        two().map(lambda each: publishing(start=each))

    assert execute(line, both, instance).success
    assert line.run(lambda js: js.stream(line.stream).info()).state["messages"] == 2


def test_a_stream_is_purged(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @dg.graph
    def purge() -> None:
        purge_stream(stream=line.stream, keep=3)()

    assert execute(line, purge, instance).output_for_node("purge_stream") == 7
