"""For how long the oldest message has waited that could be claimed, on a real server."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from jetstream_client.errors import StreamNotFound
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.watch import backlog, oldest
from jetstream_handoff.watch.oldest import Oldest
from tests.jetstream_handoff.steps import CONSUMER, publish, take

LONG = {"ack_wait": timedelta(seconds=60)}


async def found(stream: Stream, before: Oldest | None = None) -> Oldest | None:
    look = await backlog.look(stream.js, stream.name, CONSUMER)
    ready = look.backlog(backlog.unknown)
    return await oldest.find(stream.js, stream.name, look=look, ready=ready, ended=backlog.unknown, before=before)


async def stored(stream: Stream, sequence: int) -> int:
    return time_nanoseconds((await stream.get_message(sequence)).time)


async def test_without_a_consumer_the_first_message_of_the_stream(stream: Stream) -> None:
    assert await found(stream) is None
    await publish(stream, 3)
    assert await found(stream) == Oldest("", 1, 3, await stored(stream, 1))
    await stream.purge(keep=1)
    assert await found(stream) == Oldest("", 1, 1, await stored(stream, 3))


async def test_what_was_claimed_does_not_wait_and_what_failed_has_waited(stream: Stream) -> None:
    await publish(stream, 15)
    done, failed, works = await take(stream, messages_per_claim=5, consumer_config=LONG)
    assert await found(stream) is None
    await publish(stream, 2)
    new = await found(stream)
    assert new
    assert (new.first, new.count, new.stored) == (16, 2, await stored(stream, 16))
    async with (
        Hold.begin(stream.js, done, try_number=1) as first,
        Hold.begin(stream.js, failed, try_number=1) as second,
        Hold.begin(stream.js, works, try_number=1),
    ):
        await first.settle()
        await second.fail("it is an exercise")
        again = await found(stream, new)
    assert again
    assert (again.first, again.count, again.stored) == (6, 7, await stored(stream, 6))


@pytest.mark.parametrize("several", [False, True])
async def test_only_messages_that_the_consumer_selects(stream: Stream, several: bool) -> None:
    subject = f"{stream.name}.2"
    filters = {"filter_subjects": [f"{stream.name}.1", subject]} if several else {"filter_subject": subject}
    await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit", **filters})
    await publish(stream, 6)
    at = await found(stream)
    assert at
    assert at.stored == await stored(stream, 2 if several else 3)


async def test_a_clock_that_is_set_back_does_not_prolong_the_wait(stream: Stream) -> None:
    await publish(stream, 1)
    at = await found(stream)
    assert at
    look = await backlog.look(stream.js, stream.name, CONSUMER)
    early = replace(look, now=look.now - 3600 * 10**9)  # as if the clock were an hour behind now
    ready = early.backlog(backlog.unknown)
    for before in (None, at):
        behind = await oldest.find(
            stream.js, stream.name, look=early, ready=ready, ended=backlog.unknown, before=before
        )
        assert behind
        assert behind.waited(early.now + 10**9) == 1.0


async def test_it_can_be_kept_until_the_next_look(stream: Stream) -> None:
    await publish(stream, 2)
    at = await found(stream)
    assert at
    assert Oldest.from_json(at.to_json()) == at
    await asyncio.sleep(0.01)
    kept = replace(at, stored=at.stored - 5 * 10**9)
    await publish(stream, 1)
    assert await found(stream, kept) == replace(kept, count=3)  # the same message, which was not read again
    await stream.purge(keep=1)
    assert await found(stream, kept) == Oldest("", 1, 1, await stored(stream, 3))
    with pytest.raises((TypeError, ValueError)):
        Oldest.from_json(["", 1])


async def test_an_error_is_no_wait(stream: Stream) -> None:
    await publish(stream, 1)
    look = await backlog.look(stream.js, stream.name, CONSUMER)
    ready = look.backlog(backlog.unknown)
    with pytest.raises(StreamNotFound):
        await oldest.find(stream.js, "NOT_THERE", look=look, ready=ready, ended=backlog.unknown, before=None)
