"""Push consumers on a real server: standard, queue group, flow control and heartbeats."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest

from demo.nats_server import NatsServer
from jetstream_client.consume.message import Message
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ConsumerIsBound,
    ConsumerIsPullBased,
    ConsumerNotFound,
    DeliveriesMissed,
    HeartbeatMissed,
    JetStreamError,
    ProtocolError,
    SlowConsumer,
)
from jetstream_client.more import push
from jetstream_client.more.push import PushConsumer
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import Reply, encode_publish
from tests.jetstream_client.servers import frozen
from tests.jetstream_client.steps import publish
from tests.jetstream_client.until import SOON, until


async def create(stream: Stream, **config: object) -> PushConsumer:
    wanted = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": f"to.{stream.name}", **config}
    await stream.create_consumer(wanted)
    return stream.push_consumer("p")


async def test_messages_come_and_are_acknowledged(stream: Stream) -> None:
    consumer = await create(stream)
    await publish(stream, 10)
    async with consumer.messages() as messages:
        await until(lambda: bound(consumer))
        for number in range(1, 11):
            message = await anext(messages)
            assert message.metadata.sequence == number
            await message.double_ack()
    assert (await consumer.info()).floor == 10
    await until(lambda: unbound(consumer))


async def bound(consumer: PushConsumer) -> bool:
    return bool((await consumer.info()).raw.get("push_bound"))


async def unbound(consumer: PushConsumer) -> bool:
    return not await bound(consumer)


async def test_a_queue_group_shares_the_messages(stream: Stream) -> None:
    consumer = await create(stream, deliver_group="workers")
    shares: list[list[int]] = [[], []]

    async def work(message: Message, share: list[int]) -> None:
        share.append(message.metadata.sequence)

    async with (
        consumer.consume(partial(work, share=shares[0]), ack=True),
        consumer.consume(partial(work, share=shares[1]), ack=True),
    ):
        await publish(stream, 200)
        await until(lambda: acknowledged(consumer, 200))
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == list(range(1, 201))


async def acknowledged(consumer: PushConsumer, floor: int) -> bool:
    return (await consumer.info()).floor == floor


async def test_nobody_else_makes_the_client_publish(stream: Stream) -> None:
    """Without a check, messages that imitate flow control would be answered on any reply subject."""
    consumer = await create(stream)
    forged = b"NATS/1.0 100 FlowControl Request"  # the server removes a status from a line that ends
    with Wire.open(stream.js.settings) as wire:
        async with consumer.messages() as messages:
            wire.send(encode_publish(f"to.{stream.name}", f"{stream.name}.forged", b"", forged))
            wire.request(f"{stream.name}.true")
            with suppress(ProtocolError):
                await messages.next(SOON)
            assert (await messages.next(SOON)) is not None
            await stream.js.connection.flush()
    assert (await stream.info()).state["messages"] == 1


async def test_flow_control_is_answered_in_its_turn(stream: Stream) -> None:
    """The server stops until the reader has caught up. Without the answers it would stop for good."""
    consumer = await create(stream, flow_control=True, idle_heartbeat=2 * 10**8, max_ack_pending=-1)
    await publish(stream, 1_000, size=20_000)
    async with consumer.messages() as messages:
        await anext(messages)
        await until(lambda: stalls(consumer))
        assert (await consumer.info()).pending > 300  # a reader that does not read does not get everything
        read = [(await asyncio.wait_for(anext(messages), SOON)).metadata.sequence for _ in range(999)]
    assert read == list(range(2, 1_001))


async def stalls(consumer: PushConsumer) -> bool:
    before = (await consumer.info()).pending
    await asyncio.sleep(0.2)
    return (await consumer.info()).pending == before


async def test_a_silent_server_is_noticed(mortal: NatsServer, on_mortal: JetStream, name: str) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [f"{name}.>"]})
    consumer = await create(stream, idle_heartbeat=2 * 10**8)
    async with consumer.messages() as messages:
        assert await messages.next(0.5) is None
        with frozen(mortal), pytest.raises(HeartbeatMissed):
            await asyncio.wait_for(anext(messages), SOON)
        await on_mortal.publish(f"{name}.a")
        async with asyncio.timeout(SOON):
            while True:
                with suppress(HeartbeatMissed):
                    assert (await anext(messages)).metadata.sequence == 1
                    break
    await stream.delete()


async def test_deliveries_that_did_not_arrive_are_noticed_by_the_heartbeat(stream: Stream) -> None:
    consumer = await create(stream, idle_heartbeat=10**8, ack_wait=5 * 10**8)
    told: list[JetStreamError] = []
    async with consumer.messages(on_error=told.append) as messages:
        await stream.js.publish(f"{stream.name}.a")
        await anext(messages)
        # Another listener on the subject acknowledges nothing, while this subscription is cut.
        sid, session = messages._inbox._sid, stream.js.connection._session  # type: ignore[union-attr]
        session.write(b"UNSUB %d\r\n" % sid)
        elsewhere: list[Reply] = []
        async with stream.js.connection.listen(f"to.{stream.name}", elsewhere.append):
            await stream.js.publish(f"{stream.name}.b")
            await until(lambda: any(not reply.status for reply in elsewhere))
        session.write(session.subscriptions[sid].command(sid))
        async with asyncio.timeout(SOON):
            again = [(await anext(messages)).metadata.sequence for _ in range(2)]  # unacknowledged: redelivered
        assert sorted(again) == [1, 2]
    assert next((error.arrived, error.last) for error in told if isinstance(error, DeliveriesMissed)) == (1, 2)


async def test_what_does_not_fit_is_dropped_and_said(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "MOST_UNREAD", 30)
    consumer = await create(stream, ack_wait=5 * 10**8)
    await publish(stream, 50)
    async with consumer.messages() as messages:
        read = {(await anext(messages)).metadata.sequence}
        await until(lambda: delivered(consumer, 50))
        with pytest.raises(SlowConsumer) as slow:
            await read_all(messages, read)
        assert len(read) < 50 <= len(read) + slow.value.dropped
        async with asyncio.timeout(60):
            while len(read) < 50:  # messages that need an acknowledgement are redelivered
                try:
                    message = await anext(messages)
                except SlowConsumer:
                    continue
                await message.ack()
                read.add(message.metadata.sequence)


async def delivered(consumer: PushConsumer, count: int) -> bool:
    return (await consumer.info()).delivered == count


async def read_all(messages: AsyncIterator[Message], read: set[int]) -> None:
    async for message in messages:
        read.add(message.metadata.sequence)
        await message.ack()


async def test_what_is_no_push_consumer_is_said_before_anything_is_read(stream: Stream) -> None:
    with pytest.raises(ConsumerNotFound):
        await anext(stream.push_consumer("none").messages())
    await stream.create_consumer({"durable_name": "pull", "ack_policy": "explicit"})
    with pytest.raises(ConsumerIsPullBased):
        await anext(stream.push_consumer("pull").messages())
    consumer = await create(stream)
    async with consumer.messages():
        await until(lambda: bound(consumer))  # nats-server reports it a moment after the subscription
        with pytest.raises(ConsumerIsBound):
            await anext(consumer.messages())
