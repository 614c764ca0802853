"""Avro payloads as columns, decoded by fastavro in Arrow batches: Spark's own ``from_avro`` is in a jar that PySpark
does not bring along.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from pyspark.sql.pandas.functions import arrow_udf

from airflow_nats_jetstream.client.errors import InvalidValue
from pyspark_jetstream.payload import Decoding

Type = tuple[str, pa.DataType]  # Spark's, as DDL, and Arrow's

_PLAIN: dict[str, Type] = {
    "boolean": ("BOOLEAN", pa.bool_()),
    "int": ("INT", pa.int32()),
    "long": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "bytes": ("BINARY", pa.binary()),
    "string": ("STRING", pa.string()),
}
_LOGICAL: dict[str, tuple[str, Type]] = {  # and the types that they are written in
    "date": ("int", ("DATE", pa.date32())),
    "timestamp-millis": ("long", ("TIMESTAMP", pa.timestamp("us", "UTC"))),
    "timestamp-micros": ("long", ("TIMESTAMP", pa.timestamp("us", "UTC"))),
}
_NOT_OF_THE_SCHEMA = "not of the Avro schema"
_TOO_LONG = "longer than the Avro schema says"


def avro_decoding(schema: object) -> Decoding:
    """For one record without a container, as a writer with this schema (JSON) encodes it.

    Raises:
        InvalidValue: no Avro schema, not of a record, or a type that has no column type here.
    """
    try:
        parsed: Any = parse_schema(_base_types(json.loads(str(schema))))
    except Exception as error:
        raise InvalidValue("schema", str(schema)[:100], f"give an Avro schema as JSON: {error}") from error
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise InvalidValue("schema", str(schema)[:100], "a message is an Avro record")
    ddl, arrow = _Types().of(parsed)
    result = pa.struct([("value", arrow), ("reason", pa.string())])

    def decode(data: pa.Array) -> pa.Array:
        return _decode(data, parsed, result)

    # The annotations are classes here: Spark reads them to choose how it calls the function.
    decode.__annotations__ = {"data": pa.Array, "return": pa.Array}
    udf = arrow_udf(decode, returnType=f"STRUCT<value: {ddl}, reason: STRING>")  # type: ignore[call-overload] # stubs: plain types only
    return Decoding(
        [field["name"] for field in parsed["fields"]],
        udf,
        lambda decoded: decoded.getField("value"),
        lambda decoded, data: decoded.getField("reason"),  # noqa: ARG005
    )


def _decode(data: pa.Array, schema: Any, result: pa.DataType) -> pa.Array:
    rows = [_row(payload, schema) for payload in data.to_pylist()]
    try:
        return pa.array(rows, result)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a value that its column cannot hold
        return pa.concat_arrays([_one(row, result) for row in rows])


def _one(row: dict[str, Any], result: pa.DataType) -> pa.Array:
    try:
        return pa.array([row], result)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array([{"reason": _NOT_OF_THE_SCHEMA}], result)


def _row(payload: bytes | None, schema: Any) -> dict[str, Any]:
    if not payload:
        return {"reason": "empty"}
    stream = io.BytesIO(payload)
    try:
        value = schemaless_reader(stream, schema, None)
    except Exception:  # noqa: BLE001 - whatever fastavro makes of foreign bytes
        return {"reason": _NOT_OF_THE_SCHEMA}
    return {"value": value} if stream.tell() == len(payload) else {"reason": _TOO_LONG}


def _base_types(schema: Any) -> Any:
    """Without the logical types that have no column type here: the specification lets a reader ignore them."""
    if isinstance(schema, list):
        return [_base_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {
        name: _base_types(value) if name in ("type", "items", "values") else value for name, value in schema.items()
    }
    if "fields" in schema:
        changed["fields"] = [_base_types(field) for field in schema["fields"]]
    logical = schema.get("logicalType")
    if logical != "decimal" and _LOGICAL.get(str(logical), ("",))[0] != schema.get("type"):
        changed.pop("logicalType", None)
    return changed


class _Types:
    """From Avro's types to those of columns."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def of(self, schema: Any) -> Type:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, dict):
            return self._described(schema)
        if found := _PLAIN.get(schema) or self._named.get(schema):
            return found
        raise InvalidValue("schema", schema, "this type, or a type within itself, has no column type")

    def _described(self, schema: dict[str, Any]) -> Type:
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            precision, scale = schema["precision"], schema.get("scale", 0)
            found = f"DECIMAL({precision}, {scale})", pa.decimal128(precision, scale)
        elif logical is not None:
            found = _LOGICAL[logical][1]
        elif kind == "array":
            ddl, arrow = self.of(schema["items"])
            found = f"ARRAY<{ddl}>", pa.list_(arrow)
        elif kind == "map":
            ddl, arrow = self.of(schema["values"])
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

    def _union(self, schema: list[Any]) -> Type:
        rest = [each for each in schema if each != "null"]
        if len(rest) != 1:
            raise InvalidValue("schema", json.dumps(schema)[:100], "of unions only those of null and one other type")
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
            raise InvalidValue("schema", schema["name"], "a fixed of no bytes has no column type")
        return _PLAIN["bytes"]
