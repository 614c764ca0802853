"""Measuring what could be claimed on a real server, without changing anything there."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from jetstream_client import connect
from jetstream_client.errors import StreamNotFound
from jetstream_client.info import StreamInfo
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.record import OpenEntry
from jetstream_handoff.repair.release import release
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.backlog import AT_WORK, AWAITING_TASK, Backlog, claimed, measure
from tests.jetstream_handoff.steps import CONSUMER, publish, publish_and_wait, reset_by_a_stranger, take, unacknowledged


async def seen(stream: Stream) -> Backlog:
    """Two measurements and what stayed the same between them, as a watcher makes them."""
    return (await measure(stream.js, stream.name, CONSUMER)).steady(await measure(stream.js, stream.name, CONSUMER))


async def counts(stream: Stream) -> tuple[int, int]:
    backlog = await seen(stream)
    return backlog.new, backlog.again


async def test_without_a_consumer_all_of_the_stream_waits(stream: Stream) -> None:
    assert await counts(stream) == (0, 0)
    await publish(stream, 3)
    assert await seen(stream) == Backlog(new=3)
    assert (await stream.info()).state["consumer_count"] == 0  # measuring creates no consumer


async def test_of_many_subjects_those_of_a_filter_are_counted_without_a_list(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject in ("a.1", "a.2", "a.2", "b"):
        await stream.js.publish(f"{stream.name}.{subject}", b"")
    measured = partial(measure, stream.js, stream.name, CONSUMER, subject=f"{stream.name}.a.*")
    listed = await measured()
    info, asked = Stream.info, list[dict[str, Any]]()

    async def noted(self: Stream, **options: Any) -> StreamInfo:
        asked.append(options)
        return await info(self, **options)

    monkeypatch.setattr(Stream, "info", noted)
    monkeypatch.setattr("jetstream_handoff.watch.backlog._LISTED", 2)

    assert await measured() == listed == Backlog(new=3)
    assert asked == [{}]
    assert [each async for each in stream.list_consumers()] == []


async def test_without_a_stream_it_says_so(stream: Stream) -> None:
    with pytest.raises(StreamNotFound):
        await measure(stream.js, "NOT_THERE", CONSUMER)


async def test_what_is_claimed_does_not_wait_until_it_failed(stream: Stream) -> None:
    await publish(stream, 10)
    first, second = await take(stream, messages_per_claim=5)
    assert await counts(stream) == (0, 0)
    await publish_and_wait(stream, 2)
    assert await counts(stream) == (2, 0)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        assert await counts(stream) == (2, 0)
        await hold.fail("bad input")
    assert await counts(stream) == (2, 5)
    async with Hold.begin(stream.js, second, try_number=1) as hold:
        await hold.release(timedelta(seconds=60))  # a retry will hold it
    assert await counts(stream) == (2, 5)
    assert await unacknowledged(stream) == 10


async def test_what_was_settled_does_not_wait(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert await counts(stream) == (0, 0)


async def test_messages_without_a_ledger_wait_again(stream: Stream) -> None:
    """A consumer from which somebody pulled before there was a ledger."""
    await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit"})
    await publish_and_wait(stream, 4)
    await stream.consumer(CONSUMER).fetch(3, max_wait=10)
    assert await counts(stream) == (1, 3)


@pytest.mark.server("2.14")
async def test_a_foreign_reset_makes_claims_wait_again(stream: Stream) -> None:
    await publish(stream, 4)
    await take(stream)
    await reset_by_a_stranger(stream)
    await stream.consumer(CONSUMER).fetch(1, max_wait=10)
    assert await counts(stream) == (3, 1)


async def test_what_would_not_be_delivered_is_no_news(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 2})
    await publish_and_wait(stream, 4)
    assert await counts(stream) == (4, 0)
    await consumer.fetch(2, max_wait=10)
    assert await counts(stream) == (0, 2)  # at max_ack_pending only redeliveries are delivered
    await consumer.pause(datetime.now(UTC) + timedelta(minutes=1))
    assert await counts(stream) == (0, 0)


async def test_who_waits_is_seen_and_measuring_delivers_nothing(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit"})
    async with connect(stream.js.settings) as other:
        waiting = asyncio.create_task(other.stream(stream.name).consumer(CONSUMER).fetch(1, max_wait=30))
        while not (backlog := await seen(stream)).pulls:  # noqa: ASYNC110 - the server tells nobody of it
            await asyncio.sleep(0.01)
        assert (backlog.pulls, backlog.counter) == (1, 0)
        await publish(stream, 3)
        (message,) = await waiting
    assert message.metadata.delivered == 1
    for _ in range(3):
        assert await counts(stream) == (2, 1)
    info = await consumer.info()
    assert (info.counter, info.pending, info.ack_pending) == (1, 2, 1)
    assert (await stream.info()).state["consumer_count"] == 1


def test_what_comes_again_counts_when_the_consumer_stands_still() -> None:
    backlog = Backlog(new=1, again=7, created="a", counter=5, floor=2, ack_pending=7)
    assert backlog.steady(backlog).again == 7
    moved: list[dict[str, Any]] = [{"created": "b"}, {"counter": 4}, {"floor": 1}, {"ack_pending": 8}]
    for change in moved:
        assert backlog.steady(replace(backlog, **change)) == replace(backlog, again=0)
    assert backlog.steady(None) == replace(backlog, again=0)


async def test_what_somebody_else_acknowledged_hides_nothing(stream: Stream) -> None:
    """Three of a claim's five messages are acknowledged, so two unacknowledged ones belong to it."""
    consumer = await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit"})
    await publish(stream, 9)
    for message in (await consumer.fetch(9, max_wait=10))[:3]:
        await message.double_ack()
    info = await consumer.info()
    assert (info.floor, info.ack_pending) == (3, 6)
    entry = OpenEntry(Sequences.of(range(1, 6)), 5, 50, info.now, ("d", "r", "t", -1, 1))
    assert claimed([entry], info) == 2


@pytest.mark.parametrize(("token", "trusted"), [(None, AWAITING_TASK), ("1-abc", AT_WORK)])
async def test_a_claim_that_nobody_ended_is_not_trusted_for_ever(
    stream: Stream, token: str | None, trusted: timedelta
) -> None:
    consumer = await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit"})
    await publish(stream, 5)
    await consumer.fetch(5, max_wait=10)
    info = await consumer.info()
    now = datetime.fromisoformat(info.now[:19] + "+00:00")

    def entry(age: timedelta) -> OpenEntry:
        at = (now - age).strftime("%Y-%m-%dT%H:%M:%SZ")
        return OpenEntry(Sequences.of(range(1, 6)), 5, 50, at, ("d", "r", "t", -1, 1), token)

    assert claimed([entry(trusted - timedelta(seconds=2))], info) == 5
    assert claimed([entry(trusted + timedelta(seconds=2))], info) == 0
    assert claimed([entry(-trusted - timedelta(seconds=2))], info) == 0  # the server's clock was set back since


async def test_what_a_person_has_released_waits_for_a_take(stream: Stream) -> None:
    """Although its run goes on: the messages are redelivered."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    assert (await measure(stream.js, stream.name, CONSUMER)).count == 0
    seen = await inspection.find(stream.js, claim.id)
    assert seen is not None
    await release(stream.js, seen)
    assert (await measure(stream.js, stream.name, CONSUMER)).count == 10
    await take(stream, owner=("dag", "later"))
    assert (await measure(stream.js, stream.name, CONSUMER)).count == 0


async def test_the_claims_of_a_run_that_has_ended_wait(stream: Stream) -> None:
    await publish(stream, 10)
    held, unheld = await take(stream, messages_per_claim=5)

    async def orphaned(*, over: bool) -> Backlog:
        return await measure(stream.js, stream.name, CONSUMER, ended=lambda owner: over and owner[0] == "dag")

    async with Hold.begin(stream.js, held, try_number=1):
        assert ((await orphaned(over=False)).count, (await orphaned(over=False)).orphans) == (0, ())
        seen = await orphaned(over=True)
        assert seen.count == 10
        (orphan,) = seen.orphans  # a take with this predecessor hands on the claim that nobody holds, and no other
        heirs = await take(stream, owner=("dag", "later"), predecessors=(orphan,))
        assert [claim.id for claim in heirs] == [unheld.id]
        assert (await orphaned(over=False)).count == 0
