"""Publishing acknowledged messages, compared with nats-py's ``await js.publish``, one after the other, and with its
``publish_async`` with 4,000 unanswered messages, as many as here."""

import asyncio
import itertools
from collections.abc import Callable

import nats

from benchmarks.comparison import Comparison
from benchmarks.departures import departures
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all, publish_fast

SAMPLE = 20_000  # messages of the baseline, whose rate does not depend on their number
SMALL = [(f"small.{number % 100}", b"x" * 128) for number in range(200_000)]


def compare(url: str) -> Comparison:
    """Publish the departures, with ids."""
    runs = itertools.count()

    def ours(settings: ConnectionSettings) -> int:
        return publish_all(settings, departures(), stream="FLIGHTS", scope=f"run {next(runs)}").stored

    departures()
    return _compare(url, Comparison("publish", required=6, aim=10), departures(), ours)


def windowed(url: str) -> Comparison:
    """Publish 128 B, with a window of unanswered messages."""
    comparison = Comparison("publish 128 B", required=8, aim=10)
    return _compare(url, comparison, SMALL, lambda settings: publish_all(settings, SMALL).stored)


def fast(url: str) -> Comparison:
    """Publish 128 B as a fast-ingest batch."""
    comparison = Comparison("publish 128 B as a fast batch", required=18, aim=25)
    return _compare(url, comparison, SMALL, lambda settings: publish_fast(settings, SMALL).batch_size)


BENCHMARKS = (compare, windowed, fast)


def _compare(
    url: str, comparison: Comparison, messages: list[tuple[str, bytes]], ours: Callable[[ConnectionSettings], int]
) -> Comparison:
    settings = ConnectionSettings(servers=url)
    asyncio.run(_stream(settings))
    return comparison.run(
        lambda: ours(settings),
        lambda: asyncio.run(_one_by_one(url, messages[:SAMPLE])),
        best=lambda: asyncio.run(_at_once(url, messages[:SAMPLE])),
    )


async def _stream(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>", "small.>"], "allow_batched": True})


async def _one_by_one(url: str, messages: list[tuple[str, bytes]]) -> int:
    connection = await nats.connect(url)
    js = connection.jetstream()
    for subject, data in messages:
        await js.publish(subject, data)
    await connection.close()
    return len(messages)


async def _at_once(url: str, messages: list[tuple[str, bytes]]) -> int:
    connection = await nats.connect(url)
    js = connection.jetstream(publish_async_max_pending=4_000)
    answers = [await js.publish_async(subject, data) for subject, data in messages]
    await asyncio.gather(*answers)
    await connection.close()
    return len(messages)
