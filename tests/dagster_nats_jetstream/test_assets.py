"""Assets from claims, in one process: what is settled, and when."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, runs, take_claims
from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_handoff.errors import ConsumerUnsuitable, Superseded
from jetstream_handoff.letters.dead_letters import DeadLetters
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line

TWICE = dg.RetryPolicy(max_retries=1)


class Storing(dg.IOManager):
    """Notes what was unacknowledged when an output was stored, and fails the first ``failures`` times."""

    def __init__(self, line: Line, failures: int = 0, error: Exception | None = None) -> None:
        self.line = line
        self.failures = failures
        self.error = error or OSError("the disk is full")
        self.stored: list[Any] = []

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ARG002
        if self.failures:
            self.failures -= 1
            raise self.error
        self.stored.append((obj, self.line.unacknowledged))

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError


def materialize(line: Line, asset: Any, instance: dg.DagsterInstance, storing: Any = None) -> Any:
    resources = {"jetstream": line.resource, "storing": storing or Storing(line)}
    return dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)


def summed(claim: HeldClaim) -> int:
    return sum(int(message.data) for message in claim.messages())


def test_a_claim_is_settled_after_its_output_is_stored(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    storing = Storing(line)
    orders = claimed_asset(**line.quick(), io_manager_key="storing")(summed)
    result = materialize(line, orders, instance, storing)
    assert result.success
    assert storing.stored == [(45, 10)]
    assert (line.unacknowledged, line.floor) == (0, 10)
    (receipt,) = line.committed
    (materialization,) = result.asset_materializations_for_node("summed")
    shown = {name: value.value for name, value in materialization.metadata.items()}
    assert shown["jetstream/attempt"] == receipt.attempt_id
    assert (shown["jetstream/stream"], shown["jetstream/consumer"]) == (line.stream, CONSUMER)
    assert (shown["jetstream/sequences"], shown["jetstream/messages"]) == ("1-10", 10)
    assert receipt.history.owner[1] == result.run_id
    assert receipt.history.attempts[0].by[-1] == 1


def test_two_assets_that_share_a_consumer_are_named(
    line: Line, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    orders, copy = (claimed_asset(**line.quick(max_messages=1), name=name)(summed) for name in ("orders", "copy"))
    line.publish(3)
    assert materialize(line, orders, instance).success
    both = dg.Definitions(
        [orders], jobs=[dg.define_asset_job("nightly", [orders])], resources={"jetstream": line.resource}
    )
    assert both.resolve_job_def("nightly").execute_in_process(instance=instance).success
    assert " is shared by " not in caplog.text
    assert materialize(line, copy, instance).success
    assert f"consumer {CONSUMER} of stream {line.stream} is shared by 'op \"copy\"' and 'op \"orders\"'" in caplog.text


FULL, UNRETRIED = OSError("the disk is full"), dg.Failure("the disk is full", allow_retries=False)


@pytest.mark.parametrize("policy", [None, TWICE], ids=["once", "retried"])
@pytest.mark.parametrize("error", [FULL, UNRETRIED, dg.DagsterInvariantViolationError("unpicklable")], ids=repr)
def test_a_claim_whose_output_cannot_be_stored_fails(
    line: Line, instance: dg.DagsterInstance, policy: Any, error: Exception
) -> None:
    """Dagster does not retry some errors. If the claim waited for a retry, the next runs would take it over again and
    again, and take no other messages."""
    line.publish(1)
    storing = Storing(line, failures=2, error=error)
    options: dict[str, Any] = {"io_manager_key": "storing", "max_failures": 3}
    failing = claimed_asset(**line.quick(), **options, retry_policy=policy)(summed)
    assert not materialize(line, failing, instance, storing).success
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 1)
    (failure,) = line.failures
    assert failure.reason.startswith('Dagster refused or could not store an output of op "summed", run ')
    assert materialize(line, claimed_asset(**line.quick(), **options)(summed), instance, Storing(line)).success


def test_a_retry_gets_the_messages_of_its_failed_try(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    tries: list[str] = []

    @claimed_asset(**line.quick(), retry_policy=TWICE)
    def orders(claim: HeldClaim) -> int:
        tries.append(claim.attempt_id)
        line.publish(5, first=10)  # no other message joins the retry
        if len(tries) == 1:
            raise RuntimeError("no")
        return claim.count

    result = materialize(line, orders, instance)
    assert result.output_for_node("orders") == 10
    (receipt,) = line.committed
    assert receipt.attempt_id == tries[1]
    assert [each.partition("-")[0] for each in tries] == [receipt.claim_id] * 2
    assert [each.by[-1] for each in receipt.history.attempts] == [1, 2]


def test_a_retry_after_storing_failed_gets_the_claim_that_is_still_held(
    line: Line, instance: dg.DagsterInstance
) -> None:
    line.publish(10)
    storing = Storing(line, failures=1)
    orders = claimed_asset(**line.quick(), io_manager_key="storing", retry_policy=TWICE)(summed)
    assert materialize(line, orders, instance, storing).success
    assert [value for value, _ in storing.stored] == [45]
    (receipt,) = line.committed
    assert len(receipt.history.attempts) == 2


@pytest.mark.parametrize("error", [RuntimeError("no"), dg.Failure("no", allow_retries=False)])
def test_after_the_last_try_the_messages_are_redelivered(
    line: Line, instance: dg.DagsterInstance, error: Exception
) -> None:
    line.publish(10)
    policy = TWICE if isinstance(error, dg.Failure) else None

    @claimed_asset(**line.quick(), retry_policy=policy, name="orders")
    def failing(claim: HeldClaim) -> int:
        raise error

    assert not materialize(line, failing, instance).success
    assert line.open == {}
    assert materialize(line, claimed_asset(**line.quick())(summed), instance).output_for_node("summed") == 45


@pytest.mark.parametrize(
    ("blocking", "severity", "settled"),
    [
        (True, dg.AssetCheckSeverity.ERROR, False),
        (True, dg.AssetCheckSeverity.WARN, True),
        (False, dg.AssetCheckSeverity.ERROR, True),
    ],
)
@pytest.mark.parametrize("form", ["result", "events"])
def test_a_claim_whose_blocking_check_failed_is_not_settled(  # noqa: PLR0917
    line: Line, instance: dg.DagsterInstance, blocking: bool, severity: dg.AssetCheckSeverity, settled: bool, form: str
) -> None:
    line.publish(10)
    checks = [dg.AssetCheckSpec("few", asset="orders", blocking=blocking)]
    few = dg.AssetCheckResult(check_name="few", passed=False, severity=severity)

    def result(claim: HeldClaim) -> Any:
        return dg.MaterializeResult(metadata={"rows": claim.count}, check_results=[few])

    def events(claim: HeldClaim) -> Iterator[Any]:
        yield dg.Output(claim.count)
        yield few

    body = result if form == "result" else events
    orders = claimed_asset(**line.quick(), name="orders", check_specs=checks)(body)
    assert materialize(line, orders, instance).success == settled
    assert (len(line.committed), line.unacknowledged) == ((1, 0) if settled else (0, 10))
    assert line.open == {}


def observed(claim: HeldClaim) -> Iterator[Any]:
    yield dg.AssetObservation("orders")


def valued(claim: HeldClaim) -> Any:
    return claim.count


@pytest.mark.parametrize(("body", "missing"), [(observed, "'result'"), (valued, "'few'")])
def test_a_claim_without_all_outputs_is_not_settled(
    line: Line, instance: dg.DagsterInstance, body: Any, missing: str
) -> None:
    line.publish(10)
    checks = [dg.AssetCheckSpec("few", asset="orders")] if body is valued else None
    orders = claimed_asset(**line.quick(), name="orders", check_specs=checks)(body)
    result = materialize(line, orders, instance)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert f"has not returned or yielded {missing}" in str(failure.step_failure_data.error)
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 10)


@pytest.mark.parametrize("kind", [tuple, list])
def test_events_may_be_returned_together(line: Line, instance: dg.DagsterInstance, kind: Any) -> None:
    """As a Pipes client's ``get_results()``."""
    line.publish(10)
    checks = [dg.AssetCheckSpec("few", asset="orders", blocking=True)]

    @claimed_asset(**line.quick(), check_specs=checks)
    def orders(claim: HeldClaim) -> Any:
        return kind([dg.MaterializeResult(), dg.AssetCheckResult(passed=False)])

    assert not materialize(line, orders, instance).success
    assert line.committed == []


@pytest.mark.parametrize("given", [True, False])
def test_a_check_may_have_the_name_of_the_output(line: Line, instance: dg.DagsterInstance, given: bool) -> None:
    line.publish(3)

    @claimed_asset(**line.quick(), check_specs=[dg.AssetCheckSpec("result", asset="orders", blocking=True)])
    def orders(claim: HeldClaim) -> Iterator[Any]:
        yield dg.Output(claim.count)
        if given:
            yield dg.AssetCheckResult(check_name="result", passed=True)

    assert materialize(line, orders, instance).success == given
    assert len(line.committed) == given


FEW = dg.AssetCheckResult(check_name="few", passed=True)
REFUSED: dict[str, Any] = {
    "an output that is not declared": [dg.Output(1, "nope")],
    "an output twice": [dg.Output("1"), FEW, dg.Output("2")],
    "a check that is not declared": [
        dg.MaterializeResult(value="1", check_results=[FEW, dg.AssetCheckResult(check_name="many", passed=True)])
    ],
    "a check twice": [dg.MaterializeResult(value="1", check_results=[FEW]), FEW],
    "a value of another type": [dg.MaterializeResult(value=3, check_results=[FEW])],
    "a type without a value": [dg.MaterializeResult(check_results=[FEW])],
    "a result of another asset": [dg.MaterializeResult("parcels", value="1", check_results=[FEW])],
    "no event": [FEW, 7],
}


@pytest.mark.parametrize("policy", [None, TWICE], ids=["once", "retried"])
@pytest.mark.parametrize("events", REFUSED.values(), ids=REFUSED)
def test_what_dagster_refuses_fails_the_claim(
    line: Line, instance: dg.DagsterInstance, events: list[Any], policy: Any
) -> None:
    """Dagster does not retry such a step. If the claim waited for the retry, later runs would take it over again and
    again, and no other messages."""
    line.publish(1)

    def orders(claim: HeldClaim) -> Iterator[Any]:
        yield from events

    options: dict[str, Any] = {"retry_policy": policy, "dagster_type": dg.PythonObjectDagsterType(str)}
    checks = [dg.AssetCheckSpec("few", asset="orders")]
    asset = claimed_asset(**line.quick(), max_failures=3, check_specs=checks, **options)(orders)
    result = materialize(line, asset, instance)
    assert result.filter_events(lambda event: event.is_step_failure)
    assert not result.filter_events(lambda event: event.is_step_up_for_retry)
    assert (line.committed, line.open, len(line.failures)) == ([], {}, 1)


@pytest.mark.parametrize("policy", [None, TWICE], ids=["once", "retried"])
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, Superseded], ids=repr)
def test_a_function_that_raises_something_unusual_fails_the_claim(
    line: Line, instance: dg.DagsterInstance, policy: Any, error: type[BaseException]
) -> None:
    """An author's `Superseded` is not that of the claim: another claim may be meant."""
    line.publish(1)

    @claimed_asset(**line.quick(), max_failures=3, retry_policy=policy)
    def orders(claim: HeldClaim) -> None:
        if not line.failures:
            raise error("no")

    result = materialize(line, orders, instance)
    retried = policy is not None and error is Superseded
    assert (result.success, len(line.committed), line.open) == (retried, retried, {})
    assert len(line.failures) == (not retried)


def test_an_evaluation_says_whether_it_blocks(line: Line, instance: dg.DagsterInstance) -> None:
    """It needs no spec."""
    line.publish(3)

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> Iterator[Any]:
        yield dg.MaterializeResult()
        yield dg.AssetCheckEvaluation(dg.AssetKey("orders"), "few", passed=False, metadata={}, blocking=True)

    assert not materialize(line, orders, instance).success
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 3)


@pytest.mark.parametrize("jitter", [None, *dg.Jitter])
@pytest.mark.parametrize("backoff", [None, *dg.Backoff])
def test_a_lease_lasts_as_long_as_a_delay_can_be(jitter: Any, backoff: Any) -> None:
    policy = dg.RetryPolicy(max_retries=3, delay=60, backoff=backoff, jitter=jitter)
    for number in (1, 2, 3):
        longest = runs._longest_delay(policy, number)
        assert max(policy.calculate_delay(number) for _ in range(200)) <= longest <= 2 * 60 * 2**number


def test_an_error_that_dagster_does_not_retry_fails_the_claim(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_asset(**line.quick(), retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, claim: HeldClaim) -> Any:
        return context.partition_key  # raises a DagsterError

    assert not materialize(line, orders, instance).success
    assert line.open == {}


def test_without_messages_nothing_is_materialized(line: Line, instance: dg.DagsterInstance) -> None:
    checks = [dg.AssetCheckSpec("few", asset="summed", blocking=True)]
    soon = {**line.quick(), "wait": timedelta(seconds=1)}
    orders = claimed_asset(**soon, check_specs=checks)(summed)
    result = materialize(line, orders, instance)
    assert result.success
    assert result.asset_materializations_for_node("summed") == []


def test_a_step_whose_claim_is_somebody_elses_settles_nothing(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> int:
        with HeldClaim.begin(line.settings, claim.claim, try_number=2, piece=claim._hold.work.piece) as thief:
            thief.settle("stolen")
        return claim.count

    assert not materialize(line, orders, instance).success
    (receipt,) = line.committed
    assert receipt.value == "stolen"


def test_with_an_order_a_claim_is_taken_when_no_earlier_one_is_open(line: Line, instance: dg.DagsterInstance) -> None:
    """Also by a run that works at the same time."""
    line.publish(4)
    in_order = {"ordered_by": "subject", "consumer_config": {"ack_wait": timedelta(seconds=60)}}
    later = claimed_asset(**{**line.quick(), **in_order, "wait": timedelta(seconds=0.5)}, name="later")(summed)
    meanwhile: list[Any] = []

    def work(claim: HeldClaim) -> list[int]:
        line.publish(3, first=4)
        meanwhile.append(materialize(line, later, instance))
        return [message.sequence for message in claim.messages()]

    first = materialize(line, claimed_asset(**{**line.quick(), **in_order}, name="first")(work), instance)
    assert first.output_for_node("first") == [1, 2, 3, 4]
    assert meanwhile[0].success
    assert not meanwhile[0].asset_materializations_for_node("later")
    assert materialize(line, later, instance).output_for_node("later") == 4 + 5 + 6


def test_rejected_messages_become_dead_letters(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_asset(**line.quick())
    def orders(context: dg.AssetExecutionContext, claim: HeldClaim) -> None:
        context.log.info("one of %d messages is malformed", claim.count)
        claim.reject(3, "malformed")

    assert materialize(line, orders, instance).success
    (receipt,) = line.committed
    assert list(receipt.rejected) == [3]

    async def letters(js: Any) -> int:
        stream: Stream = DeadLetters(js, line.stream).stream
        return int((await stream.info()).state["messages"])

    assert line.run(letters) == 1


def test_the_log_of_the_run_tells_the_story(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    result = materialize(line, claimed_asset(**line.quick())(summed), instance)
    told = [entry.user_message for entry in instance.all_logs(result.run_id)]
    (receipt,) = line.committed
    for what in ("is taken", "is held by attempt", "is done in the ledger"):
        assert any(receipt.claim_id in line and what in line for line in told), what


def test_other_parameters_are_those_of_an_asset(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    class Factor(dg.Config):
        times: int = 2

    @dg.asset
    def upstream() -> int:
        return 3

    @claimed_asset(**line.quick(), group_name="sales")
    def orders(claim: HeldClaim, upstream: int, config: Factor, jetstream: dg.ResourceParam[Any]) -> int:
        assert jetstream.settings == line.settings
        return claim.count * upstream * config.times

    run_config = dg.RunConfig(ops={"orders": Factor(times=5)})
    resources = {"jetstream": line.resource}
    result = dg.materialize([upstream, orders], resources=resources, instance=instance, run_config=run_config)
    assert result.output_for_node("orders") == 150


def test_the_resource_may_be_one_of_the_required_keys(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @claimed_asset(**line.quick(), required_resource_keys={"storing"})
    def orders(_context: dg.AssetExecutionContext, claim: HeldClaim) -> int:
        assert isinstance(_context.resources.storing, Storing)
        return claim.count

    assert materialize(line, orders, instance).output_for_node("orders") == 10


def test_inputs_may_be_any_keywords(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)

    @dg.asset
    def upstream() -> int:
        return 3

    @claimed_asset(**line.quick(), ins={"upstream": dg.AssetIn()})
    def orders(claim: HeldClaim, **inputs: Any) -> int:
        assert inputs.keys() == {"upstream"}
        return claim.count * int(inputs["upstream"])

    result = dg.materialize([upstream, orders], resources={"jetstream": line.resource}, instance=instance)
    assert result.output_for_node("orders") == 30


class Called:
    def __call__(self, claim: HeldClaim) -> None: ...


def without_claim() -> None: ...


async def asynchronous(claim: HeldClaim) -> None: ...


def by_position(claim: HeldClaim, /) -> None: ...


def with_more(claim: HeldClaim, *more: Any) -> None: ...


def unknown(claim: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "function", [without_claim, asynchronous, by_position, with_more, unknown, Called(), partial(summed)]
)
def test_unsuitable_functions_are_refused_when_the_code_is_loaded(line: Line, function: Any) -> None:
    with pytest.raises(InvalidValue, match="function='"):
        claimed_asset(**line.quick(), name="orders")(function)


@pytest.mark.parametrize("take", [claimed_asset, take_claims])
def test_unsuitable_consumers_are_refused_when_the_code_is_loaded(line: Line, take: Any) -> None:
    with pytest.raises(ConsumerUnsuitable, match="max_deliver"):
        take(**line.of(), consumer_config={"max_deliver": 3})


def test_bad_parameters_are_refused_when_the_code_is_loaded(line: Line) -> None:
    for wrong in (
        {"max_messages": 0},
        {"wait": timedelta(seconds=-1)},
        {"wait": 30},
        {"gather": 5},
        {"longest_hold": timedelta(0)},
        {"until": "2026-11-21T03:00:00"},
        {"until": "2026-11-21T03:00:00Z", "min_messages": 2},
    ):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            claimed_asset(**{**line.quick(), **wrong})
    with pytest.raises(InvalidValue, match="stream"):
        claimed_asset(stream="a.b", consumer="c")


COUNTRIES = dg.StaticPartitionsDefinition(["de", "fr"])
SUBJECT = "orders.{partition}"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"subject": SUBJECT}, "subject"),
        ({"partitions_def": COUNTRIES}, "subject"),
        ({"partitions_def": COUNTRIES, "subject": "orders.{partition}..x"}, "subject"),
        ({"partitions_def": dg.StaticPartitionsDefinition(["a.b"]), "subject": SUBJECT}, "partition"),
        ({"partitions_def": dg.MultiPartitionsDefinition({"a": COUNTRIES, "b": COUNTRIES})}, "partitions_def"),
        (
            {"partitions_def": COUNTRIES, "subject": SUBJECT, "backfill_policy": dg.BackfillPolicy.single_run()},
            "backfill_policy",
        ),
    ],
)
def test_unsuitable_partitions_are_refused_when_the_code_is_loaded(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}="):
        claimed_asset(stream="ORDERS", consumer="work", **options)


def test_a_range_of_partitions_takes_nothing(line: Line, instance: dg.DagsterInstance) -> None:
    """A consumer receives the subjects of one partition."""
    line.publish(10)
    orders = claimed_asset(**line.quick(), partitions_def=COUNTRIES, subject=f"{line.stream}.{{partition}}")(summed)
    tags = {"dagster/asset_partition_range_start": "de", "dagster/asset_partition_range_end": "fr"}
    resources = {"jetstream": line.resource}
    assert not dg.materialize([orders], resources=resources, instance=instance, tags=tags, raise_on_error=False).success
    assert line.run(lambda js: js.stream(line.stream).info()).state["consumer_count"] == 0
