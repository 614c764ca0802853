"""What each Protobuf value becomes: the table of docs/reference/protobuf-values.md, which WRITE=1 writes."""

import os
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from jetstream_client.errors import InvalidValue
from pyspark_jetstream import decoded
from tests.pyspark_jetstream.proto_source import descriptor_set, number

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protobuf-values.md"
BEGIN, END = "<!-- begin of the tables -->", "<!-- end of the tables -->"
SOURCE = """
syntax = "proto3"; package t;
enum Size { option allow_alias = true; NONE = 0; SMALL = 1; TINY = 1; BELOW = -1; }
message Inner { int32 a = 1; string b = 2; }
message Mark { }
message Values {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7;
  sint64 s64 = 8; fixed32 x32 = 9; fixed64 x64 = 10; sfixed32 sx32 = 11; sfixed64 sx64 = 12; bool flag = 13;
  string text = 14; bytes raw = 15; Size size = 16; Inner inner = 17; Mark mark = 18;
  repeated int32 numbers = 19; repeated string words = 20; repeated Inner inners = 21; repeated Size sizes = 22;
  map<string, int32> named = 23; map<uint64, Inner> keyed = 24; map<bool, string> yes = 25;
  oneof choice { int32 one = 26; string two = 27; Inner three = 28; }
  google.protobuf.Timestamp at = 30; google.protobuf.Duration took = 31; google.protobuf.Int64Value long = 32;
  google.protobuf.StringValue string = 33; google.protobuf.BoolValue sure = 34; google.protobuf.UInt64Value most = 35;
  google.protobuf.Struct object = 36; google.protobuf.Value value = 37; google.protobuf.ListValue list = 38;
  google.protobuf.Any any = 39; google.protobuf.FieldMask mask = 40; google.protobuf.Empty empty = 41;
  optional int32 maybe = 50; optional string perhaps = 51;
}
"""
PROTO2 = """
syntax = "proto2"; package t;
enum Size { NONE = 0; SMALL = 1; }
message Inner { required int32 a = 1; map<int32, string> named = 2; }
message Outer { optional Inner inner = 1; }
message Values {
  required int32 id = 1; optional int32 count = 2 [default = 5]; optional string text = 3; optional Size size = 4;
  repeated Size sizes = 5; optional Inner inner = 6; repeated Outer outers = 7;
}
"""


def varint(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def of_bytes(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return number(field << 3 | 2) + number(len(content)) + content


def fixed(field: int, layout: str, value: Any) -> bytes:
    content = struct.pack(f"<{layout}", value)
    return number(field << 3 | (1 if len(content) == 8 else 5)) + content


def seconds(field: int, whole: int, nanos: int = 0) -> bytes:
    return of_bytes(field, (varint(1, whole) if whole else b"") + (varint(2, nanos) if nanos else b""))


def json_number(value: float) -> bytes:
    return fixed(2, "d", value)


def lists(depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        value = of_bytes(6, of_bytes(1, value) if value else b"")
    return of_bytes(37, value)


class Bad(str):
    """A part of the reason why the payload is malformed."""

    __slots__ = ()


FITS = "does not fit into the type"
SYMBOL = "no symbol with the number"
TWICE = "occurs twice"
INEXACT = "cannot be represented exactly"
LONGEST = 315_576_000_000
# A field, its type and its column; and for each value its payload and what the field becomes, or the reason.
FIELDS: list[tuple[str, str, str, list[tuple[str, bytes, Any]]]] = [
    (
        "d",
        "double",
        "DOUBLE",
        [
            ("0.1", fixed(1, "d", 0.1), 0.1),
            ("-0.0", fixed(1, "d", -0.0), -0.0),
            ("NaN", fixed(1, "d", nan), nan),
            ("infinite", fixed(1, "d", -inf), -inf),
            ("left out", varint(3, 1), 0.0),
            ("as a float", fixed(1, "f", 1.5), Bad("wire type 5")),
        ],
    ),
    (
        "f",
        "float",
        "FLOAT",
        [("1.5", fixed(2, "f", 1.5), 1.5), ("NaN", fixed(2, "f", nan), nan), ("infinite", fixed(2, "f", inf), inf)],
    ),
    (
        "i32",
        "int32",
        "INT",
        [
            ("-2^31", varint(3, -(2**31)), -(2**31)),
            ("2^31 - 1", varint(3, 2**31 - 1), 2**31 - 1),
            ("2^31", varint(3, 2**31), Bad(FITS)),
            ("-2^31 - 1", varint(3, -(2**31) - 1), Bad(FITS)),
            ("0, encoded", varint(3, 0), 0),
            ("1 in three bytes", b"\x18\x81\x80\x00", 1),
            ("more than 64 bits", b"\x18" + b"\xff" * 9 + b"\x7f", Bad(FITS)),
            ("eleven bytes", b"\x18" + b"\x80" * 10 + b"\x00", Bad("a field that cannot exist")),
            ("as a string", of_bytes(3, "1"), Bad("wire type 2")),
            ("twice", varint(3, 1) + varint(3, 2), Bad(TWICE)),
            ("twice the same", varint(3, 1) * 2, Bad(TWICE)),
            ("half a varint", b"\x18\x80", Bad("ends inside a field")),
        ],
    ),
    (
        "i64",
        "int64",
        "BIGINT",
        [
            ("-2^63", varint(4, -(2**63)), -(2**63)),
            ("2^63 - 1", varint(4, 2**63 - 1), 2**63 - 1),
            ("more than 64 bits", b"\x20" + b"\xff" * 9 + b"\x02", Bad(FITS)),
        ],
    ),
    (
        "u32",
        "uint32",
        "BIGINT",
        [("2^32 - 1", varint(5, 2**32 - 1), 2**32 - 1), ("2^32", varint(5, 2**32), Bad(FITS))],
    ),
    ("u64", "uint64", "DECIMAL(20, 0)", [("2^64 - 1", varint(6, 2**64 - 1), Decimal(2**64 - 1))]),
    (
        "s32",
        "sint32",
        "INT",
        [("-2^31", varint(7, 2**32 - 1), -(2**31)), ("2^31", varint(7, 2**32), Bad(FITS))],
    ),
    ("s64", "sint64", "BIGINT", [("-2^63", varint(8, 2**64 - 1), -(2**63))]),
    ("x32", "fixed32", "BIGINT", [("2^32 - 1", fixed(9, "I", 2**32 - 1), 2**32 - 1)]),
    ("x64", "fixed64", "DECIMAL(20, 0)", [("2^64 - 1", fixed(10, "Q", 2**64 - 1), Decimal(2**64 - 1))]),
    ("sx32", "sfixed32", "INT", [("-2^31", fixed(11, "i", -(2**31)), -(2**31))]),
    ("sx64", "sfixed64", "BIGINT", [("-2^63", fixed(12, "q", -(2**63)), -(2**63))]),
    (
        "flag",
        "bool",
        "BOOLEAN",
        [("true", varint(13, 1), True), ("false, encoded", varint(13, 0), False), ("2", varint(13, 2), Bad(FITS))],
    ),
    (
        "text",
        "string",
        "STRING",
        [
            ('"ä"', of_bytes(14, "ä"), "ä"),
            ("empty, encoded", of_bytes(14, ""), ""),
            ("left out", varint(3, 1), ""),
            ("the byte 0xff", of_bytes(14, b"\xff"), Bad("text: the string is not UTF-8")),
            ("longer than the payload", b"\x72\x05ab", Bad("ends inside a field")),
        ],
    ),
    (
        "raw",
        "bytes",
        "BINARY",
        [("the byte 0xff", of_bytes(15, b"\xff"), b"\xff"), ("left out", varint(3, 1), b"")],
    ),
    (
        "size",
        "enum",
        "STRING",
        [
            ("1", varint(16, 1), "SMALL"),
            ("-1", varint(16, -1), "BELOW"),
            ("left out", varint(3, 1), "NONE"),
            ("7, which the schema lacks", varint(16, 7), Bad(SYMBOL)),
            ("2^32", varint(16, 2**32), Bad(FITS)),
        ],
    ),
    (
        "inner",
        "message",
        "STRUCT",
        [
            ("with a", of_bytes(17, varint(1, 1)), {"a": 1, "b": ""}),
            ("empty", of_bytes(17, b""), {"a": 0, "b": ""}),
            ("left out", varint(3, 1), None),
            ("twice", of_bytes(17, varint(1, 1)) + of_bytes(17, of_bytes(2, "x")), Bad(TWICE)),
            ("with a string as a", of_bytes(17, of_bytes(1, "x")), Bad("inner.a: field 1 has the wire type 2")),
            ("with a field of a newer schema", of_bytes(17, varint(1, 1) + varint(9, 1)), {"a": 1, "b": ""}),
        ],
    ),
    (
        "mark",
        "message without fields",
        "BOOLEAN",
        [("set", of_bytes(18, b""), True), ("left out", varint(3, 1), None)],
    ),
    (
        "numbers",
        "repeated int32",
        "ARRAY<INT>",
        [
            ("packed", of_bytes(19, b"\x01\x02"), [1, 2]),
            ("not packed", varint(19, 1) + varint(19, 2), [1, 2]),
            ("both", varint(19, 1) + of_bytes(19, b"\x02"), [1, 2]),
            ("left out", varint(3, 1), []),
            ("2^31 in it", of_bytes(19, number(2**31)), Bad(FITS)),
            ("half a varint in it", of_bytes(19, b"\x80"), Bad("ends inside a field")),
        ],
    ),
    (
        "words",
        "repeated string",
        "ARRAY<STRING>",
        [
            ("two", of_bytes(20, "a") + of_bytes(20, ""), ["a", ""]),
            ("not UTF-8", of_bytes(20, b"\xff"), Bad("words[]: the string")),
        ],
    ),
    (
        "inners",
        "repeated message",
        "ARRAY<STRUCT>",
        [
            ("two", of_bytes(21, varint(1, 1)) + of_bytes(21, b""), [{"a": 1, "b": ""}, {"a": 0, "b": ""}]),
            ("a field twice in one", of_bytes(21, varint(1, 1) * 2), Bad(f"inners[].a: the field {TWICE}")),
        ],
    ),
    (
        "sizes",
        "repeated enum",
        "ARRAY<STRING>",
        [
            ("known", of_bytes(22, b"\x01\x00"), ["SMALL", "NONE"]),
            ("unknown", of_bytes(22, b"\x01\x09"), Bad(SYMBOL)),
        ],
    ),
    (
        "named",
        "map<string, int32>",
        "MAP<STRING, INT>",
        [
            (
                "two entries",
                of_bytes(23, of_bytes(1, "a") + varint(2, 1)) + of_bytes(23, of_bytes(1, "b")),
                {"a": 1, "b": 0},
            ),
            ("entry without a key", of_bytes(23, varint(2, 1)), {"": 1}),
            ("left out", varint(3, 1), {}),
            ("a key twice", of_bytes(23, of_bytes(1, "a")) * 2, Bad(f"the key 'a' {TWICE}")),
            (
                "no key and the empty key",
                of_bytes(23, b"") + of_bytes(23, of_bytes(1, "")),
                Bad(f"the key '' {TWICE}"),
            ),
            (
                "an entry with a third field",
                of_bytes(23, varint(2, 1) + varint(3, 1)),
                Bad("an entry has the field 3"),
            ),
            ("two values in an entry", of_bytes(23, varint(2, 1) * 2), Bad(f"named{{}}: the field {TWICE}")),
        ],
    ),
    (
        "keyed",
        "map<uint64, message>",
        "MAP<DECIMAL(20, 0), STRUCT>",
        [
            ("one entry", of_bytes(24, varint(1, 2**64 - 1)), {Decimal(2**64 - 1): {"a": 0, "b": ""}}),
            (
                "a key twice",
                of_bytes(24, varint(1, 300) + of_bytes(2, b"")) + of_bytes(24, b"\x08\xac\x82\x00"),
                Bad(TWICE),
            ),
        ],
    ),
    ("yes", "map<bool, string>", "MAP<BOOLEAN, STRING>", [("one entry", of_bytes(25, varint(1, 1)), {True: ""})]),
    (
        "one",
        "int32 of a oneof",
        "INT",
        [
            ("0", varint(26, 0), 0),
            ("another one", of_bytes(27, "x"), None),
            (
                "two of them",
                varint(26, 1) + of_bytes(27, "x"),
                Bad("the payload also has one, which is of the same oneof"),
            ),
        ],
    ),
    (
        "at",
        "google.protobuf.Timestamp",
        "TIMESTAMP",
        [
            (
                "2026-11-21 03:00:00.000001",
                seconds(30, 1795230000, 1000),
                datetime(2026, 11, 21, 3, 0, 0, 1, tzinfo=UTC),
            ),
            ("0001-01-01", seconds(30, -62135596800), datetime(1, 1, 1, tzinfo=UTC)),
            (
                "9999-12-31 23:59:59.999999",
                seconds(30, 253402300799, 999999000),
                datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            ),
            ("a second before the year 1", seconds(30, -62135596801), Bad(INEXACT)),
            ("the year 10000", seconds(30, 253402300800), Bad(INEXACT)),
            ("1 ns", seconds(30, 0, 1), Bad(INEXACT)),
            ("10^9 ns", seconds(30, 0, 10**9), Bad(INEXACT)),
            ("-1000 ns", seconds(30, 0, -1000), Bad(INEXACT)),
            ("without fields", seconds(30, 0), datetime(1970, 1, 1, tzinfo=UTC)),
            ("left out", varint(3, 1), None),
        ],
    ),
    (
        "took",
        "google.protobuf.Duration",
        "INTERVAL DAY TO SECOND",
        [
            ("1.5 s", seconds(31, 1, 500_000_000), timedelta(seconds=1.5)),
            ("-1.5 s", seconds(31, -1, -500_000_000), timedelta(seconds=-1.5)),
            ("-1 µs", seconds(31, 0, -1000), timedelta(microseconds=-1)),
            ("10,000 years", seconds(31, LONGEST), timedelta(seconds=LONGEST)),
            ("a second more", seconds(31, LONGEST + 1), Bad(INEXACT)),
            ("two signs", seconds(31, 1, -500_000_000), Bad(INEXACT)),
            ("1 ns", seconds(31, 0, 1), Bad(INEXACT)),
        ],
    ),
    (
        "long",
        "google.protobuf.Int64Value",
        "BIGINT",
        [("5", of_bytes(32, varint(1, 5)), 5), ("0", of_bytes(32, b""), 0), ("left out", varint(3, 1), None)],
    ),
    (
        "string",
        "google.protobuf.StringValue",
        "STRING",
        [
            ("empty", of_bytes(33, b""), ""),
            ("not UTF-8", of_bytes(33, of_bytes(1, b"\xff")), Bad("string: the string")),
        ],
    ),
    ("sure", "google.protobuf.BoolValue", "BOOLEAN", [("false", of_bytes(34, b""), False)]),
    (
        "most",
        "google.protobuf.UInt64Value",
        "DECIMAL(20, 0)",
        [("2^64 - 1", of_bytes(35, varint(1, 2**64 - 1)), Decimal(2**64 - 1))],
    ),
    (
        "object",
        "google.protobuf.Struct",
        "STRING (JSON)",
        [
            ("a: 1.5", of_bytes(36, of_bytes(1, of_bytes(1, "a") + of_bytes(2, json_number(1.5)))), '{"a":1.5}'),
            ("empty", of_bytes(36, b""), "{}"),
            (
                "a key twice",
                of_bytes(36, of_bytes(1, of_bytes(1, "a") + of_bytes(2, varint(4, 1))) * 2),
                Bad(TWICE),
            ),
        ],
    ),
    (
        "value",
        "google.protobuf.Value",
        "STRING (JSON)",
        [
            ("null", of_bytes(37, varint(1, 0)), "null"),
            ("true", of_bytes(37, varint(4, 1)), "true"),
            ('"x"', of_bytes(37, of_bytes(3, "x")), '"x"'),
            ("NaN", of_bytes(37, json_number(nan)), Bad("infinite or NaN")),
            ("of no kind", of_bytes(37, b""), Bad("none of its kinds")),
            ("101 lists in each other", lists(101), Bad("more than 100 messages inside each other")),
            ("10 lists in each other", lists(10), "[" * 10 + "]" * 10),
        ],
    ),
    (
        "list",
        "google.protobuf.ListValue",
        "STRING (JSON)",
        [("null and 1", of_bytes(38, of_bytes(1, varint(1, 0)) + of_bytes(1, json_number(1))), "[null,1.0]")],
    ),
    (
        "any",
        "google.protobuf.Any",
        "STRUCT<type_url STRING, value BINARY>",
        [
            (
                "of an unknown type",
                of_bytes(39, of_bytes(1, "t/x") + of_bytes(2, b"\xff")),
                {"type_url": "t/x", "value": b"\xff"},
            )
        ],
    ),
    (
        "mask",
        "google.protobuf.FieldMask",
        "STRUCT<paths ARRAY<STRING>>",
        [("a", of_bytes(40, of_bytes(1, "a")), {"paths": ["a"]})],
    ),
    (
        "empty",
        "google.protobuf.Empty",
        "BOOLEAN",
        [("set", of_bytes(41, b""), True), ("left out", varint(3, 1), None)],
    ),
    (
        "maybe",
        "optional int32",
        "INT",
        [("0", varint(50, 0), 0), ("left out", varint(3, 1), None), ("twice", varint(50, 1) * 2, Bad(TWICE))],
    ),
    ("perhaps", "optional string", "STRING", [("empty", of_bytes(51, ""), ""), ("left out", varint(3, 1), None)]),
]

ORDER = varint(3, 1) + of_bytes(14, "x")
PAYLOADS: list[tuple[str, bytes, str | None]] = [  # what it is, the payload, and the reason if it is malformed
    ("empty", b"", "empty"),
    ("a message", ORDER, None),
    ("its fields in another order", of_bytes(14, "x") + varint(3, 1), None),
    ("only default values, encoded", varint(3, 0), None),
    ("a known field and one of a newer schema", ORDER + varint(99, 1), None),
    ("a known field and a group of a newer schema", ORDER + b"\x9b\x06\x08\x01\x9c\x06", None),
    ("only fields of another schema", varint(99, 1) + of_bytes(98, "x"), "shares no field with the schema"),
    ("cut inside a field", ORDER[:-1], "ends inside a field"),
    ("cut between two fields", ORDER[:2], None),
    ("a message and the byte 0xff", ORDER + b"\xff", "ends inside a field"),
    ("a message twice", ORDER * 2, "may be several messages"),
    ("two messages that share no singular field", varint(3, 1) + of_bytes(14, "x"), None),
    ("a message after its length", number(len(ORDER)) + ORDER, "begins with its own length"),
    ("two messages, each after its length", (number(len(ORDER)) + ORDER) * 2, "begins with its own length"),
    (
        "framed by a schema registry, id 7",
        b"\0\0\0\0\7\0" + ORDER,
        "(schema id 7); give registry",
    ),
    ("framed by gRPC", b"\0" + len(ORDER).to_bytes(4) + ORDER, "gRPC"),
    ("JSON", b'{"i32": 1}', "wire type 3"),
    ("text", b"hello world", "field"),
    ("zeros", bytes(4), "begins with the byte 0x00"),
    ("0xff", b"\xff" * 12, "not a Protobuf message"),
    ("a group that does not end", ORDER + b"\x9b\x06\x08\x01", "ends inside a field"),
    ("the field number 0", ORDER + b"\x02\x00", "a field that cannot exist"),
    ("the wire type 7", ORDER + number(99 << 3 | 7), "a field that cannot exist"),
]
REQUIRED: list[tuple[str, bytes, str | None]] = [  # of proto2
    ("required field", varint(1, 1), None),
    ("without the required field", varint(2, 1), "id: missing, but the schema says required"),
    ("without the required field of a message in it", varint(1, 1) + of_bytes(6, b""), "inner.a: missing"),
    # Here, google.protobuf's FindInitializationErrors ends the process (7.36.2).
    (
        "without the required field of two messages with a map",
        varint(1, 1) + of_bytes(7, of_bytes(1, of_bytes(2, varint(1, 1)))) * 2,
        "outers[].inner.a: missing",
    ),
    ("string that is not UTF-8", varint(1, 1) + of_bytes(3, b"\xff"), "text: the string is not UTF-8"),
    ("number that the enum lacks", varint(1, 1) + varint(4, 9), f"size: the enum in the schema has {SYMBOL} 9"),
    ("number that the enum lacks, in a list", varint(1, 1) + varint(5, 1) + varint(5, 9), SYMBOL),
    ("field with a default value, left out: null", varint(1, 1), None),
]
REFUSED: list[tuple[str, str, str]] = [  # schema, message, and the error
    ("message Values { int32 a = 1; Values next = 2; }", "t.Values", "contains itself"),
    ("message Values { Other o = 1; } message Other { repeated Values v = 1; }", "t.Values", "contains itself"),
    ("message Values { int32 a = 1; int32 A = 2; }", "t.Values", "differ only in case"),
    ("message Values { }", "t.Values", "no fields"),
    ("message Values { int32 a = 1; }", "t.Value", "t.Values"),
    ("message Values { int32 a = 1; }", "google.protobuf.Struct", "no fields"),
]


def rows(
    spark: SparkSession, payloads: list[bytes], source: str = SOURCE, **changes: Any
) -> list[dict[str, Any] | str]:
    """Return what each payload becomes: a row, or the reason why it is malformed."""
    messages = spark.createDataFrame(list(enumerate(payloads)), "n INT, payload BINARY")
    messages = messages.withColumnRenamed("payload", "data")
    given = {"schema": descriptor_set(source), "format": "protobuf", "message": "t.Values", **changes}
    good, malformed = decoded(messages, into="row", **given)
    if "at:timestamp" in good.schema["row"].simpleString():
        # Python has no local time for the first and the last day of the years that a column can have.
        good = good.withColumn("row", F.col("row").withField("at", F.unix_micros("row.at")))
    found = {row.n: row.row.asDict(recursive=True) for row in good.collect()}
    reasons = {row.n: row.reason for row in malformed.collect()}
    assert not found.keys() & reasons.keys()
    return [(found | reasons)[number] for number in range(len(payloads))]


def agrees(found: Any, expected: Any) -> bool:
    if isinstance(expected, datetime):
        return bool(found == (expected - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    if isinstance(expected, float) and isnan(expected):
        return isnan(found)
    return repr(found) == repr(expected) or (not isinstance(expected, float) and found == expected)


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> list[str]:
    """The tables of the page. Each line has been checked."""
    lines = ["### Types", "", "| Type | Column | Value | Becomes |", "|---|---|---|---|"]
    became = iter(rows(spark, [payload for *_, cases in FIELDS for _, payload, _ in cases]))
    for field, kind, column, cases in FIELDS:
        for value, _, expected in cases:
            row = next(became)
            if isinstance(expected, Bad):
                assert isinstance(row, str), (field, value, row)
                assert expected in row, (field, value, row)
            else:
                assert isinstance(row, dict), (field, value, row)
                assert agrees(row[field], expected), (field, value, row[field])
            said = result(Bad(row) if isinstance(row, str) else expected)
            lines.append(f"| {shown(kind)} | {shown(column)} | {value} | {said} |")
    for title, payloads, source in (("Whole payloads", PAYLOADS, SOURCE), ("proto2", REQUIRED, PROTO2)):
        lines += ["", f"### {title}", "", "| Payload | Becomes |", "|---|---|"]
        for (name, _, reason), row in zip(payloads, rows(spark, [each[1] for each in payloads], source), strict=True):
            assert (reason is None) == isinstance(row, dict), (name, row)
            assert reason is None or reason in row, (name, row)
            lines.append(f"| {name} | {'a row' if isinstance(row, dict) else result(Bad(row))} |")
    lines += ["", "### Schemas that are refused", "", "| Schema | Message | Error |", "|---|---|---|"]
    for source, message, error in REFUSED:
        with pytest.raises(InvalidValue, match=error) as raised:
            rows(spark, [], f'syntax = "proto3"; package t; {source}', message=message)
        lines.append(f"| {shown(source)} | {shown(message)} | {str(raised.value).partition(': ')[2]} |")
    return lines


def shown(code: str) -> str:
    return f"`{code}`".replace("`STRING (JSON)`", "`STRING`, JSON")


def result(value: Any) -> str:
    if isinstance(value, Bad):
        return f"malformed: {value}"
    if value is None or value == "":
        return "null" if value is None else "an empty string"
    if isinstance(value, timedelta):
        return f"`{value.total_seconds()} s`"
    return f"`{value}`"


def test_the_page_lists_what_each_value_becomes(table: list[str]) -> None:
    page = PAGE.read_text() if PAGE.exists() else f"{BEGIN}\n{END}\n"
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    written = "\n\n" + "\n".join(table) + "\n\n"
    if os.environ.get("WRITE"):
        PAGE.write_text(page[:begin] + written + page[end:])
    else:
        assert page[begin:end] == written, "WRITE=1 writes the page"


def test_unknown_fields_can_be_refused(spark: SparkSession) -> None:
    payloads = [ORDER, ORDER + varint(99, 1), of_bytes(17, varint(9, 1)), of_bytes(18, varint(1, 1)), varint(99, 1)]
    _, outer, inner, mark, only = rows(spark, payloads, unknown_fields="malformed")
    assert (outer, inner) == (
        "the schema does not contain the field 99",
        "inner: the schema does not contain the field 9",
    )
    assert (mark, only) == ("mark: the schema does not contain the field 1", "the schema does not contain the field 99")


def test_nanoseconds_can_be_kept(spark: SparkSession) -> None:
    found = rows(spark, [seconds(30, 5, 1) + seconds(31, -5, -1)], options={"nanoseconds.as.struct": "true"})
    assert isinstance(found[0], dict)
    assert (found[0]["at"], found[0]["took"]) == ({"seconds": 5, "nanos": 1}, {"seconds": -5, "nanos": -1})


def test_proto2_tells_a_default_from_a_value(spark: SparkSession) -> None:
    (row,) = rows(spark, [varint(1, 1)], PROTO2)
    assert row == {"id": 1, "count": None, "text": None, "size": None, "sizes": [], "inner": None, "outers": []}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": "message Order {}"}, "protoc --include_imports"),
        ({"schema": b"\xff"}, "protoc --include_imports"),
        ({"schema": b""}, "protoc --include_imports"),
        ({"message": None}, "message=None.*full name"),
        ({"message": "Values"}, "whose last ones are.*t.Values"),
        ({"options": {"mode": "FAILFAST"}}, "nanoseconds.as.struct"),
        ({"epoch_unit": "ms"}, "epoch_unit"),
        ({"format": "avro"}, "message"),
        ({"unknown_fields": "drop"}, "unknown_fields"),
    ],
)
def test_what_cannot_be_used_is_named(spark: SparkSession, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        rows(spark, [], **changes)


def test_a_descriptor_set_needs_its_imports(spark: SparkSession) -> None:
    files = FileDescriptorSet.FromString(descriptor_set(SOURCE))
    alone = FileDescriptorSet(file=[files.file[-1]]).SerializeToString()
    with pytest.raises(InvalidValue, match=r"include_imports.*google/protobuf"):
        rows(spark, [], schema=alone)


def test_extensions_are_named(spark: SparkSession) -> None:
    files = FileDescriptorSet.FromString(descriptor_set(PROTO2))
    message = next(each for each in files.file[-1].message_type if each.name == "Values")
    message.extension_range.add(start=100, end=200)
    files.file[-1].extension.add(
        name="more",
        number=100,
        extendee=".t.Values",
        type=FieldDescriptorProto.TYPE_INT32,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    with pytest.raises(InvalidValue, match=r"t\.more.*extension"):
        rows(spark, [], schema=files.SerializeToString())
