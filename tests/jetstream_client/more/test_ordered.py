"""An ordered consumer delivers every message once and in order, whatever happens to its consumers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from demo.nats_server import NatsServer
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ConsumerDeleted,
    DeliveriesMissed,
    InvalidValue,
    JetStreamError,
    NoMessages,
    OrderedConsumerFailed,
    OrderedConsumerMisused,
    StreamNotFound,
    StreamRecreated,
)
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from tests.jetstream_client.until import SOON, until

SMALL = Pulling(max_messages=20, expires=2, heartbeat=0.3)


async def publish(stream: Stream, count: int) -> None:
    messages = ((f"{stream.name}.{number % 3}", b"%d" % number) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def names(stream: Stream) -> list[str]:
    found = (await stream.js.api(f"CONSUMER.NAMES.{stream.name}"))["consumers"]
    return list(found or ())


async def none_left(stream: Stream) -> bool:
    return not await names(stream)


def sequences(messages: list[Message]) -> list[int]:
    return [message.metadata.sequence for message in messages]


@pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])
async def test_a_deleted_consumer_is_replaced_behind_the_last_message(stream: Stream, push: bool) -> None:
    await publish(stream, 200)
    told: list[JetStreamError] = []
    ordered = stream.ordered_consumer(push=push)
    received = []
    async with ordered.messages(SMALL, on_error=told.append) as messages, asyncio.timeout(SOON):
        async for message in messages:
            received.append(message.metadata.sequence)
            if len(received) in (50, 120, 200):
                for name in await names(stream):  # pushed messages may arrive before it is recreated
                    await stream.consumer(name).delete()
            if len(received) == 200:
                await publish(stream, 50)
            if len(received) == 250:
                break
        (name,) = await names(stream)
        info = (await stream.consumer(name).info()).config
        assert (info["ack_policy"], info["mem_storage"], info["num_replicas"]) == ("none", True, 1)
        assert bool(info.get("flow_control")) == push
    assert received == list(range(1, 251))
    assert told
    await stream.js.connection.flush()
    await until(lambda: none_left(stream))


@pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])
async def test_a_gap_in_the_deliveries_is_filled(stream: Stream, push: bool) -> None:
    await publish(stream, 60)
    told: list[JetStreamError] = []
    ordered = stream.ordered_consumer(push=push)
    async with ordered.messages(SMALL, on_error=told.append) as messages, asyncio.timeout(SOON):
        received = [(await anext(messages)).metadata.sequence for _ in range(10)]
        await asyncio.sleep(0.2)
        present = messages._present
        assert present is not None
        del present._arrived[3]  # as if the network had lost it
        received += [(await anext(messages)).metadata.sequence for _ in range(50)]
    assert received == list(range(1, 61))
    assert isinstance(told[0], DeliveriesMissed)


async def test_fetching_goes_on_where_it_was(stream: Stream) -> None:
    await publish(stream, 100)
    ordered = stream.ordered_consumer({"filter_subjects": [f"{stream.name}.1", f"{stream.name}.2"]})
    with pytest.raises(OrderedConsumerMisused, match="no info"):
        await ordered.info()
    received = sequences(await ordered.fetch(10))
    assert (await ordered.info()).config["deliver_policy"] == "all"
    await stream.consumer((await names(stream))[0]).delete()
    received += sequences(await ordered.fetch(20))
    received += sequences(await ordered.fetch_no_wait(1))
    received.append((await ordered.next()).metadata.sequence)
    received += sequences(await ordered.fetch_bytes(400, max_wait=5))
    received += sequences(await ordered.fetch_no_wait(1_000))
    assert received == [number for number in range(1, 101) if number % 3 != 1]
    assert await ordered.fetch(5, max_wait=0.2) == []
    with pytest.raises(NoMessages):
        await ordered.next(max_wait=0.2)


async def test_a_slow_reader_is_not_sent_more_than_it_asked_for(stream: Stream) -> None:
    await publish(stream, 100)

    async def delivered(count: int) -> bool:
        (name,) = await names(stream)
        return (await stream.consumer(name).info()).delivered == count

    read = []

    async def note(message: Message) -> None:
        read.append(message)
        if len(read) == 1:
            await until(lambda: delivered(10))

    ten = Pulling(max_messages=10)
    async with stream.ordered_consumer().messages(ten) as messages:
        await anext(messages)
        await until(lambda: delivered(10))
    async with stream.ordered_consumer().consume(note, ten):
        await until(lambda: len(read) == 100)


async def test_new_means_new_when_it_was_made(stream: Stream) -> None:
    await publish(stream, 10)
    ordered = stream.ordered_consumer({"deliver_policy": "new"})
    assert await ordered.fetch_no_wait(10) == []
    (name,) = await names(stream)
    await stream.consumer(name).delete()
    await publish(stream, 3)  # while it does not exist
    assert sequences(await ordered.fetch(3, max_wait=SOON)) == [11, 12, 13]


async def test_it_is_used_once_at_a_time_and_in_one_way(stream: Stream) -> None:
    await publish(stream, 10)
    ordered = stream.ordered_consumer()
    async with ordered.messages(SMALL) as messages:
        await anext(messages)
        with pytest.raises(OrderedConsumerMisused, match="already being read"):
            await anext(ordered.messages())
        with pytest.raises(OrderedConsumerMisused, match="already being read"):
            await ordered.fetch(1)
    with pytest.raises(OrderedConsumerMisused, match="used to consume"):
        await ordered.fetch(1)
    async with ordered.messages(SMALL) as messages:
        assert (await anext(messages)).metadata.sequence == 2  # it continues
    fetched = stream.ordered_consumer()
    await fetched.fetch(1)
    with pytest.raises(OrderedConsumerMisused, match="used to fetch"):
        await anext(fetched.messages())
    with pytest.raises(InvalidValue, match="durable_name"):
        stream.ordered_consumer({"durable_name": "x"})
    with pytest.raises(OrderedConsumerMisused):
        await stream.ordered_consumer(push=True).fetch(1)


@pytest.mark.parametrize("filters", [{}, {"filter_subjects": []}], ids=str)
async def test_the_last_of_each_subject_needs_no_filter(stream: Stream, filters: dict[str, object]) -> None:
    """The server refuses this policy without a filter, so that nats.go sets one for all subjects."""
    await publish(stream, 9)
    config = {"deliver_policy": "last_per_subject", **filters}
    assert sequences(await stream.ordered_consumer(config).fetch(3)) == [7, 8, 9]
    for push in (False, True):
        async with stream.ordered_consumer(config, push=push).messages(SMALL) as messages:
            assert [(await anext(messages)).metadata.sequence for _ in range(3)] == [7, 8, 9]
    filtered = config | {"filter_subject": f"{stream.name}.1"}
    filtered.pop("filter_subjects", None)
    assert sequences(await stream.ordered_consumer(filtered).fetch_no_wait(3)) == [8]


async def test_its_consumers_are_named_and_numbered(stream: Stream) -> None:
    for push in (False, True):
        await publish(stream, 6)
        ordered = stream.ordered_consumer(push=push, name_prefix=f"audit-{push}")
        async with ordered.messages(SMALL) as messages, asyncio.timeout(SOON):
            for number in (1, 2, 3):
                while (await anext(messages)).metadata.consumer != f"audit-{push}_{number}":
                    pass
                assert await names(stream) == [f"audit-{push}_{number}"]
                await stream.consumer(f"audit-{push}_{number}").delete()
                await publish(stream, 1)
        await until(lambda: none_left(stream))
    for wrong in ("a.b", "", "a b", 1):
        with pytest.raises(InvalidValue, match="name_prefix"):
            stream.ordered_consumer(name_prefix=wrong)  # type: ignore[arg-type]


async def test_a_name_prefix_that_was_used_before_skips_nothing(stream: Stream) -> None:
    """The consumer of a killed reader exists for five minutes, and has delivered messages that this one wants."""
    await publish(stream, 10)
    assert sequences(await stream.ordered_consumer(name_prefix="audit").fetch(4)) == [1, 2, 3, 4]
    assert await names(stream) == ["audit_1"]
    again = stream.ordered_consumer(name_prefix="audit")
    assert sequences(await again.fetch(10)) == list(range(1, 11))
    other = stream.ordered_consumer({"filter_subject": f"{stream.name}.1"}, name_prefix="audit")
    assert sequences(await other.fetch(3)) == [2, 5, 8]
    assert await names(stream) == ["audit_1", "audit_2", "audit_3"]
    # Two readers that begin at the same time do not share a consumer either.
    first, second = (stream.ordered_consumer(name_prefix="both") for _ in range(2))
    for ordered in (first, second):
        await ordered._create()
    for _ in range(5):
        for ordered in (first, second):
            await ordered.fetch(1)
    assert sequences(await first.fetch(5)) == sequences(await second.fetch(5)) == [6, 7, 8, 9, 10]


async def test_a_stream_that_is_gone_or_another_ends_it(stream: Stream) -> None:
    js = stream.js
    with pytest.raises(StreamNotFound):
        await anext(js.stream("NONE").ordered_consumer().messages())
    await publish(stream, 2)
    async with stream.ordered_consumer().messages(SMALL) as messages:
        await anext(messages)
        await stream.delete()
        await js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"]})
        with pytest.raises(StreamRecreated):
            await asyncio.wait_for(read_on(messages), SOON)
    async with stream.ordered_consumer().messages(SMALL) as messages:
        assert await messages.next(0.3) is None
        await stream.delete()
        with pytest.raises(StreamNotFound):
            await asyncio.wait_for(read_on(messages), SOON)


async def read_on(messages: AsyncIterator[Message]) -> None:
    async for _ in messages:
        pass


async def test_resets_in_a_row_are_bounded(stream: Stream) -> None:
    await publish(stream, 1)
    async with stream.ordered_consumer(max_resets=2).messages(SMALL) as messages:
        await anext(messages)
        reading = asyncio.create_task(read_on(messages))
        async with asyncio.timeout(SOON):
            while not reading.done():
                for name in await names(stream):
                    await stream.consumer(name).delete()
                await asyncio.sleep(0.05)
        with pytest.raises(OrderedConsumerFailed, match="2 times") as failed:
            await reading
        assert isinstance(failed.value.__cause__, ConsumerDeleted)


async def test_a_callback_gets_them_in_order(stream: Stream) -> None:
    await publish(stream, 30)
    received: list[int] = []

    async def note(message: Message) -> None:
        received.append(message.metadata.sequence)

    async with stream.ordered_consumer().consume(note, SMALL):
        await until(lambda: len(received) == 30)
    assert received == list(range(1, 31))


async def test_a_restarted_server_loses_nothing_and_repeats_nothing(
    mortal: NatsServer, on_mortal: JetStream, name: str
) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [f"{name}.>"]})
    await publish(stream, 100)
    received: dict[str, list[int]] = {"pulled": [], "pushed": []}

    def note(how: str) -> Callable[[Message], Awaitable[None]]:
        async def append(message: Message) -> None:
            received[how].append(message.metadata.sequence)
            await asyncio.sleep(0.005)  # slow, so that messages remain when the server is killed

        return append

    async with (
        stream.ordered_consumer().consume(note("pulled"), SMALL),
        stream.ordered_consumer(push=True).consume(note("pushed"), SMALL),
    ):
        await until(lambda: min(map(len, received.values())) >= 20)
        await asyncio.to_thread(mortal.restart)
        await until(lambda: on_mortal.connection.is_connected)
        await publish(stream, 50)
        await until(lambda: min(map(len, received.values())) >= 150, 60)
    assert received == {"pulled": list(range(1, 151)), "pushed": list(range(1, 151))}
    await stream.delete()
