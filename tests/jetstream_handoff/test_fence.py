"""The fence: a write to the ledger that only the newest attempt of a claim can make, on a real server."""

from typing import Any

import pytest

from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, HoldLost, Superseded
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.reprocess import Reprocess
from jetstream_handoff.ledger.buckets import Buckets
from tests.jetstream_handoff.steps import publish, reset_by_a_stranger, take


@pytest.fixture
async def claim(stream: Stream) -> Claim:
    await publish(stream, 10)
    (claim,) = await take(stream)
    return claim


async def writes(stream: Stream) -> int:
    """How often the ledger was written."""
    buckets = Buckets(stream.js)
    return sum([(await buckets.stream(each).info()).state["last_seq"] for each in (buckets.claims, buckets.receipts)])


async def test_it_is_a_write(stream: Stream, claim: Claim) -> None:
    """Also if nothing changes. A read could be answered by a leader that was deposed."""
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        before = await writes(stream)
        await held.fence()
        assert await writes(stream) == before + 1
        await held.settle("first")
        with pytest.raises(HoldLost, match="already ended"):
            await held.fence()
    async with Reprocess.begin(stream.js, claim, try_number=2) as again:
        before = await writes(stream)
        await again.fence()
        assert await writes(stream) == before + 1
        await again.settle("second")


async def test_it_stops_an_attempt_that_was_overtaken(stream: Stream, claim: Claim) -> None:
    async with Hold.begin(stream.js, claim, try_number=1) as older:
        async with Hold.begin(stream.js, claim, try_number=2) as newer:
            with pytest.raises(HeldByAnother, match=newer.token):
                await older.fence()
            await newer.fence()
            await newer.settle()
        with pytest.raises(AlreadyDone):
            await older.fence()
    async with Reprocess.begin(stream.js, claim, try_number=3) as older_again:
        async with Reprocess.begin(stream.js, claim, try_number=4) as newer_again:
            with pytest.raises(HeldByAnother, match=newer_again.token):
                await older_again.fence()
            await newer_again.settle()
        with pytest.raises(HeldByAnother, match=newer_again.token):
            await older_again.fence()


@pytest.mark.server("2.14")
async def test_it_stops_an_attempt_whose_claim_is_open_no_longer(stream: Stream, claim: Claim) -> None:
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        await reset_by_a_stranger(stream)
        await take(stream, "again")
        with pytest.raises(Superseded):
            await held.fence()


@pytest.mark.parametrize("again", [False, True])
async def test_an_answer_from_a_deposed_leader(
    stream: Stream, claim: Claim, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the ledger as it was before the newer attempt."""
    begin: Any = Reprocess.begin if again else Hold.begin
    if again:
        async with Hold.begin(stream.js, claim, try_number=1) as first:
            await first.settle()
    async with begin(stream.js, claim, try_number=2) as older:
        last, place = Buckets.last, _place(older, again)
        stale = {place[1]: await last(older._ledger.buckets, *place)}
        with monkeypatch.context() as patch:
            async with begin(stream.js, claim, try_number=3) as newer:

                async def stale_once(self: Buckets, bucket: str, subject: str) -> Any:
                    return stale.pop(subject, None) or await last(self, bucket, subject)

                patch.setattr(Buckets, "last", stale_once)
                with pytest.raises(HeldByAnother, match=newer.token):
                    await older.fence()
                assert not stale


def _place(held: Hold, again: bool) -> tuple[str, str]:
    """Where the fence writes: bucket and subject."""
    of = held._ledger
    receipt = (of.buckets.receipts, of.receipts.subject(held.claim.id))
    return receipt if again else (of.buckets.claims, of._subject)
