"""Avro payloads that no writer produced: each row is a record or a reason, in bounded memory and time."""

import io
import json
import resource
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from hypothesis import strategies as st

from pyspark_jetstream.avro import Records
from tests.hostile.attack import attack

ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "x", "type": ["null", "int"]}, {"name": "on", "type": "boolean"}],
}
SCHEMA = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": "string"},
        {"name": "b", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["OLD", "NEW"]}},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 4}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "maybe", "type": {"type": "array", "items": ["null", "Item"]}},
        {"name": "named", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
    ],
}
RECORDS = Records(json.dumps(SCHEMA), "none")
Row = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "s": st.text(max_size=6),
        "b": st.binary(max_size=6),
        "at": st.datetimes(timezones=st.just(UTC)),
        "day": st.dates(),
        "price": st.decimals("-9999.99", "9999.99", places=2),
        "kind": st.sampled_from(["OLD", "NEW"]),
        "key": st.binary(min_size=4, max_size=4),
        "items": st.lists(
            st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "on": st.booleans()}), max_size=3
        ),
        "maybe": st.lists(st.none() | st.just({"x": 1, "on": True}), max_size=3),
        "named": st.dictionaries(st.text(max_size=3), st.lists(st.integers(-9, 9), max_size=2), max_size=2),
    }
)


def encoded(row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, SCHEMA, row)
    return stream.getvalue()


def number(value: int) -> bytes:
    """A number in Avro's encoding."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    digits = b""
    while value > 0x7F:
        digits += bytes([value & 0x7F | 0x80])
        value >>= 7
    return digits + bytes([value])


Count = st.sampled_from([0, 1, -1, 2, 60, -60, 10**6, -(10**6), 2**31, 2**62, -(2**62), 2**63 - 1]).map(number)
Payload = (
    st.binary(max_size=80)
    | Row.map(encoded)
    | st.lists(Count | st.binary(max_size=6), max_size=30).map(b"".join)
    | st.tuples(Row.map(encoded), st.integers(0, 200), st.integers(0, 3), st.binary(max_size=4) | Count).map(
        lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :]
    )
)


def rows_of(payloads: list[bytes | None]) -> list[dict[str, Any]]:
    column = RECORDS.decoded(pa.array(payloads, pa.binary()))
    column.validate(full=True)
    found: list[dict[str, Any]] = column.to_pylist()
    return found


@attack(st.lists(Payload | st.none(), max_size=6), weight=2)
def test_any_bytes_are_a_record_or_a_reason(payloads: list[bytes | None]) -> None:
    rows = rows_of(payloads)
    assert len(rows) == len(payloads)
    for row in rows:
        assert (row["value"] is None) != (row["reason"] is None)
    # NaN does not equal itself, but its string does.
    assert [repr(rows_of([payload])[0]) for payload in payloads] == [repr(row) for row in rows]


@attack(st.lists(Payload, max_size=2), Row, st.lists(Payload, max_size=2))
def test_what_was_written_is_read_whatever_is_beside_it(
    before: list[bytes], row: dict[str, Any], after: list[bytes]
) -> None:
    read = rows_of([*before, encoded(row), *after])[len(before)]
    assert read["reason"] is None
    found = {**read["value"], "named": dict(read["value"]["named"])}
    assert found == {**row, "price": row["price"].quantize(Decimal("0.01"))}


def test_a_row_of_every_type() -> None:
    good = {
        "i": 1,
        "l": None,
        "f": 0.5,
        "d": 0.25,
        "s": "ä",
        "b": b"\xff",
        "at": datetime(2026, 11, 21, 3, tzinfo=UTC),
        "day": date(2026, 11, 21),
        "price": Decimal("-12.34"),
        "kind": "NEW",
        "key": b"1234",
        "items": [{"x": None, "on": True}],
        "maybe": [None, {"x": 2, "on": False}],
        "named": {"a": [1, 2]},
    }
    row = rows_of([encoded(good)])[0]
    assert {**row["value"], "named": dict(row["value"]["named"])} == good


GROWTH = """
import json, resource, pyarrow as pa
from pyspark_jetstream.avro import Records
from tests.hostile.test_avro import number

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

x = {"name": "x", "type": ["null", "int"]}
wide = [{"name": f"x{n}", "type": "long"} for n in range(100)]
record = {"type": "record", "name": "I"}
for item in ({**record, "fields": [x]}, ["null", {**record, "fields": wide}]):
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": item}}]}
    records = Records(json.dumps(schema))
    count = 12_000_000
    hostile = number(count) + b"\\0" * count + b"\\0"
    small = number(1000) + b"\\0" * 1000 + b"\\0"
    before = peak()
    column = records.decoded(pa.array([small, hostile, small], pa.binary()))
    assert column.field("reason").to_pylist() == [None, "too many values", None], column.field("reason")
    print(peak() - before)
"""


def test_an_array_does_not_grow_without_bound() -> None:
    """Without a limit, 12 MB became 2.4 GiB."""
    ran = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert all(int(grown) < 400 for grown in ran.stdout.split()), ran.stdout


def test_many_messages_are_not_objects_at_the_same_time() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": ITEM}}]}
    payload = number(20_000) + b"\0\0" * 20_000 + b"\0"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    column = Records(json.dumps(schema)).decoded(pa.array([payload] * 40, pa.binary()))
    assert column.field("reason").null_count == 40
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120 << 10  # KiB; all at once they took 200 MiB


@pytest.mark.parametrize("kind", ["bytes", "fixed"])
def test_a_long_decimal_takes_no_time(kind: str) -> None:
    """A decimal of 100 KB took ten seconds, and one of 1 MiB a quarter of an hour."""
    size = 1 << 20
    base = {"type": "fixed", "name": "F", "size": size} if kind == "fixed" else {"type": "bytes"}
    field = {"name": "d", "type": {**base, "logicalType": "decimal", "precision": 10, "scale": 2}}
    records = Records(json.dumps({"type": "record", "name": "R", "fields": [field]}))
    payload = (b"" if kind == "fixed" else number(size)) + b"\x7f" * size
    begin = time.process_time()
    reasons = records.decoded(pa.array([payload], pa.binary())).field("reason")
    assert reasons.to_pylist() == [f"d: a decimal of {size} bytes; it must have 1 to 64"]
    assert time.process_time() - begin < 5
