"""Pulling from a real server: each way in which a pull ends has a different result."""

import asyncio
import dataclasses
import pickle
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume import pull_window
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.fetch import Pull
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import PullWindow
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ApiError,
    ApiLevelTooLow,
    BadPullRequest,
    ConnectionEnded,
    ConsumerDeleted,
    ConsumerIsPushBased,
    ConsumerNameInUse,
    ConsumerNotFound,
    HeartbeatMissed,
    InvalidValue,
    JetStreamError,
    LeadershipChanged,
    MaxBytesExceeded,
    MessageAlreadyAnswered,
    NoMessages,
    NoResponders,
    PinLost,
    PullError,
    PullLimitExceeded,
    ServerTooOld,
    TooManyPulls,
)
from jetstream_client.more.ordered import OrderedConsumer
from jetstream_client.stream import Stream
from tests.jetstream_client.servers import frozen, older_program
from tests.jetstream_client.steps import publish
from tests.jetstream_client.until import SOON, until


async def test_a_fetch_waits_for_the_whole_batch(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 2)
    fetching = asyncio.create_task(consumer.fetch(3, max_wait=SOON))
    await until(lambda: waits(consumer))
    assert not fetching.done()
    await publish(stream, 1)
    assert [message.metadata.sequence for message in await fetching] == [1, 2, 3]


async def waits(consumer: Consumer) -> bool:
    return bool((await consumer.info()).raw["num_waiting"])


async def test_bytes_bound_a_request_not_the_fetch(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 30, size=900_000)
    messages = await consumer.fetch(30, max_wait=10)
    assert [message.metadata.sequence for message in messages] == list(range(1, 31))


async def test_a_large_fetch_that_bytes_cut_into_requests_comes_whole(stream: Stream) -> None:
    """The fetch needs several requests. Two are open, are served in turns, and end early at their limit of bytes."""
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": -1})
    await publish(stream, 16_000, size=1_200)
    messages = await consumer.fetch(16_000, max_wait=30)
    assert [message.metadata.sequence for message in messages] == list(range(1, 16_001))
    assert (await consumer.info()).raw["num_waiting"] == 0


async def test_a_fetch_of_bytes_ends_before_the_message_that_does_not_fit(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 10, size=1_000)
    fetched = await consumer.fetch_bytes(3_500)
    assert [message.metadata.sequence for message in fetched] == [1, 2, 3]
    # Exactly to the byte: then the server sends no status (nats-server's consumer.go: nextWaiting).
    exact = sum(len(each.subject) + len(each.reply) + len(each.data) for each in fetched)
    assert len(await consumer.fetch_bytes(exact)) == 3
    assert len(await consumer.fetch_bytes(100_000, max_wait=0.2)) == 4
    assert await consumer.fetch_bytes(100_000, max_wait=0.2) == []
    await publish(stream, 1, size=9_000)
    with pytest.raises(MaxBytesExceeded):
        await consumer.fetch_bytes(8_000)
    assert (await consumer.info()).pending == 1


async def test_a_fetch_that_does_not_wait(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 5})
    assert await consumer.fetch_no_wait(10) == []
    await publish(stream, 4)
    assert len(await consumer.fetch_no_wait(3)) == 3
    assert len(await consumer.fetch_no_wait(3)) == 1
    await publish(stream, 4)
    short = dataclasses.replace(stream.js.settings, request_timeout=0.5)
    async with connect(short) as js:
        impatient = js.stream(stream.name).consumer("c")
        assert len(await impatient.fetch_no_wait(3)) == 1  # the server would let it wait: max_ack_pending
        await impatient.delete()
        with pytest.raises(ConsumerDeleted):
            await impatient.fetch_no_wait(3)


async def test_the_next_message(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    with pytest.raises(NoMessages):
        await consumer.next(max_wait=0.2)
    waiting = asyncio.create_task(consumer.next())
    await publish(stream, 1)
    assert (await waiting).metadata.sequence == 1
    with pytest.raises(InvalidValue, match="half of 'expires'"):
        await consumer.next(max_wait=1, heartbeat=0.6)
    with pytest.raises(InvalidValue, match="expires"):
        await consumer.fetch(1, max_wait=0)


async def test_what_came_before_a_failure_can_be_had(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "none"})
    await publish(stream, 3)
    async with consumer.pull(5) as pull:
        received: list[Message] = []
        while len(received) < 3:
            received += await pull.receive()
        await publish(stream, 1)

        async def delivered() -> bool:  # otherwise the consumer could be deleted before
            return (await consumer.info()).delivered == 4

        await until(delivered)
        await consumer.delete()
        await asyncio.sleep(0.3)  # a message and the end arrive together
        assert [message.metadata.sequence for message in await pull.receive()] == [4]
        with pytest.raises(ConsumerDeleted):
            await pull.receive()


@pytest.mark.parametrize("how", ["fetch", "fetch_bytes", "ordered"])
async def test_a_fetch_that_fails_hands_over_what_had_arrived(stream: Stream, how: str) -> None:
    consumer: Consumer | OrderedConsumer
    if how == "ordered":
        consumer = stream.ordered_consumer(max_resets=0)
        await consumer.fetch_no_wait(1)
    else:
        consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    if how == "fetch_bytes":
        fetching = asyncio.create_task(consumer.fetch_bytes(1 << 20, max_wait=60))
    else:
        fetching = asyncio.create_task(consumer.fetch(5, max_wait=60))
    (name,) = [each async for each in stream.consumer_names()]
    await until(lambda: waits(stream.consumer(name)))
    await publish(stream, 3)
    await until(lambda: passed(stream.consumer(name), 3))
    await stream.consumer(name).delete()
    with pytest.raises(JetStreamError) as failed:
        await fetching
    assert [message.metadata.sequence for message in failed.value.messages] == [1, 2, 3]
    assert pickle.loads(pickle.dumps(failed.value)).messages == ()


async def passed(consumer: Consumer, count: int) -> bool:
    return (await consumer.info()).delivered == count


async def test_what_arrived_before_the_end_of_the_connection_is_handed_over(
    stream: Stream, settings: ConnectionSettings
) -> None:
    await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    async with AsyncExitStack() as leave:
        js = await leave.enter_async_context(connect(settings))
        async with js.stream(stream.name).consumer("c").pull(5, expires=60) as pull:
            fetching = asyncio.create_task(pull._all())  # like fetch
            await publish(stream, 3)
            await until(lambda: len(pull.received) == 3)
            await leave.aclose()
            with pytest.raises(ConnectionEnded) as failed:
                await fetching
    assert [message.metadata.sequence for message in failed.value.messages] == [1, 2, 3]


async def test_a_pause_holds_back_until_it_ends(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 2)
    pause = await consumer.pause(datetime.now(UTC) + timedelta(minutes=5))
    raw = (await consumer.info()).raw
    assert raw["paused"]
    assert 200 < raw["pause_remaining"] / 1e9 <= 300
    assert (pause.paused, pause.until) == (True, raw["config"]["pause_until"])
    assert timedelta(seconds=200) < pause.remaining <= timedelta(minutes=5)
    assert await consumer.fetch(1, max_wait=0.3) == []
    past = await consumer.pause(datetime.now(UTC) - timedelta(minutes=5))
    for answer in (past, await consumer.resume(), await consumer.resume()):
        assert (answer.paused, answer.until, answer.remaining) == (False, "", timedelta())
    assert not (await consumer.info()).paused
    assert len(await consumer.fetch(1, max_wait=10)) == 1
    with pytest.raises(ConsumerNotFound):
        await stream.consumer("none").pause(datetime.now(UTC))
    with pytest.raises(InvalidValue, match="zone"):
        await consumer.pause(datetime.now())  # noqa: DTZ005


@pytest.mark.server("2.14")
async def test_a_reset_delivers_again(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 10)
    for message in (await consumer.fetch(6, max_wait=5))[:3]:
        await message.double_ack()
    assert await consumer.reset() == 4
    info = await consumer.info()
    assert (info.pending, info.ack_pending, info.counter) == (7, 0, 0)
    assert await consumer.reset(2) == 2
    assert [message.metadata.delivered for message in await consumer.fetch(9, max_wait=5)] == [1] * 9
    with pytest.raises(InvalidValue, match="sequence"):
        await consumer.reset(0)
    new = await stream.create_consumer({"durable_name": "n", "ack_policy": "explicit", "deliver_policy": "new"})
    with pytest.raises(ApiError) as refused:
        await new.reset(1)
    assert refused.value.err_code == 10204


async def test_an_older_server_is_named(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, program=older_program("2.11.11"))
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["s"]})
            consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
            await consumer.pause(datetime.now(UTC) + timedelta(minutes=1))
            assert (await consumer.info()).paused
            with pytest.raises(ServerTooOld, match=r"nats-server 2\.14 or newer is needed for resetting a consumer"):
                await consumer.reset()
    finally:
        server.stop()


async def test_answers(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "headers_only": True})
    await publish(stream, 4, size=70)
    first, second, third, fourth = await consumer.fetch(4, max_wait=2)
    assert (first.data, first.size) == (b"", 70)
    await first.double_ack()
    with pytest.raises(MessageAlreadyAnswered, match="has already been answered"):
        await first.ack()
    await second.nak(timedelta(seconds=30))
    await third.term("no use")
    await fourth.in_progress()
    await fourth.ack()

    async def answered() -> bool:
        info = await consumer.info()
        return (info.ack_pending, info.floor) == (1, 1)

    await until(answered)


async def test_a_consumer_deleted_during_a_pull(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    fetching = asyncio.create_task(consumer.fetch(5, max_wait=20))
    await until(lambda: waits(consumer))
    await consumer.delete()
    with pytest.raises(ConsumerDeleted):
        await asyncio.wait_for(fetching, SOON)
    with pytest.raises(ConsumerDeleted):
        await consumer.fetch(5)


async def test_limits_and_push_consumers_are_errors(stream: Stream) -> None:
    limited = await stream.create_consumer({"durable_name": "l", "ack_policy": "explicit", "max_batch": 2})
    with pytest.raises(PullLimitExceeded, match="MaxRequestBatch"):
        await limited.fetch(3)
    short = await stream.create_consumer({"durable_name": "s", "ack_policy": "explicit", "max_expires": 10**9})
    with pytest.raises(PullLimitExceeded, match="MaxRequestExpires"):
        await short.fetch(1, max_wait=5)
    push = await stream.create_consumer({"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "to.me"})
    with pytest.raises(ConsumerIsPushBased):
        await push.fetch(1)


async def test_creating_another_one_of_the_name_is_an_error(stream: Stream) -> None:
    await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    with pytest.raises(ConsumerNameInUse):
        await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 5})


async def test_a_silent_server_is_noticed_by_its_heartbeat(mortal: NatsServer, on_mortal: JetStream, name: str) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [name]})
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    async with consumer.pull(1, expires=60, heartbeat=0.3) as pull:
        start = time.monotonic()
        assert await pull.receive(1.0) == []  # heartbeats arrive, and wake no task
        assert time.monotonic() - start >= 1.0
        with frozen(mortal), pytest.raises(HeartbeatMissed):
            await asyncio.wait_for(pull.receive(600), SOON)
    async with consumer.pull(1, expires=60, heartbeat=0.3) as pull:
        with frozen(mortal), pytest.raises(HeartbeatMissed):
            await asyncio.wait_for(nothing(pull), SOON)
    await stream.delete()


async def test_a_short_fetch_outlasts_a_server_that_is_busy_for_a_moment(
    mortal: NatsServer, on_mortal: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_window, "LEAST_SILENCE", SOON)  # a moment may take long on a busy machine
    stream = await on_mortal.create_stream({"name": name, "subjects": [name]})
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    with frozen(mortal):
        fetching = asyncio.create_task(consumer.fetch(1, max_wait=0.2))
        await asyncio.sleep(0.5)
    assert await fetching == []
    await stream.delete()


async def test_a_short_fetch_notices_a_silent_server(mortal: NatsServer, on_mortal: JetStream, name: str) -> None:
    stream = await on_mortal.create_stream({"name": name, "subjects": [name]})
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    with frozen(mortal), pytest.raises(HeartbeatMissed):
        await asyncio.wait_for(consumer.fetch(1, max_wait=0.2), SOON)
    await stream.delete()


async def nothing(pull: Pull) -> None:
    while True:
        assert await pull.receive(0.1) == []


@pytest.mark.parametrize(
    ("status", "description", "kind"),
    [
        (400, "Bad Request - heartbeat value too large", BadPullRequest),
        (408, "Bad Request", PullError),
        (409, "Consumer Deleted", ConsumerDeleted),
        (409, "Consumer is push based", ConsumerIsPushBased),
        (409, "Leadership Change", LeadershipChanged),
        (409, "Server Shutdown", LeadershipChanged),
        (409, "Exceeded MaxRequestBatch of 2", PullLimitExceeded),
        (409, "Exceeded MaxRequestExpires of 1s", PullLimitExceeded),
        (409, "Exceeded MaxRequestMaxBytes of 99999999", PullLimitExceeded),
        (409, "Exceeded MaxWaiting", TooManyPulls),
        (409, "Message Size Exceeds MaxBytes", MaxBytesExceeded),
        (409, "Something New", PullError),
        (412, "Required Api Level", ApiLevelTooLow),
        (423, "Nats-Wrong-Pin-Id", PinLost),
        (423, "Nats-Pin-Id mismatch", PinLost),
        (503, "", NoResponders),
        (999, "Something Newer", PullError),
    ],
)
def test_nothing_that_ends_a_pull_is_taken_for_empty(status: int, description: str, kind: type[PullError]) -> None:
    window = PullWindow(10, now=0)
    assert window.next_request(0)
    with pytest.raises(PullError) as failed:
        window.on_status(1, status, description, {}, 0)
    assert type(failed.value) is kind
    assert (failed.value.status, description in failed.value.description) == (status, True)


@pytest.mark.parametrize("description", ["Request Timeout", "Interest Expired", "Requests Pending"])
def test_empty_is_no_error(description: str) -> None:
    window = PullWindow(10, now=0)
    assert window.next_request(0)
    window.on_status(1, 408, description, {"Nats-Pending-Messages": ["10"]}, 0)
    assert window.idle
    assert window.next_request(0) is None


def test_pulls_of_one_connection_share_what_may_be_on_its_way() -> None:
    def asked(among: int) -> tuple[int, int]:
        request = PullWindow(20_000, now=0, largest_message=1 << 20).next_request(0, among)
        assert request
        return request[1]["batch"], request[1]["max_bytes"]

    assert asked(1) == (10_000, 8 << 20)
    assert asked(4) == (2_500, 2 << 20)
    assert asked(1_000) == (50, 1 << 20)
    of_bytes = PullWindow(1_000_000, now=0, largest_request=1_000_000, max_bytes=5_000).next_request(0, 1_000)
    assert of_bytes
    assert of_bytes[1].items() >= {"batch": 1_000_000, "max_bytes": 5_000}.items()  # the caller's limit is not shared


@pytest.mark.parametrize(("largest", "expected"), [(1 << 20, [1 << 20, 8 << 20]), (16 << 20, [8 << 20, 16 << 20])])
def test_a_message_that_does_not_fit_is_asked_for_with_a_larger_limit(largest: int, expected: list[int]) -> None:
    """The message was stored when the server allowed larger ones, or is larger than what a request usually gets."""
    window = PullWindow(10, now=0, largest_message=largest)
    sizes = []
    for number in (1, 2):
        request = window.next_request(0, 8)
        assert request
        sizes.append(request[1]["max_bytes"])
        nothing = {"Nats-Pending-Messages": ["10"]}
        if number == 1:
            window.on_status(number, 409, "Message Size Exceeds MaxBytes", nothing, 0)
        else:
            with pytest.raises(MaxBytesExceeded):
                window.on_status(number, 409, "Message Size Exceeds MaxBytes", nothing, 0)
    assert sizes == expected
