"""The stream of the measured jobs, and publishing to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.departures import departures
from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_client.publish.bulk import publish_all
from jetstream_client.times import time_nanoseconds

STREAM = "FLIGHTS"  # as in the DAGs


def recreate(settings: ConnectionSettings) -> None:
    """Create the stream, empty and without consumers."""

    async def recreated() -> None:
        async with connect(settings) as js:
            with suppress(StreamNotFound):
                await js.stream(STREAM).delete()
            await js.create_stream({"name": STREAM, "subjects": ["flights.>"], "allow_direct": True})

    asyncio.run(recreated())


def publish(settings: ConnectionSettings, count: int) -> float:
    """Publish the first `count` departures. Returns when the last one was stored, in seconds since 1970."""
    publish_all(settings, departures()[:count], stream=STREAM)

    async def last() -> float:
        async with connect(settings) as js:
            info = await js.stream(STREAM).info()
            return moment(info.state["last_ts"])

    return asyncio.run(last())


def wait_for_pull(settings: ConnectionSettings, consumer: str) -> None:
    """Wait until a pull request waits at the consumer, which need not exist yet."""

    async def waiting() -> int:
        async with connect(settings) as js:
            with suppress(ConsumerNotFound):
                info = await js.stream(STREAM).consumer(consumer).info()
                return int(info.raw["num_waiting"])
        return 0

    until(f"a pull at {consumer}", lambda: asyncio.run(waiting()), 120)


def moment(time: str) -> float:
    """Return an RFC 3339 time in seconds since 1970."""
    return time_nanoseconds(time) / 1e9
