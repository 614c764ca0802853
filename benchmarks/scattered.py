"""Reading scattered claims, compared with dense ones of the same size: each holds all messages of 75 of 600 subjects,
or of 3, as claims of a consumer with ``ordered_by`` do. Nothing else is compared, so that it takes few seconds.

    python -m benchmarks.scattered [number of messages in the stream, default: 100,000]
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.comparison import HEAD, Comparison
from demo.nats_server import NatsServer
from jetstream_arrow.claim_batches import ClaimBatches, Claimed
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.messages import messages

SUBJECTS = 600
SHARES = (8, 200)
"""One of so many subjects is in the claim."""
SIZE = 128
ROUNDS = 5
"""Each has three readings of both: such readings are short."""


def compared(url: str, storage: str, total: int) -> Iterator[Comparison]:
    """Compare with claims of a stream with so many messages, in a random order of their subjects."""
    settings, stream, data = ConnectionSettings(servers=url), storage.upper(), os.urandom(SIZE)
    with Wire.open(settings) as wire:
        config = {"name": stream, "subjects": [f"{stream}.*"], "storage": storage, "allow_direct": True}
        created = str(wire.api(f"STREAM.CREATE.{stream}", config)["created"])
    chosen = random.Random(1)  # noqa: S311 - always the same
    subjects = [chosen.randrange(SUBJECTS) for _ in range(total)]
    publish_all(settings, ((f"{stream}.{subject}", data) for subject in subjects))
    for share in SHARES:
        wanted = Sequences.of(number for number, subject in enumerate(subjects, 1) if subject % share == 0)
        scattered = Claim(
            id="5f0c9a7be21d",
            stream=stream,
            stream_created=created,
            consumer="c",
            consumer_created=created,
            sequences=wanted,
            bytes=wanted.count * SIZE,
            consumer_sequence=total,
            taken_at=created,
        )
        dense = replace(scattered, sequences=Sequences.from_ranges([(1, wanted.count)]))
        for name, read in (("claim.arrow()", _arrow), ("claim.messages()", _messages)):
            what = f"{name}: {wanted.count:,} of {total:,} messages, {storage} storage, against as many in a row"
            ours, baseline = ((lambda read=read, claim=claim: read(settings, claim)) for claim in (scattered, dense))
            comparison = Comparison(what, required=0.5, aim=1)
            for _ in range(ROUNDS):
                comparison.run(ours, baseline)
            yield comparison


def _arrow(settings: ConnectionSettings, claim: Claim) -> int:
    table = ClaimBatches(Claimed(claim, settings, "error", ""), None, lambda: None).reader().read_all()
    assert table.num_rows == claim.sequences.count
    return claim.sequences.count


def _messages(settings: ConnectionSettings, claim: Claim) -> int:
    count = sum(1 for _ in messages(settings, claim))
    assert count == claim.sequences.count
    return count


def main() -> int:
    (total,) = numbers("benchmarks.scattered", __doc__, messages=100_000)
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            print(HEAD, flush=True)
            for storage in ("file", "memory"):
                for comparison in compared(server.url, storage, total):
                    print(comparison.row(), flush=True)
                    slow |= comparison.ratio < comparison.required
        finally:
            server.stop()
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
