# SPDX-License-Identifier: Apache-2.0
"""JSON payloads as columns, parsed by Python's ``json`` in Arrow batches, without Spark.

Numbers are kept as they were written until their column decides about them, and a name that occurs twice in an object
is found, which most parsers hide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from jetstream_arrow.payload.ddl import Column, Type, columns_of, unique
from jetstream_arrow.payload.in_pieces import Row, in_pieces
from jetstream_arrow.payload.json_values import Malformed, Number, Terms, record
from jetstream_client.errors import InvalidValue

_NO_OBJECT = "not a JSON object of the schema"
_ZONE = "timeZone"
_MOST_MEMORY = 256 << 20
"""The largest number of bytes of memory that a parsed payload may take, at most _LARGEST_VALUE for each value."""
_LARGEST_VALUE = 120
_TOGETHER = 256 << 10  # bytes of payloads that are decoded before their objects become an Arrow array
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_ARROW = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "STRING": pa.string(), "BINARY": pa.binary(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"), "TIMESTAMP_NTZ": pa.timestamp("us"),
}  # fmt: skip


class Objects:
    """Decodes payloads, each of which is a JSON object: a binary Arrow column becomes a column with the fields
    ``value`` and ``reason``. For each message, exactly one of these two fields is set, and the other one is null.

    fields:  the names of the columns.
    ddl:     the type of the value in Spark.
    type:    the type of the decoded column.
    """

    def __init__(
        self, schema: object, options: Mapping[str, str], epoch_unit: str | None = None, refuse_unknown: bool = False
    ) -> None:
        """Check what is given.

        schema:          Spark's DDL, a mapping of names to types, or a schema of Arrow.
        options:         may have ``timeZone``: the zone of times without an offset.
        epoch_unit:      the unit of numbers in TIMESTAMP columns.
        refuse_unknown:  whether a field that the schema does not contain makes a payload malformed.

        Raises:
            InvalidValue: the schema or an option cannot be used.
        """
        columns = _of_arrow(schema) if isinstance(schema, pa.Schema) else columns_of(schema)
        terms = Terms(_zone(options), _unit(epoch_unit), refuse_unknown)
        row = Type("STRUCT", fields=columns)
        self.fields = [column.name for column in columns]
        self.ddl = str(row)
        self.type = pa.struct([("value", _arrow(row)), ("reason", pa.string())])
        self._record = record(columns, terms)
        # Without parse_int, the parser reads integers itself, which is faster.
        self._parse = json.JSONDecoder(
            object_pairs_hook=_object, parse_float=Number, parse_constant=_refuse_constant
        ).decode

    def decoded(self, data: pa.Array) -> pa.Array:
        return in_pieces(data, self._row, partial(pa.array, type=self.type), _TOGETHER)

    def _row(self, payload: bytes) -> Row:
        try:
            return {"value": self._record(self._object(payload))}
        except Malformed as malformed:
            return {"reason": malformed.args[0]}
        except RecursionError:
            return {"reason": f"{_NO_OBJECT} (nested too deeply)"}

    def _object(self, payload: bytes) -> dict[str, Any]:
        if len(payload) > _MOST_MEMORY // _LARGEST_VALUE:
            count = sum(map(payload.count, (b",", b"[", b"{", b":")))
            if count > _MOST_MEMORY // _LARGEST_VALUE:
                raise Malformed("too many values")
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            raise Malformed("not UTF-8") from None
        try:
            value = self._parse(text)
        except json.JSONDecodeError as error:
            raise Malformed(f"{_NO_OBJECT} ({error.msg}, character {error.pos + 1})") from None
        except ValueError:  # Python refuses integers that would take too long
            raise Malformed(f"{_NO_OBJECT} (a number has too many digits)") from None
        if type(value) is not dict:
            raise Malformed(_NO_OBJECT)
        if "\\u" in text and _SURROGATE.search(text):
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise Malformed("a string has half of a surrogate pair, which is no character") from None
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"the field {twice!r} occurs twice in a JSON object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"{_NO_OBJECT} ({name} is no JSON)")


def _zone(options: Mapping[str, str]) -> ZoneInfo | None:
    if unknown := sorted(options.keys() - {_ZONE}):
        remedy = f"without Spark, JSON has the option {_ZONE} only; leave the others out"
        raise InvalidValue("options", ", ".join(unknown), remedy)
    if _ZONE not in options:
        return None
    try:
        return ZoneInfo(options[_ZONE])
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        remedy = "give a time zone of the IANA database, such as Europe/Berlin or UTC"
        raise InvalidValue(_ZONE, options[_ZONE], remedy) from None


def _unit(unit: str | None) -> Any:
    if unit not in (None, "s", "ms", "us", "ns"):
        raise InvalidValue("epoch_unit", unit, "give 's', 'ms', 'us' or 'ns'")
    return unit


def _arrow(kind: Type) -> pa.DataType:
    if kind.digits:
        return pa.decimal128(*kind.digits)
    if kind.name == "STRUCT":
        return pa.struct([pa.field(each.name, _arrow(each.type), each.nullable) for each in kind.fields])
    if kind.item:
        value = pa.field("item" if kind.name == "ARRAY" else "value", _arrow(kind.item.type), kind.item.nullable)
        return pa.list_(value) if kind.name == "ARRAY" else pa.map_(pa.string(), value)
    return _ARROW[kind.name]


def _of_arrow(schema: pa.Schema) -> tuple[Column, ...]:
    if not len(schema):
        raise InvalidValue("schema", "()", "there is no column; give for example pa.schema([('shop', pa.string())])")
    return unique([_column(field, field.name) for field in schema])


def _column(field: pa.Field, path: str) -> Column:
    return Column(field.name, _type(field.type, path), field.nullable)


def _type(kind: pa.DataType, path: str) -> Type:
    for name, arrow in _ARROW.items():
        if kind == arrow:
            return Type(name)
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return Type("DECIMAL", (kind.precision, kind.scale))
    if pa.types.is_struct(kind) and kind.num_fields:
        return Type("STRUCT", fields=unique([_column(field, f"{path}.{field.name}") for field in kind]))
    if pa.types.is_list(kind):
        return Type("ARRAY", item=_column(kind.value_field, f"{path}[]"))
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return Type("MAP", item=_column(kind.item_field, f"{path}{{}}"))
    known = ", ".join(map(str, _ARROW.values()))
    remedy = f"the field {path!r} has a type that JSON cannot be decoded to exactly; give one of {known}, decimal128"
    raise InvalidValue("schema", str(kind), f"{remedy}, or a struct, list or map of them with strings as keys")
