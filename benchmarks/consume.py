"""Consuming 100,000 messages of 128 B on the control connection, compared with nats-py's ``fetch`` of 100, and of
5,000."""

import asyncio
import itertools

import nats

from benchmarks.comparison import LARGE, Comparison
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.message import Message
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream

MESSAGES = 100_000
SAMPLE = 20_000


def messages(url: str) -> Comparison:
    """Compare ``async for message in consumer.messages()`` with ``fetch(100)``, both without acknowledgements."""
    return _compare(url, "none")


def callback(url: str) -> Comparison:
    """Compare ``consume(callback, ack=True)`` with ``fetch(100)`` and ``await message.ack()``."""
    return _compare(url, "explicit")


BENCHMARKS = (messages, callback)


def _compare(url: str, ack: str) -> Comparison:
    settings = ConnectionSettings(servers=url)
    asyncio.run(_stream(settings))
    publish_all(settings, ((f"read.{number % 100}", b"x" * 128) for number in range(MESSAGES)))
    names = (f"c{number}" for number in itertools.count())
    what = "consume" if ack == "none" else "consume and acknowledge"
    return Comparison(what, required=3, aim=4).run(
        lambda: asyncio.run(_ours(settings, next(names), ack)),
        lambda: asyncio.run(_fetched(url, next(names), ack, 100)),
        best=lambda: asyncio.run(_fetched(url, next(names), ack, LARGE)),
    )


async def _stream(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": "READ", "subjects": ["read.>"]})


async def _ours(settings: ConnectionSettings, name: str, ack: str) -> int:
    async with connect(settings) as js:
        return await _read(js.stream("READ"), name, ack)


async def _read(stream: Stream, name: str, ack: str) -> int:
    consumer = await stream.create_consumer({"durable_name": name, "ack_policy": ack, "max_ack_pending": -1})
    read = 0
    all_read = asyncio.Event()

    async def note(_: Message) -> None:
        nonlocal read
        read += 1
        if read == MESSAGES:
            all_read.set()

    if ack == "explicit":
        async with consumer.consume(note, ack=True):
            await all_read.wait()
        info = await consumer.info()
        assert (info.floor, info.ack_pending) == (MESSAGES, 0)
        return read
    async with consumer.messages() as arriving:
        async for _ in arriving:
            read += 1
            if read == MESSAGES:
                break
    return read


async def _fetched(url: str, name: str, ack: str, batch: int) -> int:
    connection = await nats.connect(url)
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy(ack), max_ack_pending=-1)
    subscription = await connection.jetstream().pull_subscribe("read.>", durable=name, config=config)
    for _ in range(SAMPLE // batch):
        for message in await subscription.fetch(batch, timeout=10):
            if ack == "explicit":
                await message.ack()
    await connection.close()
    return SAMPLE
