"""Rows that do not belong to a claim or do not fit its table: an error that names them, before anything is written."""

import datetime as dt
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_tables.errors import RowsInvalid
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Format, Sql
from tests.jetstream_tables.steps import begin, counted, rows


@pytest.fixture
async def held(stream: Stream, holds: ExitStack) -> BlockingHold:
    """A claim of ten messages. The stream has twenty."""
    await publish(stream, 20)
    claim, _ = await take(stream, messages_per_claim=10)
    return begin(holds, stream, claim)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def shifted(table: pa.Table) -> pa.Table:
    return with_column(table, "sequence", pa.array([each + 5 for each in table["sequence"].to_pylist()]))


HOSTILE: dict[str, tuple[Any, str]] = {
    "no column sequence": (
        lambda given: given.drop_columns("sequence"),
        "rows have no column sequence; keep it in the select",
    ),
    "no column timestamp": (lambda given: given.drop_columns("timestamp"), "rows have no column timestamp; keep it in"),
    "another claim": (shifted, "rows of sequences 11-15 are not in claim {id}, or were rejected"),
    "too few": (
        lambda given: given.slice(2),
        "messages 1-2 of claim {id} have no row; reject them, or give every_mess",
    ),
    "none at all": (lambda given: given.slice(0, 0), "messages 1-10 of claim {id} have no row"),
    "a null": (
        lambda given: with_column(given, "sequence", pa.array([None, *range(2, 11)])),
        "column sequence contains nulls",
    ),
    "sequence as text": (
        lambda given: with_column(given, "sequence", given["sequence"].cast(pa.string())),
        "column sequence has the type string; it must be a whole number",
    ),
    "timestamp as text": (
        lambda given: with_column(given, "timestamp", given["timestamp"].cast(pa.string())),
        "column timestamp has the type string; it must be the message's timestamp, a time with a time zone",
    ),
    "timestamp without zone": (
        lambda given: with_column(given, "timestamp", given["timestamp"].cast(pa.timestamp("us"))),
        "a time with a time zone",
    ),
    "two times": (
        lambda given: pa.concat_tables(
            [given, with_column(given, "timestamp", pa.array([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 10))]
        ),
        "rows of message 1 have the times",
    ),
    "a name that is taken": (
        lambda given: given.append_column("_Stream", pa.array(["x"] * 10)),
        "rows have columns _Stream, which append_to writes itself",
    ),
    "a column twice": (
        lambda given: given.append_column("amount", given["amount"]),
        "rows have several columns amount",
    ),
    "a column of nulls": (
        lambda given: given.append_column("empty", pa.nulls(10)),
        "column empty has no type, because it contains only nulls",
    ),
    "no table of Arrow": (lambda given: given.to_pylist(), "rows are a list; give a table of Arrow"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_rows_that_do_not_belong(held: BlockingHold, lake: Format, case: str) -> None:
    change, told = HOSTILE[case]
    with pytest.raises(RowsInvalid) as refused:
        held.append_to(lake.table(), change(rows(held)), rejected={"bad": []})
    assert told.format(id=held.id) in str(refused.value)
    assert lake.query() == []


MISFITS: dict[str, tuple[Any, str]] = {
    "text for a number": (
        lambda given: with_column(given, "amount", given["amount"].cast(pa.string())),
        "column amount of the rows is string, but int64 in table",
    ),
    "a fraction for a number": (
        lambda given: with_column(given, "amount", given["amount"].cast(pa.float64())),
        "column amount of the rows is double, but int64 in table",
    ),
    "a new column": (lambda given: given.append_column("more", given["amount"]), "has no columns more; add them to"),
    "a missing column": (lambda given: given.drop_columns("amount"), "rows have no columns amount, which table"),
    "too large": (
        lambda given: with_column(given, "amount", pa.array([2**63] * len(given), pa.uint64())),
        "column amount cannot be converted from uint64 to int64",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
async def test_rows_that_do_not_fit_the_table(stream: Stream, lake: Format, holds: ExitStack, case: str) -> None:
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    first.append_to(lake.table(), rows(first))
    change, told = MISFITS[case]
    with pytest.raises(RowsInvalid, match=told):
        second.append_to(lake.table(), change(rows(second, range(12, 21))), rejected={"bad": [11]})
    assert second.rejected == Sequences()  # nor is anything rejected
    with pytest.raises(StreamNotFound):
        await stream.js.stream(f"DEAD_{stream.name}").info()
    assert lake.sequences() == [*range(1, 11)]
    assert counted(second.append_to(lake.table(), rows(second))) == (10, 0)


HEADERS = pa.array([[("Customer", ["7"])]] * 10, pa.map_(pa.string(), pa.list_(pa.string())))
ODD = {
    "a duration": pa.array([1] * 10, pa.duration("us")),
    "a time": pa.array([1] * 10, pa.time64("ns")),
    "a duration inside": pa.array([{"a": 1}] * 10, pa.struct([("a", pa.duration("us"))])),
    "a large number": pa.array([1] * 10, pa.decimal256(50, 2)),
}


@pytest.mark.parametrize("case", [*ODD, "headers"])
async def test_a_column_for_which_a_new_table_has_no_type(
    held: BlockingHold, lake: Format, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused at the first try, before the message is rejected. In a database, this is so for nested columns."""
    if case == "headers" and not isinstance(lake, Sql):
        assert held.append_to(lake.table(), rows(held).append_column("headers", HEADERS)).new.count == 10
        return
    column = ODD.get(case, HEADERS)[:9]
    with pytest.raises(RowsInvalid) as refused:
        held.append_to(lake.table(), rows(held, range(1, 10)).append_column("odd", column), rejected={"bad": [10]})
    said = f"cannot hold column odd ({column.type}); leave it out, or write what you need of it in separate columns"
    assert said in str(refused.value)
    assert "looking again" not in caplog.text
    assert held.rejected == Sequences()
    assert lake.query() == []


async def test_a_new_table_takes_all_its_types_again(stream: Stream, lake: Format, holds: ExitStack) -> None:
    moment = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
    columns = {
        "flag": pa.array([True] * 10),
        "tiny": pa.array([1] * 10, pa.int8()),
        "unsigned": pa.array([1] * 10, pa.uint32()),
        "half": pa.array([1.5] * 10, pa.float16()),
        "real": pa.array([1.5] * 10, pa.float32()),
        "name": pa.array(["a"] * 10, pa.large_string()),
        "raw": pa.array([b"a"] * 10, pa.large_binary()),
        "fixed": pa.array([b"ab"] * 10, pa.binary(2)),
        "day": pa.array([moment.date()] * 10, pa.date64()),
        "local": pa.array([moment] * 10, pa.timestamp("us")),
        "berlin": pa.array([moment] * 10, pa.timestamp("ms", "Europe/Berlin")),
        "price": pa.array([Decimal("1.50")] * 10, pa.decimal128(10, 2)),
    }
    await publish(stream, 20)
    for claim in await take(stream, messages_per_claim=10):
        held = begin(holds, stream, claim)
        given = rows(held)
        for name, values in columns.items():
            given = given.append_column(name, values)
        assert counted(held.append_to(lake.table(), given)) == (10, 0)
    assert lake.sequences() == [*range(1, 21)]


async def test_a_table_without_the_identity(held: BlockingHold, lake: Format) -> None:
    lake.append(pa.table({"amount": pa.array([1], pa.int64())}))
    with pytest.raises(RowsInvalid, match="has no columns _stream, _sequence, _timestamp, which identify each message"):
        held.append_to(lake.table(), rows(held))
    assert lake.query("amount") == [(1,)]


async def test_several_rows_of_a_message_come_together(held: BlockingHold, lake: Format) -> None:
    """A message may become several rows. They are in the table together; a second call cannot add to them."""
    assert counted(held.append_to(lake.table(), rows(held, range(1, 6), each=3), every_message=False)) == (5, 0)
    with pytest.raises(RowsInvalid, match=f"messages 5 of claim {held.id} were in an earlier call of append_to"):
        held.append_to(lake.table(), rows(held, range(5, 11), each=3))
    assert counted(held.append_to(lake.table(), rows(held, range(6, 11), each=3))) == (5, 0)
    assert lake.sequences() == sorted([*range(1, 11)] * 3)


async def test_rejections_go_through_the_table(stream: Stream, held: BlockingHold, lake: Format) -> None:
    with pytest.raises(RowsInvalid, match=f"rows of sequences 3 are not in claim {held.id}, or were rejected"):
        held.append_to(lake.table(), rows(held), rejected={"bad": [3]})
    assert held.rejected == Sequences()
    kept = [each for each in held.sequences if each != 3]
    assert counted(held.append_to(lake.table(), rows(held, kept), rejected={"bad": [3]})) == (9, 0)
    assert held.rejected == Sequences.of([3])
    with pytest.raises(InvalidValue, match="these messages are already in table"):
        held.reject([7], "late")
    held.settle()
    assert (await stream.js.stream(f"DEAD_{stream.name}").info()).state["messages"] == 1
    assert lake.sequences() == kept


async def test_a_message_of_the_table_cannot_be_rejected(stream: Stream, lake: Format, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    first.append_to(lake.table(), rows(first))
    second = begin(holds, stream, claim, 2)
    kept = [each for each in second.sequences if each != 7]
    with pytest.raises(RowsInvalid, match=r"messages 7 of claim .* are already in table .* and cannot be rejected"):
        second.append_to(lake.table(), rows(second, kept), rejected={"bad": [7]})
    assert second.rejected == Sequences()


async def test_a_row_that_a_user_deletes_comes_back(stream: Stream, lake: Format, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    first.append_to(lake.table(), rows(first))
    lake.delete(4)
    second = begin(holds, stream, claim, 2)
    assert counted(second.append_to(lake.table(), rows(second))) == ((0, 10) if lake.remembers else (1, 9))
    assert lake.sequences() == [each for each in range(1, 11) if each != 4 or not lake.remembers]


async def test_anything_with_a_stream_of_arrow(stream: Stream, lake: Format, holds: ExitStack) -> None:
    await publish(stream, 50)
    claims = await take(stream, messages_per_claim=10)
    helds = [begin(holds, stream, claim) for claim in claims]
    table, reader, relation, views, encoded = (rows(held) for held in helds)
    text = pa.array(["ä"] * 10)
    table, reader, relation = (each.append_column("text", text) for each in (table, reader, relation))
    with duckdb.connect() as database:
        batches = [each.slice(at, 3).combine_chunks().to_batches()[0] for each in (reader,) for at in (0, 3, 6, 9)]
        database.execute("set timezone = 'Europe/Berlin'")
        for held, given in zip(
            helds,
            (
                table,
                pa.RecordBatchReader.from_batches(reader.schema, batches),
                database.from_arrow(relation),
                views.append_column("text", text.cast(pa.string_view())),
                encoded.append_column("text", text.dictionary_encode()),
            ),
            strict=True,
        ):
            assert counted(held.append_to(lake.table(), given)) == (10, 0)
    assert sorted(lake.query('"_sequence", text')) == [(each, "ä") for each in range(1, 51)]
