"""Taking 336,776 messages, as many as the flights of the demo, compared with nats-py's ``fetch`` of 1,000, and of
5,000.

The ratio is that of gathering: what a claim needs to know of each message, which is its sequence, consumer sequence,
delivery count and size. The other figures are of a whole take, which also enters the claims in the ledger and leases
their messages; on quiet cores, and next to three processes that do nothing but compute.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import nats
import psutil

from benchmarks.comparison import LARGE, ROUNDS, Comparison
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

MESSAGES = 336_776
SAMPLE = 50_000
BUSY = 3


@dataclass
class Taken:
    """One take. Times in seconds, memory in bytes; ``pause`` is the longest time for which the event loop stood
    still."""

    gathering: float = 0.0
    whole: float = 0.0
    pause: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        return (
            f"gathered at {MESSAGES / self.gathering:,.0f}/s, all of it {self.whole:.1f} s, "
            f"longest pause of the event loop {self.pause * 1e3:.0f} ms, {self.memory / (1 << 20):.0f} MiB more memory"
        )


def compare(url: str) -> Comparison:
    settings = ConnectionSettings(servers=url)
    asyncio.run(_stream(settings))
    messages = ((f"flights.{number % 16}", b"x" * (250 + number % 100)) for number in range(MESSAGES))
    publish_all(settings, messages, stream="FLIGHTS")
    comparison = Comparison("gather", required=5, aim=10)
    for number in range(ROUNDS):
        comparison.baseline.append(SAMPLE / asyncio.run(_fetched(url, f"baseline{number}", 1_000)))
        comparison.best.append(SAMPLE / asyncio.run(_fetched(url, f"best{number}", LARGE)))
        quiet = asyncio.run(_taken(settings, f"quiet{number}"))
        comparison.ours.append(MESSAGES / quiet.gathering)
        with _busy():
            busy = asyncio.run(_taken(settings, f"busy{number}"))
        print(f"take on quiet cores: {quiet}", f"take next to {BUSY} busy processes: {busy}", sep="\n", flush=True)
    return comparison


@contextmanager
def _busy() -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


async def _stream(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})


class _Timed(Take):
    gathering = 0.0

    async def _gather(self, deadline: float, *, look: bool = False) -> None:
        start = time.perf_counter()
        await super()._gather(deadline, look=look)
        self.gathering = time.perf_counter() - start


async def _taken(settings: ConnectionSettings, consumer: str) -> Taken:
    owner = ("dag", "run", "task", -1, 1)
    taking = Taking(
        stream="FLIGHTS",
        consumer=consumer,
        owner=owner,
        max_messages=MESSAGES,
        messages_per_claim=100_000,
        gather=timedelta(seconds=5),
    )
    async with connect(settings) as js:
        take = _Timed(js, taking)
        await take.prepare()
        taken = Taken()
        watching = asyncio.create_task(_watch(taken))
        await asyncio.sleep(0)
        taken.memory = before = _resident()
        start = time.perf_counter()
        claims = await take.take(60)
        taken.whole, taken.gathering = time.perf_counter() - start, take.gathering
        watching.cancel()
        taken.memory -= before
        assert sum(claim.count for claim in claims) == MESSAGES
        info = await js.stream("FLIGHTS").consumer(consumer).info()
        assert info.ack_pending == MESSAGES
    return taken


async def _watch(taken: Taken) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        taken.pause = max(taken.pause, time.perf_counter() - before - 0.001)
        taken.memory = max(taken.memory, _resident())


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


async def _fetched(url: str, consumer: str, batch: int) -> float:
    """Return the seconds in which nats-py gathers a sample."""
    connection = await nats.connect(url)
    config = nats.js.api.ConsumerConfig(headers_only=True, max_ack_pending=-1)
    subscription = await connection.jetstream().pull_subscribe("flights.>", durable=consumer, config=config)
    gathered: list[tuple[int, int, int, int]] = []
    start = time.perf_counter()
    while len(gathered) < SAMPLE:
        for message in await subscription.fetch(batch, timeout=10):
            meta = message.metadata
            place = meta.sequence.stream, meta.sequence.consumer, meta.num_delivered
            gathered.append((*place, int((message.headers or {})["Nats-Msg-Size"])))
    seconds = time.perf_counter() - start
    await connection.close()
    return seconds
