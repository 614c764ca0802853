"""The messages of a claim into a table without a function: what Airflow's operator and Dagster's component share."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client.errors import BucketNotFound, InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_tables import DeltaTable, SqlTable
from jetstream_tables.described import table_of
from jetstream_tables.errors import RowsInvalid, TooManyMalformed
from jetstream_tables.new_columns import add_new_columns
from jetstream_tables.table import ExactTable
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.to_table import Stored, ToTable
from tests.jetstream_arrow.test_objects import LARGE, LEASE, SMALL, published
from tests.jetstream_handoff.steps import CONSUMER, object_store, take
from tests.jetstream_tables.formats import Format
from tests.jetstream_tables.steps import Dying, Killed, die

SCHEMA = "shop STRING NOT NULL, amount BIGINT, at TIMESTAMP"
ORDERS = [
    {"shop": "north", "amount": 10, "at": "2026-11-21T03:00:00Z"},
    {"shop": "south", "amount": 250, "other": 1},
    {"amount": 1},
    {"shop": "west", "amount": 1.125},
]


class DyingTable(ExactTable):
    def __init__(self, table: ExactTable, dies: Any) -> None:
        self.name, self._target = table.name, Dying(table, **dies)

    def target(self) -> Any:
        return self._target


async def orders(stream: Stream, payloads: Any = None, **changes: Any) -> list[Claim]:
    for each in ORDERS if payloads is None else payloads:
        await stream.js.publish(f"{stream.name}.a", each if isinstance(each, bytes) else json.dumps(each).encode())
    return await take(stream, **changes)


async def holding(
    stream: Stream, claim: Claim, work: Callable[[HeldClaim], Any], try_number: int = 1, settle: bool = True
) -> Any:
    """Hold a claim, do the work, and settle it."""

    def hold() -> Any:
        with HeldClaim.begin(stream.js.settings, claim, try_number=try_number) as held:
            found = work(held)
            if settle:
                held.settle()
            return found

    return await asyncio.to_thread(hold)


async def test_a_claim_becomes_rows_and_dead_letters(stream: Stream, lake: Format) -> None:
    (claim,) = await orders(stream)
    how = ToTable(table=lake.table(), schema=SCHEMA, message_columns=["subject"])
    stored: Stored = await holding(stream, claim, how.store)
    assert (stored.rows, stored.duplicates, stored.malformed) == (2, 0, 2)
    found = lake.query('"_sequence", shop, amount::varchar, subject, "at" is null')
    subject = f"{stream.name}.a"
    assert sorted(found) == [(1, "north", "10", subject, False), (2, "south", "250", subject, True)]
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.rejected == Sequences.of([3, 4])


@pytest.mark.parametrize("point", ["before the commit", "after the commit"])
async def test_a_retry_after_a_kill(stream: Stream, lake: Format, point: str) -> None:
    (claim,) = await orders(stream)
    dies: Any = {"before": {"before": die}, "after": {"after": die}}[point.partition(" ")[0]]
    table = DyingTable(lake.table(), dies)
    with pytest.raises(Killed):
        await holding(stream, claim, ToTable(table=table, schema=SCHEMA).store, settle=False)
    again = await holding(stream, claim, ToTable(table=lake.table(), schema=SCHEMA).store, 2)
    assert (again.rows, again.duplicates) == ((2, 0) if "before" in point else (0, 2))
    assert lake.sequences() == [1, 2]


async def test_chosen_columns(stream: Stream, lake: Format) -> None:
    """Fields with names that the message has, and fields inside others."""
    (claim,) = await orders(stream, [{"timestamp": 5, "customer": {"id": 7, "name": "x"}, "rest": None}])
    how = ToTable(
        table=lake.table(),
        schema={"timestamp": "INT", "customer": "STRUCT<id: INT NOT NULL, name: STRING>", "rest": "DATE"},
        columns={"ordered": "timestamp", "customer_id": "customer.id"},
    )
    await holding(stream, claim, how.store)
    assert lake.query("ordered, customer_id") == [(5, 7)]


async def test_a_field_that_no_payload_has_is_told(
    stream: Stream, lake: Format, caplog: pytest.LogCaptureFixture
) -> None:
    (claim,) = await orders(stream, [{"customer": "a", "note": None}, {"customer": "b", "note": "x"}])
    schema = "custommer STRING, customer STRING, note STRING"
    await holding(stream, claim, ToTable(table=lake.table(), schema=schema).store)
    (told,) = [each for each in caplog.messages if "null in all" in each]
    assert told.startswith(f"claim {claim.id}: null in all 2 rows: custommer. If the schema has another name")


async def test_decimals_in_two_claims(stream: Stream, lake: Format) -> None:
    """The second one is written to the columns that the first one has created."""
    claims = await orders(stream, [{"price": "1.50"}, {"price": 12345678.25}], messages_per_claim=1)
    for claim in claims:
        await holding(stream, claim, ToTable(table=lake.table(), schema="price DECIMAL(10, 2)").store)
    assert sorted(lake.query("price::varchar")) == [("1.50",), ("12345678.25",)]


async def test_messages_that_are_not_decoded(stream: Stream, lake: Format) -> None:
    (claim,) = await orders(stream, [b"\xff", b""])
    how = ToTable(table=lake.table(), message_columns=["subject", "data"])
    assert (await holding(stream, claim, how.store)).rows == 2
    assert sorted(bytes(data) for (data,) in lake.query("data")) == [b"", b"\xff"]


@pytest.mark.parametrize("schema", ["text STRING", None])
async def test_large_payloads_are_read_from_their_object_store(
    stream: Stream, lake: Format, schema: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Four messages: a small one, one of an object, one whose object is gone, and one of another bucket. Without
    ``objects``, the sentences that were published in the place of payloads are no rows of the payload."""
    kept: dict[str, Any] = {"schema": schema} if schema else {"message_columns": ["data"]}
    async with object_store(stream.js) as bucket:
        await published(stream, bucket)
        (claim,) = await take(stream, wait=120, max_messages=4, min_messages=4, consumer_config=LEASE)
        nowhere = ToTable(table=lake.table(), **kept, objects=f"{bucket}x")

        def refused(held: HeldClaim) -> None:
            with pytest.raises(BucketNotFound):
                nowhere.store(held)
            assert not held.rejected

        await holding(stream, claim, refused, settle=False)
        with caplog.at_level("WARNING"):
            how = ToTable(table=lake.table(), **kept, objects=bucket, max_object_size=len(LARGE))
            stored = await holding(stream, claim, how.store, 2)
    assert (stored.rows, stored.malformed) == (2, 2)
    found = sorted(lake.query('"_sequence", ' + ("text" if schema else "data")))
    sizes = (5, 1 << 20) if schema else (len(SMALL), len(LARGE))
    assert [(number, len(value)) for number, value in found] == [*enumerate(sizes, 1)]
    assert "2 of 4 messages are malformed" in caplog.text
    assert "object: " in caplog.text
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.rejected == Sequences.of([3, 4])


async def test_new_columns_are_added_if_wanted(stream: Stream, lake: Format) -> None:
    first, second = await orders(stream, [{"shop": "a"}, {"shop": "b", "amount": 2}], messages_per_claim=1)
    await holding(stream, first, ToTable(table=lake.table(), schema="shop STRING").store)
    wide = "shop STRING, amount INT NOT NULL, price DECIMAL(10, 2)"

    def refused(held: HeldClaim) -> None:
        with pytest.raises(RowsInvalid, match="has no columns amount, price; add them to the table"):
            ToTable(table=lake.table(), schema=wide).store(held)
        assert not held.rejected

    await holding(stream, second, refused, settle=False)
    how = ToTable(table=lake.table(), schema=wide, new_columns="add")
    assert (await holding(stream, second, how.store, 2)).rows == 1
    assert sorted(lake.query("shop, amount")) == [("a", None), ("b", 2)]


async def test_two_tasks_that_add_a_column_at_once(stream: Stream, lake: Format) -> None:
    first, second = await orders(stream, [{"a": 1}, {"a": 2, "b": 3}], messages_per_claim=1)
    await holding(stream, first, ToTable(table=lake.table(), schema="a INT").store)
    schema = pa.schema(
        [("sequence", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("a", pa.int32()), ("b", pa.int32())]
    )
    results = await asyncio.gather(
        *(asyncio.to_thread(add_new_columns, lake.table(), schema, f"{stream.name}@x") for _ in range(3))
    )
    assert ["b"] in results
    how = ToTable(table=lake.table(), schema="a INT, b INT", new_columns="add")
    await holding(stream, second, how.store)
    assert sorted(lake.query("a, b")) == [(1, None), (2, 3)]


async def test_no_column_is_added_if_another_does_not_fit(stream: Stream, lake: Format) -> None:
    first, second = await orders(stream, [{"a": "x"}, {"a": 1, "b": 3}], messages_per_claim=1)
    await holding(stream, first, ToTable(table=lake.table(), schema="a STRING").store)

    def refused(held: HeldClaim) -> None:
        with pytest.raises(RowsInvalid, match=r"column a of the rows is int32, but (large_)?string"):
            ToTable(table=lake.table(), schema="a INT, b INT", new_columns="add").store(held)

    await holding(stream, second, refused, settle=False)
    with pytest.raises(Exception, match=r"\bb\b"):
        lake.query("b")


async def test_too_many_malformed_messages(stream: Stream, lake: Format) -> None:
    """Nothing is rejected or written, and a retry with another schema works."""
    (claim,) = await orders(stream)

    def refused(held: HeldClaim) -> None:
        with pytest.raises(TooManyMalformed, match=r"2 of 4 messages .* max_malformed is 1: shop: null or missing"):
            ToTable(table=lake.table(), schema=SCHEMA, max_malformed=1).store(held)
        assert not held.rejected

    await holding(stream, claim, refused, settle=False)
    assert lake.query() == []
    how = ToTable(table=lake.table(), schema="shop STRING, amount STRING", max_malformed=0)
    assert (await holding(stream, claim, how.store, 2)).rows == 4


async def test_two_tasks_with_a_claim_each(stream: Stream, lake: Format) -> None:
    claims = await orders(stream, [{"n": each} for each in range(40)], messages_per_claim=10)
    how = ToTable(table=lake.table(), schema="n INT")
    done = await asyncio.gather(*(holding(stream, each, how.store) for each in claims))
    assert [each.rows for each in done] == [10] * 4
    assert lake.sequences() == [*range(1, 41)]


DELTA = {"type": "delta", "uri": "/lake/orders"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"table": "orders"}, "give a DeltaTable"),
        ({"table": {"uri": "/x"}}, "give one of 'delta', 'iceberg', 'sql'"),
        ({"table": {"type": "delta"}}, "needs 'uri'"),
        ({"table": {**DELTA, "name": "x"}}, "has only uri, storage_options"),
        ({"table": {"type": "iceberg", "catalog": "c", "name": "orders"}}, "the table with its namespace"),
        ({"schema": None}, "give the schema of the payloads"),
        ({"schema": None, "message_columns": ["data"], "columns": ["a"]}, "payloads are not decoded"),
        ({"schema": "a INTERVAL"}, "this is not a type"),
        ({"format": "xml"}, "give one of 'json', 'avro', 'protobuf'"),
        ({"decoding": {"compresion": "gzip"}}, "compresion.*give only compression"),
        ({"decoding": "gzip"}, "give a mapping"),
        ({"columns": "a"}, "give a list of names"),
        ({"columns": []}, "give a list of names"),
        ({"columns": ["b"]}, "'b'.*does not contain this field; it has a"),
        ({"columns": ["a", "a"]}, "a name occurs twice"),
        ({"columns": {"x": "a.b"}}, "does not contain this field"),
        ({"schema": "a INT, Timestamp INT"}, r"columns={'payload_Timestamp': 'Timestamp'}"),
        ({"schema": "a INT, _sequence INT"}, "the table gets this column from the message itself"),
        ({"schema": "subject STRING", "message_columns": ["subject"]}, "the table gets this column"),
        ({"message_columns": ["sequence"]}, "give a list of names, each once, of stream, subject"),
        ({"message_columns": ["data"]}, "leave 'data' out"),
        ({"new_columns": True}, "give 'error' or 'add'"),
        ({"max_malformed": -1}, "0 or more"),
        ({"objects": "a.b"}, "objects='a.b'"),
        ({"objects": "large", "max_object_size": 0}, "max_object_size=0"),
        ({"max_object_size": 5}, "belongs to objects"),
        ({"schema": None, "message_columns": ["subject"], "objects": "large"}, "add it to message_columns"),
    ],
)
def test_what_is_refused_before_anything_begins(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        ToTable(**{"table": DELTA, "schema": "a INT", **changes})


def test_a_table_from_a_mapping() -> None:
    assert isinstance(found := table_of({**DELTA, "storage_options": {"AWS_SECRET": "x"}}), DeltaTable)
    assert (found.uri, found.storage_options) == ("/lake/orders", {"AWS_SECRET": "x"})
    sql = table_of({"type": "sql", "url": "postgresql://u:secret@h/d", "name": "orders"})
    assert isinstance(sql, SqlTable)
    assert table_of(sql) is sql
    with pytest.raises(InvalidValue) as refused:
        table_of({"type": "sql", "url": "postgresql://u:secret@h/d", "nam": "orders"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("uri", [None, "", " ", "s3:/lake/orders", "s3:lake/orders", "s3//lake/orders", "file:/lake"])
def test_half_an_address_is_no_local_folder(uri: Any) -> None:
    """Which would get the rows, on the worker's disk."""
    with pytest.raises(InvalidValue, match="uri="):
        DeltaTable(uri)


@pytest.mark.parametrize("uri", ["lake/orders", "./s3:/x", "/s3:/x", "s3a://lake/x", "C:\\lake", Path("lake")])
def test_paths_and_addresses(uri: Any) -> None:
    assert DeltaTable(uri).uri == str(uri)


async def test_a_missing_library_is_named(stream: Stream, lake: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when columns are added, which happens first."""
    (claim,) = await orders(stream)
    table = lake.table()
    for name in [*sys.modules]:
        if name.partition(".")[0] in table.libraries and not name.startswith("pyarrow"):
            monkeypatch.setitem(sys.modules, name, None)
    told = rf"table {re.escape(table.name)} needs the package \w+.*provider-nats-jetstream\[{table.extra}\]"
    for number, new_columns in enumerate(("add", "error"), 1):
        how = ToTable(table=table, schema=SCHEMA, new_columns=new_columns)
        with pytest.raises(ModuleNotFoundError, match=told):
            await holding(stream, claim, how.store, number)
