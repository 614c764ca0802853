"""Avro values against column types: the table in the documentation, and generated schemas and payloads.

`make decoding` decodes 100,000 generated payloads; `make test` decodes a few hundred of them. `WRITE=1` writes the
table.
"""

import json
import os
import struct
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from jetstream_arrow.payload.avro import Records
from jetstream_arrow.payload.avro_schema import crc_64
from jetstream_arrow.payload.registry import Answers, Registered
from jetstream_client.errors import InvalidValue
from tests.pyspark_jetstream.avro_cases import MALFORMED, Branch, Generator, encoded, like, logical, number, sized

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "avro-values.md"
SEED = int(os.environ.get("SEED") or 0)
CASES = int(os.environ.get("CASES") or 0)
STEADY = Random(0)


def outcome(records: Records, payload: bytes) -> dict[str, Any] | str:
    """Return the row, or the reason why the payload is malformed."""
    row = records.decoded(pa.array([payload], pa.binary())).to_pylist(maps_as_pydicts="strict")[0]
    assert (row["value"] is None) != (row["reason"] is None)
    found: dict[str, Any] | str = row["reason"] or row["value"]
    return found


def record(kind: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind, **more}]})


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def decimal(precision: int, scale: int, kind: str = "bytes") -> dict[str, Any]:
    return logical(kind, "decimal", precision=precision, scale=scale)


INTEGERS = [0, -1, 2**24 + 1, 2**31 - 1, 2**53 + 1, -(2**63)]
DAYS = [0, 20778, -719162, -719163, 2932896, 2932897, 20261121]
MICROS = [0, 1763694000000000, -62135596800000000, -62135596800000001, 253402300799999999, 253402300800000000]
BYTES = [b"", b"a", "ä".encode(), b"\xff"]
UNSCALED = [b"\0", b"\x04\xd2", b"\xfb\x2e", b"\0\0\0\x01", b"\x0f\x42\x40", b"", b"\x7f" * 65]
BIG = [sized(b"\x04\xd2") + number(2), sized(b"\x01") + number(-3), sized(b"\x01") + number(40), b"\x02", b""]
TEXTS = ["", "ä", "2026-11-21"]
FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf")]
SAME: list[tuple[Any, list[Any]]] = [  # a type of the reader and the writer, and values as they are encoded
    ("boolean", [False, True, 2]),
    ("int", [each for each in INTEGERS if abs(each) < 2**31] + [2**31]),
    ("long", INTEGERS),
    ("float", FLOATS),
    ("double", [*FLOATS, 5e-324]),
    ("string", TEXTS),
    ("bytes", BYTES),
    (fixed(2), [b"ab"]),
    (enum("A", "B"), ["A", "B"]),
    ({"type": "array", "items": "int"}, [[], [1, 2]]),
    ({"type": "map", "values": "int"}, [{}, {"a": 1}]),
    (["null", "int"], [Branch(0, None), Branch(1, 5)]),
    (logical("string", "uuid"), ["5f0c9a7b-e21d-4a55-8a05-0f6e5e5e9d01", "no UUID"]),
    (fixed(16, logicalType="uuid"), [UUID(int=1).bytes]),
    (decimal(6, 2), UNSCALED),
    (decimal(38, 0), [(10**38 - 1).to_bytes(16, "big"), (10**38).to_bytes(16, "big")]),
    (fixed(3, logicalType="decimal", precision=4, scale=1), [b"\xff\xff\x85", b"\0\x27\x0f", b"\0\x27\x10"]),
    (logical("bytes", "big-decimal"), BIG),
    (fixed(12, logicalType="duration"), [struct.pack("<III", 1, 2, 2**32 - 1)]),
]
DATES: list[tuple[Any, list[Any]]] = [  # of the logical types of dates and times
    (logical("int", "date"), DAYS),
    (logical("int", "time-millis"), [0, 86_399_999, 86_400_000, -1]),
    (logical("long", "time-micros"), [0, 86_399_999_999, 86_400_000_000, -1]),
    *(
        (logical("long", f"{local}timestamp-{unit}"), [each * nanos // 1000 for each in MICROS] + odd)
        for local in ("", "local-")
        for unit, nanos, odd in (("millis", 1, [2**63 - 1]), ("micros", 1000, [2**63 - 1]))
    ),
    *(
        (logical("long", f"{local}timestamp-nanos"), [0, 1763694000000000000, 1763694000000000001, -(2**63)])
        for local in ("", "local-")
    ),
]
OTHER: list[tuple[Any, Any, list[Any]]] = [  # types of the writer and the reader
    ("int", "long", [5]),
    ("int", "float", [5, 2**24 + 1]),
    ("int", "double", [2**31 - 1]),
    ("long", "float", [5, 2**53 + 1]),
    ("long", "double", [2**53, 2**53 + 1]),
    ("float", "double", [1.5]),
    ("string", "bytes", ["ä"]),
    ("bytes", "string", ["ä".encode(), b"\xff"]),
    ("long", "int", [5]),
    ("double", "float", [1.5]),
    ("int", "string", [5]),
    ("string", "int", ["5"]),
    ("string", enum("A"), ["A"]),
    (enum("A", "B"), "string", ["A"]),
    (enum("A", "B", "C"), enum("C", "A"), ["A", "B", "C"]),
    (enum("A", "B"), enum("X", "A", default="X"), ["A", "B"]),
    (fixed(2), fixed(3), [b"ab"]),
    (fixed(2), "bytes", [b"ab"]),
    (["null", "int"], "int", [Branch(0, None), Branch(1, 5)]),
    ("int", ["null", "int"], [5]),
    (["null", "int", "string"], ["null", "long"], [Branch(0, None), Branch(1, 5), Branch(2, "x")]),
    (["int", "long", "float"], "double", [Branch(0, 5), Branch(1, 2**53 + 1), Branch(2, 1.5)]),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [[1, 2]]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "float"}, [[1, 2**24 + 1]]),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, [[1]]),
    (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), [1763694000000]),
    (logical("long", "timestamp-nanos"), logical("long", "timestamp-millis"), [1763694000123456000, 1]),
    (logical("long", "timestamp-millis"), logical("long", "local-timestamp-millis"), [1763694000000]),
    (logical("long", "timestamp-millis"), "long", [1763694000000]),
    ("long", logical("long", "timestamp-millis"), [1763694000000]),
    (logical("int", "time-millis"), logical("long", "time-micros"), [1]),
    (logical("int", "date"), logical("long", "timestamp-millis"), [1]),
    (logical("long", "since-launch"), "long", [1]),
    (logical("long", "since-launch"), logical("long", "timestamp-millis"), [1]),
    (decimal(6, 2), decimal(8, 2), [b"\x04\xd2"]),
    (decimal(6, 2), decimal(3, 2), [b"\x04\xd2", b"\x03\xe7"]),
    (decimal(6, 2), decimal(6, 3), [b"\x04\xd2"]),
    (fixed(2, logicalType="decimal", precision=4), decimal(4, 0), [b"\x04\xd2"]),
    (logical("string", "uuid"), fixed(16, logicalType="uuid"), [""]),
]
REFUSED: list[Any] = [
    "null",
    ["int", "string"],
    ["null"],
    enum("A", "A"),
    {"type": "array", "items": "null"},
    {"type": "array", "items": "R"},
    {"type": "record", "name": "S", "fields": []},
    fixed(0),
    decimal(39, 2),
    decimal(4, 5),
    logical("string", "decimal", precision=4),
    logical("long", "date"),
    logical("int", "timestamp-millis"),
    fixed(11, logicalType="duration"),
    fixed(15, logicalType="uuid"),
    logical("long", "since-launch"),
    "unknown",
]
LONGS = json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "long"} for name in "abcdefghij"]})
REGISTRY = Answers({7: Registered("AVRO", record("int"))}, frozenset([9, 7 << 32]))
ONE = b"\xc3\x01" + crc_64(record("long"))
FRAMED: list[tuple[str, str, Any, Answers | None, bytes]] = [  # what it is, schema, framing, answers, payload
    *(
        case
        for framing in (None, "none", "single-object")
        for case in (
            ("5", record("long"), framing, None, number(5)),
            ("0", record("long"), framing, None, number(0)),
            ("0x00, id 7, 5", record("long"), framing, None, b"\0\0\0\0\7" + number(5)),
            ("ten longs that begin with 0x00, id of 4 bytes", LONGS, framing, None, b"\0\0\0\0\5" + bytes(5)),
            ("ten longs that begin with 0x00, id of 8 bytes", LONGS, framing, None, bytes(8) + b"\5\0"),
            ("ten longs that begin with one zero", LONGS, framing, None, b"\0\2" + bytes(8)),
            ("0xC3 0x01, the schema's fingerprint, 5", record("long"), framing, None, ONE + number(5)),
            ("0xC3 0x01, another fingerprint, 5", record("int"), framing, None, ONE + number(5)),
        )
    ),
    *(
        case
        for framing in ("confluent", "apicurio")
        for size in ((4 if framing == "confluent" else 8),)
        for case in (
            ("5", record("long"), framing, REGISTRY, number(5)),
            ("0x00, known id, 5", record("long"), framing, REGISTRY, b"\0" + (7).to_bytes(size, "big") + number(5)),
            ("0x00, unknown id, 5", record("long"), framing, REGISTRY, b"\0" + (9).to_bytes(size, "big") + number(5)),
            ("0x00, id of 4 bytes, 5", record("long"), framing, REGISTRY, b"\0\0\0\0\7" + number(5)),
            ("0x00, id of 4 bytes, data", record("long"), framing, REGISTRY, b"\0\0\0\0\7" + bytes(9)),
            ("0x00, id of 8 bytes, 5", record("long"), framing, REGISTRY, bytes(8) + b"\7" + number(5)),
        )
    ),
]


def code(text: object) -> str:
    shown = str(text).replace("|", "\\|")
    return f"`{shown}`" if shown else "the empty string"


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return f"[{', '.join(map(kind_of, schema))}]"
    if not isinstance(schema, dict):
        return str(schema)
    stated = [
        f"{name} {schema[name]}" for name in ("precision", "scale", "size", "symbols", "default") if name in schema
    ]
    inside = [kind_of(schema[name]) for name in ("items", "values") if name in schema]
    named = f"{schema['type']} {schema.get('logicalType', '')}".strip()
    details = ", ".join([*inside, *stated])
    return f"{named} ({details})" if details else named


def shown_value(value: Any) -> str:
    if isinstance(value, Branch):
        value = value.value
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if len(value) < 20 else f"0x{value[:4].hex()}… ({len(value)} bytes)"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)


def shown(found: dict[str, Any] | str) -> str:
    if isinstance(found, str):
        return f"malformed: {found}"
    value = found["v"] if "v" in found else tuple(found.values())
    return code(value if isinstance(value, (date, Decimal)) else repr(value))


def table(head: str, lines: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *lines])


def of_values(cases: list[tuple[Any, list[Any]]]) -> Iterator[str]:
    for kind, values in cases:
        records = Records(record(kind), "none")
        column = records.ddl.removeprefix("STRUCT<`v`: ").removesuffix(">")
        for value in values:
            found = outcome(records, encoded(kind, value, STEADY))
            yield f"| {code(kind_of(kind))} | {code(column)} | {code(shown_value(value))} | {shown(found)} |"


def of_promotions() -> Iterator[str]:
    for writer, reader, values in OTHER:
        for value in values:
            types = f"| {code(kind_of(writer))} | {code(kind_of(reader))} | {code(shown_value(value))} |"
            try:
                records = Records(record(reader), "none", [record(writer)])
            except InvalidValue as refused:
                yield f"{types} error: {refused.remedy} |"
            else:
                yield f"{types} {shown(outcome(records, encoded(writer, value, STEADY)))} |"


def of_refused() -> Iterator[str]:
    for kind in REFUSED:
        with pytest.raises(InvalidValue) as refused:
            Records(record(kind))
        yield f"| {code(kind_of(kind))} | error: {refused.value.remedy} |"


def of_framings() -> Iterator[str]:
    for what, schema, framing, answers, payload in FRAMED:
        stated = repr(framing) if framing else "not stated"
        yield f"| {what} | {stated} | {shown(outcome(Records(schema, framing, (), answers), payload))} |"


def test_every_value_in_a_column_of_every_type() -> None:
    head = "| Type | Column | Encoded value | Becomes |"
    logicals = [case for case in SAME if isinstance(case[0], dict) and "logicalType" in case[0]]
    parts = [
        ("Types", head, list(of_values([case for case in SAME if case not in logicals]))),
        ("Dates and times", head, list(of_values(DATES))),
        ("Other logical types", head, list(of_values(logicals))),
        ("Values of another writer's schema", "| Writer | Reader | Encoded value | Becomes |", list(of_promotions())),
        ("Types that are refused", "| Type of a field | Becomes |", list(of_refused())),
        ("Framings", "| Payload | `framing` | Becomes |", list(of_framings())),
    ]
    assert sum(len(lines) for _, _, lines in parts) >= 200
    sections = [f"## {title}\n\n{table(head, lines)}" for title, head, lines in parts]
    intro, _, _ = PAGE.read_text().partition("\n## ")
    page = "\n\n".join([intro.rstrip(), *sections]) + "\n"
    if os.environ.get("WRITE"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "the table has changed: WRITE=1 writes it"


@pytest.mark.timeout(0 if CASES else 300)
def test_no_good_row_differs_from_what_was_written() -> None:
    """With the writer's schema, through a registry, and in single-object encoding. Without any of them, a framed
    payload is never a row."""
    rng = Random(SEED)
    cases, good = CASES or 200, 0
    for _ in range(cases):
        case = Generator(Random(rng.getrandbits(64))).case()
        schema = rng.randrange(1, 2**24)
        frame = rng.choice([schema.to_bytes(4, "big"), schema.to_bytes(8, "big")])
        confluent = b"\0" + frame + case.payload
        single = b"\xc3\x01" + crc_64(case.writer) + case.payload
        answers = Answers({schema: Registered("AVRO", case.writer)})
        framing: Any = "confluent" if len(frame) == 4 else "apicurio"
        plain = Records(case.reader, "none", [case.writer])
        recognised = Records(case.reader, None, [case.writer])
        found = outcome(plain, case.payload)
        for each in (outcome(Records(case.reader, framing, (), answers), confluent), outcome(recognised, single)):
            assert each == found or like(each, found), case
        good += check(found, case.expected, case)
        assert isinstance(outcome(recognised, confluent), str), case
        assert isinstance(outcome(Records(case.reader, None), confluent), str), case
        alone = outcome(recognised, case.payload)
        assert alone == found or like(alone, found) or str(alone).startswith("begins like"), case
    assert good > cases / 5, f"{good} good of {cases}, SEED={SEED}"


def check(found: dict[str, Any] | str, expected: Any, case: object) -> bool:
    if expected is MALFORMED:
        assert isinstance(found, str), (case, found)
        return False
    assert not isinstance(found, str), (case, found)
    assert like(found, expected), (case, found, expected)
    return True
