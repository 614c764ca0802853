"""Holding and settling on a real server: the newest attempt decides, once."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.lag import Bound
from jetstream_client.errors import ConnectionEnded, InvalidValue, JetStreamError, RequestTimeout
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HoldLost, LedgerFull, LedgerUnavailable, Superseded
from jetstream_handoff.hold import answers, settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.keep import keep
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.take.take import Take
from tests.jetstream_client.disk import wait_for_deliveries, wait_for_messages, wait_for_text
from tests.jetstream_client.steps import Traffic
from tests.jetstream_client.until import SOON, until
from tests.jetstream_handoff.steps import (
    CONSUMER,
    ended_by_the_server,
    floor,
    publish,
    reset_by_a_stranger,
    rewrite,
    take,
    taking,
    unacknowledged,
)


async def test_settled_messages_are_acknowledged_and_the_value_is_recorded(stream: Stream) -> None:
    await publish(stream, 2_500)
    (claim,) = await take(stream, max_messages=2_500)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert hold.attempt_id.startswith(f"{claim.id}-1-")
        await hold.settle({"rows": 2_500})
    assert await unacknowledged(stream) == 0
    assert await floor(stream) == 2_500
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.attempt_id, receipt.value) == (hold.attempt_id, {"rows": 2_500})
    assert receipt.sequences == claim.sequences


async def test_holding_and_settling_make_few_requests(stream: Stream) -> None:
    """Each is an exchange with the server, which may be far away."""
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config={"ack_wait": timedelta(minutes=1)})  # no heartbeats
    traffic = Traffic(stream.js.connection)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        held = traffic.received
        await hold.settle({"count": 10})
    assert held == 9
    assert traffic.received - held == 10 + 10  # the confirmations of the messages


async def test_a_few_messages_are_settled_without_another_connection(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 2 * answers.FEW + 1)
    opened: list[ConnectionSettings] = []
    connect = Wire.open

    def spied(settings: ConnectionSettings) -> Wire:
        opened.append(settings)
        return connect(settings)

    monkeypatch.setattr(Wire, "open", spied)
    for count, connections in ((answers.FEW, 0), (answers.FEW + 1, 1)):
        (claim,) = await take(stream, max_messages=count)
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()
        assert claim.count == count
        assert await unacknowledged(stream) == 0
        assert len(opened) == connections


@pytest.mark.killed
async def test_a_claim_is_settled_when_its_entry_is_a_second_old(stream: Stream) -> None:
    """A server that is killed earlier may have forgotten the entry."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    record, _ = await ledger.read()
    assert record
    entered = record.open[claim.id].at
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    record, _ = await ledger.read()
    assert record
    assert time_nanoseconds(record.done[claim.id].at) - time_nanoseconds(entered) >= 10**9


async def test_a_second_attempt_learns_that_it_is_done(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle([1, "two"])
    with pytest.raises(AlreadyDone) as done:
        async with Hold.begin(stream.js, claim, try_number=2):
            pass
    assert (done.value.value, done.value.token) == ([1, "two"], hold.token)


async def test_a_decision_whose_answer_got_lost_is_its_own_when_a_take_has_been_since(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    book = Ledger(stream.js, stream.name, CONSUMER)
    write = Buckets.write

    async def losing(self: Buckets, subject: str, *arguments: Any) -> int:
        revision = await write(self, subject, *arguments)
        if subject != book.subjects[0]:
            return revision
        monkeypatch.setattr(Buckets, "write", write)
        record, info = (await book.read())[0], await book.consumer.info()
        assert record
        await book.receipts.write(book.receipts.of_done(claim.id, record.done[claim.id]))
        data = json.dumps(record.tidied(info).to_json()).encode()
        await write(book.buckets, subject, data, revision)  # as another take does
        raise RequestTimeout("the answer got lost")

    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await asyncio.sleep(1)
        monkeypatch.setattr(Buckets, "write", losing)
        await hold.settle("once")
    assert await unacknowledged(stream) == 0
    (receipt,) = await book.committed()
    assert (receipt.attempt_id, receipt.value) == (hold.attempt_id, "once")


async def test_heartbeats_keep_the_claim_for_many_leases(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert await stream.consumer(CONSUMER).fetch(10, max_wait=3.5) == []
        assert not hold.lost
        await hold.settle()
    assert await unacknowledged(stream) == 0


@pytest.mark.parametrize("later", [0, 0.002, 0.005])  # seconds
async def test_settling_in_the_middle_of_a_heartbeat(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    beating = asyncio.Event()
    in_progress = answers.in_progress

    async def beat(*arguments: Any) -> None:
        beating.set()
        await in_progress(*arguments)
        beating.clear()

    monkeypatch.setattr(answers, "in_progress", beat)
    await publish(stream, 5_000)
    slow = {"ack_wait": timedelta(seconds=5)}  # a busy machine needs a second for this many
    (claim,) = await take(stream, max_messages=5_000, consumer_config=slow)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        beating.clear()  # the first renewal, before the work
        while True:  # until a heartbeat takes longer than this; there is one each second
            await beating.wait()
            await asyncio.sleep(later)
            if beating.is_set():
                break
        await asyncio.wait_for(hold.settle(), 20)

    async def counted() -> bool:  # a busy server counts them some time after it has confirmed them
        info = await stream.consumer(CONSUMER).info()
        return (info.ack_pending, info.pending, info.floor) == (0, 0, 5_000)

    await until(counted)


async def test_a_newer_attempt_fences_the_older_one(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    lost: list[str] = []
    async with Hold.begin(stream.js, claim, try_number=1) as old:
        old.on_lost(lost.append)
        async with Hold.begin(stream.js, claim, try_number=2) as new:
            await asyncio.sleep(3)
            assert lost
            with pytest.raises(HoldLost):
                await old.settle("old")
            await old.release()
            assert not new.lost  # the release by the old attempt did nothing
            await new.settle("new")
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.token, receipt.value) == (new.token, "new")


async def test_leaving_without_an_end_releases_at_once(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1):
        pass
    async with Hold.begin(stream.js, claim, try_number=2) as retry:  # the claim is still open for a retry
        pass
    assert retry.token != "1"
    (again,) = await take(stream, "other", wait=0.9)
    assert again.sequences == claim.sequences
    with pytest.raises(Superseded):
        async with Hold.begin(stream.js, claim, try_number=3):
            pass


async def test_an_attempt_whose_consumer_is_gone_is_superseded_and_releases_in_silence(stream: Stream) -> None:
    await publish(stream, 10)
    claims = await take(stream, messages_per_claim=5)
    async with (
        Hold.begin(stream.js, claims[0], try_number=1) as settling,
        Hold.begin(stream.js, claims[1], try_number=1) as releasing,
    ):
        await stream.consumer(CONSUMER).delete()
        with pytest.raises(Superseded, match="consumer not found"):
            await settling.settle()
        await releasing.release()  # an error here would hide the one that ended the work


async def test_released_with_a_delay_comes_again_after_it(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.release(timedelta(seconds=2.5))
    assert await take(stream, "other", wait=1.5) == []
    assert (await take(stream, "other", wait=5))[0].sequences == claim.sequences


async def test_failed_for_good_goes_to_the_next_taker(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.fail()
    receipt = await Ledger(stream.js, stream.name, CONSUMER).receipts.read(claim.id)
    assert receipt
    assert receipt.state == "failed"
    assert (await take(stream, "other"))[0].sequences == claim.sequences


async def test_a_value_that_cannot_be_recorded_settles_nothing(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        for value in (object(), float("nan"), "x" * 9_000):
            with pytest.raises(InvalidValue):
                await hold.settle(value)
        assert await unacknowledged(stream) == 10
        await hold.settle("x" * 8_000)
    assert await unacknowledged(stream) == 0


@pytest.mark.server("2.14")
async def test_a_reset_while_working_refuses_the_settlement(stream: Stream) -> None:
    await publish(stream, 10)
    seldom = {"ack_wait": timedelta(seconds=10)}  # five heartbeats per second would leave no quiet moment for the reset
    (claim,) = await take(stream, consumer_config=seldom)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await reset_by_a_stranger(stream)
        with pytest.raises(Superseded):
            await hold.settle()
    (again,) = await take(stream, "other", consumer_config=seldom)
    assert again.sequences == claim.sequences


async def test_a_recreated_consumer_is_named(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    await stream.consumer(CONSUMER).delete()
    with pytest.raises(Superseded, match="consumer not found"):
        async with Hold.begin(stream.js, claim, try_number=1):
            pass
    await Take(stream.js, taking(stream)).prepare()
    with pytest.raises(Superseded, match="consumer was recreated"):
        async with Hold.begin(stream.js, claim, try_number=1):
            pass


async def test_a_recreated_stream_is_named(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    config = (await stream.info()).config
    await stream.delete()
    await stream.js.create_stream(config)
    await Take(stream.js, taking(stream)).prepare()
    with pytest.raises(Superseded, match="stream was recreated"):
        async with Hold.begin(stream.js, claim, try_number=1):
            pass


async def test_other_ranges_than_the_ledger_entered_are_refused(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    forged = replace(claim, sequences=Sequences.from_ranges([(1, 9)]))
    with pytest.raises(ClaimInvalid):
        async with Hold.begin(stream.js, forged, try_number=1):
            pass


async def test_an_unknown_claim_is_superseded(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    with pytest.raises(Superseded, match="not in the ledger"):
        async with Hold.begin(stream.js, replace(claim, id="0123456789ab"), try_number=1):
            pass


@pytest.mark.parametrize("bucket", ["claims", "receipts"])
async def test_a_missing_bucket_settles_nothing(stream: Stream, bucket: str) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    await stream.js.stream(f"KV_{stream.js.settings.ledger}_{bucket}").delete()
    with pytest.raises(LedgerUnavailable, match=f"{bucket}.*does not exist"):
        async with Hold.begin(stream.js, claim, try_number=1):
            pass
    with pytest.raises(LedgerUnavailable, match=f"{bucket}.*does not exist"):
        await settle.settle_done(Ledger(stream.js, stream.name, CONSUMER), claim, "1-token")
    assert await unacknowledged(stream) == 10


@pytest.mark.server("2.14")
async def test_late_acknowledgements_are_withheld_from_a_new_life(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    record, _ = await ledger.read()
    assert record
    await reset_by_a_stranger(stream)
    assert len(await stream.consumer(CONSUMER).fetch(9, max_wait=2)) == 9
    late = answers.Delivered.of(record, claim.sequences, claim.consumer_sequence)
    assert await answers.acknowledge(ledger, late, within=1) == claim.sequences
    assert await unacknowledged(stream) == 9


@pytest.mark.killed
@pytest.mark.server("2.12")  # 2.11: test_older_server.py
async def test_the_server_killed_between_taking_and_settling(server: NatsServer, killed: Stream) -> None:
    (claim,) = await take(killed, max_messages=3_000)
    async with Hold.begin(killed.js, claim, try_number=1) as hold:
        # A server forgets what it has not written yet when it is killed: the next test.
        await asyncio.to_thread(wait_for_deliveries, server, "S", CONSUMER, 3_000)
        await asyncio.to_thread(wait_for_text, server, "KV_jetstream_claims", hold.token)
        await asyncio.to_thread(server.kill)
        with pytest.raises(JetStreamError):
            await killed.info()
        await asyncio.to_thread(server.start)
        await hold.settle("after the kill")
    assert await unacknowledged(killed) == 0
    (receipt,) = await Ledger(killed.js, killed.name, CONSUMER).committed()
    assert receipt.sequences == claim.sequences


@pytest.mark.killed
async def test_deliveries_that_a_killed_server_forgot_are_processed_again(server: NatsServer, killed: Stream) -> None:
    (claim,) = await take(killed, max_messages=3_000)
    async with Hold.begin(killed.js, claim, try_number=1) as hold:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        with suppress(Superseded):  # whether the server forgets this depends on the moment of the kill
            await hold.settle()
    settled = Sequences()
    for attempt in range(5):
        for again in await take(killed, f"run {attempt}", max_messages=3_000, wait=3):
            async with Hold.begin(killed.js, again, try_number=1) as hold:
                await hold.settle()
    assert await unacknowledged(killed) == 0
    for receipt in await Ledger(killed.js, killed.name, CONSUMER).committed():
        assert not settled & receipt.sequences
        settled |= receipt.sequences
    assert settled == Sequences.from_ranges([(1, 3_000)])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def killed(server: NatsServer) -> AsyncIterator[Stream]:
    """A stream of 3,000 messages on a separate server."""
    async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        await publish(stream, 3_000)
        await asyncio.to_thread(wait_for_messages, server, "S")
        yield stream


async def test_a_claim_whose_connection_has_ended_is_lost_at_the_next_heartbeat(
    settings: ConnectionSettings, stream: Stream
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with connect(settings) as js, asyncio.timeout(SOON):
        async with Hold.begin(js, claim, try_number=1) as hold:
            lost = asyncio.Event()
            hold.on_lost(lambda _: lost.set())
            await ended_by_the_server(js)
            await lost.wait()
            assert "unknown protocol operation" in hold.lost
            with pytest.raises(HoldLost):
                await hold.settle()
        with pytest.raises(LedgerUnavailable):
            async with Hold.begin(js, claim, try_number=1):
                pass
    async with Hold.begin(stream.js, claim, try_number=2) as hold:
        await hold.settle()
    assert await unacknowledged(stream) == 0


async def test_settling_does_not_wait_for_a_connection_that_has_ended(
    settings: ConnectionSettings, stream: Stream
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with connect(settings) as js, asyncio.timeout(SOON), Hold.begin(js, claim, try_number=1) as hold:
        await ended_by_the_server(js)
        with pytest.raises(LedgerUnavailable, match="unknown protocol operation"):
            await hold.settle()


@pytest.mark.parametrize("doing", ["keep", "take", "lag"])
async def test_whatever_waits_for_days_ends_with_its_connection(
    settings: ConnectionSettings, stream: Stream, doing: str
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    days = 7 * 86_400.0
    async with connect(settings) as js:
        waits: dict[str, Coroutine[Any, Any, Any]] = {
            "keep": keep(js, claim, days),
            "take": Take(js, taking(stream, "other")).take(days),
            "lag": Bound(stream=stream.name, consumer=CONSUMER, above=100).wait(js, days, 1.0),
        }
        waiting = asyncio.create_task(waits.pop(doing))
        for each in waits.values():
            each.close()
        await asyncio.sleep(0.5)  # at any moment of it
        await ended_by_the_server(js)
        async with asyncio.timeout(SOON):
            with pytest.raises((ConnectionEnded, LedgerUnavailable), match="unknown protocol operation"):
                await waiting


@pytest.mark.parametrize("reached", ["token", "heartbeat"])
async def test_a_keeper_that_is_stopped_while_it_begins_leaves_a_lease(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, reached: str
) -> None:
    """Otherwise the messages would be redelivered while the work goes on, and the next keeper would come too late."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    begun = asyncio.Event()
    decide, negative = Ledger.decide, answers.negative

    async def decide_and_stand(self: Ledger, *arguments: Any) -> None:
        await decide(self, *arguments)
        begun.set()
        await asyncio.Event().wait()

    async def stand_once(*arguments: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return await negative(*arguments, **options)

    if reached == "token":
        monkeypatch.setattr(Ledger, "decide", decide_and_stand)
    else:
        monkeypatch.setattr(answers, "negative", stand_once)
    keeping = asyncio.create_task(keep(stream.js, claim, 60))
    await begun.wait()
    keeping.cancel()
    await asyncio.wait([keeping])
    monkeypatch.undo()
    assert await take(stream, "other", wait=2) == []
    assert await keep(stream.js, claim, 0.2) is None
    assert len(await take(stream, "other")) == 1


async def test_a_claim_that_is_done_does_not_fail_for_want_of_its_receipt(stream: Stream) -> None:
    await publish(stream, 20)
    first, second, third = await take(stream, messages_per_claim=7)
    receipts = stream.js.stream(f"KV_{stream.js.settings.ledger}_receipts")
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await receipts.update({"max_bytes": 1, "discard": "new"})  # full
        await hold.settle("rows")
    assert await floor(stream) == 7
    with pytest.raises(AlreadyDone) as done:
        async with Hold.begin(stream.js, first, try_number=2):
            pass
    assert done.value.value == "rows"
    async with Hold.begin(stream.js, second, try_number=1) as hold:
        await hold.settle()
    assert (await receipts.info()).state["messages"] == 0
    await receipts.update({"max_bytes": -1})
    async with Hold.begin(stream.js, third, try_number=1) as hold:
        await hold.settle()
    await publish(stream, 1)
    await take(stream, "next")  # which removes the done entries from the record, and writes the missing receipts
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    receipt = await ledger.receipts.read(first.id)
    assert receipt is not None
    assert (receipt.state, receipt.value) == ("done", "rows")
    assert [each.claim_id for each in await ledger.committed()] == [first.id, second.id, third.id]


async def test_a_failure_that_is_recorded_does_not_fail_for_want_of_its_receipt(stream: Stream) -> None:
    await publish(stream, 20)
    first, second = await take(stream, messages_per_claim=10)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    receipts = stream.js.stream(f"KV_{stream.js.settings.ledger}_receipts")
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await receipts.update({"max_bytes": 1, "discard": "new"})  # full
        await hold.fail("no memory")
        assert hold.ended
    record, _ = await ledger.read()
    assert record is not None
    assert list(record.open) == [second.id]
    assert list(record.failures) == [first.id]
    (again, *_) = await take(stream, "next", max_failures=3)
    assert not again.sequences - first.sequences
    assert await ledger.receipts.read(first.id) is None
    with pytest.raises(Superseded):
        async with Hold.begin(stream.js, first, try_number=2):
            pass


async def test_a_clock_that_was_set_back_delays_settling_by_a_second_at_most(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config={"ack_wait": timedelta(seconds=10)})
    book = Ledger(stream.js, stream.name, CONSUMER)
    await rewrite(book, lambda record, _: entered_in_two_hours(record, claim.id))
    async with Hold.begin(stream.js, claim, try_number=1) as hold, asyncio.timeout(15):
        await hold.settle("done")
    assert await floor(stream) == 10


def entered_in_two_hours(record: Record | None, claim_id: str) -> Record:
    """Set the server's clock back to when the claim was entered."""
    assert record
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    return replace(record, open={claim_id: replace(record.open[claim_id], at=later)})


@pytest.mark.killed
async def test_counters_noted_before_the_clock_was_set_back_are_believed_again(stream: Stream) -> None:
    book = Ledger(stream.js, stream.name, CONSUMER)
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    for run in ("first", "second", "third"):
        await publish(stream, 10)
        (claim,) = await take(stream, run)
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle(run)
        if run == "first":
            await rewrite(book, lambda record, _: replace(record, candidate=(0, 0, later)) if record else None)
    record, _ = await book.read()
    assert record
    assert record.floor >= 10


async def test_what_the_server_does_not_take_is_refused_before_anything_is_settled(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "largest_value", 1_000)
            with pytest.raises(LedgerFull, match=rf"claim {claim.id} cannot be settled: .* 1000 bytes .*max_payload"):
                await hold.settle("x" * 1_000)
    assert await floor(stream) == 0
    async with Hold.begin(stream.js, claim, try_number=2) as hold:
        await hold.settle("x" * 1_000)
    assert await floor(stream) == 10
