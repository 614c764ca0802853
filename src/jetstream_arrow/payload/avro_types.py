# SPDX-License-Identifier: Apache-2.0
"""The column types of Avro's types and logical types, and the conversions to their values."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from jetstream_arrow.payload.avro_schema import ONE_BYTE_EACH, Node, Unsupported

Type = tuple[str, pa.DataType]  # the type in Spark, as DDL, and the type in Arrow
Convert = Callable[[Any], Any]

_PLAIN: dict[str, Type] = {
    "boolean": ("BOOLEAN", pa.bool_()),
    "int": ("INT", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "bytes": ("BINARY", pa.binary()),
    "string": ("STRING", pa.string()),
    "enum": ("STRING", pa.string()),
    "fixed": ("BINARY", pa.binary()),
}
_RECORD, _OTHER = 240, 80  # bytes of the smallest record in Python, and of other small values
_DIGITS = 38  # of a decimal, in Spark and in Arrow's decimal128
_LONGEST_DECIMAL = 64  # bytes; 16 hold the 38 digits of a column. Python's conversion takes quadratic time
_EXACT = Context(prec=200, Emin=-(10**17), Emax=10**17)
_BIG_DECIMAL: Any = parse_schema(
    {
        "type": "record",
        "name": "BigDecimal",
        "fields": [{"name": "unscaled", "type": "bytes"}, {"name": "scale", "type": "int"}],
    }
)
_YEARS = "the years are 0001 to 9999"
_DATES = range(-719162, 2932897)  # days of the years 0001 to 9999
_TIMES = range(-62135596800000000, 253402300800000000)  # microseconds of them
_DAY = range(86_400_000_000)


class Malformed(Exception):
    """A payload is malformed. The message is the reason."""


def inexact(path: str, value: object, column: str, why: str) -> Malformed:
    shown = str(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}…"
    return Malformed(f"{path}: {shown} cannot be represented exactly as {column}; {why}")


class Logical(NamedTuple):
    """A logical type.

    kinds:   the Avro types that it can have.
    type:    the type of its column.
    family:  logical types with the same meaning in other units have the same family.
    make:    takes the type and the path of a field, and returns the conversion of its values.
    """

    kinds: Sequence[str]
    type: Type
    family: str
    make: Callable[[Node, str], Convert | None]


def _date(_: Node, path: str) -> Convert:
    def convert(days: int) -> int:
        if days in _DATES:
            return days
        raise inexact(path, days, "DATE", _YEARS)

    return convert


def _moment(multiple: int, divisor: int, within: range, column: str, why: str) -> Callable[[Node, str], Convert]:
    def make(_: Node, path: str) -> Convert:
        def convert(value: int) -> int:
            micros, rest = divmod(value * multiple, divisor)
            if rest:
                raise inexact(path, value, column, "it has nanoseconds")
            if micros not in within:
                raise inexact(path, value, column, why)
            return micros

        return convert

    return make


def _decimal(node: Node, path: str) -> Convert:
    column = decimal_type(node)[0]
    scale, largest = node.stated.get("scale", 0), 10 ** node.stated["precision"]

    def convert(data: bytes) -> Decimal:
        unscaled = _unscaled(data, path)
        if abs(unscaled) >= largest:
            raise inexact(path, Decimal(unscaled).scaleb(-scale, _EXACT), column, "it has more digits")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return convert


def _unscaled(data: bytes, path: str) -> int:
    if not 0 < len(data) <= _LONGEST_DECIMAL:
        raise Malformed(f"{path}: a decimal of {len(data)} bytes; it must have 1 to {_LONGEST_DECIMAL}")
    return int.from_bytes(data, "big", signed=True)


def _big_decimal(_: Node, path: str) -> Convert:
    def convert(data: bytes) -> str:
        stream = io.BytesIO(data)
        found: Any = schemaless_reader(stream, _BIG_DECIMAL, None)
        if stream.tell() != len(data) or not -(2**31) <= found["scale"] < 2**31:
            raise Malformed(f"{path}: these bytes are not a big-decimal")
        return str(Decimal(_unscaled(found["unscaled"], path)).scaleb(-found["scale"], _EXACT))

    return convert


def _uuid(node: Node, _: str) -> Convert | None:
    return None if node.kind == "string" else lambda data: str(UUID(bytes=data))


def _duration(_: Node, __: str) -> Convert:
    return lambda data: dict(zip(_PARTS, struct.unpack("<III", data), strict=True))


_PARTS = ("months", "days", "milliseconds")
_LONG = ("long",)
_INSTANT = ("TIMESTAMP", pa.timestamp("us", "UTC"))
_LOCAL = ("TIMESTAMP_NTZ", pa.timestamp("us"))
_TIME = ("INTERVAL DAY TO SECOND", pa.duration("us"))
_DURATION = (
    f"STRUCT<{', '.join(f'{part}: BIGINT' for part in _PARTS)}>",
    pa.struct([(part, pa.int64()) for part in _PARTS]),
)
LOGICAL: dict[str, Logical] = {
    "date": Logical(("int",), ("DATE", pa.date32()), "date", _date),
    "decimal": Logical(("bytes", "fixed"), _PLAIN["bytes"], "decimal", _decimal),
    "big-decimal": Logical(("bytes",), _PLAIN["string"], "big-decimal", _big_decimal),
    "uuid": Logical(("string", "fixed"), _PLAIN["string"], "uuid", _uuid),
    "duration": Logical(("fixed",), _DURATION, "duration", _duration),
}
for _unit, _multiple, _divisor in (("millis", 1000, 1), ("micros", 1, 1), ("nanos", 1, 1000)):
    for _name, _type in (("timestamp", _INSTANT), ("local-timestamp", _LOCAL)):
        _make = _moment(_multiple, _divisor, _TIMES, _type[0], _YEARS)
        LOGICAL[f"{_name}-{_unit}"] = Logical(_LONG, _type, _name, _make)
for _unit, _kinds, _multiple in (("millis", ("int",), 1000), ("micros", _LONG, 1)):
    _make = _moment(_multiple, 1, _DAY, _TIME[0], "a time of day is less than 24 hours")
    LOGICAL[f"time-{_unit}"] = Logical(_kinds, _TIME, "time", _make)


def decimal_type(node: Node) -> Type:
    precision, scale = node.stated.get("precision"), node.stated.get("scale", 0)
    if precision is None:
        remedy = "Avro requires a precision; give it, for example 38, or leave out the logicalType to get the bytes"
        raise Unsupported("a decimal without a precision", remedy)
    if precision > _DIGITS:
        remedy = f"a column can have at most {_DIGITS} digits; leave out the logicalType to get the bytes"
        raise Unsupported(f"precision {precision}", remedy)
    return f"DECIMAL({precision}, {scale})", pa.decimal128(precision, scale)


def check_logical(node: Node) -> Logical:
    """Return the logical type of a type. Raises Unsupported."""
    name = str(node.logical)
    if name not in LOGICAL:
        remedy = f"this logical type is not one of Avro's; leave out the logicalType to get the {node.kind}"
        raise Unsupported(name, remedy)
    found = LOGICAL[name]
    size = {"uuid": 16, "duration": 12}.get(name)
    if node.kind not in found.kinds or (node.kind == "fixed" and size not in (None, node.stated["size"])):
        of = f"{node.kind} of {node.stated['size']} bytes" if node.kind == "fixed" else node.kind
        remedy = f"this logical type cannot have the type {of}; leave out the logicalType to get the {node.kind}"
        raise Unsupported(name, remedy)
    return found


class Columns:
    """Converts the types of a reader's schema to column types.

    largest_item:  the largest number of bytes that an item of an array or map, or a null in its place, takes in memory.
    """

    def __init__(self) -> None:
        self.largest_item = 1

    def of(self, node: Node) -> Type:
        if node.kind == "union":
            if len(node.rest) != 1:
                kinds = ", ".join(map(str, node.branches))
                raise Unsupported(f"[{kinds}]", "only unions of null and one other type can be columns")
            return self.of(node.rest[0])
        if node.kind == "null":
            raise Unsupported("null", ONE_BYTE_EACH)
        if node.logical:
            logical = check_logical(node)
            return decimal_type(node) if node.logical == "decimal" else logical.type
        if node.kind == "record":
            return self._record(node)
        if node.item is not None:
            ddl, arrow = self.of(node.item)
            self.largest_item = max(self.largest_item, smallest(node), _null_size(arrow))
            if node.kind == "array":
                return f"ARRAY<{ddl}>", pa.list_(arrow)
            return f"MAP<STRING, {ddl}>", pa.map_(pa.string(), arrow)
        return _PLAIN[node.kind]

    def _record(self, node: Node) -> Type:
        fields = [(each.name, self.of(each.node)) for each in node.fields]
        known: dict[str, str] = {}
        for each in node.fields:
            if (other := known.setdefault(each.name.lower(), each.name)) != each.name:
                remedy = f"these fields of {node.name} differ only in case, but Spark ignores the case of columns"
                raise Unsupported(f"{other}, {each.name}", remedy)
            if each.optional:  # an item may take one byte, and get a long default
                self.largest_item = max(self.largest_item, len(str(each.default)))
        ddl = ", ".join(f"`{name}`: {kind}" for name, (kind, _) in fields)
        return f"STRUCT<{ddl}>", pa.struct([(name, arrow) for name, (_, arrow) in fields])


def smallest(node: Node) -> int:
    """Return the smallest number of bytes that an item of an array or a map takes in Python."""
    item = node.item
    while item is not None and item.kind == "union" and len(item.rest) == 1:
        item = item.rest[0]
    return _RECORD if node.kind == "map" or (item is not None and item.kind in ("record", "union")) else _OTHER


def _null_size(arrow: pa.DataType) -> int:
    """Return the bytes that a null takes in Arrow. A null record contains a null of each of its fields."""
    if pa.types.is_struct(arrow):
        return 1 + sum(_null_size(field.type) for field in arrow)
    return 16
