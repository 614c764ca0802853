"""Priority groups on a real server (ADR-42): which client is served."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.message import Message
from jetstream_client.consume.priority import Priority
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, BadPullRequest, ConsumerDeleted, InvalidValue, JetStreamError, PinLost
from jetstream_client.stream import Stream
from tests.jetstream_client.until import SOON, until


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[Stream]:
    name = f"S{secrets.token_hex(4)}"
    stream = await js.create_stream({"name": name, "subjects": [name]})
    for _ in range(20):
        await js.publish(name)
    yield stream
    await stream.delete()


async def create(stream: Stream, policy: str, **more: object) -> Consumer:
    config = {"durable_name": "c", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": policy}
    return await stream.create_consumer({**config, **more})


async def test_overflow_is_served_only_past_its_bounds(stream: Stream) -> None:
    consumer = await create(stream, "overflow")
    assert await consumer.fetch(1, max_wait=0.2, priority=Priority("g", min_pending=1_000)) == []
    assert len(await consumer.fetch(5, max_wait=5, priority=Priority("g", min_pending=10))) == 5
    assert await consumer.fetch(1, max_wait=0.2, priority=Priority("g", min_ack_pending=6)) == []
    assert len(await consumer.fetch(1, max_wait=5, priority=Priority("g", min_ack_pending=5))) == 1
    async with consumer.messages(Pulling(max_messages=1, priority=Priority("g", min_pending=13))) as messages:
        assert await messages.next(SOON)
        assert await messages.next(SOON)
        assert await messages.next(0.2) is None  # 12 are pending
        assert (await consumer.info()).pending == 12


@pytest.mark.server("2.12")
async def test_a_lower_level_is_served_first(stream: Stream) -> None:
    consumer = await create(stream, "prioritized")
    late = asyncio.create_task(consumer.fetch(20, max_wait=1, priority=Priority("g", level=5)))
    assert len(await late) == 20
    waiting = [
        asyncio.create_task(consumer.fetch(2, max_wait=SOON, priority=Priority("g", level=level)))
        for level in (9, 1, 5)
    ]
    await until(lambda: waits(consumer, 3))
    for _ in range(4):
        await stream.js.publish(stream.name)
    assert [message.metadata.sequence for message in await waiting[1] + await waiting[2]] == [21, 22, 23, 24]
    assert not waiting[0].done()
    waiting[0].cancel()


async def waits(consumer: Consumer, count: int) -> bool:
    return bool((await consumer.info()).raw["num_waiting"] == count)


async def test_one_client_is_pinned_until_it_is_not(stream: Stream, settings: ConnectionSettings) -> None:
    consumer = await create(stream, "pinned_client", priority_timeout=60 * 10**9)
    priority = Priority("g")
    told: list[JetStreamError] = []
    async with connect(settings) as other_js:
        other = other_js.stream(stream.name).consumer("c")
        quick = Pulling(max_messages=1, expires=1, heartbeat=0.4, priority=priority)
        async with consumer.messages(quick, on_error=told.append) as messages:
            message = await anext(messages)
            pin = message.headers["Nats-Pin-Id"][0]
            assert await pinned(consumer) == pin
            assert [(await anext(messages)).metadata.sequence for _ in range(4)] == [2, 3, 4, 5]
            assert await other.fetch(1, max_wait=0.2, priority=priority) == []  # waits
            standby = asyncio.create_task(other.fetch(1, max_wait=SOON, priority=priority))
            await until(lambda: waits(consumer, 1))
            await other.unpin("g")
            await standby
            new_pin = await pinned(consumer)
            assert new_pin not in (pin, "")
            async with asyncio.timeout(SOON):
                while not told:
                    await messages.next(0.2)
            assert isinstance(told[0], PinLost)
            assert await messages.next(0.3) is None  # waits now
            await other.unpin("g")
            assert await messages.next(SOON)
            assert await pinned(consumer) not in (pin, new_pin)
        with pytest.raises(PinLost):
            await other.fetch(1, max_wait=2, priority=priority)
        assert await other.fetch(1, max_wait=0.2, priority=priority) == []  # without its old pin


async def pinned(consumer: Consumer) -> str:
    (group,) = (await consumer.info()).raw["priority_groups"]
    return str(group.get("pinned_client_id", ""))


async def test_every_way_to_ask_names_the_group(stream: Stream) -> None:
    """The server refuses pulls without a group."""
    consumer = await create(stream, "overflow")
    group = Priority("g")
    assert len(await consumer.fetch_bytes(10_000, max_wait=0.5, priority=group)) == 20
    for _ in range(2):
        await stream.js.publish(stream.name)
    [message] = await consumer.fetch_no_wait(1, priority=group)
    assert message.metadata.sequence == 21
    assert (await consumer.next(max_wait=SOON, priority=group)).metadata.sequence == 22
    async with consumer.pull(1, priority=group) as pull:
        await stream.js.publish(stream.name)
        while not (messages := await pull.receive()):
            pass
    assert [message.metadata.sequence for message in messages] == [23]


async def test_a_priority_for_a_consumer_without_groups_is_refused(stream: Stream) -> None:
    """The server would ignore it, and serve every client."""
    consumer = await stream.create_consumer({"durable_name": "plain", "ack_policy": "explicit"})
    group = Priority("g")
    refused = pytest.raises(InvalidValue, match=r"priority=.*consumer 'plain' of .* has no priority_groups")
    for handle in (consumer, stream.consumer("plain")):
        with refused:
            await handle.fetch(1, priority=group)
        with refused:
            await handle.fetch_bytes(1, priority=group)
        with refused:
            await handle.fetch_no_wait(1, priority=group)
        with refused:
            await handle.next(priority=group)
        with refused:
            await anext(handle.messages(Pulling(priority=group)))
        with refused:
            async with handle.consume(note, Pulling(priority=group)):
                pass
    assert (await consumer.info()).counter == 0
    # The handle's state may be outdated, so the server is asked before a refusal.
    await stream.consumer("plain").update({"priority_groups": ["g"], "priority_policy": "overflow"})
    assert len(await consumer.fetch(1, max_wait=SOON, priority=group)) == 1
    with pytest.raises(ConsumerDeleted):
        await stream.consumer("none").fetch(1, priority=group)


async def note(message: Message) -> None:
    raise AssertionError(message)


async def test_what_the_group_does_not_allow(stream: Stream) -> None:
    consumer = await create(stream, "overflow")
    with pytest.raises(BadPullRequest, match="Priority Group missing"):
        await consumer.fetch(1, max_wait=2)
    with pytest.raises(BadPullRequest, match="Invalid Priority Group"):
        await anext(consumer.messages(Pulling(priority=Priority("none"))))
    with pytest.raises(ApiError):
        await consumer.unpin("none")
    for wrong in ({"group": ""}, {"group": "g", "min_pending": -1}, {"group": "g", "level": 10}):
        with pytest.raises(InvalidValue):
            Priority(**wrong)
