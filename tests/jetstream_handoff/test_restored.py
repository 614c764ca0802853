"""A ledger or a stream that was restored from an older copy, or deleted, on a real server."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.command_line.output import claim_text
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import ABANDONED, Record
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.withdraw import withdraw
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.inspection import find
from jetstream_handoff.watch.overview import Survey, overview
from jetstream_handoff.watch.view import Symptom
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, floor, give_up, publish, rewrite, take, taking, unacknowledged
from tests.jetstream_handoff.test_reader import Query, consumer

TOLD = "were acknowledged, but no claim in the ledger contains"


class Backups:
    """The folders of streams, which can be copied and put back: those of the ledger's buckets, or others."""

    def __init__(self, folder: Path) -> None:
        self.streams = "KV_*"
        self.server = NatsServer(folder / "server")
        self.server.start()
        self._copies = folder / "copies"

    def make(self) -> None:
        self.server.stop()
        for each in self._folders():
            shutil.copytree(each, self._copies / each.name)
        self.server.start()

    def restore(self) -> None:
        self.server.stop()
        for each in self._folders():
            shutil.rmtree(each)
            shutil.copytree(self._copies / each.name, each)
        self.server.start()

    def _folders(self) -> list[Path]:
        return [*(self.server.store / "jetstream" / "$G" / "streams").glob(self.streams)]


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[Backups]:
    made = Backups(tmp_path)
    yield made
    made.server.stop()


@pytest.fixture
async def stream(backups: Backups) -> AsyncIterator[Stream]:
    settings = ConnectionSettings(servers=backups.server.url, shortest_ack_wait=0.5)
    async with connect(settings) as js:
        yield await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})


async def process(stream: Stream, count: int, run: str = "run") -> None:
    await publish(stream, count)
    for claim in await take(stream, run):
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()


async def on(backups: Backups, stream: Stream, restore: bool) -> None:
    await asyncio.to_thread(backups.restore if restore else backups.make)
    await stream.info(patience=60)


async def found(stream: Stream) -> list[Symptom]:
    """What the page shows, apart from messages that wait."""
    whole = await overview(stream.js)
    of_consumers = [each for view in whole.streams for consumer in view.consumers for each in consumer.findings]
    return [*whole.findings, *of_consumers]


async def examined(stream: Stream) -> str:
    sections = await examine(stream.js.settings, Scope(stream.name, CONSUMER))
    return "\n".join(each.text for findings in sections.values() for each in findings if each.state == "to do")


@pytest.mark.server("2.12")  # 2.11 has another `created` for a consumer after its first restart
async def test_a_dead_worker_is_recognised_after_the_server_has_restarted(backups: Backups, stream: Stream) -> None:
    """The server forgets when it last heard of an attempt."""
    await publish(stream, 5)
    (claim,) = await take(stream)
    survey = Survey(stream.js)

    async def kinds() -> list[str]:
        (seen,) = (await survey.look()).streams
        return [each.kind for each in seen.consumers[0].findings]

    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold._stop_beats()  # as a killed worker does
        await until(lambda: _equal(kinds, ["dead_holder"]))
        await asyncio.to_thread(backups.server.stop)
        await asyncio.to_thread(backups.server.start)
        await stream.info(patience=60)
        assert await kinds() == []  # this look cannot know
        await until(lambda: _equal(kinds, ["dead_holder"]))


async def _equal(kinds: Callable[[], Awaitable[list[str]]], expected: list[str]) -> bool:
    return await kinds() == expected


@pytest.mark.server("2.12")  # 2.11 has another `created` for a consumer after its first restart
async def test_a_reader_reads_messages_whose_sequences_it_has_committed_before(
    backups: Backups, stream: Stream
) -> None:
    """The stream is restored from an older copy, and uses sequences again for other messages."""
    backups.streams = "S"
    await consumer(stream)
    query = Query(stream)
    await publish(stream, 5)
    await query.run()
    await on(backups, stream, restore=False)
    await publish(stream, 5)
    await query.run(kill="after the commit log")
    await on(backups, stream, restore=True)
    await publish(stream, 5)
    await query.run()
    assert query.output == {1: [1, 2, 3, 4, 5], 2: [6, 7, 8, 9, 10], 3: [6, 7, 8, 9, 10]}
    assert await floor(stream) == 10


@pytest.mark.server("2.12")  # 2.11 has another `created` for a consumer after its first restart
async def test_what_is_acknowledged_without_a_receipt_is_reported(
    backups: Backups, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a take, the doctor and the page reported nothing, and committed() lacked five messages."""
    await process(stream, 5)
    await on(backups, stream, restore=False)
    await process(stream, 5)
    assert await found(stream) == []
    await on(backups, stream, restore=True)
    (symptom,) = await found(stream)
    assert (symptom.kind, symptom.level) == ("unreceipted", "warning")
    assert f"among the sequences 6-10 {TOLD}" in symptom.text
    assert f"among the sequences 6-10 {TOLD}" in await examined(stream)
    await process(stream, 5, "after")
    assert f"among the sequences 6-10 {TOLD}" in caplog.text
    assert caplog.text.count(TOLD) == 1
    # What the take has written has not made the ledger forget it.
    assert [each.kind for each in await found(stream)] == ["unreceipted"]
    assert TOLD in await examined(stream)
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert Sequences.from_ranges(each for some in receipts for each in some.sequences.ranges) == (
        Sequences.from_ranges([(1, 5), (11, 15)])
    )
    assert await floor(stream) == 15


async def test_receipts_of_the_same_sequences_differ_in_the_times_of_their_messages(
    backups: Backups, stream: Stream
) -> None:
    """A stream that is restored from an older copy uses sequences again for other messages, under the same time of
    creation. Before, nothing in two such receipts told which messages each of them means."""
    backups.streams = stream.name
    await process(stream, 5)
    await on(backups, stream, restore=False)
    await process(stream, 5, "before")
    await on(backups, stream, restore=True)
    await publish(stream, 5)
    times = [(await stream.get_message(sequence)).time for sequence in (6, 10)]
    await process(stream, 0, "after")
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    again = [each for each in await ledger.committed() if each.sequences == Sequences.from_ranges([(6, 10)])]
    before, after = sorted(again, key=lambda each: each.at)
    assert before.stored
    assert after.stored
    assert after.history.stored == tuple(map(time_nanoseconds, times))
    assert before.stored[1] < after.stored[0]
    seen = await find(stream.js, after.claim_id)
    assert seen
    assert f"stored {' to '.join(after.stored)}" in " ".join(claim_text(seen).split())


@pytest.mark.parametrize("only", ["", "S.1"])
async def test_what_was_given_up_before_the_ledger_was_lost_is_reported(
    stream: Stream, caplog: pytest.LogCaptureFixture, only: str
) -> None:
    """The server gives deliveries up, the ledger with their claims is lost, and the last acknowledgement moves the
    floor over them. Before, neither a take nor the page told that their messages will never come."""
    config = {"ack_wait": timedelta(seconds=30), **({"filter_subject": only} if only else {})}
    await publish(stream, 6)
    await give_up(stream, await take(stream, consumer_config=config))
    for bucket in ("claims", "receipts"):
        await stream.js.stream(f"KV_{stream.js.settings.ledger}_{bucket}").delete()
    await publish(stream, 6)
    (other,) = await stream.consumer(CONSUMER).fetch(1)
    (claim,) = await take(stream, "after", consumer_config=None)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    await other.double_ack()

    async def passed() -> bool:
        return await floor(stream) > 6

    await until(passed)
    assert await take(stream, "later", wait=0.5, consumer_config=None) == []
    (symptom,) = [each for each in await found(stream) if each.kind == "unreceipted"]
    reported = (await Ledger(stream.js, stream.name, CONSUMER).read())[0]
    assert reported
    assert reported.unreceipted
    assert ({2, 5} if only else {*range(1, 7)}) <= {*reported.unreceipted[0]}
    assert TOLD in symptom.text
    assert caplog.text.count(TOLD) == 1


@pytest.mark.parametrize("ended", ["failed", "superseded", "withdrawn"])
async def test_what_is_given_up_after_its_claim_ended_is_reported(
    stream: Stream, caplog: pytest.LogCaptureFixture, ended: str
) -> None:
    """A claim ends without being settled, the server gives its messages up, and the last acknowledgement of another
    claim moves the floor over them. Before, neither a take nor the page told that they will never come."""
    await publish(stream, 6)
    config = {"ack_wait": timedelta(seconds=30)}
    claim, other = await take(stream, messages_per_claim=3, consumer_config=config)
    of, consumer = Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await of.locate()
    lost = set(claim.sequences)
    if ended == "failed":
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.fail("no date")
    elif ended == "withdrawn":
        assert set(await withdraw(of, [claim])) == lost
    else:
        await answers.negative(of, claim.sequences)
        (again,) = await take(stream, "second", max_messages=1, consumer_config=None)
        lost -= set(again.sequences)
        async with Hold.begin(stream.js, again, try_number=1) as hold:
            await hold.settle()
    await consumer.update({"max_deliver": 1})

    async def given_up() -> bool:
        await answers.negative(of, Sequences.of(lost))
        assert not await consumer.fetch_no_wait(100)
        return await unacknowledged(stream) == other.count

    await until(given_up)
    await consumer.update({"max_deliver": -1})
    async with Hold.begin(stream.js, other, try_number=1) as hold:
        await hold.settle()

    async def passed() -> bool:
        return await floor(stream) == 6

    await until(passed)
    assert await take(stream, "later", wait=0.5, consumer_config=None) == []
    (symptom,) = [each for each in await found(stream) if each.kind == "unreceipted"]
    reported = (await of.read())[0]
    assert reported
    assert reported.unreceipted
    assert {*reported.unreceipted[0]} == lost
    assert TOLD in symptom.text
    assert caplog.text.count(TOLD) == 1


async def test_what_another_client_has_received_and_the_server_gives_up_is_reported(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, nothing told that the messages that no claim has contained will never come."""
    await publish(stream, 6)
    (claim,) = await take(stream, max_messages=3, consumer_config={"ack_wait": timedelta(seconds=30)})
    of, consumer = Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await of.locate()
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert len(await consumer.fetch_no_wait(100)) == 3
        await consumer.update({"max_deliver": 1})
        others = Sequences.from_ranges([(4, 6)])

        async def given_up() -> bool:
            await answers.negative(of, others)
            assert not await consumer.fetch_no_wait(100)
            return await unacknowledged(stream) == claim.count

        await until(given_up)
        await consumer.update({"max_deliver": -1})
        await hold.settle()

    async def passed() -> bool:
        return await floor(stream) == 6

    await until(passed)
    assert await take(stream, "later", wait=0.5, max_messages=3, consumer_config=None) == []
    (symptom,) = [each for each in await found(stream) if each.kind == "unreceipted"]
    assert "4-6" in symptom.text
    assert caplog.text.count(TOLD) == 1


async def test_a_bucket_that_was_deleted_is_no_fresh_installation(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """The page said that no sensor has taken a claim."""
    await process(stream, 5)
    await stream.js.stream(f"KV_{stream.js.settings.ledger}_claims").delete()
    (symptom,) = await found(stream)
    assert (symptom.kind, symptom.level) == ("ledger", "error")
    assert "does not exist, although 1 receipt and 1 consumer of this ledger exist" in symptom.text
    assert symptom.text in await examined(stream)
    await process(stream, 5, "after")
    assert "which must have been deleted or lost, because bucket jetstream_receipts has 1 entries" in caplog.text
    assert f"among the sequences 1-5 {TOLD}" in caplog.text


async def test_a_fresh_installation_is_none_of_these(stream: Stream) -> None:
    (symptom,) = await found(stream)
    assert (symptom.kind, symptom.level) == ("ledger", "warning")


async def test_ordinary_work_is_never_reported(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """With a filter, failures, releases, gaps, several claims and an acknowledgement in another order."""
    config = {"ack_wait": 1_000_000_000, "filter_subject": f"{stream.name}.1", "deliver_policy": "all"}
    for run in range(3):
        await publish(stream, 12)
        if run == 1:
            await stream.delete_message(14)
        claims = await take(stream, f"run {run}", messages_per_claim=2, consumer_config=config)
        assert claims
        for number, claim in enumerate(reversed(claims)):
            async with Hold.begin(stream.js, claim, try_number=1) as hold:
                await (hold.fail("no") if number == 1 else hold.release() if number == 2 else hold.settle())
            assert await found(stream) == [] or all(each.kind == "failing" for each in await found(stream))
    assert TOLD not in caplog.text
    assert TOLD not in await examined(stream)


async def test_messages_that_vanish_are_not_taken_for_acknowledged_ones(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """The server acknowledges a message that is removed while it is delivered, and the ledger never sees it."""
    await stream.update({"max_msgs_per_subject": 1})
    await process(stream, 3)
    await publish(stream, 3)
    pulled = await stream.consumer(CONSUMER).fetch(3)
    assert len(pulled) == 3
    await publish(stream, 3)
    assert await floor(stream) == 6
    assert [each for each in await found(stream) if each.kind == "unreceipted"] == []
    await process(stream, 3, "after")
    assert TOLD not in caplog.text


async def test_a_reset_that_is_refused_is_not_taken_for_a_restore(stream: Stream) -> None:
    """It has begun a new life in the record, and the consumer goes on in the old one."""
    await process(stream, 5)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await rewrite(ledger, lambda record, info: record and record.reborn(info))
    assert await found(stream) == []
    await process(stream, 5, "after")
    assert await found(stream) == []


def test_the_record_remembers_for_a_week() -> None:
    class Now:
        floor, counter, delivered, now = 10, 10, 10, "2026-11-21T03:00:00Z"
        config: ClassVar[dict[str, str]] = {}

    noted = Record("2026-11-20T03:00:00Z").with_unreceipted(Sequences.from_ranges([(6, 10)]), Now())  # type: ignore[arg-type]
    assert Record.from_json(noted.to_json()) == noted
    more = noted.with_unreceipted(Sequences.of(range(20, 500, 2)), Now())  # type: ignore[arg-type]
    assert more.unreceipted == (Sequences.from_ranges([(6, 498)]), Now.now)
    half = more.claimed(Sequences.of(range(6, 499, 2)))  # more ranges than a record notes
    assert half.unreceipted == (Sequences.from_ranges([(7, 497)]), Now.now)
    assert half.claimed(Sequences.from_ranges([(1, 500)])).unreceipted is None
    assert noted.tidied(Now()).unreceipted is not None  # type: ignore[arg-type]
    Now.now = "2026-11-29T03:00:00Z"
    assert ABANDONED < 8 * 24 * 3600 * 10**9
    assert noted.tidied(Now()).unreceipted is None  # type: ignore[arg-type]


async def test_messages_of_a_work_queue_that_vanish_are_not_taken_for_acknowledged_ones(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Another client has fetched messages when the record begins, and newer ones replace them."""
    await stream.delete()
    config = {"name": stream.name, "subjects": [f"{stream.name}.>"], "retention": "workqueue", "allow_direct": True}
    await stream.js.create_stream({**config, "max_msgs_per_subject": 1, "discard": "old"})
    work = Take(stream.js, taking(stream, consumer_config={"ack_wait": timedelta(seconds=60)}))
    await work.prepare()
    await publish(stream, 2)
    assert len(await stream.consumer(CONSUMER).fetch(2)) == 2
    await stream.js.publish(f"{stream.name}.other", b"")
    (claim,) = await take(stream, "after", consumer_config=None)
    assert claim.sequences == Sequences.of([3])
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.unclaimed == Sequences.from_ranges([(1, 2)])
    await publish(stream, 2)

    async def passed() -> bool:
        return await floor(stream) == 2

    await until(passed)
    assert (await take(stream, "later", consumer_config=None))[0].sequences == Sequences.from_ranges([(4, 5)])
    assert TOLD not in caplog.text


async def test_what_a_filter_leaves_out_is_not_taken_for_acknowledged(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two sensors on a new consumer, the one that pulled later enters its messages first. Between the messages of
    the other one are many that the consumer does not select."""
    config = {"ack_wait": timedelta(seconds=60), "filter_subject": f"{stream.name}.1"}
    later = Take(stream.js, taking(stream, consumer_config=config))
    await later.prepare()
    await publish(stream, 900)
    pulled = await stream.consumer(CONSUMER).fetch(300)
    assert len(pulled) == 300
    await process_all(stream, 3, "first")
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.unclaimed.count > 800
    for message in pulled:
        await message.nak()
    await process_all(stream, 0, "other")
    assert await floor(stream) == 902
    await process_all(stream, 3, "later")
    assert TOLD not in caplog.text
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert not record.unclaimed


async def process_all(stream: Stream, count: int, run: str) -> None:
    await publish(stream, count)
    for claim in await take(stream, run, consumer_config=None):
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()
