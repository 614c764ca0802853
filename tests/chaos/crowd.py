"""Many sensors at one consumer: how large the ledger's record grows, and how often its compare-and-set is repeated.

    python -m tests.chaos.crowd --claims 10000 --sensors 100

Each sensor acts like runs of a DAG: it takes one claim, holds it, settles it, and repeats this. Afterwards one sensor
takes as many claims as a record has room for, of tasks with short and with the longest names.
Prints the figures, and ends with 1 unless every message was settled exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
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
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.history import Owner
from jetstream_handoff.ledger.ledger import LARGEST_RECORD, Ledger
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

STREAM, CONSUMER = "CROWD", "work"
AT_WORK = 50
"""How many claims of a full record are held at the same time."""
NAMES = (20, 250)
"""How many characters the names of DAG, run and task have. 250 are the most that Airflow permits."""


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
    holds: list[float] = field(default_factory=list)
    settles: list[float] = field(default_factory=list)
    """How long each hold and each settlement took, in seconds."""

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
            self.holds + other.holds,
            self.settles + other.settles,
        )

    async def work(self, js: JetStream, claim: Claim, holder: Owner) -> None:
        """Hold a claim and settle it."""
        began = time.monotonic()
        async with Hold.begin(js, claim, try_number=1, holder=holder) as hold:
            held = time.monotonic()
            await hold.settle({"rows": claim.count})
            self.settles.append(time.monotonic() - held)
        self.holds.append(held - began)
        self.claims += 1
        self.messages.update(claim.sequences)


def count_tries(figures: Figures) -> None:
    """Count the writes of records. A race is lost when another client's write came first."""
    write = Buckets.write
    change_together = Ledger._change

    async def counted_write(self: Buckets, subject: str, data: bytes, revision: int) -> int:
        if "_claims." in subject:
            figures.writes += 1
            figures.largest_record = max(figures.largest_record, len(data))
            tries.set(tries.get() + 1)
        try:
            return await write(self, subject, data, revision)
        except WrongLastSequence:
            figures.lost_races += "_claims." in subject
            raise

    async def counted_change(self: Ledger, *arguments: Any) -> None:
        start = time.monotonic()
        tries.set(0)
        await change_together(self, *arguments)
        figures.tries[tries.get()] += 1
        figures.longest = max(figures.longest, time.monotonic() - start)

    Buckets.write = counted_write  # type: ignore[method-assign]
    Ledger._change = counted_change  # type: ignore[method-assign, assignment]


tries: ContextVar[int] = ContextVar("tries", default=0)
"""How many times the running task has tried to write."""


async def sensor(js: JetStream, name: str, size: int, figures: Figures) -> None:
    """Wait until the consumer has no messages to deliver and no claim is held."""
    for turn in itertools.count():
        claim = await taken(js, f"run {name}.{turn}", size)
        if claim is not None:
            await figures.work(js, claim, ("crowd", f"run {name}.{turn}", "work", 0, 1))
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


@dataclass
class Full:
    """A record with as many open claims as it has room for.

    claims:    number of open claims.
    size:      bytes of the record before an attempt held one of them.
    held:      bytes of the record when attempts held some of them.
    attempts:  number of attempts in it.
    figures:   of those that were held and settled.
    """

    claims: int
    size: int
    held: int
    attempts: int
    figures: Figures


async def full(settings: ConnectionSettings, length: int) -> Full:
    """Take claims of one message each until there is no room, then hold and settle some of them.

    length:  number of characters of the names of the DAG, the run and the tasks.
    """
    names = tuple(letter * length for letter in "dr")
    stream, figures = f"FULL{length}", Figures()
    async with connect(settings) as js:
        await js.create_stream({"name": stream, "subjects": [stream], "allow_direct": True})
        await asyncio.to_thread(publish_all, settings, ((stream, b"x") for _ in range(10_000)))
        taking = Taking(
            stream=stream,
            consumer=CONSUMER,
            owner=(*names, "s" * length, -1, 1),
            max_messages=10_000,
            messages_per_claim=1,
            gather=timedelta(0),
            consumer_config={"ack_wait": timedelta(seconds=600), "max_ack_pending": -1},
        )
        take = Take(js, taking)
        await take.prepare()
        claims = await take.take(10)
        take.handed_on()
        ledger = Ledger(js, stream, CONSUMER)
        size = await stored_size(ledger)
        first, second = ((*names, "w" * length, 0, number) for number in (1, 2))
        async with AsyncExitStack() as holds:
            for claim in claims[:AT_WORK]:
                await holds.enter_async_context(Hold.begin(js, claim, try_number=1, holder=first))
            held = await stored_size(ledger)
            record, _ = await ledger.read()
            assert record is not None
            attempts = sum(len(entry.history.attempts) for entry in record.open.values())
        for claim in claims[:AT_WORK]:
            await figures.work(js, claim, second)
        figures.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return Full(len(claims), size, held, attempts, figures)


async def stored_size(ledger: Ledger) -> int:
    """The size of a record, as the server has stored it."""
    return len((await ledger.buckets.records.get_message(last_by_subject=ledger.subjects[0])).data)


def quantiles(times: list[float]) -> str:
    """The median, the 95th percentile and the maximum of times, in milliseconds."""
    median, most = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    return f"{median * 1e3:.0f} ms, 95 % {most * 1e3:.0f} ms, longest {max(times) * 1e3:.0f} ms"


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
            alone = ConnectionSettings(servers=server.url, ledger="full")
            crowded = {length: asyncio.run(full(alone, length)) for length in NAMES}
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
        f"hold: median {quantiles(figures.holds)}\n"
        f"settle: median {quantiles(figures.settles)}\n"
        f"memory: at most {figures.memory >> 20} MiB in a process, nats-server {server_memory >> 20} MiB"
    )
    for length, found in crowded.items():
        print(
            f"names of {length} characters: room for {found.claims:,} open claims, {found.size:,} bytes\n"
            f"while {AT_WORK} of them are held: {found.held:,} bytes, {found.attempts} attempts in histories\n"
            f"hold: median {quantiles(found.figures.holds)}\nsettle: median {quantiles(found.figures.settles)}"
        )
    twice = sum(count > 1 for count in figures.messages.values())
    missing = options.claims * options.messages_per_claim - len(figures.messages)
    print(f"settled twice {twice}, missing {missing}")
    large = any(found.attempts and found.held > LARGEST_RECORD // 2 for found in crowded.values())
    raise SystemExit(1 if twice or missing or large else 0)


if __name__ == "__main__":
    main()
