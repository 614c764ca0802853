"""The sensor: when it requests a run, and that it never pulls."""

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, claimed_op, jetstream_sensor, runs, take_claims
from dagster_nats_jetstream.runs import REQUEST, TAKE_OVER, take_over
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.ledger import Ledger
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line

SUBJECT = "{stream}.{{partition}}"


class Ticks:
    """Evaluates a sensor again and again with the cursor of the tick before, as the daemon does."""

    def __init__(self, line: Line, instance: dg.DagsterInstance, sensor: Any, *assets: Any) -> None:
        resources = {"jetstream": line.resource}
        defs = dg.Definitions(assets=assets, sensors=[sensor], resources=resources)
        self._options: dict[str, Any] = {"instance": instance, "resources": resources}
        self._options["repository_def"] = defs.get_repository_def()
        self._sensor = sensor
        self.cursor: str | None = None

    def __call__(self) -> Any:
        with dg.build_sensor_context(cursor=self.cursor, **self._options) as context:
            instance = context.instance
            context._instance_ref = None if instance.is_ephemeral else instance.get_ref()  # as the daemon sets it
            result: Any = self._sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result

    def request(self) -> dg.RunRequest:
        (request,) = self().run_requests
        return request  # type: ignore[no-any-return]

    def skipped(self) -> str:
        result = self()
        assert not result.run_requests
        return str(result.skip_message)


@dg.asset
def other() -> None: ...


def summed(claim: HeldClaim) -> int:
    return claim.count


@pytest.fixture
def ticks(line: Line, instance: dg.DagsterInstance) -> Callable[..., Ticks]:
    def of(**more: Any) -> Ticks:
        return Ticks(line, instance, jetstream_sensor(**line.of(target=[other], **more)), other)

    return of


def add_run(instance: dg.DagsterInstance, request: dg.RunRequest, status: str) -> None:
    instance.add_run(dg.DagsterRun(job_name="orders", status=dg.DagsterRunStatus[status], tags=dict(request.tags)))


def run(line: Line, instance: dg.DagsterInstance, request: dg.RunRequest, work: Any = summed) -> Any:
    """Run what was requested."""
    asset = claimed_asset(**line.quick(), name="orders")(work)
    options: dict[str, Any] = {
        "tags": dict(request.tags),
        "resources": {"jetstream": line.resource},
        "instance": instance,
    }
    return dg.materialize([asset], raise_on_error=False, **options)


def test_a_run_is_requested_until_it_has_pulled(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    tick = ticks()
    assert "0 of 1 messages wait" in tick.skipped()
    line.publish(3)
    request = tick.request()
    assert run(line, instance, request).output_for_node("orders") == 3
    assert "0 of 1 messages wait" in tick.skipped()
    line.publish(2)
    assert tick.request().tags[REQUEST] != request.tags[REQUEST]


def test_looking_pulls_nothing(line: Line, ticks: Callable[..., Ticks]) -> None:
    line.publish(3)
    config = {"durable_name": CONSUMER, "ack_policy": "explicit"}
    line.run(lambda js: js.create_consumer(line.stream, config))
    ticks().request()
    info = line.run(lambda js: js.stream(line.stream).consumer(CONSUMER).info())
    assert (info.pending, info.counter) == (3, 0)


def test_a_run_that_ended_without_pulling_is_requested_again(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    tick = ticks()
    line.publish(3)
    first = tick.request()

    @dg.op
    def nothing() -> None: ...

    @dg.job
    def without_a_pull() -> None:
        nothing()

    for _ in range(3):
        request = tick.request()
        assert request.tags == first.tags
        without_a_pull.execute_in_process(instance=instance, tags=dict(request.tags))
    assert tick.request().run_key is None  # a key would keep the daemon from starting another run


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED"])
def test_a_run_that_has_not_pulled_for_a_long_time_counts_as_dead(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks], monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """For example because its process was killed before it wrote that it had started."""
    tick = ticks()
    line.publish(3)
    add_run(instance, tick.request(), status)
    assert "has not pulled yet" in tick.skipped()
    monkeypatch.setattr(runs, "SILENT", timedelta(seconds=-1))
    tick.request()


def test_while_a_failed_run_is_retried_no_other_run_is_requested(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    tick = ticks()
    line.publish(3)
    request = tick.request()
    for status in ("FAILURE", "STARTING"):  # a retry has the tags of the run
        add_run(instance, request, status)
    assert "has not pulled yet" in tick.skipped()


def test_fewer_than_min_messages_wait(line: Line, ticks: Callable[..., Ticks]) -> None:
    tick = ticks(min_messages=5)
    line.publish(4)
    assert "4 of 5 messages wait" in tick.skipped()
    line.publish(1)
    tick.request()


def stored(line: Line, sequence: int = 1) -> float:
    """For how many seconds a message has been in the stream."""

    async def of(js: JetStream) -> str:
        return (await js.stream(line.stream).get_message(sequence)).time

    return time.time() - time_nanoseconds(line.run(of)) / 1e9


def test_fewer_than_min_messages_wait_no_longer_than_max_wait(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    limits: dict[str, Any] = {"min_messages": 1_000, "max_wait": timedelta(seconds=4)}
    tick = ticks(**limits)
    assert "0 of 1000 messages wait" in tick.skipped()
    line.publish(3)
    assert re.search(r"3 of 1000 messages wait, the oldest for \d of 4 s", tick.skipped())
    while not (requests := tick().run_requests):
        assert stored(line) < 60
    assert stored(line) >= 4
    assert '"oldest": {"": ["", 1, 3, ' in str(tick.cursor)
    asset = claimed_asset(**line.quick(), **limits, name="orders")(summed)
    tags: dict[str, Any] = {
        "tags": dict(requests[0].tags),
        "resources": {"jetstream": line.resource},
        "instance": instance,
    }
    result = dg.materialize([asset], raise_on_error=False, **tags)
    assert result.output_for_node("orders") == 3
    line.publish(1)
    assert re.search("1 of 1000 messages wait, the oldest for [0-3] of 4 s", tick.skipped())  # a new wait


def test_the_oldest_message_is_read_once(
    line: Line, ticks: Callable[..., Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    line.publish(3)
    tick = ticks(min_messages=1_000, max_wait=timedelta(hours=1))
    reads: list[int] = []
    get = Stream.get_message

    async def counted(self: Stream, sequence: int, **of: Any) -> Any:
        reads.append(sequence)
        return await get(self, sequence, **of)

    monkeypatch.setattr(Stream, "get_message", counted)
    for _ in range(3):
        tick.skipped()
        line.publish(1)
    assert reads == [1]
    line.run(lambda js: js.stream(line.stream).purge(keep=1))  # and the oldest is another one
    tick.skipped()
    assert reads == [1, 1]


@pytest.mark.parametrize("claims", [{"messages_per_claim": 5}, {"ordered_by": "{2}", "claims": 2}])
def test_a_claim_whose_run_has_ended_is_taken_over(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks], claims: dict[str, Any]
) -> None:
    """As after a re-execution from failure, which does not run mapped steps that never started."""
    line.publish(5)
    line.publish(5, subject=f"{line.stream}.b")
    take = take_claims(**line.quick(**claims))

    @claimed_op()
    def process(claim: HeldClaim) -> int:
        return claim.count

    @dg.graph
    def only_take() -> None:
        take()

    @dg.graph
    def drain() -> None:
        take().map(process)

    options: dict[str, Any] = {"resources": {"jetstream": line.resource}, "instance": instance}
    orphaned = only_take.execute_in_process(**options)
    assert len(line.open) == 2
    request = ticks().request()
    assert [owner[1] for owner in json.loads(request.tags[TAKE_OVER])] == [orphaned.run_id]
    result = drain.to_job(tags=dict(request.tags)).execute_in_process(**options)
    assert sorted(result.output_for_node("process").values()) == [5, 5]
    assert {receipt.history.owner[1] for receipt in line.committed} == {result.run_id}
    assert "0 of 1 messages wait" in ticks().skipped()


def test_new_messages_do_not_wait_for_a_run_that_takes_over(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    """It does not pull, so the number of deliveries stays the same."""
    line.publish(10)

    @dg.graph
    def only_take() -> None:
        take_claims(**line.quick())()

    only_take.execute_in_process(resources={"jetstream": line.resource}, instance=instance)
    tick = ticks()
    requests = [tick.request()]

    def looking(claim: HeldClaim) -> int:
        line.publish(5, first=10)
        requests.append(tick.request())
        return claim.count

    assert run(line, instance, requests[0], looking).success
    first, second = (request.tags[REQUEST] for request in requests)
    assert first != second


def test_a_claim_whose_run_group_works_again_is_not_taken_over(line: Line, instance: dg.DagsterInstance) -> None:
    """The sensor has requested a run. Before it starts, somebody has re-executed the run that had ended."""
    line.publish(7)
    asset = claimed_asset(**line.quick(max_messages=4), name="orders")(summed)

    @dg.graph
    def only_take() -> None:
        take_claims(**line.quick(max_messages=4))()

    options: dict[str, Any] = {"resources": {"jetstream": line.resource}, "instance": instance}
    first = only_take.execute_in_process(**options)
    ((claim, entry),) = line.open.items()
    counts = []

    @dg.op
    def meanwhile() -> None:
        result = dg.materialize([asset], tags=take_over([entry.owner]), **options)
        counts.append(result.output_for_node("orders"))

    @dg.job
    def again() -> None:
        meanwhile()

    again.execute_in_process(instance=instance, tags={"dagster/root_run_id": first.run_id})
    assert counts == [3]
    assert list(line.open) == [claim]


def test_the_claim_of_a_run_that_goes_on_is_left_alone(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    line.publish(10)
    tick = ticks()
    request = tick.request()
    said: list[str] = []

    def looking(claim: HeldClaim) -> int:
        said.extend(tick.skipped() for _ in range(3))
        return claim.count

    assert run(line, instance, request, looking).success
    assert said == [f"{CONSUMER}: 0 of 1 messages wait"] * 3


def test_no_run_is_requested_that_could_take_nothing(
    line: Line, instance: dg.DagsterInstance, ticks: Callable[..., Ticks]
) -> None:
    """With ordered_by, while a claim of the batch before is at work."""
    line.publish(10)
    tick = ticks()
    said: list[str] = []

    def looking(claim: HeldClaim) -> int:
        line.publish(5, first=10)
        said.extend(tick.skipped() for _ in range(2))
        return claim.count

    long = {"ordered_by": "subject", "consumer_config": {"ack_wait": timedelta(seconds=60)}}
    asset = claimed_asset(**{**line.quick(), **long}, name="orders")(looking)
    of: dict[str, Any] = {"resources": {"jetstream": line.resource}, "instance": instance}
    assert dg.materialize([asset], tags=dict(tick.request().tags), **of).success
    (receipt,) = line.committed
    holder = r"held by \S+ / \S+ / op \"orders\", for \d+ seconds?"
    text = rf"{CONSUMER}: waits for 1 of 1 claim \({receipt.claim_id}, {holder}\); 5 messages wait"
    assert all(re.fullmatch(text, each) for each in said), said
    assert dg.materialize([asset], tags=dict(tick.request().tags), **of).output_for_node("orders") == 5
    assert len(said) == 4  # the second run looked, too: its own claim blocks


def test_owners_of_other_deployments_are_unknown(line: Line, ticks: Callable[..., Ticks]) -> None:
    line.publish(10)
    elsewhere = dg.DagsterInstance.ephemeral()
    take = take_claims(**line.quick())

    @dg.graph
    def only_take() -> None:
        take()

    only_take.execute_in_process(resources={"jetstream": line.resource}, instance=elsewhere)
    tick = ticks()
    tick.skipped()
    assert "0 of 1 messages wait" in tick.skipped()


def test_a_tag_that_is_no_list_of_owners_is_refused(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(1)
    for tag in ("secret", "[1]", "[[]]", '"x"'):
        result = run(line, instance, dg.RunRequest(run_key="k", tags={TAKE_OVER: tag}))
        assert not result.success
        (failure,) = result.filter_events(lambda event: event.is_step_failure)
        assert "tag jetstream/take_over='…'" in str(failure.step_failure_data.error)


def test_each_partition_has_its_consumer(line: Line, instance: dg.DagsterInstance) -> None:
    subject = SUBJECT.format(stream=line.stream)
    countries = dg.StaticPartitionsDefinition(["de", "fr"])
    asset = claimed_asset(**line.quick(), name="orders", partitions_def=countries, subject=subject)(summed)
    options: dict[str, Any] = {"partitions_def": countries, "subject": subject}
    tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[asset], **options)), asset)
    line.publish(3, subject=f"{line.stream}.de")
    line.publish(4, subject=f"{line.stream}.fr")
    line.publish(5, subject=f"{line.stream}.it")
    counts = {}
    for request in tick().run_requests:
        key = request.partition_key
        result = dg.materialize([asset], partition_key=key, resources={"jetstream": line.resource}, instance=instance)
        counts[key] = result.output_for_node("orders")
    assert counts == {"de": 3, "fr": 4}
    tick()
    assert "de: 0 of 1 messages wait; fr: 0 of 1 messages wait" in tick.skipped()


def test_new_partitions_are_found_in_the_stream(line: Line, tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        _new_partitions_are_found(line, instance)


def _new_partitions_are_found(line: Line, instance: dg.DagsterInstance) -> None:
    subject = SUBJECT.format(stream=line.stream)
    countries = dg.DynamicPartitionsDefinition(name="countries")
    options: dict[str, Any] = {"partitions_def": countries, "subject": subject}
    asset = claimed_asset(**line.quick(), name="orders", **options)(summed)
    tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[asset], **options)), asset)
    assert "no partitions" in tick.skipped()
    line.publish(1, subject=f"{line.stream}.de")
    result = tick()
    assert [request.partition_key for request in result.run_requests] == ["de"]
    (added,) = result.dynamic_partitions_requests
    assert (added.partitions_def_name, added.partition_keys) == ("countries", ["de"])
    instance.add_dynamic_partitions("countries", ["de"])
    assert tick().dynamic_partitions_requests in (None, [])


def test_only_partitions_with_messages_are_requested(line: Line, instance: dg.DagsterInstance) -> None:
    """Also before their consumers exist."""
    options: dict[str, Any] = {
        "partitions_def": dg.StaticPartitionsDefinition(["de", "fr", "it"]),
        "subject": SUBJECT.format(stream=line.stream),
    }
    asset = claimed_asset(**line.quick(), name="orders", **options)(summed)
    tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[asset], min_messages=2, **options)), asset)
    line.publish(1, subject=f"{line.stream}.de")
    line.publish(2, subject=f"{line.stream}.fr")
    assert [request.partition_key for request in tick().run_requests] == ["fr"]


def test_one_partition_that_cannot_be_looked_at_does_not_stop_the_others(
    line: Line, instance: dg.DagsterInstance
) -> None:
    options: dict[str, Any] = {
        "partitions_def": dg.StaticPartitionsDefinition(["de", "fr"]),
        "subject": SUBJECT.format(stream=line.stream),
    }
    asset = claimed_asset(**line.quick(), name="orders", **options)(summed)
    tick = Ticks(line, instance, jetstream_sensor(**line.of(target=[asset], **options)), asset)

    async def spoil(js: JetStream, key: str) -> None:
        """Replace the record of a partition by that of a newer version, with messages that are unacknowledged."""
        consumer = f"{CONSUMER}-{key}"
        config = {"durable_name": consumer, "ack_policy": "explicit", "filter_subject": f"{line.stream}.{key}"}
        await js.create_consumer(line.stream, config)
        await js.stream(line.stream).consumer(consumer).fetch(1, max_wait=5)
        ledger = Ledger(js, line.stream, consumer)
        await ledger.create()
        await js.publish(ledger.subjects[0], b'{"v": 2}')

    for key in ("de", "fr"):
        line.publish(2, subject=f"{line.stream}.{key}")
    line.run(lambda js: spoil(js, "de"))
    assert [request.partition_key for request in tick().run_requests] == ["fr"]
    line.run(lambda js: spoil(js, "fr"))
    with pytest.raises(LedgerInvalid):
        tick()


def test_a_sensor_may_be_called(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(1)
    sensor = jetstream_sensor(**line.of(target=[other]))
    with dg.build_sensor_context(resources={"jetstream": line.resource}, instance=instance) as context:
        result: Any = sensor(context)
    assert len(result.run_requests) == 1


CURSORS = (
    *("x", "7", "[]", '"a"', '{"seen": []}', '{"seen": {"a": 1}}', '{"seen": 7}', '{"left": 7}', "[" * 100_000),
    '{"": ["", 0, 0, 0], "seen": ["", 0, 0, 0]}',  # of an older release
)


@pytest.mark.parametrize("cursor", CURSORS)
def test_the_cursor_of_something_else_is_replaced(line: Line, ticks: Callable[..., Ticks], cursor: str) -> None:
    tick = ticks()
    line.publish(1)
    tick.cursor = cursor
    tick.request()
    assert json.loads(tick.cursor) == {"left": [], "seen": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_messages": 0},
        {"max_wait": timedelta(minutes=1)},
        {"max_runs": 0},
        {"stream": "a.b"},
        {"consumer": "a b"},
        {"subject": "a.*"},
    ],
)
def test_bad_parameters_are_refused_when_the_code_is_loaded(line: Line, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        jetstream_sensor(**{**line.of(target="*"), **wrong})
