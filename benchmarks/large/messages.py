"""The stream of the large job, its messages, and what must have become of them at the end."""

from __future__ import annotations

import json
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.ledger import Ledger
from tests.jetstream_client.cluster import replicated_stream

STREAM, CONSUMER = "LARGE", "work"
SMALLEST = 16  # bytes


def payload(number: int, size: int) -> bytes:
    return (b"%016d" % number).ljust(size, b".")


async def create(settings: ConnectionSettings) -> None:
    """Create the stream with three replicas as soon as the cluster can."""
    async with connect(settings) as js:
        await replicated_stream(js, STREAM, ["large.>"])


def publish(settings: ConnectionSettings, count: int, size: int) -> float:
    """Publish the messages. Returns how many seconds that took."""
    start = time.perf_counter()
    publish_all(settings, ((f"large.{number % 16}", payload(number, size)) for number in range(count)), stream=STREAM)
    return time.perf_counter() - start


async def leader(settings: ConnectionSettings) -> str:
    """The name of the server that leads the stream."""
    async with connect(settings) as js:
        return str((await js.stream(STREAM).info(patience=60)).cluster["leader"])


async def faults(settings: ConnectionSettings, results: Path, count: int, size: int) -> list[str]:
    """Return what is wrong at the end, by what the server, the ledger and the results say; ``[]`` if all is right.

    results:  a file for each attempt. Of each claim, only the result of the attempt that settled it counts.
    """
    async with connect(settings) as js:
        ledger = Ledger(js, STREAM, CONSUMER)
        stored = (await ledger.stream.info(patience=60)).state
        info = await ledger.info()
        record, _ = await ledger.read()
        receipts = await ledger.committed()
    totals: Counter[str] = Counter()
    wrong = []
    for receipt in receipts:
        result = json.loads((results / f"{receipt.value['attempt']}.json").read_text())
        totals.update({name: result[name] for name in ("count", "sequences", "bytes", "crc32")})
        found = [result[name] for name in ("count", "first", "last", "sequences")]
        ranges = receipt.sequences
        expected = [ranges.count, ranges.first, ranges.last, sum((a + b) * (b - a + 1) // 2 for a, b in ranges.ranges)]
        if found != expected:
            wrong.append(f"claim {receipt.claim_id} has the result {found} instead of {expected}")
    claimed = Sequences.from_ranges(each for receipt in receipts for each in receipt.sequences.ranges)
    checks: dict[str, tuple[Any, Any]] = {
        "messages in the stream": (stored["messages"], count),
        "last sequence of the stream": (stored["last_seq"], count),
        "num_pending": (info.pending, 0),
        "num_ack_pending": (info.ack_pending, 0),
        "open claims": (sorted(record.open) if record else None, []),
        "sequences in claims": (claimed.ranges, ((1, count),)),
        "count": (totals["count"], count),
        "sum of sequences": (totals["sequences"], count * (count + 1) // 2),
        "bytes": (totals["bytes"], count * size),
        "sum of CRC-32": (totals["crc32"], sum(zlib.crc32(payload(number, size)) for number in range(count))),
    }
    return wrong + [f"{what}: {found} instead of {right}" for what, (found, right) in checks.items() if found != right]
