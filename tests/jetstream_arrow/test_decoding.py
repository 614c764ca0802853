"""``decoded`` without Spark. ``tests/pyspark_jetstream/test_arrow.py`` compares its values with Spark's."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from jetstream_arrow import decoded
from jetstream_arrow.columns import TYPES
from jetstream_arrow.payload.registry import SchemaRegistry
from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.ledger.ledger import Ledger
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_arrow.test_claim import working
from tests.jetstream_handoff.steps import CONSUMER, take
from tests.pyspark_jetstream.avro_cases import number
from tests.pyspark_jetstream.registry_server import registry_server

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]})


def batches(count: int = 3, last: BaseException | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of three messages, of which the second is malformed."""
    for n in range(count):
        numbers = range(3 * n, 3 * n + 3)
        data = [number(each) + b"x" * (each % 3 == 1) for each in numbers]
        columns = [pa.array(numbers, pa.int64()), pa.array(data, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["sequence", "data"])
    if last is not None:
        raise last


def stream_of(found: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(pa.schema({"sequence": pa.int64(), "data": pa.binary()}), found)


@pytest.mark.parametrize("first", [0, 1])
def test_each_message_is_in_one_of_both_whichever_is_read_first(first: int) -> None:
    both = decoded(stream_of(batches()), ORDER, format="avro")
    found = {each: both[each].read_all().to_pydict() for each in (first, 1 - first)}
    assert found[0] == {"sequence": [0, 2, 3, 5, 6, 8], "amount": [0, 2, 3, 5, 6, 8]}
    assert found[1]["sequence"] == [1, 4, 7]
    assert set(found[1]["reason"]) == {"longer than a message of the Avro schema"}


@pytest.mark.parametrize("first", [0, 1])
def test_what_waits_is_bounded_in_memory_and_keeps_its_order(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream_arrow.decoding.IN_MEMORY", 4 << 20)
    count, large = 100, b"x" * (1 << 20)

    def some() -> Iterator[pa.RecordBatch]:
        for n in range(count):
            data = pa.array([number(n), large], pa.binary())
            yield pa.RecordBatch.from_arrays([pa.array([2 * n, 2 * n + 1], pa.int64()), data], ["sequence", "data"])

    both, before = decoded(stream_of(some()), ORDER, format="avro"), pa.total_allocated_bytes()
    expected = [[2 * n for n in range(count)], [2 * n + 1 for n in range(count)]]
    assert [each for batch in both[first] for each in batch["sequence"].to_pylist()] == expected[first]
    assert pa.total_allocated_bytes() - before < 16 << 20
    rest = [(each["sequence"], len(each.get("data", b""))) for batch in both[1 - first] for each in batch.to_pylist()]
    assert rest == [(each, len(large) if first == 0 else 0) for each in expected[1 - first]]


def test_only_what_is_asked_for_is_read() -> None:
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches(100):
            read += 1
            yield batch

    good, _ = decoded(stream_of(counted()), ORDER, format="avro")
    good.read_next_batch()
    assert read == 1


def test_an_error_of_the_source_is_no_end_of_either_reader() -> None:
    lost = MessagesMissing("S", Sequences.of([9]))
    good, malformed = decoded(stream_of(batches(2, lost)), ORDER, format="avro")
    for reader, left in ((good, 0), (malformed, 2)):
        for _ in range(left):
            reader.read_next_batch()
        with pytest.raises(MessagesMissing):
            reader.read_all()
        with pytest.raises(MessagesMissing):
            reader.read_next_batch()


async def test_malformed_messages_of_a_claim_are_rejected_with_their_reasons(stream: Stream) -> None:
    for each in range(6):
        await stream.js.publish(f"{stream.name}.a", number(each) + b"x" * (each == 4))
    (claim,) = await take(stream)

    def work(held: HeldClaim) -> list[int]:
        good, malformed = decoded(held.arrow(), ORDER, format="avro")
        amounts: list[int] = good.read_all()["amount"].to_pylist()
        held.reject(malformed)
        held.reject(pa.table({"sequence": [2]}), "why")
        return amounts

    assert await working(stream, claim, work) == [0, 1, 2, 3, 5]
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.rejected == Sequences.of([2, 5])


async def test_what_a_table_lacks_to_be_rejected_is_named(stream: Stream) -> None:
    await stream.js.publish(f"{stream.name}.a", b"")
    (claim,) = await take(stream)

    def work(held: HeldClaim) -> None:
        with pytest.raises(InvalidValue, match="reject\\(\\) with one reason"):
            held.reject(pa.table({"sequence": [1]}))
        with pytest.raises(InvalidValue, match="needs a column named 'sequence'"):
            held.reject(pa.table({"n": [1]}), "why")

    await working(stream, claim, work)


@pytest.mark.parametrize(
    ("messages", "given", "named"),
    [
        (["x"], {}, "anything with __arrow_c_stream__"),
        (pa.table({"sequence": [1]}), {}, "one named 'data' is needed"),
        (pa.table({"data": ["text"]}), {}, "the column must be binary"),
        (pa.table({"data": [b""], "headers": ["x"]}), {}, "headers string"),
        (pa.table({"data": [b""], "Amount": [1]}), {}, r"rename_columns\({'Amount': 'message_Amount'}\)"),
        (pa.table({"data": [b""]}), {"format": "xml"}, "'json', 'avro' or 'protobuf'"),
        (pa.table({"data": [b""]}), {"message": "M"}, "only Protobuf"),
        (pa.table({"data": [b""]}), {"compression": "zip"}, "'gzip' or 'zstd'"),
        (pa.table({"data": [b""]}), {"unknown_fields": "malformed"}, "Avro has none"),
    ],
)
def test_what_cannot_be_decoded_is_refused_before_anything_is_read(messages: Any, given: Any, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        decoded(messages, ORDER, **{"format": "avro", **given})


def test_a_registry_is_asked_for_the_ids_in_the_messages() -> None:
    with registry_server() as server:
        known = server.register("orders-value", ORDER)
        data = [b"\0" + (known + extra).to_bytes(4) + number(5) for extra in (0, 0, 77)]
        messages = pa.table({"data": data, "headers": pa.nulls(3, TYPES["headers"])})
        good, malformed = decoded(messages, ORDER, format="avro", registry=SchemaRegistry(server.url))
        assert good.read_all()["amount"].to_pylist() == [5, 5]
        (reason,) = malformed.read_all()["reason"].to_pylist()
        assert reason == f"the schema registry does not know schema id {known + 77}"
