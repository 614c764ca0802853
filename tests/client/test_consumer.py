"""Pulling from a real server: every way a pull ends is told apart."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_nats_jetstream.client import ConnectionSettings, connect
from airflow_nats_jetstream.client.bulk import publish_all
from airflow_nats_jetstream.client.consumer import Pull
from airflow_nats_jetstream.client.context import JetStream
from airflow_nats_jetstream.client.errors import (
    ConsumerDeleted,
    ConsumerIsPushBased,
    ConsumerNameInUse,
    HeartbeatMissed,
    JetStreamError,
    PullError,
    PullLimitExceeded,
)
from airflow_nats_jetstream.client.pull import PullWindow
from airflow_nats_jetstream.client.stream import Stream
from demo.nats_server import NatsServer


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[Stream]:
    name = f"S{secrets.token_hex(4)}"
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    yield stream
    await stream.delete()


async def publish(stream: Stream, count: int, size: int = 1) -> None:
    messages = ((f"{stream.name}.{number}", b"x" * size) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def test_a_fetch_waits_for_the_whole_batch(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 2)
    fetching = asyncio.create_task(consumer.fetch(3, max_wait=5))
    await asyncio.sleep(0.3)
    assert not fetching.done()
    await publish(stream, 1)
    assert [message.metadata.sequence for message in await fetching] == [1, 2, 3]


async def test_a_large_fetch_is_asked_for_in_pieces_and_comes_whole(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": -1})
    await publish(stream, 35_000)
    messages = await consumer.fetch(35_000, max_wait=20)
    assert [message.metadata.sequence for message in messages] == list(range(1, 35_001))
    assert (await consumer.info()).raw["num_waiting"] == 0


async def test_bytes_bound_a_request_not_the_fetch(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await publish(stream, 30, size=900_000)
    messages = await consumer.fetch(30, max_wait=10)
    assert [message.metadata.sequence for message in messages] == list(range(1, 31))


async def test_answers(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "headers_only": True})
    await publish(stream, 4, size=70)
    first, second, third, fourth = await consumer.fetch(4, max_wait=2)
    assert (first.data, first.size) == (b"", 70)
    await first.double_ack()
    with pytest.raises(JetStreamError, match="answered before"):
        await first.ack()
    await second.nak(timedelta(seconds=30))
    await third.term("no use")
    await fourth.in_progress()
    await fourth.ack()
    await stream.js.connection.flush()
    await asyncio.sleep(0.1)
    info = await consumer.info()
    assert (info.ack_pending, info.floor) == (1, 1)


async def test_a_consumer_deleted_during_a_pull(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    fetching = asyncio.create_task(consumer.fetch(5, max_wait=20))
    await asyncio.sleep(0.3)
    await consumer.delete()
    with pytest.raises(ConsumerDeleted):
        await asyncio.wait_for(fetching, 5)
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


async def test_a_silent_server_is_noticed_by_its_heartbeat(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["s"]})
            consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
            async with consumer.pull(1, expires=30, heartbeat=0.4) as pull:
                assert await pull.receive(0.6) == []  # heartbeats come
                server.kill()
                with pytest.raises(HeartbeatMissed):
                    await asyncio.wait_for(nothing(pull), 5)
    finally:
        server.stop()


async def nothing(pull: Pull) -> None:
    while True:
        assert await pull.receive(0.5) == []


def test_nothing_that_ends_a_pull_is_taken_for_empty() -> None:
    for status, description in [(400, "Bad Request"), (409, "Something New"), (423, "Nats-Wrong-Pin-Id"), (503, "")]:
        window = PullWindow(10, now=0)
        assert window.next_request(0)
        with pytest.raises(PullError):
            window.on_status(1, status, description, {}, 0)
    window = PullWindow(10, now=0)
    assert window.next_request(0)
    window.on_status(1, 408, "Request Timeout", {"Nats-Pending-Messages": ["10"]}, 0)
    assert window.idle
    assert window.next_request(0) is None
