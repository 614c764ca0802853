"""JSON without Spark: the schema, and each value against a second decoder.

``tests/pyspark_jetstream/test_json_values.py`` compares it with Spark, and writes where both differ into the reference.
"""

import json
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812 - short for the many types

from jetstream_arrow import decoded
from jetstream_arrow.payload.ddl import columns_of
from jetstream_client.errors import InvalidValue
from tests.pyspark_jetstream.generated import a_payload, a_struct
from tests.pyspark_jetstream.plain import Malformed, Plain, same

ZONE = "Europe/Berlin"
CASES = int(os.environ.get("CASES") or 4_000)
SEED = int(os.environ.get("SEED") or 0)


def outcomes(schema: Any, payloads: list[str | bytes], **options: Any) -> list[dict[str, Any] | str]:
    """What each payload becomes: its row, or the reason why it is malformed."""
    data = [each.encode() if isinstance(each, str) else each for each in payloads]
    messages = pa.table({"n": range(len(data)), "data": pa.array(data, pa.binary())})
    good, malformed = decoded(messages, schema, into="row", **options)
    found = {each["n"]: each["row"] for each in good.read_all().to_pylist(maps_as_pydicts="strict")}
    found |= {each["n"]: each["reason"] for each in malformed.read_all().to_pylist()}
    return [found[number] for number in range(len(data))]


def outcome(schema: Any, payload: str | bytes, **options: Any) -> dict[str, Any] | str:
    (found,) = outcomes(schema, [payload], **options)
    return found


def arrow(kind: T.DataType) -> pa.DataType:
    """The type of Arrow, with what Spark's type says about nulls, which DDL cannot say about items."""
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(each.name, arrow(each.dataType), each.nullable) for each in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("item", arrow(kind.elementType), kind.containsNull))
    if isinstance(kind, T.MapType):
        return pa.map_(pa.string(), pa.field("value", arrow(kind.valueType), kind.valueContainsNull))
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return ARROW[kind.typeName()]


ARROW = {
    "boolean": pa.bool_(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def test_no_good_row_differs_from_a_second_decoder() -> None:
    chosen, good, stricter = random.Random(SEED), 0, 0
    for _ in range(0, CASES, 20):
        schema = a_struct(chosen)
        unit = chosen.choice([None, "s", "ms", "us", "ns"])
        plain = Plain(ZONE, unit)
        payloads: list[Any] = [a_payload(chosen, schema) for _ in range(20)]
        found = outcomes(pa.schema(list(arrow(schema))), payloads, epoch_unit=unit, options={"timeZone": ZONE})
        for payload, row in zip(payloads, found, strict=True):
            where = f"{schema.simpleString()} {payload}: {row}"
            try:
                expected = plain.decode(schema, payload)
            except Malformed:
                assert isinstance(row, str), f"{where}, but it is malformed"
                continue
            stricter += isinstance(row, str)
            assert isinstance(row, str) or same(row, expected), f"{where}, not {expected}"
            good += isinstance(row, dict)
    assert good > CASES / 20
    assert stricter < good / 10


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ('{"a": 1, "a": 1}', "the field 'a' occurs twice in a JSON object"),
        ('{"a": 1, "other": {"x": 1, "x": 2}}', "the field 'x' occurs twice in a JSON object"),
        ('{"a": 1} {"a": 2}', "not a JSON object of the schema (Extra data, character 10)"),
        ('{"a": NaN}', "not a JSON object of the schema (NaN is no JSON)"),
        ('{"a": -Infinity}', "not a JSON object of the schema (-Infinity is no JSON)"),
        ('{"a": 1, "s": "\t"}', "not a JSON object of the schema (Invalid control character at, character 16)"),
        ("\ufeff{}", "not a JSON object of the schema (Expecting value, character 1)"),
        ("[1]", "not a JSON object of the schema"),
        (b'{"a": 1, "s": "\xff"}', "not UTF-8"),
        ("", "empty"),
        ('{"a": ' + "9" * 5_000 + "}", "not a JSON object of the schema (a number has too many digits)"),
        ('{"a": ' + "[" * 100_000, "not a JSON object of the schema (nested too deeply)"),
        ('{"a": 1, "s": "\\ud800"}', "a string has half of a surrogate pair, which is no character"),
        ('{"a": 1, "z": "\\ud800"}', "a string has half of a surrogate pair, which is no character"),
        ('{"d": 1e-99999999999999999999}', "d: 1e-99999999999999999999 cannot be represented exactly as DECIMAL(4,1)"),
        ('{"a": 1, "t": "2026-11-21T03:00:00"}', 't: "2026-11-21T03:00:00" has no offset'),
        ('{"a": 1, "t": "0001-01-01T00:00:00+01:00"}', "cannot be represented exactly as TIMESTAMP"),
        ('{"a": [' + "0," * 2_500_000 + "0]}", "too many values"),
    ],
)
def test_what_is_malformed(payload: str | bytes, told: str) -> None:
    found = outcome("a INT, s STRING, t TIMESTAMP, d DECIMAL(4, 1)", payload)
    assert isinstance(found, str)
    assert told in found


def test_a_string_column_keeps_other_values_as_they_were_written() -> None:
    payload = r'{"s": {"a": [1, 2.50, 1E2, -0.0, true, null, "\u00e4\ud83d\ude00\n"]}}'
    assert outcome("s STRING", payload) == {"s": '{"a":[1,2.50,1E2,-0.0,true,null,"ä😀\\n"]}'}


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        ("shop STRING, amount INT NOT NULL", [("shop", pa.string(), True), ("amount", pa.int32(), False)]),
        ({"shop": "string", "amount": "int not null"}, [("shop", pa.string(), True), ("amount", pa.int32(), False)]),
        ("`a b``c` BIGINT", [("a b`c", pa.int64(), True)]),
        ("d DECIMAL, e DEC(4,1), f NUMERIC(3)", [("d", pa.decimal128(10, 0), True), ("e", pa.decimal128(4, 1), True),
                                                 ("f", pa.decimal128(3, 0), True)]),
        ("s STRUCT<a: INT NOT NULL, b ARRAY<STRUCT<c: DATE>>>", [
            ("s", pa.struct([pa.field("a", pa.int32(), nullable=False),
                             pa.field("b", pa.list_(pa.struct([("c", pa.date32())])))]), True)]),
        ("m MAP<STRING, DOUBLE>, t TIMESTAMP, n timestamp_ntz", [("m", pa.map_(pa.string(), pa.float64()), True),
         ("t", pa.timestamp("us", "UTC"), True), ("n", pa.timestamp("us"), True)]),
    ],
)  # fmt: skip
def test_a_schema_becomes_columns(schema: Any, arrow: list[tuple[str, pa.DataType, bool]]) -> None:
    messages = pa.table({"data": pa.array([], pa.binary())})
    expected = pa.schema([pa.field(*each) for each in arrow])
    assert decoded(messages, schema)[0].schema == expected
    assert decoded(messages, expected)[0].schema == expected
    if isinstance(schema, str):
        shown = ", ".join(map(str, columns_of(schema)))
        assert columns_of(shown) == columns_of(schema)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("", "there is no column"),
        ({}, "there is no column"),
        (5, "give the columns and their types"),
        ("amount", "at 'the end': this is not a type"),
        ("amount INT shop STRING", "at 'shop': a comma, or the end, is missing"),
        ("amount INTERVAL", "at 'INTERVAL': this is not a type"),
        ("amount INT,", "at 'the end': the name of a column is missing"),
        ("amount INT NOT", "at 'the end': after NOT follows NULL"),
        ("a INT, A STRING", "two fields have this name"),
        ("d DECIMAL(39)", "a DECIMAL has 1 to 38 digits"),
        ("d DECIMAL(2,3)", "a DECIMAL has 1 to 38 digits"),
        ("d DECIMAL(x)", "at 'x': a number is missing"),
        ("m MAP<INT, INT>", "the keys of a MAP are strings"),
        ("a ARRAY<INT", "at 'the end': > is missing"),
        ("s STRUCT<a INT", "at 'the end': > is missing"),
        ("a ARRAY INT", "at 'INT': ARRAY needs < after it"),
        ("`a INT", "at '`': the name of a column is missing"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "nested deeper than 50 levels"),
        ({"amount": 5}, "its type is given as int"),
        (pa.schema([("n", pa.uint64())]), "the field 'n' has a type"),
        (pa.schema([("s", pa.struct([("x", pa.timestamp("ns"))]))]), r"the field 's\.x' has a type"),
        (pa.schema([("m", pa.map_(pa.int32(), pa.int32()))]), "the field 'm' has a type"),
        (pa.schema([]), "there is no column"),
    ],
)
def test_a_schema_that_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        decoded(pa.table({"data": pa.array([], pa.binary())}), schema)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"options": {"timeZone": "Mars/Phobos"}}, "give a time zone of the IANA database"),
        ({"options": {"dateFormat": "dd.MM.yyyy"}}, "dateFormat.*has the option timeZone only"),
        ({"epoch_unit": "minutes"}, "give 's', 'ms', 'us' or 'ns'"),
        ({"message": "orders.Order"}, "only Protobuf has message types"),
        ({"framing": "confluent"}, "a JSON payload does not name its schema"),
        ({"unknown_fields": "keep"}, "'ignore' or 'malformed'"),
    ],
)
def test_a_parameter_that_is_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        decoded(pa.table({"data": pa.array([], pa.binary())}), "a INT", **given)


def test_compressed_payloads() -> None:
    import gzip

    payload = gzip.compress(json.dumps({"a": 1}).encode())
    assert outcome("a INT", payload, compression="gzip") == {"a": 1}
