# SPDX-License-Identifier: Apache-2.0
"""Avro payloads as columns, decoded by fastavro in Arrow batches. Spark's ``from_avro`` needs a jar that is not part of
PySpark.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS
from pyspark.sql.pandas.functions import arrow_udf

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from pyspark.sql import Column

Type = tuple[str, pa.DataType]  # the type in Spark, as DDL, and the type in Arrow

_PLAIN: dict[str, Type] = {
    "boolean": ("BOOLEAN", pa.bool_()),
    "int": ("INT", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "bytes": ("BINARY", pa.binary()),
    "string": ("STRING", pa.string()),
}
_LOGICAL: dict[str, tuple[str, Type]] = {  # logical type → its Avro type, and the type of the column
    "date": ("int", ("DATE", pa.date32())),
    "timestamp-millis": ("long", ("TIMESTAMP", pa.timestamp("us", "UTC"))),
    "timestamp-micros": ("long", ("TIMESTAMP", pa.timestamp("us", "UTC"))),
}
_NOT_OF_THE_SCHEMA = "does not match the Avro schema"
_TOO_LONG = "longer than a message of the Avro schema"
_TOO_MANY = "too many values"

_MOST_MEMORY = 256 << 20
"""The largest number of bytes of memory that a decoded message may take. An array of records can take 200 times as many
bytes as its payload."""
_RECORD, _OTHER = 240, 80  # bytes of the smallest record in Python, and of other small values
_TOGETHER = 64 << 10  # bytes of payloads that are decoded before their objects become an Arrow array

_DECIMAL = "bounded-decimal"
_DIGITS = 38  # of a decimal, in Spark and in Arrow's decimal128
_LONGEST_DECIMAL = 64  # bytes; 16 hold the 38 digits of a column. Python's conversion takes quadratic time


def _decimal(kind: str) -> None:
    read = LOGICAL_READERS[f"{kind}-decimal"]

    def bounded(data: bytes, *schemas: Any) -> Any:
        if len(data) > _LONGEST_DECIMAL:
            raise ValueError(_NOT_OF_THE_SCHEMA)
        return read(data, *schemas)

    LOGICAL_READERS[f"{kind}-{_DECIMAL}"] = bounded


_decimal("bytes")
_decimal("fixed")


def avro_decoder(schema: object) -> tuple[list[str], Callable[[Column], Column]]:
    """Return the names of the fields of the schema's record, and a function that takes a column of payloads and returns
    a column with the fields ``value`` and ``reason``.

    Each payload is one record without a container, encoded with this writer's schema.

    Raises:
        InvalidValue: this is not an Avro schema of a record, or this package cannot convert one of its types to a
            column type.
    """
    records = Records(schema)

    def decode(data: pa.Array) -> pa.Array:
        return records.decoded(data)

    # Spark reads the annotations, which must be classes, to choose how it calls the function.
    decode.__annotations__ = {"data": pa.Array, "return": pa.Array}
    return records.fields, arrow_udf(decode, returnType=f"STRUCT<value: {records.ddl}, reason: STRING>")  # type: ignore[call-overload] # stubs: plain types only


class Records:
    """Decodes payloads of one schema: a binary Arrow column becomes a column with the fields ``value`` and ``reason``.
    For each message, exactly one of these two fields is set, and the other one is null.

    fields:  the names of the record's fields.
    ddl:     the record's type in Spark.
    """

    def __init__(self, schema: object) -> None:
        """Raises InvalidValue if the schema cannot be used."""
        try:
            given = json.loads(str(schema))
            parsed: Any = parse_schema(_base_types(given))
        except Exception as error:
            remedy = f"give an Avro schema as JSON; this one cannot be parsed ({type(error).__name__}: {error})"
            raise InvalidValue("schema", str(schema)[:100], remedy) from error
        if not isinstance(parsed, dict) or parsed["type"] != "record":
            raise InvalidValue(
                "schema", str(schema)[:100], "give the schema of a record, because each message is a record"
            )
        types = _Types()
        self.ddl, arrow = types.of(parsed)
        self.fields: list[str] = [field["name"] for field in parsed["fields"]]
        self._schema: Any = parse_schema(_base_types(given, _DECIMAL))
        self._type = pa.struct([("value", arrow), ("reason", pa.string())])
        self._most = _MOST_MEMORY // types.largest_item

    def decoded(self, data: pa.Array) -> pa.Array:
        parts, rows, size = [], [], 0
        for payload in data:
            message = payload.as_py()
            rows.append(self._row(message))
            size += len(message or b"")
            if size >= _TOGETHER:
                parts.append(self._column(rows))
                rows, size = [], 0
        return pa.concat_arrays([*parts, self._column(rows)])

    def _column(self, rows: list[dict[str, Any]]) -> pa.Array:
        try:
            return pa.array(rows, self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a value does not fit into its column
            if len(rows) == 1:
                return pa.array([{"reason": _NOT_OF_THE_SCHEMA}], self._type)
            return pa.concat_arrays([self._column([row]) for row in rows])

    def _row(self, payload: bytes | None) -> dict[str, Any]:
        if not payload:
            return {"reason": "empty"}
        # Each value has at least one byte, so a short payload cannot contain too many values. In a longer payload, the
        # calls of read() are counted, because each value takes at least one.
        stream = io.BytesIO(payload) if len(payload) <= self._most else _Counted(payload, self._most)
        try:
            value = schemaless_reader(stream, self._schema, None)
        except _TooManyError:
            return {"reason": _TOO_MANY}
        except Exception:  # noqa: BLE001 - fastavro can raise any exception for malformed bytes
            return {"reason": _NOT_OF_THE_SCHEMA}
        return {"value": value} if stream.tell() == len(payload) else {"reason": _TOO_LONG}


class _TooManyError(Exception):
    pass


class _Counted(io.BytesIO):
    """Raises an error if it is read more than ``most`` times."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._left = most

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError
        return super().read(size)


def _base_types(schema: Any, decimal: str = "decimal") -> Any:
    """Return the schema without the logical types that :data:`_LOGICAL` does not contain. The specification allows a
    reader to ignore logical types.

    decimal:  the name of the logical type under which decimals are read.
    """
    if isinstance(schema, list):
        return [_base_types(each, decimal) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {
        name: _base_types(value, decimal) if name in ("type", "items", "values") else value
        for name, value in schema.items()
    }
    if "fields" in schema:
        changed["fields"] = [_base_types(field, decimal) for field in schema["fields"]]
    logical = schema.get("logicalType")
    if logical == "decimal":
        changed["logicalType"] = decimal
    elif _LOGICAL.get(str(logical), ("",))[0] != schema.get("type"):
        changed.pop("logicalType", None)
    return changed


class _Types:
    """Converts Avro's types to column types."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}
        self.largest_item = 1
        """The largest number of bytes that an item of an array or map, or a null in its place, takes in memory."""

    def of(self, schema: Any) -> Type:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, dict):
            return self._described(schema)
        if found := _PLAIN.get(schema) or self._named.get(schema):
            return found
        raise InvalidValue(
            "schema", schema, "this type cannot be a column; null and types that contain themselves are not supported"
        )

    def _described(self, schema: dict[str, Any]) -> Type:
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            precision, scale = schema["precision"], schema.get("scale", 0)
            if precision > _DIGITS:
                remedy = f"a column can have at most {_DIGITS} digits; leave out the logicalType to get the bytes"
                raise InvalidValue("schema", f"precision {precision}", remedy)
            found = f"DECIMAL({precision}, {scale})", pa.decimal128(precision, scale)
        elif logical is not None:
            found = _LOGICAL[logical][1]
        elif kind == "array":
            ddl, arrow = self._item(schema["items"])
            found = f"ARRAY<{ddl}>", pa.list_(arrow)
        elif kind == "map":
            ddl, arrow = self._item(schema["values"])
            found = f"MAP<STRING, {ddl}>", pa.map_(pa.string(), arrow)
        elif kind == "record":
            found = self._record(schema)
        elif kind in ("enum", "fixed"):
            found = self._sized(schema, kind)
        else:
            found = self.of(kind)
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _item(self, schema: Any) -> Type:
        ddl, arrow = self.of(schema)
        python = _RECORD if pa.types.is_struct(arrow) else _OTHER
        self.largest_item = max(self.largest_item, python, _null_size(arrow))
        return ddl, arrow

    def _union(self, schema: list[Any]) -> Type:
        rest = [each for each in schema if each != "null"]
        if len(rest) != 1:
            remedy = "only unions of null and one other type can be columns"
            raise InvalidValue("schema", json.dumps(schema)[:100], remedy)
        return self.of(rest[0])

    def _record(self, schema: dict[str, Any]) -> Type:
        fields = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        if not fields:
            raise InvalidValue("schema", schema["name"], "a record without fields has no column type")
        ddl = ", ".join(f"`{name}`: {kind}" for name, (kind, _) in fields)
        return f"STRUCT<{ddl}>", pa.struct([(name, arrow) for name, (_, arrow) in fields])

    def _sized(self, schema: dict[str, Any], kind: str) -> Type:
        if kind == "enum":
            return _PLAIN["string"]
        if not schema["size"]:
            raise InvalidValue("schema", schema["name"], "a fixed type of size 0 has no column type")
        return _PLAIN["bytes"]


def _null_size(arrow: pa.DataType) -> int:
    """Return the bytes that a null takes in Arrow. A null record contains a null of each of its fields."""
    if pa.types.is_struct(arrow):
        return 1 + sum(_null_size(field.type) for field in arrow)
    return 16
