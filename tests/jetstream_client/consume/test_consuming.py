"""Consuming without end from a real server: back-pressure, stopping, and every kind of interruption."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume import messages, pull_window
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.consuming import PullMessages
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import ConsumeWindow, Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ConnectionLost,
    ConsumerDeleted,
    ConsumerIsPushBased,
    ConsumingMisused,
    HeartbeatMissed,
    InvalidValue,
    JetStreamError,
    MaxBytesExceeded,
    PermissionDenied,
    PullLimitExceeded,
)
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from tests.jetstream_client.servers import Serve, frozen
from tests.jetstream_client.steps import publish
from tests.jetstream_client.until import SOON, until

QUICK = Pulling(expires=1.0, heartbeat=0.4)


@pytest.fixture
async def consumer(stream: Stream) -> Consumer:
    return await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": -1})


async def state(consumer: Consumer, field: str) -> Any:
    return (await consumer.info()).raw[field]


async def round_trips(consumer: Consumer) -> None:
    """Wait so long that the server would have done what it must not do."""
    for _ in range(5):
        await consumer.info()


@asynccontextmanager
async def asked(stream: Stream) -> AsyncIterator[list[dict[str, Any]]]:
    """The consumer's pull requests, as they arrive at the server."""
    requests: list[dict[str, Any]] = []
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.*"
    async with stream.js.connection.listen(subject, lambda reply: requests.append(json.loads(reply.data))):
        yield requests


async def test_every_message_comes_once_and_is_acknowledged(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 2_000)
    sequences = []
    async with consumer.messages() as messages:
        async for message in messages:
            sequences.append(message.metadata.sequence)
            await message.ack()
            if len(sequences) == 2_000:
                break
    assert sequences == list(range(1, 2_001))
    await until(lambda: state_is(consumer, "num_ack_pending", 0))  # arrivals are counted a moment later
    info = await consumer.info()
    assert (info.floor, info.ack_pending, info.pending, info.raw["num_redelivered"]) == (2_000, 0, 0, 0)
    await until(lambda: state_is(consumer, "num_waiting", 0))


async def state_is(consumer: Consumer, field: str, value: object) -> bool:
    return bool(await state(consumer, field) == value)


async def test_consuming_goes_on_past_the_expiry_of_its_requests(stream: Stream, consumer: Consumer) -> None:
    async with consumer.messages(Pulling(expires=0.4, heartbeat=0.2)) as messages:
        assert await messages.next(1) is None
        await publish(stream, 1)
        assert (await anext(messages)).metadata.sequence == 1
        assert await state(consumer, "num_waiting") == 1


async def test_a_slow_reader_is_not_sent_more_than_it_asked_for(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 100)
    async with consumer.messages(Pulling(max_messages=10)) as messages:
        for _ in range(4):
            await anext(messages)
            await until(lambda: state_is(consumer, "num_ack_pending", 10))
        for _ in range(3):  # down to the threshold, and then once more
            await anext(messages)
        await until(lambda: state_is(consumer, "num_ack_pending", 15))
    one = await stream.create_consumer({"durable_name": "one", "ack_policy": "explicit"})
    async with one.messages(Pulling(max_messages=1)) as messages:
        await anext(messages)
        await round_trips(one)
        assert await state(one, "num_ack_pending") == 1


async def test_bytes_bound_what_is_asked_for(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 60, size=10_000)
    async with consumer.messages(Pulling(max_bytes=55_000)) as messages:
        await anext(messages)
        await until(lambda: state_is(consumer, "num_ack_pending", 5))
        await round_trips(consumer)
        assert await state(consumer, "num_ack_pending") == 5
        sequences = [(await anext(messages)).metadata.sequence for _ in range(59)]
    assert sequences == list(range(2, 61))
    async with consumer.messages(Pulling(max_bytes=9_000, expires=2)) as messages:
        await publish(stream, 1, size=10_000)
        with pytest.raises(MaxBytesExceeded):
            await anext(messages)


async def test_a_message_larger_than_the_room_left_waits_until_there_is_all_of_it(
    stream: Stream, consumer: Consumer
) -> None:
    for size in (300, 100, 700, 700):
        await stream.js.publish(f"{stream.name}.a", b"x" * size)
    async with consumer.messages(Pulling(max_bytes=1_000, threshold=900)) as messages:
        assert [len((await anext(messages)).data) for _ in range(4)] == [300, 100, 700, 700]


async def test_what_does_not_fit_is_not_asked_for_again_before_there_is_room(
    stream: Stream, consumer: Consumer
) -> None:
    for size in (*[100] * 20, 5_000):
        await stream.js.publish(f"{stream.name}.a", b"x" * size)
    async with (
        asked(stream) as requests,
        consumer.messages(Pulling(max_bytes=6_000, threshold=5_900)) as messages,
    ):
        for _ in range(21):
            await anext(messages)
            await consumer.js.connection.round_trip()  # a refusal would have arrived by now
    assert 2 <= len(requests) <= 4


def test_as_many_requests_are_remembered_as_may_wait_on_the_server() -> None:
    """A busy server refuses hundreds of small requests at the same moment. If it were forgotten how much one of them
    asked for, that would stay outstanding, and nothing would be asked for again."""
    window = ConsumeWindow(Pulling(max_bytes=6_000, threshold=5_990), now=0.0)
    first = window.next_request(0.0)
    window.on_messages(500, 0.0, size=6_000)
    small = []
    for _ in range(500):
        window.on_read(12)
        small.append(window.next_request(0.0))

    for number, body in filter(None, (first, *small)):
        pending = {"Nats-Pending-Messages": [str(body["batch"])], "Nats-Pending-Bytes": [str(body["max_bytes"])]}
        if number > 1:
            window.on_status(number, 409, "Message Size Exceeds MaxBytes", pending, 0.0)
    again = window.next_request(0.0)

    assert again is not None
    assert again[1]["max_bytes"] == 6_000


async def test_what_is_asked_for_by_default_is_what_nats_go_asks_for(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 260)
    async with asked(stream) as requests:
        async with consumer.messages() as messages:
            for _ in range(251):
                await anext(messages)
            await until(lambda: len(requests) == 2)
        await publish(stream, 2)
        await consumer.fetch(1)
        async with consumer.messages(Pulling(max_messages=5, max_bytes=5_000, expires=90)) as messages:
            await anext(messages)
        async with stream.ordered_consumer().messages() as messages:
            await anext(messages)
    common = {"expires": 30 * 10**9, "idle_heartbeat": 15 * 10**9, "max_bytes": pull_window.MAX_BYTES}
    assert requests[:2] == [{"batch": 500, **common}, {"batch": 250, **common}]
    assert requests[2] == {"batch": 1, **common, "idle_heartbeat": 5 * 10**9}
    assert requests[4] == {"batch": 500, **common, "idle_heartbeat": 5 * 10**9}
    assert requests[3] == {"batch": 5, "max_bytes": 5_000, "expires": 90 * 10**9, "idle_heartbeat": 30 * 10**9}


@pytest.mark.parametrize("pulling", [Pulling(stop_after=30), Pulling(max_messages=10, stop_after=30)], ids=str)
async def test_it_stops_after_so_many_messages_and_asks_for_no_more(
    stream: Stream, consumer: Consumer, pulling: Pulling
) -> None:
    await publish(stream, 40)
    async with consumer.messages(pulling) as messages:
        assert [message.metadata.sequence async for message in messages] == list(range(1, 31))
    assert await state(consumer, "num_ack_pending") == 30
    received: list[int] = []

    async def note(message: Message) -> None:
        received.append(message.metadata.sequence)

    async with stream.ordered_consumer().consume(note, pulling) as consuming:
        await asyncio.wait_for(consuming.closed(), SOON)
    assert received == list(range(1, 31))


async def test_a_limit_of_the_consumer_on_bytes_takes_the_place_of_ours(stream: Stream) -> None:
    limited = await stream.create_consumer({"durable_name": "l", "ack_policy": "explicit", "max_bytes": 4_096})
    await publish(stream, 20, size=1_000)
    assert len(await limited.fetch(10, max_wait=5)) == 10
    async with limited.messages() as messages:
        assert [(await anext(messages)).metadata.sequence for _ in range(10)] == list(range(11, 21))
    with pytest.raises(PullLimitExceeded, match="MaxRequestMaxBytes"):
        await limited.fetch_bytes(5_000)


async def test_stopping_returns_what_was_not_handed_out_and_it_comes_again(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "ack_wait": 5 * 10**8})
    await publish(stream, 20)
    messages = consumer.messages()
    await anext(messages)
    await until(lambda: state_is(consumer, "num_pending", 0))
    left = await messages.stop()
    assert [message.metadata.sequence for message in left] == list(range(2, 21))
    assert [message async for message in messages] == []
    again = await consumer.fetch(20, max_wait=SOON)
    assert sorted(message.metadata.sequence for message in again) == list(range(1, 21))


async def delivered(consumer: Consumer, count: int) -> bool:
    return (await consumer.info()).delivered >= count


async def test_draining_hands_out_all_that_was_delivered(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 700)
    async with consumer.messages() as messages:
        sequences = [(await anext(messages)).metadata.sequence]
        await until(lambda: delivered(consumer, 500))  # everything that was requested
        await messages.drain()
        async for message in messages:
            sequences.append(message.metadata.sequence)
            await message.double_ack()
    info = await consumer.info()
    assert sequences == list(range(1, info.delivered + 1))
    assert 500 <= len(sequences) < 700
    assert info.ack_pending == 1  # the first one


@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_what_is_on_the_way_when_it_ends_is_not_lost(stream: Stream, consumer: Consumer, how: str) -> None:
    settings = stream.js.settings
    async with consumer.messages() as messages:
        await until(lambda: state_is(consumer, "num_waiting", 1))
        with Wire.open(settings) as wire:  # it blocks the event loop, so the connection is not read meanwhile
            publish_all(settings, [(f"{stream.name}.a", b"")] * 50)
            while wire.api(f"CONSUMER.INFO.{stream.name}.c")["delivered"]["stream_seq"] < 50:
                pass
        time.sleep(0.1)  # noqa: ASYNC251
        if how == "stop":
            left = await messages.stop()
        else:
            await messages.drain()
            left = [message async for message in messages]
    assert [message.metadata.sequence for message in left] == list(range(1, 51))


async def test_a_callback_gets_each_message_and_is_acknowledged_for(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 300)
    seen: list[int] = []

    async def note(message: Message) -> None:
        seen.append(message.metadata.sequence)
        if message.metadata.sequence == 7:
            await message.term()

    async with consumer.consume(note, ack=True):
        await until(lambda: len(seen) == 300)
    assert seen == list(range(1, 301))
    await stream.js.connection.flush()
    await until(lambda: state_is(consumer, "num_ack_pending", 0))


async def test_a_slow_callback_is_not_sent_more_than_was_asked_for(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 40)
    go_on = asyncio.Event()

    async def wait(message: Message) -> None:
        await go_on.wait()

    async with consumer.consume(wait, Pulling(max_messages=10), ack=True):
        await until(lambda: state_is(consumer, "num_ack_pending", 10))
        go_on.set()
        await until(lambda: state_is(consumer, "num_pending", 0))


async def test_a_callback_that_is_stopped_ends_what_it_is_at(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 5)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(message: Message) -> None:
        begun.set()
        await go_on.wait()
        await message.double_ack()

    async with consumer.consume(slow) as consuming:
        await begun.wait()
        stopping = asyncio.create_task(consuming.stop())
        await round_trips(consumer)
        assert not stopping.done()
        go_on.set()
        assert [message.metadata.sequence for message in await stopping] == [2, 3, 4, 5]
    assert (await consumer.info()).floor == 1


async def test_draining_calls_back_for_all_that_was_delivered(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 50)

    async def acknowledge(message: Message) -> None:
        await message.double_ack()

    async with consumer.consume(acknowledge) as consuming:
        await until(lambda: state_is(consumer, "num_pending", 0))
        await consuming.drain()
        assert (await consumer.info()).floor == 50


@pytest.mark.parametrize("kind", ["pull", "push", "ordered"])
async def test_a_callback_may_end_its_own_consuming(stream: Stream, consumer: Consumer, kind: str) -> None:
    """As in nats.go: a callback that waits for the end would wait for itself."""
    await stream.create_consumer({"durable_name": "p", "deliver_subject": f"to.{stream.name}"})
    readers: dict[str, Any] = {
        "pull": consumer,
        "push": stream.push_consumer("p"),
        "ordered": stream.ordered_consumer(),
    }
    await publish(stream, 50)
    drained: list[int] = []
    refused: list[ConsumingMisused] = []

    async def drain(message: Message) -> None:
        drained.append(message.metadata.sequence)
        if len(drained) == 3:
            await consuming.drain()

    async def wait(_: Message) -> None:
        try:
            await consuming.closed()
        except ConsumingMisused as error:
            refused.append(error)
        await consuming.stop()

    async with asyncio.timeout(SOON):
        async with readers[kind].consume(drain) as consuming:
            await consuming.closed()
        assert drained == list(range(1, len(drained) + 1))
        assert len(drained) >= 3  # and everything that had been delivered
        await stream.purge()
        await publish(stream, 5)
        async with readers[kind].consume(wait) as consuming:
            await consuming.closed()
        assert len(refused) == 1


async def test_a_consuming_that_is_under_way_is_not_begun_again(stream: Stream, consumer: Consumer) -> None:
    """Otherwise the first one would continue without end."""
    seen: list[int] = []

    async def note(message: Message) -> None:
        seen.append(message.metadata.sequence)

    def read(count: int) -> bool:
        return len(seen) == count

    consuming = consumer.consume(note, ack=True)
    for number in (1, 2):  # again after it has ended
        async with consuming:
            with pytest.raises(ConsumingMisused, match="already consuming"):
                await consuming.__aenter__()
            await publish(stream, 1)
            await until(partial(read, number))
    await until(lambda: state_is(consumer, "num_waiting", 0))
    for _ in range(2):
        assert await consuming.stop() == []
        await consuming.drain()
        await consuming.closed()
    assert seen == [1, 2]


async def test_an_exception_of_a_callback_is_not_swallowed(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 3)

    async def fail(message: Message) -> None:
        raise ValueError(message.metadata.sequence)

    async with consumer.consume(fail) as consuming:
        with pytest.raises(ValueError, match="1"):
            await consuming.closed()
        consuming._task = None  # seen
    told: list[Exception] = []
    again = await stream.create_consumer({"durable_name": "again", "ack_policy": "explicit"})
    async with again.consume(fail, on_error=told.append):
        await until(lambda: len(told) == 3)
    assert await state(again, "num_ack_pending") == 3


async def test_who_is_cancelled_while_the_last_callback_runs_ends_it(
    stream: Stream, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 1)
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: Message) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise ValueError("too late for anybody")

    async def consume() -> None:
        async with consumer.consume(endless):
            await began.wait()

    consuming = asyncio.create_task(consume())
    await began.wait()
    await until(lambda: state_is(consumer, "num_waiting", 0))  # it waits for the callback
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    assert ended.is_set()
    del consuming
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_consumer_deleted_while_consuming(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 1)
    async with consumer.messages(QUICK) as messages:
        await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        await until(lambda: state_is(consumer, "num_waiting", 1))
        await consumer.delete()
        with pytest.raises(ConsumerDeleted):
            await asyncio.wait_for(waiting, SOON)
        assert [message async for message in messages] == []
    with pytest.raises(ConsumerDeleted):
        await anext(consumer.messages(QUICK))


async def test_a_stream_deleted_while_consuming(stream: Stream, consumer: Consumer) -> None:
    told: list[Exception] = []

    async def note(message: Message) -> None:
        raise AssertionError(message)

    consuming = consumer.consume(note, QUICK, on_error=told.append)
    await consuming.__aenter__()
    await until(lambda: state_is(consumer, "num_waiting", 1))
    await stream.delete()
    with pytest.raises(ConsumerDeleted):
        await asyncio.wait_for(consuming.closed(), SOON)
    with pytest.raises(ConsumerDeleted):
        await consuming.__aexit__(None)
    assert [type(error) for error in told] == [ConsumerDeleted]


async def test_what_the_server_refuses_ends_it(stream: Stream) -> None:
    limited = await stream.create_consumer({"durable_name": "l", "ack_policy": "explicit", "max_batch": 100})
    with pytest.raises(PullLimitExceeded, match="MaxRequestBatch of 100"):
        await anext(limited.messages())
    push = await stream.create_consumer({"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "to.me"})
    with pytest.raises(ConsumerIsPushBased):
        await anext(push.messages())


async def test_a_pull_that_is_not_permitted_says_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CHECK_EVERY", 0.1)
    deny = '{ user: u, password: p, permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } } }'
    server = serve(f"authorization {{ users: [{deny}] }}")
    settings = ConnectionSettings(servers=server.url, user="u", password="p")
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["s"]})
        consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
        with pytest.raises(PermissionDenied, match=r"CONSUMER\.MSG\.NEXT"):
            await asyncio.wait_for(anext(consumer.messages()), SOON)


async def test_a_server_restarted_in_the_middle_loses_nothing(
    mortal: NatsServer, on_mortal: JetStream, name: str
) -> None:
    js, told = on_mortal, list[JetStreamError]()
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**9})
    sequences: set[int] = set()

    async def read(messages: PullMessages) -> None:
        message = await asyncio.wait_for(anext(messages), SOON)
        sequences.add(message.metadata.sequence)
        with suppress(ConnectionLost):
            await message.ack()

    async with consumer.messages(Pulling(max_messages=100), on_error=told.append) as messages:
        # All requests wait on the server and are lost with it. They are sent again at once, not after the
        # two heartbeats (30 s) without a message.
        assert await messages.next(0.1) is None
        await asyncio.to_thread(mortal.restart)
        await until(lambda: js.connection.is_connected)
        await publish(stream, 600)
        while len(sequences) < 300:
            await read(messages)
        await asyncio.to_thread(mortal.restart)
        while len(sequences) < 600:
            await read(messages)
    assert not any(isinstance(error, HeartbeatMissed) for error in told)
    await until(lambda: settled(consumer, 600))
    await stream.delete()


async def settled(consumer: Consumer, floor: int) -> bool:
    """Messages that were acknowledged to a killed server may be redelivered."""
    for message in await consumer.fetch_no_wait(100):
        await message.ack()
    return (await consumer.info()).floor == floor


async def test_a_silent_server_is_noticed_and_heard_again(mortal: NatsServer, on_mortal: JetStream, name: str) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [name]})
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    quick = Pulling(expires=60, heartbeat=0.3)
    told: list[Exception] = []
    received: list[int] = []

    async def note(message: Message) -> None:
        received.append(message.metadata.sequence)

    async with consumer.messages(quick) as messages, consumer.consume(note, quick, on_error=told.append):
        with frozen(mortal):
            with pytest.raises(HeartbeatMissed):
                await asyncio.wait_for(anext(messages), SOON)
            await until(lambda: bool(told))
        assert isinstance(told[0], HeartbeatMissed)
        async with asyncio.timeout(SOON):
            while not received:
                await on_mortal.publish(name)
                with suppress(HeartbeatMissed):
                    await messages.next(0.1)
            while True:
                await on_mortal.publish(name)
                with suppress(HeartbeatMissed):
                    if await messages.next(0.1):
                        break


@pytest.mark.parametrize("how", ["pull", "push", "ordered", "callback", "block"])
async def test_stopping_does_not_wait_for_a_frozen_server(
    mortal: NatsServer, on_mortal: JetStream, name: str, how: str
) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [name]})
    if how == "push":
        await stream.create_consumer({"durable_name": "c", "deliver_subject": f"to.{name}"})
    elif how != "ordered":
        await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    received: list[Message] = []

    async def note(message: Message) -> None:
        received.append(message)

    consumers = {"push": stream.push_consumer("c"), "ordered": stream.ordered_consumer()}
    consumer: Any = consumers.get(how, stream.consumer("c"))
    reading = consumer.consume(note) if how == "callback" else consumer.messages()
    async with reading:
        for _ in range(2):
            await on_mortal.publish(name)
        if how == "callback":
            await until(lambda: len(received) == 2)
        else:
            await anext(reading)
            await until(lambda: bool((reading._present if how == "ordered" else reading)._arrived))
        with frozen(mortal):
            start = time.monotonic()
            if how == "block":
                await reading.__aexit__(None, None, None)
            else:
                left = await reading.stop()
                assert len(left) == (how != "callback")
            assert time.monotonic() - start < on_mortal.settings.request_timeout / 2


async def test_a_busy_event_loop_is_not_a_silent_server(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 2)
    async with consumer.messages(Pulling(max_messages=1, expires=2, heartbeat=0.2)) as messages:
        await anext(messages)
        assert (await anext(messages)).metadata.sequence == 2
        assert await messages.next(0.1) is None
        time.sleep(0.6)  # noqa: ASYNC251 # that is the point
        assert await messages.next(0.3) is None


def test_what_cannot_be_asked_for_is_refused_before_it_is_sent() -> None:
    for wrong in (
        {"max_messages": 0},
        {"max_bytes": 0},
        {"stop_after": 0},
        {"threshold": 500},
        {"expires": 0},
        {"expires": 1, "heartbeat": 0.6},
    ):
        with pytest.raises(InvalidValue):
            Pulling(**wrong)
