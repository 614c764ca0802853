"""A claim from a stream into a table without Spark: read as Arrow, decoded or not, appended, settled."""

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.ledger.ledger import Ledger
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_handoff.steps import CONSUMER, publish, take
from tests.jetstream_tables.formats import Format


async def test_what_is_rejected_is_read_after_the_rows(stream: Stream, lake: Format) -> None:
    """Both sides of `decoded` read one stream: what the other side has not read yet is in memory."""
    await publish(stream, 4)
    (claim,) = await take(stream)
    read = []

    def watched(name: str, table: pa.Table) -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            for each in table.to_batches(max_chunksize=1):
                read.append(name)
                yield each

        return pa.RecordBatchReader.from_batches(table.schema, batches())

    def work() -> None:
        with HeldClaim.begin(stream.js.settings, claim, try_number=1) as held:
            rows = held.arrow(["sequence", "timestamp"]).read_all()
            malformed = pa.table({"sequence": [3, 4], "reason": ["x", "y"]})
            held.append_to(lake.table(), watched("row", rows.slice(0, 2)), rejected=watched("rejected", malformed))

    await asyncio.to_thread(work)
    assert read == ["row", "row", "rejected", "rejected"]


async def test_a_claim_is_appended_as_it_is_read(stream: Stream, lake: Format) -> None:
    """All but one message, which is rejected with a table of Arrow, as the malformed ones of `decoded`."""
    await publish(stream, 10)
    (claim,) = await take(stream, max_messages=10)

    def work() -> tuple[int, int]:
        with HeldClaim.begin(stream.js.settings, claim, try_number=1) as held:
            batches = held.arrow(["sequence", "timestamp", "subject", "data"])
            good = pa.RecordBatchReader.from_batches(
                batches.schema, (each.filter(pc.not_equal(each["sequence"], 4)) for each in batches)
            )
            malformed = pa.table({"sequence": [4], "reason": ["no JSON"]})
            done = held.append_to(lake.table(), good, rejected=malformed)
            held.settle(done.new.count)
            return done.new.count, done.already.count

    assert await asyncio.to_thread(work) == (9, 0)
    assert lake.sequences() == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.value, receipt.rejected) == (9, Sequences.of([4]))
