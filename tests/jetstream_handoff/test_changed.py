"""What changes under open claims is noticed: a stranger edits the consumer, and the server gives deliveries up."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.context import JetStream
from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, DeliveriesGivenUp, Superseded
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.repair.reset import reset
from jetstream_handoff.rules.edited import changed, kept
from jetstream_handoff.take import take as takes
from jetstream_handoff.take.conservation import check, given_up
from jetstream_handoff.take.take import Take
from jetstream_handoff.watch.inspection import find
from jetstream_handoff.watch.overview import overview
from jetstream_handoff.watch.stuck import Limits
from jetstream_handoff.watch.timeline import milestones
from tests.installed_server import again as told
from tests.installed_server import has
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, edited_by_another, publish, rewrite, take, taking

LEASE: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=60)}}


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pulls, after each of which a take looks at its consumer."""
    monkeypatch.setattr(takes, "LONGEST_PULL", 1.0)


async def waiting(stream: Stream) -> asyncio.Task[Any]:
    """A take that waits for messages, with its pull at the server."""
    work = Take(stream.js, taking(stream, "waits", **LEASE))
    await work.prepare()
    task = asyncio.create_task(work.take(60))

    async def pulls() -> bool:
        return bool((await stream.consumer(CONSUMER).info()).raw["num_waiting"])

    await until(pulls)
    return task


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_deliver": 5}, "max_deliver=5: it must be -1"),
        ({"backoff": [300_000_000], "max_deliver": 2}, "max_deliver=2.*in addition, backoff="),
        ({"inactive_threshold": 3600 * 10**9}, "inactive_threshold=.*it must be absent"),
        ({"ack_wait": 10**8}, "ack_wait=100000000: 0.1 s are shorter than a failover may take"),
    ],
)
async def test_a_waiting_take_stops_when_its_consumer_is_made_unsuitable(
    stream: Stream, change: dict[str, Any], said: str
) -> None:
    """With the error that it would have raised at its start. It has pulled on, and the server has dropped messages."""
    await take(stream, wait=0.1, **LEASE)
    task = await waiting(stream)
    await stream.consumer(CONSUMER).update(change)
    with pytest.raises(ConsumerUnsuitable, match=said):
        await asyncio.wait_for(task, 30)


async def test_a_holder_is_warned_of_a_consumer_that_was_changed(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    await stream.consumer(CONSUMER).update({"backoff": [300_000_000], "max_deliver": 2})
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert f"claim {claim.id} is held, but consumer 'work' of stream" in caplog.text
        assert "backoff" in caplog.text
        await hold.release()


async def give_up(stream: Stream, *claims: Claim) -> None:
    """Lower max_deliver while the claims are open, until the server has dropped their messages, and set it back."""
    ledger, consumer = Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await ledger.locate()
    await consumer.update({"max_deliver": 1})
    async with asyncio.timeout(30):
        while not (await consumer.info()).gave_up:
            for claim in claims:
                await answers.negative(ledger, claim.sequences)
            assert not await consumer.fetch_no_wait(100)
    await consumer.update({"max_deliver": -1})


async def test_a_purge_hides_what_the_server_gave_up_and_the_claims_tell_it(stream: Stream) -> None:
    """With nothing unacknowledged, a purge moves the floor of nats-server 2.15.1 to the last delivery, even one that
    removes nothing, so that its INFO says that everything is acknowledged. The open claims still name the messages."""
    await publish(stream, 10)
    (lost,) = await take(stream, **LEASE)
    await give_up(stream, lost)
    await stream.purge(keep=1_000)
    info = await stream.consumer(CONSUMER).info()
    assert (info.floor, info.delivered, info.ack_pending, info.pending) == (10, 10, 0, 0)
    assert (await stream.info()).state["messages"] == 10
    seen = await overview(stream.js, Limits(unheld=timedelta(0)))
    view = next(each for of in seen.streams for each in of.consumers if of.name == stream.name)
    symptom = next(each for each in view.findings if each.level == "error")
    assert (symptom.kind, symptom.claim) == ("passed", lost.id)
    assert told(1) in symptom.remedy
    if has("2.14"):
        await reset(Ledger(stream.js, stream.name, CONSUMER), 1)
        (again,) = await take(stream, "run 2", **LEASE)
        assert again.sequences == lost.sequences


async def test_a_consumer_that_has_delivered_nothing_has_given_nothing_up(stream: Stream) -> None:
    """A new consumer of a stream whose first messages are gone: nats-server 2.11 and 2.12 show 0 as its floor."""
    await publish(stream, 10)
    await stream.purge(sequence=5)
    settings = {"durable_name": CONSUMER, "ack_wait": 10**9, "max_ack_pending": -1}
    info = await (await stream.create_consumer(settings)).info()
    assert (info.counter, info.delivered) == (0, 4)
    older = ConsumerInfo({**info.raw, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}})
    for each in (info, older):
        assert not given_up(None, each)
    (claim,) = await take(stream)
    assert claim.sequences == Sequences.from_ranges([(5, 10)])


async def test_deliveries_that_the_server_gave_up_are_noticed_and_can_be_reset(stream: Stream) -> None:
    await publish(stream, 10)
    first, lost, last = await take(stream, messages_per_claim=4, **LEASE)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await hold.settle()
    await give_up(stream, lost, last)
    info = await stream.consumer(CONSUMER).info()
    assert (info.floor, info.delivered, info.pending, info.ack_pending) == (4, 10, 0, 0)
    with pytest.raises(DeliveriesGivenUp, match=f"among the sequences 5-10.*{told(5)}") as said:
        await take(stream, "run 2", **LEASE)
    assert (said.value.sequences, said.value.first) == (Sequences.from_ranges([(5, 10)]), 5)
    view = next(each for of in (await overview(stream.js)).streams for each in of.consumers if of.name == stream.name)
    assert [each.kind for each in view.findings if each.level == "error"] == ["given_up"]
    async with Hold.begin(stream.js, last, try_number=1) as hold:
        await hold.settle()  # the ledger knows that they are done, although the server cannot confirm it
    with pytest.raises(DeliveriesGivenUp, match="among the sequences 5-8"):
        await take(stream, "run 3", **LEASE)
    if has("2.14"):
        assert (await reset(Ledger(stream.js, stream.name, CONSUMER))).sequence == 5
        (again,) = await take(stream, "run 4", **LEASE)
        assert not lost.sequences - again.sequences


async def test_what_a_purge_has_hidden_is_named_with_what_is_given_up(stream: Stream) -> None:
    """A purge moves the floor over what was given up before, while other messages are unacknowledged. The take named
    only what is above the floor, and told to reset the consumer to a sequence behind the others."""
    await publish(stream, 12)
    await take(stream, messages_per_claim=4, **LEASE)
    of, consumer = Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await of.locate()
    await consumer.update({"max_deliver": 1})

    async def given_up(first: int, last: int) -> None:
        while (await consumer.info()).ack_pending > 12 - last:
            await answers.negative(of, Sequences.from_ranges([(first, last)]))
            assert not await consumer.fetch_no_wait(100)

    async with asyncio.timeout(30):
        await given_up(1, 6)
        await stream.purge(keep=8)
        await given_up(7, 12)
    await consumer.update({"max_deliver": -1})
    info = await consumer.info()
    floor = 6 if has("2.14") else 4  # older servers move it over what is purged alone
    assert (info.floor, info.delivered, info.ack_pending) == (floor, 12, 0)
    with pytest.raises(DeliveriesGivenUp, match=told(1)) as said:
        await take(stream, "run 2", **LEASE)
    assert said.value.sequences == Sequences.from_ranges([(1, 12)])
    view = next(each for of in (await overview(stream.js)).streams for each in of.consumers if of.name == stream.name)
    symptom = next(each for each in view.findings if each.kind == "given_up")
    assert told(1) in symptom.remedy
    if has("2.14"):
        await reset(of, said.value.first)
        claims = await take(stream, "run 3", **LEASE)
        assert [str(each.sequences) for each in claims] == ["5-12"]


async def test_what_is_done_in_the_ledger_is_not_given_up(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, **LEASE)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await give_up(stream, claim)
        await hold.settle()
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    info = await stream.consumer(CONSUMER).info()
    assert info.gave_up
    assert not given_up(record, info)
    await publish(stream, 5)
    (fresh,) = await take(stream, "run 2", **LEASE)
    assert fresh.sequences == Sequences.from_ranges([(11, 15)])


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"ack_wait": 2 * 10**9}, "ack_wait: 60000000000 → 2000000000"),
    ({"backoff": [300_000_000], "max_deliver": 2}, "backoff: None → [300000000]"),
    ({"filter_subject": "{stream}.*"}, "filter_subject: None → '{stream}.*'"),
    ({"filter_subjects": ["{stream}.0", "{stream}.1", "{stream}.2"]}, "filter_subjects: None → ['{stream}.0', '"),
    ({"inactive_threshold": 3600 * 10**9}, "inactive_threshold: None → 3600000000000"),
    ({"num_replicas": 1}, "num_replicas: None → 1"),
]


def of(stream: Stream, value: Any) -> Any:
    return json.loads(json.dumps(value).replace("{stream}", stream.name))


@pytest.mark.parametrize(("change", "said"), CHANGES)
async def test_a_hold_that_is_lost_after_an_edit_names_the_field(
    stream: Stream, change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer is set back before the messages are taken again, so that no look shows the change."""
    said = said.replace("{stream}", stream.name)
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    consumer = stream.consumer(CONSUMER)
    before = (await consumer.info()).config
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await consumer.update(of(stream, change))
        await hold._look()  # as after each heartbeat
        assert f"claim {claim.id} is held, but since the claim was taken" in caplog.text
        assert said in caplog.text
        await edited_by_another(consumer, before, remove=[*change])
        await answers.negative(hold._ledger, claim.sequences)
        (again,) = await take(stream, "other", **LEASE)
        assert again.sequences == claim.sequences
        assert said in await hold._surely_lost()
        with pytest.raises(Superseded) as lost:
            await hold.settle()
        assert said in str(lost.value)


@pytest.mark.parametrize(("change", "said"), [each for each in CHANGES if "backoff" not in each[0]])
async def test_a_claim_that_is_superseded_after_an_edit_names_the_field(
    stream: Stream, change: dict[str, Any], said: str
) -> None:
    """No attempt held it. The take that supersedes it says so in its receipt."""
    said = said.replace("{stream}", stream.name)
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    await stream.consumer(CONSUMER).update(of(stream, change))
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await ledger.locate()
    await answers.negative(ledger, claim.sequences)
    if "inactive_threshold" in change:  # no take of this release takes from such a consumer
        await rewrite(ledger, lambda record, _: record and replace(record, open={}))
    else:
        await take(stream, "other", consumer_config=None)
    with pytest.raises(Superseded) as superseded:
        async with Hold.begin(stream.js, claim, try_number=1):
            pass
    assert said in str(superseded.value)
    assert "no task had begun" not in str(superseded.value)
    seen = await find(stream.js, claim.id)
    assert seen is not None
    assert said in milestones(seen)[-1].text


async def test_a_shorter_ack_wait_loses_a_hold_that_says_so(stream: Stream) -> None:
    """The holder sends its next heartbeat after the shorter lease has ended."""
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await stream.consumer(CONSUMER).update({"ack_wait": 500_000_000})
        await answers.in_progress(hold._ledger, claim.sequences, claim.consumer_sequence)
        (again,) = await take(stream, "other", consumer_config=None)
        assert again.sequences == claim.sequences
        with pytest.raises(Superseded, match=r"ack_wait: 60000000000 → 500000000"):
            await hold.settle()


async def test_a_consumer_that_is_deleted_after_an_edit(stream: Stream) -> None:
    """A heartbeat has seen the edit, and afterwards there is nothing left to compare with."""
    await publish(stream, 3)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await stream.consumer(CONSUMER).update({"inactive_threshold": 3600 * 10**9})
        await until(lambda: bool(hold._changes))
        await stream.consumer(CONSUMER).delete()
        with pytest.raises(Superseded, match=r"not found.*inactive_threshold: None → 3600000000000"):
            await hold.settle()


async def test_an_older_release_drops_what_was_kept_and_a_newer_one_reads_on(stream: Stream) -> None:
    """It reads, changes and writes the record without the fields that it does not know."""
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    record, revision = await ledger.read()
    assert record is not None
    value = record.to_json()
    assert value["configs"] == [record.open[claim.id].config]
    del value["configs"]
    del value["open"][claim.id]["config"]
    await stream.js.publish(ledger.subjects[0], json.dumps(value).encode(), expected_last_subject_sequence=revision)
    await stream.consumer(CONSUMER).update({"num_replicas": 1})
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert not hold._changes
        await hold.settle()


def test_long_values_are_kept_as_a_hash() -> None:
    subjects = [f"orders.{number}" for number in range(1_000)]
    before = kept({"ack_wait": 60, "filter_subjects": subjects})
    assert len(json.dumps(before)) < 300
    assert not changed(before, {"ack_wait": 60, "filter_subjects": subjects})
    assert changed(before, {"ack_wait": 60, "filter_subjects": ["x"]}).endswith(" → ['x']")
    assert not changed({}, {"ack_wait": 1})


@pytest.mark.parametrize("configs", [None, 1, "x", [1], [{"ack_wait": {}}], []])
@pytest.mark.parametrize("index", [None, 0, -1, 7, True, "0", 1.5])
def test_a_kept_configuration_that_is_invalid_counts_as_unknown(configs: Any, index: Any) -> None:
    value = Record("2026-11-21T03:00:00Z").to_json()
    entry = {"ranges": [[1, 2]], "counter": 2, "bytes": 2, "at": "2026-11-21T03:00:00Z", "token": None, "owner": ["d"]}
    value |= {"configs": configs, "open": {"5f0c9a7be21d": {**entry, "config": index}}}
    assert dict(Record.from_json(value).open["5f0c9a7be21d"].config) == {}


async def test_filter_subjects_are_shown_when_they_are_at_fault(js: JetStream, stream: Stream) -> None:
    two = [f"{stream.name}.a", f"{stream.name}.b"]
    await take(stream, wait=0.1, consumer_config={"ack_wait": timedelta(seconds=60), "filter_subjects": two})
    with pytest.raises(
        ConsumerUnsuitable, match=r"because of filter_subjects=\['.*\.a', '.*\.b'\]: .*filter_subject='"
    ):
        await take(stream, wait=0.1, consumer_config={"filter_subject": two[0]})
    queue = await js.create_stream(
        {"name": f"Q{stream.name}", "subjects": [f"Q{stream.name}.>"], "retention": "workqueue", "allow_direct": True}
    )
    try:
        mine = [f"{queue.name}.a", f"{queue.name}.b"]
        await take(queue, wait=0.1, consumer_config={"filter_subjects": mine})
        with pytest.raises(ConsumerUnsuitable, match=r"because of filter_subjects=\['.*\.b'\]: the server says"):
            await take(queue, wait=0.1, consumer="second", consumer_config={"filter_subjects": mine[1:]})
    finally:
        await queue.delete()


async def test_a_difference_and_the_broken_rules_are_reported_together(stream: Stream) -> None:
    await take(stream, wait=0.1, **LEASE)
    await stream.consumer(CONSUMER).update({"max_deliver": 5, "inactive_threshold": 3600 * 10**9})
    both = r"ack_wait=60000000000: consumer_config contains 90000000000.*max_deliver=5.*inactive_threshold="
    with pytest.raises(ConsumerUnsuitable, match=both):
        await take(stream, wait=0.1, consumer_config={"ack_wait": timedelta(seconds=90)})
    with pytest.raises(ConsumerUnsuitable, match=r"max_deliver=5.*in addition, inactive_threshold="):
        await take(stream, wait=0.1, consumer="new", consumer_config={"max_deliver": 5, "inactive_threshold": 10**9})


def test_what_a_reset_delivers_again_is_not_given_up() -> None:
    """nats-server sometimes shows the previous counters after a reset to sequence 1 by another client: the take said
    that the server had given deliveries up, and to reset the consumer behind messages that had been reset."""
    at = {"created": "2026-11-21T03:00:00Z", "ts": "2026-11-21T03:00:05Z", "config": {"metadata": {"_nats.level": "4"}}}
    counters = {"delivered": {"consumer_seq": 21, "stream_seq": 13}, "ack_floor": {"consumer_seq": 8, "stream_seq": 4}}
    waiting = ConsumerInfo({**at, **counters, "num_pending": 13, "num_ack_pending": 0})
    check("S", CONSUMER, None, waiting, 13)
    new = ConsumerInfo({**at, **counters, "num_pending": 2, "num_ack_pending": 0})
    with pytest.raises(DeliveriesGivenUp, match="reset the consumer to sequence 5,"):
        check("S", CONSUMER, None, new, 15)
