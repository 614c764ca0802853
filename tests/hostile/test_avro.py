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

from jetstream_arrow.payload.avro import Records
from jetstream_arrow.payload.registry import Answers, Registered
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
from jetstream_arrow.payload.avro import Records
from jetstream_arrow.payload.registry import Answers, Registered
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


def one(kind: Any, payload: bytes) -> Any:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})
    row = Records(schema, "none").decoded(pa.array([payload], pa.binary())).to_pylist()[0]
    return row["reason"] or row["value"]["v"]


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(-1), "v: -1 is not the number of a symbol of E"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(2), "v: 2 is not the number of a symbol of E"),
        (["null", "int"], number(-1) + number(5), "does not match the Avro schema"),
        (["int", "null"], number(-1), "does not match the Avro schema"),
        ("boolean", b"\2", "v: the byte 2 is not a boolean"),
        ({"type": "map", "values": "int"}, number(2) + b"\2a\2\2a\4" + b"\0", "v: a key is repeated"),
        ({"type": "map", "values": "int"}, b"\2\2a\2\2\2a\4\0", "v: a key is repeated"),
        ("string", b"\4\xff\xfe", "does not match the Avro schema"),
    ],
)
def test_bytes_that_fastavro_takes_for_a_value(kind: Any, payload: bytes, reason: str) -> None:
    """fastavro counts negative numbers from the end, takes each byte but 0 for true, and drops repeated keys."""
    assert one(kind, payload) == reason


def doubled(depth: int) -> dict[str, Any]:
    """A schema whose types are twice as many with each level."""
    fields: list[Any] = ["int", "int"]
    inner: Any = {"type": "record", "name": f"N{depth}", "fields": named(fields)}
    for level in reversed(range(depth)):
        inner = {"type": "record", "name": f"N{level}", "fields": named([inner, f"N{level + 1}"])}
    assert isinstance(inner, dict)
    return inner


def named(kinds: list[Any]) -> list[dict[str, Any]]:
    return [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]


NESTED: Any = "int"
for _ in range(900):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "N", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "N", "size": 0}},
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
        {"type": "array", "items": "R"},
        doubled(60),
        NESTED,
    ],
)
def test_a_schema_in_the_registry_that_would_take_no_end(kind: Any) -> None:
    """Whoever may register schemas cannot stop a worker: fastavro reads items without bytes endlessly, and recurses
    without a limit."""
    reader = json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": "int"}]})
    writer = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "int"}, {"name": "w", "type": kind}]}
    answers = Answers({7: Registered("AVRO", json.dumps(writer))})
    payload = b"\0\0\0\0\7" + number(1) + number(2**60) + b"\2" * 10**6
    begin = time.process_time()
    reason = Records(reader, "confluent", (), answers).decoded(pa.array([payload], pa.binary()))[0]["reason"].as_py()
    assert reason.startswith(
        ("data of schema id 7 cannot be read", "does not match the Avro schema", "too many values")
    )
    assert time.process_time() - begin < 5


OLD = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "i", "type": ["null", "int", "string", {"type": "array", "items": ITEM}]},
        {"name": "m", "type": {"type": "map", "values": ["null", "int"]}},
    ],
}
RESOLVED = Records(
    json.dumps(
        {
            "type": "record",
            "name": "All",
            "fields": [
                {"name": "i", "type": ["null", "long"]},
                {"name": "m", "type": {"type": "map", "values": ["null", "double"]}},
                {"name": "added", "type": "string", "default": "x"},
            ],
        }
    ),
    "confluent",
    (),
    Answers({7: Registered("AVRO", json.dumps(OLD))}, frozenset(range(8, 2**10))),
)


@attack(st.lists(st.binary(max_size=40) | st.lists(Count | st.binary(max_size=6)).map(b"".join), max_size=6))
def test_any_bytes_of_another_schema_are_a_record_or_a_reason(payloads: list[bytes]) -> None:
    column = RESOLVED.decoded(pa.array([b"\0\0\0\0\7" + each for each in payloads], pa.binary()))
    column.validate(full=True)
    for row in column.to_pylist():
        assert (row["value"] is None) != (row["reason"] is None)
