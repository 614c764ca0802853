"""Decoding payloads into columns, separating malformed messages, and dead-lettering them."""

import asyncio
import io
import json
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from airflow.sdk import DAG
from fastavro import schemaless_writer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType, TimestampType

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.selection import Selection, select
from pyspark_jetstream import decoded
from tests.airflow_nats_jetstream.steps import execute
from tests.jetstream_handoff.steps import take
from tests.pyspark_jetstream import avro_cases as cases
from tests.pyspark_jetstream.avro_cases import logical
from tests.pyspark_jetstream.streaming import run_to_the_end

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "malformed-messages.md"
EMPTY, NOT_UTF8 = "empty", "not UTF-8"
NO_JSON, NOTHING = "not a JSON object of the schema", "shares no field with the schema"
INEXACT = "cannot be represented exactly as"
TIMESTAMP = (
    "TIMESTAMP; expected a string like 2026-11-21T03:00:00Z, of the years 0001 to 9999, with at most microseconds;"
    " a number needs epoch_unit"
)
DATE = "DATE; expected a string like 2026-11-21, of the years 0001 to 9999"
NO_AVRO, TOO_LONG = "does not match the Avro schema", "longer than a message of the Avro schema"

PAYLOADS: list[tuple[bytes, Any]] = [  # and its result: the columns a, b, c.d and t, or the reason
    (b'{"a": 1, "b": "x"}', (1, "x", None, None)),
    (b'{"a": 1, "c": {"d": 2}, "other": [1]}\n', (1, None, 2, None)),
    (b'{"a": null}', (None, None, None, None)),
    (b"{}", NOTHING),
    (b'{"other": 1}', NOTHING),
    (b'{"A": 1}', "A: the name differs from a field of the schema only in case"),
    (b'{"b": "\xc3\xa4", "t": "2026-11-21T03:00:00Z"}', (None, "\u00e4", None, datetime(2026, 11, 21, 3, tzinfo=UTC))),
    (b"", EMPTY),
    (b"  ", NO_JSON),
    (b'{"a": 1', NO_JSON),
    (b'{"a": 1,}', NO_JSON),
    (b"null", NO_JSON),
    (b"5", NO_JSON),
    (b'[{"a": 1}]', NO_JSON),
    (b"\x00\x01", NO_JSON),
    (b"\xff\xfe", NOT_UTF8),
    (b'{"b": "\xff"}', NOT_UTF8),
    # from_json alone accepts these, and ignores everything after the first object
    (b'{"a": 1} more', NO_JSON),
    (b'{"a": 1}{"a": 2}', NO_JSON),
    (b'{"a": 1}\n{"a": 2}\n', NO_JSON),
    (b'{"a": 1},{"a": 2}', NO_JSON),
    (b'{"a": 1}],"b":[5', NO_JSON),
    (b'{"a": 1} // {', NO_JSON),
    (b'{"a": 1} // }', NO_JSON),
    (b'{"a": 1} {', NO_JSON),
    (b'{"a": 1}, "b": "x"}', NO_JSON),
    (b'{"a": 1} {}', NO_JSON),
    (b'{"a": 1}\n{}\n', NO_JSON),
    (b'[{"a": 1}, {"a": 2}', NO_JSON),
    (b'[{"a": 1}', NO_JSON),
    (b'[{"a": 1}] {}', NO_JSON),
    (b'null {"a": 1}', NO_JSON),
    (b'"x" {"a": 1}', NO_JSON),
    (b'\xef\xbb\xbf{"a": 1}', NO_JSON),
    # the last brace is no end of an object
    (b"}", NO_JSON),
    (b'{"a": 1 }}', NO_JSON),
    (b'{"b": "x}', NO_JSON),
    (b'{"a": 1, "b": "}', NO_JSON),
    (b'{"b": "\\}', NO_JSON),
    (b'{"a": 1, "c": {"d": 2}', NO_JSON),
    (b'{"a": 1 // }', NO_JSON),
    (b'{"a": 1]', NO_JSON),
    (b'{"a": 1} \xf0}', NOT_UTF8),
    (b'{"a": 1, "b": "\xf0}', NOT_UTF8),
    (b'{"a": 1\xf0}\n', NOT_UTF8),
    # and here it is
    (b' \t\r\n{ "a" : 1 \n} \t\r\n', (1, None, None, None)),
    (b'{"a": 1, "c": {}}', (1, None, None, None)),
    (b'{"a": 1, "b": "{}"}', (1, "{}", None, None)),
    # another type in one field, at any depth
    (b'{"a": "1"}', f'a: "1" {INEXACT} INT'),
    (b'{"a": 1.5}', f"a: 1.5 {INEXACT} INT"),
    (b'{"a": 4294967296}', f"a: 4294967296 {INEXACT} INT"),
    (b'{"a": 1, "c": {"d": "2"}}', f'c.d: "2" {INEXACT} INT'),
    (b'{"a": 1, "c": 2}', "c: 2 is not a JSON object, which its STRUCT needs"),
    (b'{"t": "yesterday"}', f"t: yesterday {INEXACT} {TIMESTAMP}"),
    (b'{"a": 1, "t": 1763694000000}', f"t: 1763694000000 {INEXACT} {TIMESTAMP}"),
]


def load(spark: SparkSession, settings: ConnectionSettings, stream: Stream, payloads: list[bytes]) -> DataFrame:
    publish_all(settings, ((f"{stream.name}.a", payload) for payload in payloads))
    options = {"servers": settings.servers[0], "stream": stream.name, "minPartitions": "1"}
    return spark.read.format("jetstream").options(**options).load()


async def test_each_json_message_is_in_one_of_the_two(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    messages = load(spark, settings, stream, [payload for payload, _ in PAYLOADS])
    good, malformed = decoded(messages, "a INT, b STRING, c STRUCT<d INT>, t TIMESTAMP")
    assert good.columns == ["stream", "subject", "sequence", "timestamp", "headers", "a", "b", "c", "t"]
    assert malformed.columns == [*messages.columns, "reason"]
    became: dict[int, Any] = {
        row.sequence: (row.a, row.b, row.c and row.c.d, row.t and row.t.astimezone(UTC)) for row in good.collect()
    }
    for row in malformed.collect():
        assert row.sequence not in became
        assert bytes(row.data) == PAYLOADS[row.sequence - 1][0]
        became[row.sequence] = row.reason
    assert became == {number: expected for number, (_, expected) in enumerate(PAYLOADS, 1)}
    # The same rows are good even if Spark optimises a plan that needs only one column.
    good_rows = [expected for _, expected in PAYLOADS if isinstance(expected, tuple)]
    assert [row.b for row in good.select("b").collect()] == [b for _, b, *_ in good_rows]


async def test_options_of_from_json(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    ends = [b'/* a */ {"t": "22.11.2026" // }\n}', b'{"t": "23.11.2026"} // }', b'{"t": "24.11.2026" // }']
    messages = load(spark, settings, stream, [b'{"t": "21.11.2026" /* a comment */}', b'{"t": "2026-11-21"}', *ends])
    options = {"dateFormat": "dd.MM.yyyy", "allowComments": "true"}
    good, malformed = decoded(messages, "t DATE", options=options)
    assert sorted(row.t for row in good.collect()) == [date(2026, 11, 21), date(2026, 11, 22)]
    assert sorted(row.reason for row in malformed.collect()) == [NO_JSON, NO_JSON, f't: "2026-11-21" {INEXACT} {DATE}']


def rows(spark: SparkSession, schema: str | StructType, payloads: list[str], **changes: Any) -> list[Any]:
    """Return what each payload becomes: the values of its columns, or the reason why it is malformed."""
    messages = spark.createDataFrame([(n, each.encode()) for n, each in enumerate(payloads)], "n INT, data BINARY")
    good, malformed = decoded(messages, schema, **changes)
    found = {row.n: tuple(row.asDict(recursive=True).values())[1:] for row in good.collect()}
    reasons = {row.n: row.reason for row in malformed.collect()}
    assert not found.keys() & reasons.keys()
    return [(found | reasons)[number] for number in range(len(payloads))]


def test_not_null_is_honoured_at_every_depth(spark: SparkSession) -> None:
    inner = StructType([StructField("d", IntegerType(), nullable=False)])
    schema = StructType(
        [
            StructField("id", IntegerType(), nullable=False),
            StructField("amount", IntegerType(), nullable=False),
            StructField("c", inner),
            StructField("l", ArrayType(IntegerType(), containsNull=False)),
            StructField("m", MapType(StringType(), inner, valueContainsNull=False)),
        ]
    )
    null = "null or missing, but the schema says NOT NULL"
    assert rows(
        spark,
        schema,
        [
            '{"id": 1, "amount": 2}',
            '{"id": 1}',
            '{"id": 1, "amount": null}',
            '{"id": 1, "amount": 2, "c": {"d": null}}',
            '{"id": 1, "amount": 2, "l": [1, null]}',
            '{"id": 1, "amount": 2, "m": {"k": null}}',
            '{"id": 1, "amount": 2, "m": {"k": {"x": 1}}}',
        ],
    ) == [
        (1, 2, None, None, None),
        f"amount: {null}",
        f"amount: {null}",
        f"c.d: {null}",
        f"l[]: {null}",
        f"m{{}}: {null}",
        f"m{{}}.d: {null}",
    ]


def test_a_tinyint_from_128_to_255_is_not_a_negative_number(spark: SparkSession) -> None:
    inexact = f"{INEXACT} TINYINT"
    numbers = [127, -128, 128, 255, 256]
    payloads = [f'{{"a": {each}, "l": [{each}]}}' for each in numbers]
    expected = [(127, [127]), (-128, [-128]), *(f"a: {each} {inexact}" for each in numbers[2:])]
    assert rows(spark, "a TINYINT, l ARRAY<TINYINT>", payloads) == expected
    assert rows(spark, "m MAP<STRING, TINYINT>", ['{"m": {"k": 200}}']) == [f"m{{}}: 200 {inexact}"]


def test_a_name_in_another_case_is_found_whatever_else_the_schema_has(spark: SparkSession) -> None:
    case = "the name differs from a field of the schema only in case"
    payloads = ['{"a": {"V": 1}, "V": 2}', '{"a": {"V": 1}}', '{"a": {"V": 1}, "v": 2}']
    expected = [f"V: {case}", ({"V": 1}, None), ({"V": 1}, 2)]
    assert rows(spark, "a STRUCT<V: INT>, v INT", payloads) == expected
    for name, written in {'x"y': 'X\\"y', "km/h": "Km\\/h", "b\\s": "B\\\\s", "q\\E": "Q\\\\E"}.items():
        schema = StructType([StructField(each, IntegerType()) for each in (name, "id")])
        found = rows(spark, schema, [f'{{"{written}": 1, "id": 2}}', '{"id": 2}'])
        assert found == [f"{name[0].upper()}{name[1:]}: {case}", (None, 2)]
    single = {"options": {"allowSingleQuotes": "true"}}
    unchecked = "a JSON object with a repeated field, or in a form that cannot be checked"
    payloads = ["{'V': 1, 'id': 2}", "{'id': 2}", "{'v': 1}"]
    assert rows(spark, "v INT, id INT", payloads, **single) == [unchecked, (None, 2), (1, None)]


def test_the_configuration_of_the_session_does_not_change_a_value(spark: SparkSession) -> None:
    schema = StructType([StructField("t", TimestampType())])
    zone = {"spark.sql.session.timeZone": "Europe/Berlin"}
    summer = datetime(2026, 7, 1, 10, tzinfo=UTC).timestamp()
    with configured(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ", **zone}):
        messages = spark.createDataFrame(
            [(b'{"t": "2026-07-01T12:00:00"}',), (b'{"t": "2026-07-01T15:00:00+05:00"}',)], "data BINARY"
        )
        good, malformed = decoded(messages, schema)
        assert good.schema["t"].dataType == TimestampType()
        assert [row.s for row in good.selectExpr("unix_seconds(t) AS s").collect()] == [summer, summer]
        assert malformed.count() == 0
        with pytest.raises(InvalidValue, match=r"timestampType.*TIMESTAMP_LTZ.*timestampFormat"):
            decoded(messages, schema, options={"timestampFormat": "yyyy-MM-dd HH:mm"})
    # SimpleDateFormat reads 32.13.2026 as 2027-02-01.
    named = r"timeParserPolicy.*LEGACY.*CORRECTED.*dateFormat"
    with (
        configured(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}),
        pytest.raises(InvalidValue, match=named),
    ):
        decoded(messages, "t DATE", options={"dateFormat": "dd.MM.yyyy"})


def test_a_backslash_is_the_same_for_each_parser_of_spark(spark: SparkSession) -> None:
    """The session can have Spark's parser keep a backslash in quotes, and read a quoted name as a pattern."""
    schema = StructType([StructField("a\\b", IntegerType()), StructField("c'd", StringType())])
    payloads = ['{"a\\\\b": 1}', '{"A\\\\b": 1}', '{"c\'d": "\\ud800"}', '{"c\'d": {"n": 1e2}}', '{"C\'d": "x"}']
    with configured(spark, {"spark.sql.parser.escapedStringLiterals": "false"}):
        usual = rows(spark, schema, payloads)
    with configured(spark, {"spark.sql.parser.escapedStringLiterals": "true"}):
        assert rows(spark, schema, payloads) == usual
    assert [usual[0], usual[1], usual[4]] == [
        (1, None),
        "A\\b: the name differs from a field of the schema only in case",
        "C'd: the name differs from a field of the schema only in case",
    ]
    assert [isinstance(each, str) for each in usual[2:4]] == [True, True]
    with (
        configured(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}),
        pytest.raises(InvalidValue, match=r"quotedRegexColumnNames.*set it to false"),
    ):
        rows(spark, schema, payloads)


@contextmanager
def configured(spark: SparkSession, properties: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in properties}
    for name, value in properties.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.set(name, str(old))


def test_columns_of_the_messages_may_have_any_name(spark: SparkSession) -> None:
    no_values: dict[str, list[str]] = {"Nats-Marker-Reason": []}
    messages = spark.createDataFrame(
        [(1, no_values, b'{"a": 1}'), (2, None, None)], "`n.o` INT, headers MAP<STRING, ARRAY<STRING>>, data BINARY"
    )
    good, malformed = decoded(messages, "a INT")
    assert [tuple(row) for row in good.collect()] == [(1, no_values, 1)]
    assert [(row["n.o"], row.reason) for row in malformed.collect()] == [(2, EMPTY)]


def test_a_struct_keeps_fields_apart_from_columns_of_the_message(spark: SparkSession) -> None:
    messages = spark.createDataFrame([(1, "s", b'{"subject": "p", "data": 5}')], "n INT, subject STRING, data BINARY")
    good, _ = decoded(messages, "subject STRING, data INT", into="event")
    (row,) = good.collect()
    assert row.asDict(recursive=True) == {"n": 1, "subject": "s", "event": {"subject": "p", "data": 5}}


def test_unknown_fields_can_be_refused(spark: SparkSession) -> None:
    payloads = ['{"a": 1}', '{"a": 1, "b": 2}', '{"a": 1, "c": {"d": 1, "e": 2}}', '{"a": 1, "a": 2}']
    assert rows(spark, "a INT, c STRUCT<d INT>", payloads, unknown_fields="malformed") == [
        (1, None),
        "b: the schema does not contain this field",
        "c.e: the schema does not contain this field",
        "a JSON object with a repeated field, or in a form that cannot be checked",
    ]


def test_numbers_are_instants_only_with_a_unit(spark: SparkSession) -> None:
    payloads = ['{"t": 1763694000000}', '{"t": 1763694000000.5}', '{"t": 99999999999999999}', '{"t": "1763694000000"}']
    good, half, late, string = rows(spark, "t TIMESTAMP", payloads, epoch_unit="ms")
    assert good[0].astimezone(UTC) == datetime(2025, 11, 21, 3, tzinfo=UTC)
    assert half[0] - good[0] == timedelta(microseconds=500)
    assert late.startswith(f"t: 99999999999999999 {INEXACT}")
    assert string.startswith(f"t: 1763694000000 {INEXACT}")


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["OLD", "NEW"]}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "kind", "type": "Kind"}]},
            },
        },
    ],
}
ORDER = {
    "id": 7,
    "name": None,
    "at": datetime(2026, 11, 21, 3, tzinfo=UTC),
    "day": date(2026, 11, 21),
    "price": Decimal("12.34"),
    "key": "5f0c9a7b-e21d-4c3a-9a7b-e21d5f0c9a7b",
    "kind": "NEW",
    "tags": {"a": 1.5},
    "lines": [{"kind": "OLD"}],
}


def encoded(value: Any, schema: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, schema, value)
    return stream.getvalue()


async def test_each_avro_message_is_in_one_of_the_two(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    order = encoded(ORDER, AVRO)
    too_large = b"\x80\x80\x80\x80\x20" + order[1:]  # 2**32, which is not an int
    payloads = [order, b"", order[:-3], order + b"\x00", b"\xff" * 40, too_large, order]
    good, malformed = decoded(load(spark, settings, stream, payloads), json.dumps(AVRO), format="avro")
    first, second = (row.asDict(recursive=True) for row in good.orderBy("sequence").collect())
    assert (first["sequence"], second["sequence"]) == (1, 7)
    found = {name: first[name] for name in ORDER}
    found["at"] = found["at"].astimezone(UTC)
    assert found == ORDER
    reasons = {row.sequence: row.reason for row in malformed.collect()}
    no_int = f"id: {NO_AVRO} (Value 4294967296 too large to fit in C integer type)"
    assert reasons == {2: EMPTY, 3: NO_AVRO, 4: TOO_LONG, 5: NO_AVRO, 6: no_int}


@pytest.mark.slow
def test_each_logical_type_can_be_stored(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark shows the values, after they were in a file."""
    long, fixed = partial(logical, "long"), {"type": "fixed", "size": 12, "logicalType": "duration", "name": "D"}
    fields: dict[str, tuple[Any, Any, str]] = {
        "day": (logical("int", "date"), 20778, "2026-11-21"),
        "millis": (long("timestamp-millis"), 1763694000123, "2025-11-21 03:00:00.123"),
        "nanos": (long("timestamp-nanos"), 1763694000123456000, "2025-11-21 03:00:00.123456"),
        "clock": (long("local-timestamp-micros"), 1763694000123456, "2025-11-21 03:00:00.123456"),
        "time": (logical("int", "time-millis"), 3723004, "INTERVAL '0 01:02:03.004' DAY TO SECOND"),
        "price": (logical("bytes", "decimal", precision=6, scale=2), b"\x04\xd2", "12.34"),
        "big": (logical("bytes", "big-decimal"), b"\x04\x04\xd2\x04", "12.34"),
        "key": (
            logical("string", "uuid"),
            "5f0c9a7b-e21d-4a55-8a05-0f6e5e5e9d01",
            "5f0c9a7b-e21d-4a55-8a05-0f6e5e5e9d01",
        ),
        "span": (fixed, struct.pack("<III", 1, 2, 2**32 - 1), "{1, 2, 4294967295}"),
        "maps": ({"type": "map", "values": long("timestamp-micros")}, {"a": 0}, "{a -> 1970-01-01 00:00:00}"),
    }
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": each[0]} for name, each in fields.items()],
    }
    payload = cases.encoded(schema, {name: value for name, (_, value, _) in fields.items()}, Random(0))
    messages = spark.createDataFrame([(payload,)], "data BINARY")
    good, _ = decoded(messages, json.dumps(schema), format="avro", framing="none")
    good.write.parquet(f"{tmp_path}/out")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        shown = spark.read.parquet(f"{tmp_path}/out").selectExpr(*(f"CAST({name} AS STRING)" for name in fields))
        assert shown.collect()[0].asDict() == {name: each for name, (_, _, each) in fields.items()}
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "avro"])
async def test_a_stream_goes_to_two_sinks(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path, kind: str
) -> None:
    """Each sink is a query with a separate checkpoint, and goes on where it ended."""
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    schema = json.dumps(order) if kind == "avro" else "id INT"

    def payload(number: int) -> bytes:
        if number % 10 == 0:
            return b""
        return encoded({"id": number}, order) if kind == "avro" else b'{"id": %d}' % number

    options = {"servers": settings.servers[0], "stream": stream.name, "startingOffsets": "earliest"}
    runs = [(1, 50), (51, 80)] if kind == "json" else [(1, 80)]
    for first, last in runs:
        publish_all(settings, ((f"{stream.name}.a", payload(number)) for number in range(first, last + 1)))
        messages = spark.readStream.format("jetstream").options(**options).load()
        for name, rows in zip(("good", "malformed"), decoded(messages, schema, format=kind), strict=True):
            writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/{name}-state")
            run_to_the_end(writer, f"{tmp_path}/{name}")
    good = [(row.sequence, row.id) for row in spark.read.parquet(f"{tmp_path}/good").orderBy("sequence").collect()]
    assert good == [(number, number) for number in range(1, 81) if number % 10]
    malformed = spark.read.parquet(f"{tmp_path}/malformed").collect()
    assert sorted((row.sequence, bytes(row.data), row.reason) for row in malformed) == [
        (number, b"", EMPTY) for number in range(10, 81, 10)
    ]


@pytest.mark.parametrize(
    ("schema", "changes", "named"),
    [
        ("a INT, Subject STRING", {}, "field 'Subject' and the message's column 'subject' .* into='event'"),
        ("a INT, Subject STRING", {"into": "Subject"}, "into"),
        ("a INT, A INT", {}, "only in case"),
        ("a INT, s STRUCT<v: INTERVAL DAY TO SECOND>", {}, "'s.v'"),
        ("a TIMESTAMP", {"options": {"timestampFormat": "yyyy SSSSSSS"}}, "microseconds"),
        ("a TIMESTAMP", {"epoch_unit": "m"}, "epoch_unit"),
        ("a INT", {"unknown_fields": "drop"}, "unknown_fields"),
        ("a INTT", {}, "schema"),
        ("INT", {}, "schema"),
        ("a INT", {"format": "xml"}, "format"),
        ("a INT", {"options": {"MODE": "FAILFAST"}}, "MODE"),
        ("a TIMESTAMP", {"options": {"timezome": "UTC"}}, "timezome.*timeZone"),
        ("a INT", {"options": {"singleVariantColumn": "v"}}, "singleVariantColumn"),
        ("a INT", {"options": {"allowComments": "yes"}}, "allowComments.*'yes'.*'true' or 'false'"),
        ("a INT", {"options": "timeZone=UTC"}, "options.*dict"),
        ("a INT", {"into": True}, "into"),
        ("a INT", {"into": "${x}"}, r"into.*\$\{x\}.*another name"),
        ("`${x}` INT", {}, r"schema.*\$\{x\}.*another name"),
        ("a STRUCT<`${x}`: INT>", {}, r"schema.*\$\{x\}.*another name"),
        ("a INT", {"format": "avro"}, "Avro schema"),
        ('"string"', {"format": "avro"}, "record"),
        ('{"type": "record", "name": "A", "fields": []}', {"format": "avro"}, "fields"),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            {"format": "avro"},
            "union",
        ),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "a", "type": {"type": "array", "items": "A"}}]}',
            {"format": "avro"},
            "null and types that contain themselves are not supported",
        ),
        (
            json.dumps(
                {
                    "type": "record",
                    "name": "A",
                    "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}],
                }
            ),
            {"format": "avro"},
            "precision 39",
        ),
        (  # as Kafka Connect's JDBC source registers it
            json.dumps(
                {
                    "type": "record",
                    "name": "A",
                    "fields": [{"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2}}],
                }
            ),
            {"format": "avro"},
            "without a precision.*leave out the logicalType",
        ),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}',
            {"format": "avro"},
            "a, A.*differ only in case",
        ),
        (
            '{"type": "record", "name": "A", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}',
            {"format": "avro"},
            "null",
        ),
    ],
)
def test_what_cannot_be_decoded_is_named(spark: SparkSession, schema: str, changes: dict[str, Any], named: str) -> None:
    messages = spark.createDataFrame([], "sequence BIGINT, subject STRING, data BINARY")
    with pytest.raises(InvalidValue, match=named):
        decoded(messages, schema, **changes)


def test_messages_without_data_are_refused(spark: SparkSession) -> None:
    messages = spark.createDataFrame([], "sequence BIGINT, data STRING")
    with pytest.raises(InvalidValue, match="data"):
        decoded(messages, "a INT")


async def dead(js: JetStream, stream: str) -> list[tuple[int, str]]:
    """Return sequence and reason of the dead letters that the ledger confirms."""
    found = select(DeadLetters(js, stream), Selection(everything=True))
    return sorted([(each.head.sequence, each.head.reason) async for each in found if each.head])


@pytest.fixture
def airflow_connection(settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings with which the session was started, from Airflow's side."""
    connection = {"conn_type": "nats", "extra": {"servers": settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_TESTS", json.dumps(connection))


async def claimed(stream: Stream, count: int) -> Claim:
    config = {"ack_wait": timedelta(minutes=1)}
    (claim,) = await take(stream, wait=30, max_messages=count, consumer_config=config)
    assert claim.count == count
    return claim


@pytest.mark.slow
async def test_the_page_rejects_exactly_what_is_malformed(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path, airflow_connection: None
) -> None:
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {}
    exec(first, page)
    page["OUT"] = str(tmp_path)
    payloads = [b'{"id": %d, "customer": "c"}' % number for number in range(1, 41)]
    payloads[6], payloads[11], payloads[30] = b"{", b'{"id": "many"}', b'{"id": 32}{"id": 33}'
    publish_all(settings, ((f"{stream.name}.a", payload) for payload in payloads))
    claim = await claimed(stream, 40)
    with DAG("dag", schedule=None):
        body = page["orders"].function
        work = JetStreamProcessOperator(
            task_id="orders", python_callable=body, op_kwargs={"claim": claim.to_json()}, nats_conn_id="nats_tests"
        )
    assert await asyncio.to_thread(execute, work) == 37
    expected = [(7, NO_JSON), (12, f'id: "many" {INEXACT} INT'), (31, NO_JSON)]
    assert await dead(stream.js, stream.name) == expected
    consumer = await stream.consumer(claim.consumer).info()
    assert (consumer.ack_pending, consumer.floor) == (0, 40)
    written = spark.read.parquet(f"{tmp_path}/attempt=*").orderBy("id").collect()
    assert [(row.id, row.sequence) for row in written] == [
        (number, number) for number in range(1, 41) if number not in (7, 12, 31)
    ]
    await stream.js.stream(f"DEAD_{stream.name}").delete()

    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    messages = spark.createDataFrame([(1, encoded({"id": 1}, order))], "sequence BIGINT, data BINARY")
    page["messages"] = messages
    exec(second, page)
    assert (page["good"].columns, page["malformed"].count()) == (["sequence", "id", "customer", "ordered_at"], 1)


async def test_rejecting_by_a_rule_of_ones_own(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, airflow_connection: None
) -> None:
    publish_all(settings, ((f"{stream.name}.a", b'{"id": %d}' % number) for number in range(1, 11)))
    claim = await claimed(stream, 10)

    def work() -> None:
        with JetStreamHook("nats_tests").processing(claim) as held:
            good, _ = decoded(held.read(spark), "id INT")
            held.reject(good.where("id < 3"), "no such order")
            with pytest.raises(Exception, match="a column named 'reason'"):
                held.reject(good)
            with pytest.raises(Exception, match="a column named 'sequence'"):
                held.reject(good.select("id"), "no such order")
            with pytest.raises(Exception, match="does not contain"):
                held.reject(good.selectExpr("sequence + 100 AS sequence"), "foreign")

    await asyncio.to_thread(work)
    assert await dead(stream.js, stream.name) == [(1, "no such order"), (2, "no such order")]
    await stream.js.stream(f"DEAD_{stream.name}").delete()


def test_a_decimal_is_exact_or_malformed(spark: SparkSession) -> None:
    """A number that is too small for a DOUBLE is not 0."""
    seen = rows(spark, "v DECIMAL(10,2)", ['{"v": 12.34}', '{"v": 0}', '{"v": 12.345}', '{"v": 1e-400}'])
    assert seen[:2] == [(Decimal("12.34"),), (Decimal("0.00"),)]
    assert [INEXACT in each for each in seen[2:]] == [True, True]


def test_a_name_that_json_writes_with_a_backslash_may_differ_in_case(spark: SparkSession) -> None:
    schema = StructType([StructField("id", IntegerType()), StructField("a\\b", IntegerType())])
    assert rows(spark, schema, ['{"id": 1, "a\\\\b": 2}', '{"id": 1, "A\\\\b": 2}', '{"id": 1}']) == [
        (1, 2),
        "A\\b: the name differs from a field of the schema only in case",
        (1, None),
    ]


def test_a_line_break_after_a_value_is_not_ignored(spark: SparkSession) -> None:
    for kind, value in {"DATE": "2026-11-21", "TIMESTAMP": "2026-11-21T03:00:00Z", "DECIMAL(4,2)": "12.34"}.items():
        exact, broken = rows(spark, f"v {kind}", [f'{{"v": "{value}"}}', f'{{"v": "{value}\\n"}}'])
        assert isinstance(exact, tuple)
        assert f"{INEXACT} {kind}" in broken


def test_a_payload_is_decoded_once(spark: SparkSession) -> None:
    """Also if a filter follows, which Spark would otherwise move below the decoding."""
    messages = spark.createDataFrame([(1, b'{"a": 1}')], "n INT, data BINARY")
    good, malformed = decoded(messages, "a INT, d DECIMAL(10,2), l ARRAY<STRUCT<t: TIMESTAMP>>")
    event, _ = decoded(messages, "a INT, b STRING", into="event")
    for part in (good, malformed, good.select("a"), good.filter("a > 1").select("n"), event.filter("event.a > 1")):
        assert part._jdf.queryExecution().executedPlan().toString().count("from_json(") == 1


@pytest.mark.slow
def test_spark_compiles_the_code_for_a_schema_once(spark: SparkSession) -> None:
    """Names that differed between calls would change the order, and so the code, of expressions that are shared."""
    schema = "a INT, b STRING, c DOUBLE, d BOOLEAN, t TIMESTAMP, l ARRAY<STRUCT<s: STRING>>"
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()  # type: ignore[union-attr]
    messages = spark.range(3).selectExpr("""CAST('{"a": 1}' AS BINARY) AS data""").persist()
    decoded(messages, schema)[0].collect()
    before = compiled.getCount()
    for _ in range(5):
        assert len(decoded(messages, schema)[0].collect()) == 3
    assert compiled.getCount() == before
