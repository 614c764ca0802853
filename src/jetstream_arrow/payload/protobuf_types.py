# SPDX-License-Identifier: Apache-2.0
"""How the values of a Protobuf message become the values of columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from jetstream_arrow.payload.protobuf_scan import Malformed, no_symbol
from jetstream_arrow.payload.protobuf_wire import is_map, path_of
from jetstream_client.errors import InvalidValue

_F = FieldDescriptor
Type = tuple[str, pa.DataType]  # the type in Spark, as DDL, and the type in Arrow
_INT, _BIGINT, _STRING = ("INT", pa.int32()), ("BIGINT", pa.int64()), ("STRING", pa.string())
_SCALARS: dict[int, Type] = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), _INT),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), _BIGINT),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), ("DECIMAL(20, 0)", pa.decimal128(20, 0))),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_ENUM), _STRING),
    _F.TYPE_BYTES: ("BINARY", pa.binary()),
    _F.TYPE_BOOL: ("BOOLEAN", pa.bool_()),
    _F.TYPE_FLOAT: ("FLOAT", pa.float32()),
    _F.TYPE_DOUBLE: ("DOUBLE", pa.float64()),
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_JSON = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}
ONE_VALUE = _WRAPPERS | _JSON
"""The types of messages that are one value in a column, and never a struct."""
_FIRST, _LAST = -62135596800, 253402300799  # seconds of the years 0001 to 9999
_LONGEST = 315_576_000_000  # seconds of a Duration
_INEXACT = "cannot be represented exactly as"
_SMALL, _RECORD, _VALUE = 80, 240, 600  # bytes that a value, the smallest record, and a Value take in Python

Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Kind:
    """A type of values.

    ddl:    the type of the column.
    arrow:  the same in Arrow.
    read:   takes a value as Protobuf has it, and returns it as Arrow takes it. Raises Malformed.
    size:   the largest number of bytes that a value takes in memory, apart from the bytes of strings.
    """

    ddl: str
    arrow: pa.DataType
    read: Read
    size: int = _SMALL


class Types:
    """Converts the types of one schema.

    largest_item:  the largest number of bytes that an item of a repeated field or of a map takes in memory.
    """

    def __init__(self, *, keep_nanoseconds: bool) -> None:
        self._keep_nanoseconds = keep_nanoseconds
        self.largest_item = _SMALL

    def record(self, descriptor: Descriptor, path: str = "", inside: tuple[str, ...] = ()) -> Kind:
        """Return the type of a message that has fields. Raises InvalidValue."""
        name = descriptor.full_name
        if name in inside:
            chain = " → ".join([*inside[inside.index(name) :], name])
            remedy = (
                f"{path!r} contains itself ({chain}), and no column has such a type; use a schema without this field"
            )
            raise InvalidValue("schema", name, remedy)
        if extensions := descriptor.file.pool.FindAllExtensions(descriptor):
            remedy = f"an extension of {name} has no column; leave its file out of the descriptor set"
            raise InvalidValue("schema", extensions[0].full_name, remedy)
        kinds: dict[str, Kind] = {}
        for field in descriptor.fields:
            if other := next((each for each in kinds if each.lower() == field.name.lower()), None):
                remedy = f"these fields of {name} differ only in case, but Spark ignores the case of columns"
                raise InvalidValue("schema", f"{other}, {field.name}", remedy)
            kinds[field.name] = self._field(field, path_of(path, field), (*inside, name))
        ddl = ", ".join(f"`{each}`: {kind.ddl}" for each, kind in kinds.items())
        arrow = pa.struct([(each, kind.arrow) for each, kind in kinds.items()])
        size = _RECORD + sum(kind.size for kind in kinds.values())
        return Kind(f"STRUCT<{ddl}>", arrow, _record(descriptor, kinds), size)

    def _field(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> Kind:
        if is_map(field):
            key, value = (self._value(field.message_type.fields_by_number[each], path, inside) for each in (1, 2))
            self._item(value)
            pairs: Read = lambda found: [(key.read(name), value.read(each)) for name, each in found.items()]  # noqa: E731
            return Kind(f"MAP<{key.ddl}, {value.ddl}>", pa.map_(key.arrow, value.arrow), pairs)
        kind = self._value(field, path, inside)
        if not field.is_repeated:
            return kind
        self._item(kind)
        items: Read = list if kind.read is same else lambda found: [kind.read(each) for each in found]
        return Kind(f"ARRAY<{kind.ddl}>", pa.list_(kind.arrow), items)

    def _item(self, kind: Kind) -> None:
        self.largest_item = max(self.largest_item, kind.size + null_size(kind.arrow))

    def _value(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> Kind:
        """Return the type of one value of a field."""
        if field.message_type is not None:
            return self._message(field.message_type, path, inside)
        if field.enum_type is not None:
            return Kind(*_STRING, _symbol(field.enum_type, path))
        return Kind(*_SCALARS[field.type], _text(path) if field.type == _F.TYPE_STRING else same)

    def _message(self, descriptor: Descriptor, path: str, inside: tuple[str, ...]) -> Kind:
        name = descriptor.full_name
        if name in _JSON:
            self.largest_item = max(self.largest_item, _VALUE)  # its items are in the repeated fields of Struct
            return Kind(*_STRING, _json(name, path), _VALUE)
        if name in _WRAPPERS:
            kind = self._value(descriptor.fields_by_name["value"], path, inside)
            return Kind(kind.ddl, kind.arrow, lambda found: kind.read(found.value))
        if name == "google.protobuf.Timestamp" and not self._keep_nanoseconds:
            return Kind("TIMESTAMP", pa.timestamp("us", "UTC"), _timestamp(path))
        if name == "google.protobuf.Duration" and not self._keep_nanoseconds:
            return Kind("INTERVAL DAY TO SECOND", pa.duration("us"), _duration(path))
        if not descriptor.fields:
            return Kind("BOOLEAN", pa.bool_(), lambda _: True)
        return self.record(descriptor, path, inside)


def same(value: Any) -> Any:
    return value


def _record(descriptor: Descriptor, kinds: dict[str, Kind]) -> Read:
    reads = {name: kind.read for name, kind in kinds.items()}
    # A field without presence has its default value where it is not in the message.
    defaults = {
        field.name: () if field.is_repeated else reads[field.name](field.default_value)
        for field in descriptor.fields
        if not field.has_presence
    }

    def read(message: Any) -> dict[str, Any]:
        row = defaults.copy()
        for field, value in message.ListFields():
            name = field.name
            row[name] = reads[name](value)
        return row

    return read


def _text(path: str) -> Read:
    def read(value: Any) -> str:
        if isinstance(value, str):
            return value
        raise Malformed(f"{path}: the string is not UTF-8")  # the parser does not check a string of proto2

    return read


def _symbol(enum: EnumDescriptor, path: str) -> Read:
    names: dict[int, str] = {each.number: each.name for each in reversed(enum.values)}  # of aliases, the first one

    def read(number: int) -> str:
        if number not in names:
            raise Malformed(no_symbol(path, number))
        return names[number]

    return read


def _timestamp(path: str) -> Read:
    def read(value: Any) -> int:
        seconds, nanos = value.seconds, value.nanos
        if not _FIRST <= seconds <= _LAST or not 0 <= nanos < 10**9 or nanos % 1000:
            raise Malformed(
                f"{path}: {seconds} s and {nanos} ns {_INEXACT} TIMESTAMP; expected an instant of the years 0001 to"
                f" 9999, with at most microseconds"
            )
        return int(seconds * 10**6 + nanos // 1000)

    return read


def _duration(path: str) -> Read:
    def read(value: Any) -> int:
        seconds, nanos = value.seconds, value.nanos
        if abs(seconds) > _LONGEST or abs(nanos) >= 10**9 or seconds * nanos < 0 or nanos % 1000:
            raise Malformed(
                f"{path}: {seconds} s and {nanos} ns {_INEXACT} INTERVAL; expected at most 10,000 years, with at most"
                f" microseconds and one sign"
            )
        return int(seconds * 10**6 + nanos // 1000)

    return read


def _json(name: str, path: str) -> Read:
    """Return a function that takes a Struct, Value or ListValue, and returns it as JSON."""
    kind = {"google.protobuf.Struct": "struct_value", "google.protobuf.ListValue": "list_value"}.get(name)

    def plain(found: Any, kind: str) -> Any:
        if kind == "struct_value":
            return {key: of(value) for key, value in found.fields.items()}
        if kind == "list_value":
            return [of(value) for value in found.values]
        if kind == "null_value" and found == 0:
            return None
        return found

    def of(value: Any) -> Any:
        kind = value.WhichOneof("kind")
        if kind is None:
            raise Malformed(f"{path}: a Value has none of its kinds")
        return plain(getattr(value, kind), kind)

    def read(found: Any) -> str:
        try:
            value = of(found) if kind is None else plain(found, kind)
            return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        except ValueError:
            raise Malformed(f"{path}: JSON has no number for a value that is infinite or NaN") from None

    return read


def null_size(arrow: pa.DataType) -> int:
    """Return the bytes that a null takes in Arrow. A null record contains a null of each of its fields."""
    if pa.types.is_struct(arrow):
        return 1 + sum(null_size(field.type) for field in arrow)
    return 16
