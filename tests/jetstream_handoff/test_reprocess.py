"""Processing a settled claim again, on a real server: at any time exactly one attempt of a claim is committed."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.errors import MessagesMissing, RequestTimeout
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, Superseded
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.reprocess import Reprocess, stored
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from tests.jetstream_handoff.steps import CONSUMER, publish, reset_by_a_stranger, take


async def settled(stream: Stream, value: Any = "first") -> tuple[Claim, Receipt]:
    """Settle a claim of ten messages. Returns it with the receipt of the attempt that settled it."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as first:
        await first.settle(value)
    return claim, await committed(stream)


async def committed(stream: Stream) -> Receipt:
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    return receipt


async def test_the_newest_settled_attempt_is_committed(stream: Stream) -> None:
    claim, old = await settled(stream)
    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        assert (await committed(stream)).attempt_id == old.attempt_id != attempt.attempt_id
        await attempt.settle("second")
    new = await committed(stream)
    assert (new.attempt_id, new.value, new.again) == (attempt.attempt_id, "second", None)
    assert new.sequences == old.sequences
    assert new.at > old.at
    with pytest.raises(HoldLost):
        await attempt.settle("third")


async def test_of_two_attempts_only_the_newer_settles(stream: Stream) -> None:
    claim, old = await settled(stream)
    async with (
        Reprocess.begin(stream.js, claim, try_number=2) as older,
        Reprocess.begin(stream.js, claim, try_number=3) as newer,
    ):
        with pytest.raises(HeldByAnother, match=newer.token):
            await older.settle("older")
        await older.release()
        now = await committed(stream)
        assert outcome(now) == {**outcome(old), "again": newer.token}
        assert [each.token for each in now.history.attempts] == [old.token, older.token, newer.token]
        await newer.settle("newer")
    assert (await committed(stream)).attempt_id == newer.attempt_id


async def test_racing_attempts_commit_exactly_one(stream: Stream) -> None:
    claim, _ = await settled(stream)
    seen = set()

    async def attempt(number: int) -> str | None:
        try:
            async with Reprocess.begin(stream.js, claim, try_number=number) as again:
                seen.add((await committed(stream)).value)
                await again.settle(number)
                return again.attempt_id
        except (HeldByAnother, HoldLost):  # whether settling or a heartbeat learns it first
            return None

    winners = [winner for winner in await asyncio.gather(*map(attempt, range(2, 8))) if winner]
    assert (await committed(stream)).attempt_id in winners
    assert seen <= {"first", *range(2, 8)}


async def test_an_attempt_that_lost_the_receipt_learns_it(stream: Stream) -> None:
    claim, _ = await settled(stream)
    async with Reprocess.begin(stream.js, claim, try_number=2) as older:
        async with Reprocess.begin(stream.js, claim, try_number=3) as newer:
            await newer.settle("newer")
        lost: list[str] = []
        older.on_lost(lost.append)
        await asyncio.sleep(0.8)
        assert lost
        with pytest.raises(HoldLost, match=newer.token):
            await older.settle("older")
    assert (await committed(stream)).value == "newer"


@pytest.mark.parametrize("end", ["fail", "release", "leave"])
async def test_an_attempt_that_fails_changes_nothing(stream: Stream, end: str) -> None:
    claim, old = await settled(stream)
    before = (await stream.consumer(CONSUMER).info()).raw
    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        if end != "leave":
            await getattr(attempt, end)()
    assert outcome(await committed(stream)) == outcome(old)
    after = (await stream.consumer(CONSUMER).info()).raw
    for number in ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending"):
        assert after[number] == before[number]


@pytest.mark.server("2.14")
async def test_a_reset_does_not_bring_the_older_attempt_back(stream: Stream) -> None:
    claim, _ = await settled(stream)
    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        await attempt.settle("second")
    await reset_by_a_stranger(stream)
    await take(stream, "other")  # a new life: the record forgets its done entry and writes the receipt
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert (record.n, record.done) == (1, {})
    assert (await committed(stream)).attempt_id == attempt.attempt_id


async def test_a_settlement_that_died_before_its_receipt(stream: Stream) -> None:
    claim, old = await settled(stream)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    receipts = stream.js.stream(f"KV_{stream.js.settings.ledger}_receipts")
    assert await receipts.purge(subject=Ledger(stream.js, stream.name, CONSUMER).receipts.subject(claim.id)) == 1
    assert outcome(await committed(stream)) == outcome(old)
    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        assert (await committed(stream)).attempt_id == old.attempt_id
        await ledger.receipts.write(old)  # the older attempt was only frozen
        await attempt.settle("second")
    await ledger.receipts.write(old)
    assert (await committed(stream)).attempt_id == attempt.attempt_id


async def test_a_retry_is_told_what_counts_now(stream: Stream) -> None:
    claim, _ = await settled(stream)
    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        await attempt.settle("second")
    now = await committed(stream)
    with pytest.raises(AlreadyDone) as done:
        async with Hold.begin(stream.js, claim, try_number=3):
            pass
    assert (done.value.value, done.value.token, done.value.at) == ("second", attempt.token, now.at)


@pytest.mark.parametrize("listed", [True, False], ids=["deletes are listed", "more deletes than messages"])
async def test_missing_messages_are_named_before_anything_else(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, *, listed: bool
) -> None:
    if not listed:
        monkeypatch.setattr(direct, "LISTED_AT_ONCE", 0)
        monkeypatch.setattr(direct, "LISTED_PER_READ", 0)
    claim, old = await settled(stream)
    for sequence in (5, 6, 9):
        await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence})
    await stream.purge(sequence=3)
    with pytest.raises(MessagesMissing) as missing:
        async with Reprocess.begin(stream.js, claim, try_number=2):
            pass
    assert missing.value.sequences == Sequences.of([1, 2, 5, 6, 9])
    assert outcome(await committed(stream)) == outcome(old)
    assert await stored(stream, Sequences.from_ranges([(4, 8), (10, 12)])) == Sequences.of([4, 7, 8, 10])
    await stream.purge()
    assert not await stored(stream, claim.sequences)


async def test_what_was_not_settled_is_not_processed_again(stream: Stream) -> None:
    claim, _ = await settled(stream)
    await publish(stream, 10)
    (open_claim,) = await take(stream, "other")
    with pytest.raises(Superseded, match="never settled"):
        async with Reprocess.begin(stream.js, open_claim, try_number=2):
            pass
    forged = Claim.from_json({**claim.to_json(), "ranges": [[1, 9]], "count": 9})
    with pytest.raises(ClaimInvalid, match="differ from those of its receipt"):
        async with Reprocess.begin(stream.js, forged, try_number=2):
            pass


async def test_an_unanswered_write_is_recognised(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, _ = await settled(stream)
    write = Buckets.write
    unanswered: list[str] = []

    async def lose_the_answer(self: Buckets, subject: str, *arguments: Any) -> None:
        await write(self, subject, *arguments)
        if len(unanswered) < 3:
            unanswered.append(subject)
            raise RequestTimeout("lost")

    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        monkeypatch.setattr(Buckets, "write", lose_the_answer)
        await attempt.settle("second")
    assert unanswered
    assert (await committed(stream)).attempt_id == attempt.attempt_id


async def test_an_unanswered_write_is_recognised_although_another_attempt_has_begun(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is committed, so the work must not fail as if it were not."""
    claim, _ = await settled(stream)
    write = Buckets.write
    unanswered: list[str] = []

    async def lose_the_answer(self: Buckets, subject: str, *arguments: Any) -> int:
        sequence = await write(self, subject, *arguments)
        if unanswered:
            return sequence
        unanswered.append(subject)
        async with Reprocess.begin(stream.js, claim, try_number=3):
            raise RequestTimeout("lost")

    async with Reprocess.begin(stream.js, claim, try_number=2) as attempt:
        monkeypatch.setattr(Buckets, "write", lose_the_answer)
        await asyncio.create_task(attempt.settle("second"))
    assert unanswered
    assert (await committed(stream)).attempt_id == attempt.attempt_id


async def test_it_too_is_lost_after_its_longest_hold(stream: Stream) -> None:
    claim, old = await settled(stream)
    async with Reprocess.begin(stream.js, claim, try_number=2, longest_hold=timedelta(seconds=0.3)) as attempt:
        await asyncio.sleep(0.5)
        with pytest.raises(HoldLost, match=r"longest_hold \(0\.3 s\)"):
            await attempt.settle("too late")
    assert outcome(await committed(stream)) == outcome(old)


def outcome(receipt: Receipt) -> dict[str, Any]:
    """Return the fields of a receipt on which decisions depend."""
    told = {"history", "acknowledged", "reason", "superseded_by"}
    return {name: getattr(receipt, name) for name in Receipt.__slots__ if name not in told}
