"""How the cost of appending a claim grows with the number of claims in a table, for each format, together with
that of a plain append of the same rows to another table by the same library.

    python -m benchmarks.table_growth [number of claims, default: 1,000] [claims between two maintenances]

Prints the medians of the first and of the last hundred claims of 100 messages, without the first ten: of the time, and
of the processor time of this process, which a busy machine changes less. With a second argument, the table
of the claims is maintained after each so many of them, which is no part of the figures.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.arguments import numbers
from benchmarks.tables import claims, delta, iceberg, postgres
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_tables import DeltaTable
from jetstream_tables.table import FileTable

SIZE = 100
TOGETHER = 100


def main() -> None:
    number, each = numbers("benchmarks.table_growth", __doc__, claims=1_000, between_maintenances=0)
    for of in (delta, iceberg) if each else (delta, iceberg, postgres):
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(Path(folder))
            server.start()
            try:
                ours, plain = measured(of, ConnectionSettings(servers=server.url), number, each)
                report(of.__name__, ours)
                report(f"{of.__name__}, plain append", plain)
            finally:
                server.stop()


def report(name: str, found: list[tuple[float, float]]) -> None:
    for kind, each in zip(("time", "processor time"), zip(*found, strict=True), strict=True):
        first, last = (1_000 * median(some) for some in (each[10:110], each[-100:]))
        print(f"{name}, {kind}: {first:.1f} ms, then {last:.1f} ms: {last / first:.2f} times", flush=True)


def measured(
    of: Callable[[Path], Any], settings: ConnectionSettings, count: int, maintained: int = 0
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The seconds of time and of processor time, for each claim and for each plain append."""
    ours: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name, of(Path(name)) as (table, append):
        for number, claim in enumerate(taken(settings, count), 1):
            with BlockingHold.begin(settings, claim, try_number=1) as held:
                rows = _rows(held)
                ours.append(_spent(partial(held.append_to, table, rows)))
                plain.append(_spent(partial(append, rows)))
                held.settle()
            if maintained and number % maintained == 0:
                _maintain(table)
    return ours, plain


def _maintain(table: FileTable) -> None:
    keep = timedelta(days=7) if isinstance(table, DeltaTable) else timedelta()  # Delta allows no less
    seconds, worked = _spent(partial(table.maintain, keep))
    print(f"maintenance: {1_000 * seconds:.0f} ms, of which {1_000 * worked:.0f} ms of processor time", flush=True)


def _spent(function: Callable[[], object]) -> tuple[float, float]:
    start, worked = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - worked


def taken(settings: ConnectionSettings, count: int) -> Iterator[Claim]:
    """Publish and take claims, a hundred at a time."""
    for start in range(0, count, TOGETHER):
        yield from asyncio.run(claims(settings, min(TOGETHER, count - start), SIZE))


def _rows(held: BlockingHold) -> pa.Table:
    read = [(each.sequence, time_nanoseconds(each.time) // 1_000) for each in held.messages()]
    return pa.table(
        {
            "sequence": pa.array([sequence for sequence, _ in read], pa.int64()),
            "timestamp": pa.array([time for _, time in read], pa.timestamp("us", "UTC")),
            "shop": pa.array([("north", "south", "west")[sequence % 3] for sequence, _ in read]),
        }
    )


if __name__ == "__main__":
    main()
