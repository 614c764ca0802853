"""Many sensors at one consumer: how large the ledger's record grows, and how often its compare-and-set is repeated.

    python -m tests.chaos.crowd --claims 10000 --sensors 100

Each sensor acts like runs of a DAG: it takes one claim, holds it, settles it, and repeats this.
Prints the figures, and ends with 1 unless every message was settled exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import WrongLastSequence
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold import Hold
from jetstream_handoff.ledger import Ledger
from jetstream_handoff.take import Take
from jetstream_handoff.taking import Taking

STREAM, CONSUMER = "CROWD", "work"


@dataclass
class Figures:
    claims: int = 0
    messages: Counter[int] = field(default_factory=Counter)
    writes: int = 0
    lost_races: int = 0
    tries: Counter[int] = field(default_factory=Counter)
    longest: float = 0.0
    """The longest time that a change took, in seconds."""
    largest_record: int = 0
    memory: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.claims + other.claims,
            self.messages + other.messages,
            self.writes + other.writes,
            self.lost_races + other.lost_races,
            self.tries + other.tries,
            max(self.longest, other.longest),
            max(self.largest_record, other.largest_record),
            max(self.memory, other.memory),
        )


def count_tries(figures: Figures) -> None:
    """Count the writes of records. A race is lost when another client's write came first."""
    write = Ledger._write
    change_together = Ledger._change

    async def counted_write(self: Ledger, subject: str, data: bytes, revision: int) -> int:
        if subject == self._record_subject:
            figures.writes += 1
            figures.largest_record = max(figures.largest_record, len(data))
            tries.set(tries.get() + 1)
        try:
            return await write(self, subject, data, revision)
        except WrongLastSequence:
            figures.lost_races += subject == self._record_subject
            raise

    async def counted_change(self: Ledger, *arguments: Any) -> None:
        start = time.monotonic()
        tries.set(0)
        await change_together(self, *arguments)
        figures.tries[tries.get()] += 1
        figures.longest = max(figures.longest, time.monotonic() - start)

    Ledger._write = counted_write  # type: ignore[method-assign]
    Ledger._change = counted_change  # type: ignore[method-assign, assignment]


tries: ContextVar[int] = ContextVar("tries", default=0)
"""How many times the running task has tried to write."""


async def sensor(js: JetStream, name: str, size: int, figures: Figures) -> None:
    """Wait until the consumer has no messages to deliver and no claim is held."""
    for turn in itertools.count():
        claim = await taken(js, f"run {name}.{turn}", size)
        if claim is not None:
            async with Hold.begin(js, claim, try_number=1) as hold:
                await hold.settle({"rows": claim.count})
            figures.claims += 1
            figures.messages.update(claim.sequences)
        else:
            info = await js.stream(STREAM).consumer(CONSUMER).info()
            if not info.pending and not info.ack_pending:
                return


async def taken(js: JetStream, run: str, size: int) -> Claim | None:
    taking = Taking(
        stream=STREAM,
        consumer=CONSUMER,
        owner=("crowd", run, "sensor", -1, 1),
        max_messages=size,
        gather=timedelta(0),
        consumer_config={"ack_wait": timedelta(seconds=60), "max_waiting": 1_000, "max_ack_pending": -1},
    )
    work = Take(js, taking)
    await work.prepare()
    claims = await work.take(2)
    work.handed_on()
    return claims[0] if claims else None


async def sensors(settings: ConnectionSettings, process: int, count: int, size: int, figures: Figures) -> None:
    async with connect(settings) as js:
        await asyncio.gather(*(sensor(js, f"{process}.{number}", size, figures) for number in range(count)))


def process(settings: ConnectionSettings, number: int, count: int, size: int) -> Figures:
    """Sensors that share a connection, as those of a triggerer do."""
    figures = Figures()
    count_tries(figures)
    asyncio.run(sensors(settings, number, count, size, figures))
    figures.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return figures


async def create(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": STREAM, "subjects": [f"{STREAM}.>"], "allow_direct": True})


def crowd(server: NatsServer, claims: int, each: list[int], size: int) -> Figures:
    settings = ConnectionSettings(servers=server.url, request_timeout=30, connect_timeout=60)
    asyncio.run(create(settings))
    publish_all(settings, ((f"{STREAM}.x", b"x") for _ in range(claims * size)))
    with ProcessPoolExecutor(len(each), multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(process, settings, number, count, size) for number, count in enumerate(each)]
        return functools.reduce(Figures.__add__, (future.result() for future in started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--sensors", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4, help="the sensors of one share a connection")
    parser.add_argument("--messages-per-claim", type=int, default=10)
    options = parser.parse_args()
    each = [len(range(first, options.sensors, options.processes)) for first in range(options.processes)]
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            start = time.monotonic()
            figures = crowd(server, options.claims, each, options.messages_per_claim)
            seconds = time.monotonic() - start
            server_memory = psutil.Process(server.pid).memory_info().rss
        finally:
            server.stop()
    changes = sum(figures.tries.values())
    print(
        f"{figures.claims:,} claims in {seconds:.0f} s\n"
        f"{options.sensors} sensors in {options.processes} processes\n"
        f"record: at most {figures.largest_record:,} bytes\n"
        f"compare-and-set: {figures.writes:,} writes, {figures.lost_races:,} lost a race "
        f"({figures.lost_races / figures.writes:.0%}); worst change took {max(figures.tries)} tries "
        f"and {figures.longest:.1f} s of {changes:,} changes\n"
        f"memory: at most {figures.memory >> 20} MiB in a process, nats-server {server_memory >> 20} MiB"
    )
    twice = sum(count > 1 for count in figures.messages.values())
    missing = options.claims * options.messages_per_claim - len(figures.messages)
    print(f"settled twice {twice}, missing {missing}")
    raise SystemExit(1 if twice or missing else 0)


if __name__ == "__main__":
    main()
