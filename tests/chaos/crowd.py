"""A crowd at one consumer: how large the ledger's record grows, and how often its compare-and-set is tried again.

    python -m tests.chaos.crowd --claims 10000 --sensors 100

Each sensor is what a run of a DAG is: it takes one claim, holds it, settles it, and comes again.
Prints the figures, and ends with 1 unless every message was settled exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil

from airflow_nats_jetstream.client import ConnectionSettings, connect
from airflow_nats_jetstream.client.bulk import publish_all
from airflow_nats_jetstream.client.context import JetStream
from airflow_nats_jetstream.client.errors import WrongLastSequence
from airflow_nats_jetstream.handoff.claim import Claim
from airflow_nats_jetstream.handoff.hold import Hold
from airflow_nats_jetstream.handoff.ledger import Ledger
from airflow_nats_jetstream.handoff.take import Take, Taking
from demo.nats_server import NatsServer

STREAM, CONSUMER = "CROWD", "work"


@dataclass
class Figures:
    claims: int = 0
    messages: Counter[int] = field(default_factory=Counter)
    writes: int = 0
    lost_races: int = 0
    tries: Counter[int] = field(default_factory=Counter)
    largest_record: int = 0


def count_tries(figures: Figures) -> None:
    """Every write of a record passes here: a lost race is one that somebody else's write came before."""
    write = Ledger._write
    change = Ledger.change

    async def counted_write(self: Ledger, subject: str, value: object, revision: int | None) -> None:
        if subject == self._record_subject:
            figures.writes += 1
            figures.largest_record = max(figures.largest_record, len(json.dumps(value)))
        try:
            await write(self, subject, value, revision)  # type: ignore[arg-type]
        except WrongLastSequence:
            figures.lost_races += 1
            _tries.set(_tries.get() + 1)
            raise

    async def counted_change(self: Ledger, function: object) -> object:
        _tries.set(1)
        try:
            return await change(self, function)  # type: ignore[arg-type]
        finally:
            figures.tries[_tries.get()] += 1

    Ledger._write = counted_write  # type: ignore[method-assign]
    Ledger.change = counted_change  # type: ignore[method-assign, assignment]


class _Tries:
    """How often the running task has tried its change."""

    def __init__(self) -> None:
        self._of: dict[asyncio.Task[object] | None, int] = {}

    def get(self) -> int:
        return self._of.get(asyncio.current_task(), 1)

    def set(self, count: int) -> None:
        self._of[asyncio.current_task()] = count


_tries = _Tries()


async def sensor(js: JetStream, number: int, size: int, left: list[int], figures: Figures) -> None:
    turn = 0
    while left[0] > 0:
        turn += 1
        claim = await taken(js, f"run {number}.{turn}", size)
        if claim is None:
            continue
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.settle({"rows": claim.count})
        left[0] -= claim.count
        figures.claims += 1
        figures.messages.update(claim.sequences)


async def triggerer(settings: ConnectionSettings, numbers: range, size: int, left: list[int], figures: Figures) -> None:
    """Sensors that share a connection."""
    async with connect(settings) as js:
        await asyncio.gather(*(sensor(js, number, size, left, figures) for number in numbers))


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


async def crowd(server: NatsServer, claims: int, sensors: int, connections: int, size: int) -> Figures:
    settings = ConnectionSettings(servers=server.url, request_timeout=30, connect_timeout=60)
    figures = Figures()
    count_tries(figures)
    async with connect(settings) as js:
        await js.create_stream({"name": STREAM, "subjects": [f"{STREAM}.>"], "allow_direct": True})
        await asyncio.to_thread(publish_all, settings, ((f"{STREAM}.x", b"x") for _ in range(claims * size)))
        left = [claims * size]
        reporting = asyncio.create_task(report(figures, claims))
        each = -(-sensors // connections)
        await asyncio.gather(
            *(
                triggerer(settings, range(first, min(sensors, first + each)), size, left, figures)
                for first in range(0, sensors, each)
            )
        )
        reporting.cancel()
        info = await js.stream(STREAM).consumer(CONSUMER).info()
        if info.pending or info.ack_pending:
            raise SystemExit(f"the server still owes {info.pending} + {info.ack_pending}")
    return figures


async def report(figures: Figures, claims: int) -> None:
    while True:
        await asyncio.sleep(5)
        print(f"{figures.claims:,} of {claims:,} claims, record at most {figures.largest_record:,} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--sensors", type=int, default=100)
    parser.add_argument("--connections", type=int, default=100, help="the sensors of one share what a process shares")
    parser.add_argument("--messages-per-claim", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            start = time.monotonic()
            figures = asyncio.run(
                crowd(server, options.claims, options.sensors, options.connections, options.messages_per_claim)
            )
            seconds = time.monotonic() - start
            server_memory = psutil.Process(server.pid).memory_info().rss
        finally:
            server.stop()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    changes = sum(figures.tries.values())
    worst = max(figures.tries)
    print(
        f"{figures.claims:,} claims in {seconds:.0f} s\n"
        f"{options.sensors} sensors on {options.connections} connections\n"
        f"record: at most {figures.largest_record:,} bytes\n"
        f"compare-and-set: {figures.writes:,} writes, {figures.lost_races:,} lost a race "
        f"({figures.lost_races / figures.writes:.0%}); worst change took {worst} tries of {changes:,} changes\n"
        f"memory: {memory >> 20} MiB for all sensors, nats-server {server_memory >> 20} MiB"
    )
    twice = sum(count > 1 for count in figures.messages.values())
    missing = options.claims * options.messages_per_claim - len(figures.messages)
    print(f"settled twice {twice}, missing {missing}")
    raise SystemExit(1 if twice or missing else 0)


if __name__ == "__main__":
    main()
