"""How the cost of each operation grows with what others have done and with what has happened before.

    python -m benchmarks.growth [dimension …]

For each dimension, a new server gets ten of something, then more and more, and each operation is measured with ten
messages. Prints the milliseconds of each operation at each size, and its slope: 0 if the size does not matter, 1 if
the cost doubles with it. Draws build/benchmarks/growth.svg, where each line is an operation.
"""

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read.message import StoredMessage
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim, new_claim_id, new_token
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.messages import messages
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from jetstream_handoff.letters import listing
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.watch import backlog, inspection
from jetstream_handoff.watch.overview import overview

STREAM, CONSUMER = "ORDERS", "work"
ROUNDS = 5
MESSAGES = 10
EXPLAINED = 0.2
"""A slope that is not larger is noise, or what a server's own index costs."""


@dataclass
class World:
    """A server, and how many messages the stream has."""

    js: JetStream
    stream: Stream
    published: int = 0

    async def publish(self, count: int, *, subjects: int = 1, size: int = 128) -> None:
        numbers = range(self.published, self.published + count)
        messages = ((f"orders.{number % subjects}", b"x" * size) for number in numbers)
        await asyncio.to_thread(publish_all, self.js.settings, messages)
        self.published += count

    async def take(self, consumer: str = CONSUMER, most: int = 100_000, **changes: Any) -> list[Claim]:
        taking = Taking(
            stream=STREAM,
            consumer=consumer,
            owner=("benchmark", time.monotonic_ns()),  # so that no take hands on the claims of an earlier one
            max_messages=most,
            gather=timedelta(seconds=0.05),
            hand_off_timeout=timedelta(hours=1),
            consumer_config={"ack_wait": timedelta(minutes=5), "max_ack_pending": -1},
            **changes,
        )
        work = Take(self.js, taking)
        await work.prepare()
        claims = await work.take(60)
        work.handed_on()
        return claims


# What grows: each adds so many.


async def own_receipts(world: World, count: int, consumer: str = CONSUMER) -> None:
    ledger, at = Ledger(world.js, STREAM, consumer), "2026-01-01T00:00:00Z"
    await ledger.create()

    def written() -> Any:
        for number in range(count):
            key, sequences = new_claim_id(), Sequences.from_ranges([(number + 1, number + 1)])
            receipt = Receipt(key, "done", STREAM, consumer, sequences, new_token(1), at=at)
            yield ledger.receipts.subject(key), json.dumps(receipt.to_json()).encode()

    await asyncio.to_thread(publish_all, world.js.settings, written())


async def others_receipts(world: World, count: int) -> None:
    for number in range(10):
        await own_receipts(world, count // 10, f"other{number}")


async def open_claims(world: World, count: int) -> None:
    await world.publish(count)
    await world.take(most=count, messages_per_claim=1, max_claims=count)


async def consumers(world: World, count: int) -> None:
    for number in range(count):
        await world.publish(1)
        await world.take(f"other{world.published}-{number}", most=1)


async def streams(world: World, count: int) -> None:
    for _ in range(count):
        name = f"OTHER{time.monotonic_ns()}"
        await world.js.create_stream({"name": name, "subjects": [f"{name}.>"], "storage": "memory"})


async def subjects(world: World, count: int) -> None:
    await world.publish(count, subjects=1 << 62)
    await settled(world, await world.take())


async def earlier_messages(world: World, count: int) -> None:
    await world.publish(count)
    await settled(world, await world.take())


async def gaps(world: World, count: int) -> None:
    """Messages that remain one by one between messages that were deleted."""
    before = world.published
    await world.publish(2 * count, subjects=2)
    await settled(world, await world.take())
    await world.stream.purge(subject="orders.1")
    assert world.published == before + 2 * count


async def dead_letters(world: World, count: int, size: int = 128) -> None:
    await world.publish(count, size=size)
    for claim in await world.take():
        async with Hold.begin(world.js, claim, try_number=1) as hold:
            await hold.reject(claim.sequences, "not an order")
            await hold.settle()


async def large_dead_letters(world: World, count: int) -> None:
    """Dead letters of 1 MB, without the messages that they are copies of."""
    for done in range(0, count, 100):
        await dead_letters(world, min(100, count - done), 1_000_000)
        await world.stream.purge()


async def settled(world: World, claims: list[Claim]) -> None:
    for claim in claims:
        async with Hold.begin(world.js, claim, try_number=1) as hold:
            await hold.settle()


DIMENSIONS: Mapping[str, tuple[Callable[[World, int], Awaitable[None]], tuple[int, ...]]] = {
    "receipts": (own_receipts, (10, 1_000, 100_000)),
    "receipts of other consumers": (others_receipts, (10, 1_000, 100_000)),
    "open claims": (open_claims, (10, 100, 1_000)),
    "consumers": (consumers, (10, 100, 600)),
    "streams": (streams, (10, 100, 1_000)),
    "subjects": (subjects, (10, 1_000, 100_000)),
    "earlier messages": (earlier_messages, (10, 1_000, 100_000)),
    "gaps": (gaps, (10, 1_000, 100_000)),
    "dead letters": (dead_letters, (10, 1_000, 10_000)),
    "dead letters of 1 MB": (large_dead_letters, (10, 1_000, 10_000)),
}


async def measured(world: World) -> dict[str, float]:
    """The median milliseconds of each operation."""
    found: dict[str, list[float]] = defaultdict(list)
    js = world.js

    @asynccontextmanager
    async def timed(name: str) -> AsyncIterator[None]:
        start = time.perf_counter()
        yield
        found[name].append(1_000 * (time.perf_counter() - start))

    for _ in range(ROUNDS):
        async with timed("publish ten"):
            await world.publish(MESSAGES)
        async with timed("measure the backlog"):
            await backlog.measure(js, STREAM, CONSUMER)
        async with timed("take"):
            (claim,) = await world.take(most=MESSAGES)
        async with timed("list the claims"):
            await inspection.open_claims(js)
        async with timed("show a claim"):
            await inspection.find(js, claim.id)
        async with timed("overview"):
            await overview(js)
        async with timed("read the messages"):
            read = await asyncio.to_thread(read_all, js, claim)
        assert len(read) == MESSAGES
        since = datetime.now(UTC)
        await asyncio.sleep(1)  # settling waits until a claim is a second old
        async with timed("hold and settle"), Hold.begin(js, claim, try_number=1) as hold:
            await hold.settle()
        async with timed("committed since"):
            (receipt,) = await Ledger(js, STREAM, CONSUMER).committed(since)
        assert receipt.claim_id == claim.id
        async with timed("list fifty dead letters"):
            await listing.listed(DeadLetters(js, STREAM))
        async with timed("list all dead letters"):
            await listed(js)
    return {name: median(each) for name, each in found.items()}


async def listed(js: JetStream) -> None:
    """Select all dead letters, as the command ``dead-letters list`` does."""
    async for _ in select(DeadLetters(js, STREAM), Selection(everything=True, unconfirmed=True)):
        pass


def read_all(js: JetStream, claim: Claim) -> list[StoredMessage]:
    return [*messages(js.settings, claim)]


async def grown(url: str, dimension: str) -> dict[int, dict[str, float]]:
    """The milliseconds of each operation, by size."""
    grow, sizes = DIMENSIONS[dimension]
    found = {}
    async with connect(ConnectionSettings(servers=url)) as js:
        stream, _ = await js.create_or_update_stream(
            {"name": STREAM, "subjects": ["orders.>"], "allow_direct": True, "max_msgs": -1}
        )
        world = World(js, stream)
        await world.publish(1)
        await settled(world, await world.take())
        for before, size in pairwise((0, *sizes)):
            await grow(world, size - before)
            found[size] = await measured(world)
    return found


def slope(by_size: Mapping[int, float]) -> float:
    """How the cost grows from the first to the last size."""
    (few, first), *_, (many, last) = by_size.items()
    return math.log(last / first) / math.log(many / few)


def report(dimension: str, found: Mapping[int, Mapping[str, float]]) -> None:
    sizes = " ".join(f"{size:>10,}" for size in found)
    print(f"\n{dimension:<28} {sizes}      slope", flush=True)
    for operation in next(iter(found.values())):
        by_size = {size: each[operation] for size, each in found.items()}
        steep = slope(by_size)
        figures = " ".join(f"{each:>7.1f} ms" for each in by_size.values())
        print(f"  {operation:<26} {figures}   {steep:>8.2f}{'  grows' if steep > EXPLAINED else ''}", flush=True)


def drawn(results: Mapping[str, Mapping[int, Mapping[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3 * math.ceil(len(results) / 3)), layout="constrained")
    for number, (dimension, found) in enumerate(results.items(), 1):
        axes = figure.add_subplot(math.ceil(len(results) / 3), 3, number)
        for operation in next(iter(found.values())):
            axes.loglog([*found], [each[operation] for each in found.values()], "o-", label=operation)
        axes.set(title=dimension, ylabel="ms")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("dimension", nargs="*", default=[*DIMENSIONS], help=f"default: all of {', '.join(DIMENSIONS)}")
    names = parser.parse_args().dimension
    if unknown := set(names) - set(DIMENSIONS):
        parser.error(f"there is no dimension {', '.join(sorted(unknown))}, only {', '.join(DIMENSIONS)}")
    results = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(Path(folder))
            server.start()
            try:
                results[name] = asyncio.run(grown(server.url, name))
            finally:
                server.stop()
        report(name, results[name])
    drawn(results, path := Path("build/benchmarks/growth.svg"))
    print(path)


if __name__ == "__main__":
    main()
