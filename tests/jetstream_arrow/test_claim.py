"""A claim as Arrow batches, on a real server: exactly its messages, or an error that says why not."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from demo.nats_server import NatsServer
from jetstream_arrow.claim_batches import ClaimBatches, Claimed
from jetstream_arrow.columns import TYPES
from jetstream_arrow.reading import Part, Reading, worth_a_consumer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue, MessagesMissing, StreamNotFound, StreamRecreated
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HoldLost, Superseded
from jetstream_handoff.hold.messages import messages
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.rules.missing import is_final
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, publish, take

SLOWLY = {"ack_wait": timedelta(seconds=60)}  # a machine that does other work takes thousands of messages slowly


async def working(stream: Stream, claim: Claim, work: Callable[[HeldClaim], Any], **options: Any) -> Any:
    """Hold the claim, do the work in another thread, and settle."""

    def run() -> Any:
        with HeldClaim.begin(stream.js.settings, claim, try_number=1, **options) as held:
            found = work(held)
            held.settle()
            return found

    return await asyncio.to_thread(run)


async def connections(stream: Stream) -> int:
    """How many consumers of a read the server has: one for each read that is under way."""
    return sum(name.startswith("read-") for name in [each async for each in stream.consumer_names()])


async def test_a_claim_is_read_exactly_and_in_batches(stream: Stream) -> None:
    await publish(stream, 10_000)
    for sequence in (1, 500, 10_000):
        await stream.delete_message(sequence)
    (claim,) = await take(stream, max_messages=10_000, consumer_config=SLOWLY)

    def work(held: HeldClaim) -> pa.Table:
        with held.arrow() as reader:
            assert isinstance(reader, pa.RecordBatchReader)
            batches = list(reader)
        assert len(batches) > 2
        assert all(batch.num_rows < 6_000 for batch in batches)
        assert held.arrow(["sequence", "data"]).read_all().equals(pa.Table.from_batches(batches).select([2, 5]))
        return pa.Table.from_batches(batches)

    table = await working(stream, claim, work)
    assert table.schema == pa.schema(TYPES)
    table.validate(full=True)
    assert table["sequence"].to_pylist() == list(claim.sequences)
    assert set(table["stream"].to_pylist()) == {stream.name}
    assert set(table["data"].to_pylist()) == {b"x" * 10}
    assert table["headers"].null_count == 9_997


async def test_a_small_or_scattered_claim_is_read_by_direct_get(stream: Stream) -> None:
    await publish(stream, 30)
    (claim,) = await take(stream)
    some = replace(claim, sequences=Sequences.of(range(1, 31, 7)))

    def read() -> pa.Table:
        what = Claimed(some, stream.js.settings, "error", "")
        return ClaimBatches(what, None, lambda: None).reader().read_all()

    assert (await asyncio.to_thread(read))["sequence"].to_pylist() == [1, 8, 15, 22, 29]


@pytest.mark.parametrize(
    ("ranges", "by_consumer"),
    [
        ([(1, 100_000)], True),
        ([(5, 1_004)], True),
        ([(5, 1_003)], False),  # few messages
        ([(each, each) for each in range(1, 10_000, 2)], True),
        ([(each, each + 1) for each in range(1, 10_000, 5)], True),
        ([(each, each) for each in range(1, 10_000, 3)], False),
        ([(each, each) for each in range(1, 100_000, 8)], False),  # all messages of every eighth key
        ([(1, 10_000), (25_000, 25_000)], True),
        ([(1, 10_000), (26_000, 26_000)], False),
    ],
)
def test_what_is_read_by_a_consumer(ranges: list[tuple[int, int]], by_consumer: bool) -> None:
    assert worth_a_consumer(Sequences(tuple(ranges))) is by_consumer


async def test_a_scattered_claim_is_read_in_order(stream: Stream) -> None:
    await publish(stream, 9_000)
    (claim,) = await take(stream, max_messages=9_000, consumer_config=SLOWLY)
    some = replace(claim, sequences=Sequences.of(range(1, 9_001, 8)))

    def read() -> tuple[list[int], list[int]]:
        what = Claimed(some, stream.js.settings, "error", "")
        table = ClaimBatches(what, None, lambda: None).reader().read_all()
        return table["sequence"].to_pylist(), [each.sequence for each in messages(stream.js.settings, some)]

    assert await asyncio.to_thread(read) == (list(some.sequences), list(some.sequences))


async def test_what_no_longer_exists_is_an_error_each_time(stream: Stream) -> None:
    """A library that reads again after an error must not take it for the end of the claim."""
    await publish(stream, 3_000)
    (claim,) = await take(stream, max_messages=3_000, consumer_config=SLOWLY)
    for sequence in (7, 3_000):
        await stream.delete_message(sequence)

    def work(held: HeldClaim) -> None:
        reader = held.arrow()
        read = 0
        with pytest.raises(MessagesMissing, match=r"sequences 7, 3000.*a retry does not help.*missing='skip'"):  # noqa: PT012
            while True:
                read += reader.read_next_batch().num_rows
        assert 0 < read <= 2_998  # like Spark, it returns no batch that it has begun before the error
        for _ in range(3):
            with pytest.raises(MessagesMissing):
                reader.read_next_batch()
        with pytest.raises(pa.ArrowInvalid) as foreign:  # what polars, DuckDB and others see
            pa.RecordBatchReader.from_stream(held.arrow()).read_all()
        assert is_final(foreign.value)
        held.arrow().read_all()

    with pytest.raises(MessagesMissing):
        await working(stream, claim, work)


async def test_what_is_skipped_is_named_in_the_receipt(stream: Stream) -> None:
    await publish(stream, 20)
    (claim,) = await take(stream)
    for sequence in (3, 20):
        await stream.delete_message(sequence)
    table = await working(stream, claim, lambda held: held.arrow().read_all(), missing="skip")
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert table["sequence"].to_pylist() == list(receipt.processed) == list(claim.sequences - receipt.skipped)
    assert receipt.skipped == Sequences.of([3, 20])


async def test_another_stream_of_the_same_name_is_not_read(stream: Stream) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)

    def work(held: HeldClaim) -> None:
        held.claim = replace(claim, stream_created="2020-01-01T00:00:00Z")
        with pytest.raises(StreamRecreated, match=f"claim {claim.id} cannot be read, because stream .* was recreated"):
            held.arrow()
        held.claim = replace(claim, stream="NOWHERE")
        with pytest.raises(StreamNotFound):
            held.arrow()
        held.claim = claim
        reader = held.arrow()
        asyncio.run_coroutine_threadsafe(recreate(), loop).result(30)
        with pytest.raises(StreamRecreated):
            reader.read_next_batch()

    async def recreate() -> None:
        await stream.delete()
        await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
        await publish(stream, 5)

    loop = asyncio.get_running_loop()
    with pytest.raises(Superseded, match="consumer not found"):  # of settle()
        await working(stream, claim, work)


async def test_a_killed_task_reads_no_further(stream: Stream) -> None:
    await publish(stream, 10_000, size=100)
    (claim,) = await take(stream, max_messages=10_000, consumer_config=SLOWLY)

    def work(held: HeldClaim) -> None:
        reader = held.arrow()
        reader.read_next_batch()
        held.kill()
        for _ in range(2):
            with pytest.raises(HoldLost, match="was released when its task was killed"):
                reader.read_next_batch()
        with pytest.raises(HoldLost, match="killed"):
            held.arrow().read_all()

    with pytest.raises(HoldLost):  # of settle()
        await working(stream, claim, work)


async def test_a_reader_that_outlives_its_function_fails_instead_of_ending(stream: Stream) -> None:
    await publish(stream, 10_000, size=100)
    (claim,) = await take(stream, max_messages=10_000, consumer_config=SLOWLY)

    def work(held: HeldClaim) -> tuple[pa.RecordBatchReader, ...]:
        begun, untouched, done = held.arrow(), held.arrow(), held.arrow()
        begun.read_next_batch()
        assert done.read_all().num_rows == 10_000
        return begun, untouched, done

    begun, untouched, done = await working(stream, claim, work)
    for reader in (begun, untouched):
        with pytest.raises(HoldLost, match=f"claim {claim.id} is no longer held, and not all of its batches"):
            reader.read_all()
    assert done.read_all().num_rows == 0
    await until(lambda: none(stream))


async def none(stream: Stream) -> bool:
    return await connections(stream) == 0


async def test_nothing_stays_connected_when_the_reader_is_gone(stream: Stream) -> None:
    """As after ``LIMIT 10``."""
    await publish(stream, 10_000, size=100)
    (claim,) = await take(stream, max_messages=10_000, consumer_config=SLOWLY)
    begun, gone, left, done = (threading.Event() for _ in range(4))

    def work(held: HeldClaim) -> None:
        reader = held.arrow()
        reader.read_next_batch()
        begun.set()
        assert gone.wait(30)
        del reader
        left.set()
        assert done.wait(30)

    working_on = asyncio.create_task(working(stream, claim, work))
    assert await asyncio.to_thread(begun.wait, 30)
    assert await connections(stream) == 1
    gone.set()
    assert await asyncio.to_thread(left.wait, 30)
    await until(lambda: none(stream))
    done.set()
    await working_on


async def test_a_server_that_is_killed_meanwhile_changes_nothing(tmp_path: Path) -> None:
    count = 100_000
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, count, size=200)
            (taken,) = await take(stream, max_messages=10)
            claim = replace(taken, sequences=Sequences.of(range(1, count + 1)))

            def read() -> list[int]:
                reader = ClaimBatches(Claimed(claim, js.settings, "error", ""), None, lambda: None).reader()
                found: list[int] = []
                for number, batch in enumerate(reader):
                    found += batch["sequence"].to_pylist()
                    if number in {1, 10}:
                        server.kill()
                        server.start()
                return found

            assert await asyncio.to_thread(read) == list(claim.sequences)
    finally:
        server.stop()


async def test_columns_that_do_not_exist_are_refused(stream: Stream) -> None:
    await publish(stream, 1)
    (claim,) = await take(stream)

    def work(held: HeldClaim) -> None:
        for columns in (["sequence", "payload"], [], ["data", "data"], "data"):
            with pytest.raises(InvalidValue, match=r"columns=.*of stream, subject, sequence, timestamp, headers, data"):
                held.arrow(columns)

    await working(stream, claim, work)


PARSED = """
import sys
import airflow_nats_jetstream.operators.process, dagster_nats_jetstream
print([name for name in ("pyarrow", "pyspark") if name in sys.modules])
"""


def test_parsing_a_task_loads_no_arrow() -> None:
    ran = subprocess.run([sys.executable, "-c", PARSED], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


async def test_what_a_filter_selects_is_estimated_although_the_server_lists_its_subjects_in_pages(
    stream: Stream,
) -> None:
    """A page has 100,000 of them."""
    count = 150_000
    messages = ((f"{stream.name}.{number}", b"") for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages, stream=stream.name)
    (claim,) = await take(stream, max_messages=1, consumer_config=SLOWLY)
    reading = Reading(Claimed(claim, stream.js.settings, "error", "", filter=f"{stream.name}.*"), ["data"])

    def planned() -> list[Part]:
        with Wire.open(stream.js.settings) as wire:
            return reading.parts(wire, direct.stream_info(wire, stream.name), Sequences.from_ranges([(1, count)]), 1)

    assert [part.density for part in await asyncio.to_thread(planned)] == [1.0]
