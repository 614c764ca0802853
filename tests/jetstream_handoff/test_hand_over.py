"""Handing a hold over and resuming it, on a real server: an attempt that goes on elsewhere takes over from nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from jetstream_client import connect
from jetstream_client.errors import RequestTimeout
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim, token_of
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, Superseded
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, floor, publish, take, unacknowledged

TOKEN = token_of(1, UUID("019aaf3e-5a6b-7c8d-9e0f-1234deadbeef"))
LONG = timedelta(seconds=60)
LONGER_THAN_A_LEASE = 2.5 * ACK_WAIT.total_seconds()


async def taken(stream: Stream, **changes: Any) -> Claim:
    await publish(stream, 10)
    (claim,) = await take(stream, **changes)
    return claim


async def record(stream: Stream) -> tuple[Record, int]:
    found, revision = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert found
    return found, revision


@asynccontextmanager
async def frozen(hold: Hold) -> AsyncIterator[None]:
    """Freeze the hold's process, as SIGSTOP does: it renews nothing and does not notice that time passes."""
    await hold._stop_beats()
    try:
        yield
    finally:
        hold._beats = asyncio.create_task(hold._keep())


def test_every_process_of_a_try_derives_the_same_token() -> None:
    assert TOKEN == "1-deadbeef"


async def test_an_attempt_goes_on_elsewhere_and_settles(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as first:
        await first.hand_over(LONG)
    before, revision = await record(stream)
    assert before.open[claim.id].token == TOKEN
    await asyncio.sleep(LONGER_THAN_A_LEASE)
    assert await take(stream, "another", wait=0.5) == []  # leased for longer than ack_wait
    async with connect(stream.js.settings) as js, Hold.resume(js, claim, token=TOKEN) as second:
        assert second.attempt_id == first.attempt_id == f"{claim.id}-{TOKEN}"
        assert await record(stream) == (before, revision)  # neither handing over nor resuming writes
        await asyncio.sleep(LONGER_THAN_A_LEASE)
        assert await take(stream, "another", wait=0.5) == []
        await second.settle("done")
    assert await floor(stream) == 10
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.attempt_id, receipt.value) == (first.attempt_id, "done")
    assert [each.token for each in receipt.history.attempts] == [TOKEN]


async def test_it_may_be_handed_over_again_and_again(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(LONG)
    for _ in range(2):
        async with Hold.resume(stream.js, claim, token=TOKEN) as hold:
            await hold.hand_over(LONG)
            with pytest.raises(HoldLost, match="handed over"):
                await hold.settle()
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:  # as a rescheduled sensor does
        await hold.settle()
    assert await floor(stream) == 10


async def test_only_the_attempt_that_holds_the_claim_resumes(stream: Stream) -> None:
    claim = await taken(stream)

    async def resumed(expected: type[Exception], says: str) -> None:
        before = await record(stream)
        with pytest.raises(expected, match=says):
            async with Hold.resume(stream.js, claim, token=TOKEN):
                pass  # pragma: no cover - it is refused
        assert await record(stream) == before

    await resumed(HeldByAnother, "it was released")  # nobody has held it yet
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as first:
        await first.hand_over(LONG)
    async with Hold.begin(stream.js, claim, try_number=2) as second:
        await resumed(HeldByAnother, f"attempt {second.token} now holds it")
        await second.release(LONG)
    await resumed(HeldByAnother, "it was released")
    async with Hold.begin(stream.js, claim, try_number=3) as third:
        await third.settle("third")
    await resumed(AlreadyDone, third.token)
    assert not second.lost
    assert not third.lost


async def test_a_changed_claim_is_not_resumed(stream: Stream) -> None:
    await publish(stream, 20)
    first, second = await take(stream, messages_per_claim=10)
    async with Hold.begin(stream.js, first, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(LONG)
    forged = Claim.from_json({**second.to_json(), "id": first.id})
    with pytest.raises(ClaimInvalid, match="differ from those of its entry"):
        async with Hold.resume(stream.js, forged, token=TOKEN):
            pass  # pragma: no cover - it is refused


async def test_without_anybody_who_resumes_the_messages_are_redelivered(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(timedelta(seconds=0.5))
    (again,) = await take(stream, "another")
    assert again.sequences == claim.sequences
    with pytest.raises(Superseded):
        async with Hold.resume(stream.js, claim, token=TOKEN):
            pass  # pragma: no cover - it is refused
    (failure,) = (await record(stream))[0].failures.values()
    assert failure.sequences == claim.sequences  # as if its holder had died


async def test_what_was_lost_cannot_be_handed_over(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as first, frozen(first):
        async with Hold.begin(stream.js, claim, try_number=2) as second:
            deliveries = (await stream.consumer(CONSUMER).info()).counter
            with pytest.raises(HoldLost, match=f"attempt {second.token} now holds it"):
                await first.hand_over(LONG)
            assert (await record(stream))[0].open[claim.id].token == second.token
            await second.release()
        (again,) = await take(stream, "another")  # at once: the first attempt has leased nothing
        assert again.sequences == claim.sequences
        assert (await stream.consumer(CONSUMER).info()).counter > deliveries


@pytest.mark.parametrize("end", ["returns", "raises", "is cancelled"])
async def test_a_resumed_hold_that_nobody_ends_is_handed_over_again(stream: Stream, end: str) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(LONG)
    held = asyncio.Event()

    async def work() -> None:
        async with Hold.resume(stream.js, claim, token=TOKEN):
            held.set()
            if end == "raises":
                raise OSError("the triggerer stops")
            if end == "is cancelled":
                await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.wait_for(held.wait(), 30)
    if end == "is cancelled":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await record(stream))[0].open[claim.id].token == TOKEN
    await asyncio.sleep(LONGER_THAN_A_LEASE)
    assert await take(stream, "another", wait=0.5) == []
    async with Hold.resume(stream.js, claim, token=TOKEN) as hold:
        await hold.settle()
    assert await unacknowledged(stream) == 0


async def test_a_resumed_hold_ends_after_the_longest_hold(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(LONG)
    async with Hold.resume(stream.js, claim, token=TOKEN, longest_hold=timedelta(seconds=0.2)) as hold:
        await until(lambda: bool(hold.lost))
    assert (await record(stream))[0].open[claim.id].token is None
    (again,) = await take(stream, "another")
    assert again.sequences == claim.sequences


async def test_an_error_while_resuming_leaves_the_token(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger that cannot reach the server tries again, so the claim must still be its attempt's."""
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as hold:
        await hold.hand_over(LONG)

    async def fails(*_: Any) -> None:
        raise RequestTimeout("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(answers, "negative", fails)
        with pytest.raises(RequestTimeout):
            async with Hold.resume(stream.js, claim, token=TOKEN):
                pass  # pragma: no cover - it is interrupted
    assert (await record(stream))[0].open[claim.id].token == TOKEN
    async with Hold.resume(stream.js, claim, token=TOKEN) as hold:
        await hold.settle()


async def test_two_processes_of_one_attempt_settle_once(stream: Stream) -> None:
    """A triggerer that froze and thaws holds under the same token as the process that resumed meanwhile."""
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, token=TOKEN) as first, frozen(first):
        async with Hold.resume(stream.js, claim, token=TOKEN) as second:
            await second.settle("second")
        await first.settle("first")  # recognised as this attempt's own decision
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.value == "second"
    assert await floor(stream) == 10


async def test_synchronous_work_hands_over_and_resumes(stream: Stream) -> None:
    claim = await taken(stream)

    def work() -> str:
        with BlockingHold.begin(stream.js.settings, claim, try_number=1, token=TOKEN) as held:
            held.hand_over(LONG)
            assert held.ended
        with BlockingHold.begin(stream.js.settings, claim, try_number=1, token=TOKEN, resume=True) as held:
            held.settle("value")
        return held.attempt_id

    assert await asyncio.to_thread(work) == f"{claim.id}-{TOKEN}"
    assert await floor(stream) == 10
