"""What the next batch of a consumer with ordered_by waits for, on a real server: everybody says the same."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client.stream import Stream
from jetstream_client.times import time_text
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.repair.release import release
from jetstream_handoff.take.barrier import Barrier
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.backlog import AWAITING_TASK, look, unknown
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.lag import ConsumerLag, lags
from jetstream_handoff.watch.overview import Survey
from jetstream_handoff.watch.view import ConsumerView
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, publish, rewrite, take
from tests.jetstream_handoff.test_commands import read, say

IN_ORDER: dict[str, Any] = {"ordered_by": "{2}", "claims": 3, "consumer_config": {"ack_wait": timedelta(seconds=30)}}
HOLDER = ("dag", "run", "work", 3, 1)


async def settled(stream: Stream, claims: Iterable[Claim]) -> None:
    for claim in claims:
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()


async def seen(stream: Stream) -> tuple[ConsumerView, ConsumerLag]:
    overview = await Survey(stream.js, ages=True).look()
    (view,), (lag,) = overview.consumers, lags(overview)
    return view, lag


async def doctor(stream: Stream) -> tuple[str, str]:
    """What the doctor says of the open claims, and how much that matters."""
    (found,) = (await examine(stream.js.settings, Scope()))["Open claims"]
    return found.state, found.text


async def older(stream: Stream, by: timedelta) -> None:
    """Let the open claims have been taken earlier."""
    at = time_text(int((datetime.now(UTC) - by).timestamp() * 1e9))

    def change(record: Record | None, _: object) -> Record | None:
        assert record
        return replace(record, open={each: replace(entry, at=at) for each, entry in record.open.items()})

    await rewrite(Ledger(stream.js, stream.name, CONSUMER), change)


async def test_everybody_says_which_claim_of_whom_and_how_many_messages_wait(stream: Stream) -> None:
    """A failed claim's messages wait, too: they are in the next batch."""
    await publish(stream, 9)
    done, failing, blocking = await take(stream, **IN_ORDER)
    await publish(stream, 1_005)
    await settled(stream, [done])
    async with Hold.begin(stream.js, failing, try_number=1) as hold:
        await hold.fail("no")
    async with Hold.begin(stream.js, blocking, try_number=1, holder=HOLDER):
        view, lag = await seen(stream)
        barrier = view.barrier
        assert barrier is not None
        assert (list(barrier.blocking), barrier.of, barrier.waiting, barrier.by) == ([blocking.id], 3, 1_008, HOLDER)
        assert 0 < barrier.age < 600
        assert (lag.barrier_claims, 0 < (lag.barrier_seconds or 0) < 600) == (1, True)
        said = rf"waits for 1 of 3 claims \({blocking.id}, held by dag / run / work\[3\], for \d+ seconds?\); "
        said += "1,008 messages wait"
        assert re.fullmatch(said, barrier.text)
        below = (await say(stream, "claims")).out.splitlines()[-1]
        assert re.fullmatch(rf"The next batch of consumer {CONSUMER} of stream {stream.name} {said}\.", below), below
        (listed,) = await read(stream, "claims")
        assert listed["barrier"]["claims"] == [blocking.id]
        assert (listed["barrier"]["of"], listed["barrier"]["waiting"]) == (3, 1_008)
        next_one = "The next batch waits for 1 of 3 claims (ordered_by), and 1,008 messages wait for it."
        assert listed["next"].endswith(next_one)
        state, text = await doctor(stream)
        assert state == "fine"
        assert re.fullmatch(rf"open claims: 1; with ordered_by, the next batch {said}", text), text
        assert [each.kind for each in view.findings] == ["failing"]
        await older(stream, timedelta(minutes=20))
        view, lag = await seen(stream)
        (symptom,) = [each for each in view.findings if each.kind == "barrier"]
        assert (symptom.claim, symptom.by, lag.warnings) == (blocking.id, HOLDER, len(view.findings))
        assert symptom.cause.endswith(f"consumer {CONSUMER} of stream {stream.name} waits for 1 of 3 claims.")
        assert f"Claim {blocking.id} was taken 20 minutes ago" in symptom.effect
        assert "1,008 messages wait." in symptom.effect
        assert lag.barrier_seconds == pytest.approx(1_200, abs=100)
        state, text = await doctor(stream)
        assert (state, "release the claim if its work will not go on" in text) == ("advice", True)


async def test_nothing_blocks_without_an_order_or_without_claims(stream: Stream) -> None:
    """And when nothing waits behind the claims, that is no matter."""
    await publish(stream, 9)
    await take(stream, consumer="any", consumer_config={"ack_wait": timedelta(seconds=30)})
    claims = await take(stream, **IN_ORDER)
    await older(stream, timedelta(hours=1))
    overview = await Survey(stream.js).look()
    numbers = {lag.consumer: (lag.barrier_claims, lag.barrier_seconds) for lag in lags(overview)}
    assert numbers == {"any": (0, 0), CONSUMER: (len(claims), 0)}
    assert not [each for view in overview.consumers for each in view.findings if each.kind == "barrier"]
    assert "next batch" not in (await say(stream, "claims", "--consumer", "any")).out
    await settled(stream, claims)
    overview = await Survey(stream.js).look()
    assert {lag.barrier_claims for lag in lags(overview)} == {0}


async def test_a_claim_that_nobody_holds_or_that_was_released_is_named(stream: Stream) -> None:
    await publish(stream, 3)
    first, second, third = await take(stream, **IN_ORDER)
    (shown,) = [each for each in await inspection.open_claims(stream.js) if each.id == second.id]
    await release(stream.js, shown)
    view, _ = await seen(stream)
    assert view.barrier
    assert f"{first.id}, taken by dag / run / sensor and not held, for " in view.barrier.text
    assert f"{second.id}, released, and not taken for " in view.barrier.text
    await publish(stream, 1)
    many = replace(view.barrier, blocking={**view.barrier.blocking, "5f0c9a7be21d": view.barrier.blocking[third.id]})
    assert "; 1 more); 0 messages wait" in many.text


async def test_a_take_could_enter_something_as_soon_as_no_claim_is_at_work(stream: Stream) -> None:
    """Only then it is worth beginning one. A dead attempt shows by its silence, and only a take finds that out."""
    await publish(stream, 6)
    short: dict[str, Any] = {**IN_ORDER, "consumer_config": {"ack_wait": ACK_WAIT}}
    claims = await take(stream, **short)
    await publish(stream, 1)

    async def blocked(*, ended: bool = False) -> bool:
        found = await look(stream.js, stream.name, CONSUMER)
        return found.barrier(lambda _: ended) is not None

    assert await blocked()  # they wait for their tasks, whose leases last 15 minutes
    assert not await blocked(ended=True)
    await settled(stream, claims[1:])
    async with Hold.begin(stream.js, claims[0], try_number=1) as hold:
        await until(blocked)  # as soon as its first heartbeat has arrived
        await hold._stop_beats()  # as a killed worker does

        async def free() -> bool:
            return not await blocked()

        await until(free)
        found = await look(stream.js, stream.name, CONSUMER)
        assert Barrier.seen(found.record, found.info)
        (claim,) = await take(stream, "next", **{**short, "claims": 1})
    assert claim.count == 3
    assert await blocked()
    await older(stream, AWAITING_TASK + timedelta(minutes=1))
    assert not await blocked()


async def test_claims_of_an_earlier_life_block_nothing(stream: Stream) -> None:
    await publish(stream, 3)
    await take(stream, **IN_ORDER)
    assert (await look(stream.js, stream.name, CONSUMER)).barrier(unknown)
    await stream.consumer(CONSUMER).delete()
    view, lag = await seen(stream)
    assert (view.barrier, lag.barrier_claims) == (None, None)
    await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit"})
    view, lag = await seen(stream)
    assert (view.barrier, lag.barrier_claims, lag.barrier_seconds) == (None, 0, 0)
