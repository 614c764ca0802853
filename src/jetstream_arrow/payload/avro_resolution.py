# SPDX-License-Identifier: Apache-2.0
"""Schema resolution: from the values that a writer's schema has, to the values of the columns of a reader's schema.

The rules are those of Avro's specification, with one addition: a promotion must not change the value, so a long that a
double cannot represent makes a payload malformed. fastavro's own resolution works on values whose logical types are
converted already, and so reads milliseconds as microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NoReturn

from jetstream_arrow.payload.avro_schema import Field, Node, Unsupported
from jetstream_arrow.payload.avro_types import LOGICAL, Convert, Malformed, check_logical, inexact

_BOOLEANS = {b"\0": False, b"\1": True}
_INT = range(-(2**31), 2**31)


def resolve(writer: Node, reader: Node, path: str = "") -> Convert | None:
    """Return the function that converts a value as fastavro reads it (:func:`avro_schema.readable`) to the value of a
    column; None if it is the same value. The function raises Malformed.

    Raises:
        Unsupported: no value of the writer's schema can be read with the reader's schema.
    """
    if writer.kind == "union":
        return _union(writer, reader, path)
    if reader.kind == "union":
        return None if writer.kind == "null" else resolve(writer, reader.rest[0], path)
    if reader.kind == "record" and writer.kind == "record":
        return _record(writer, reader, path)
    if reader.item is not None and writer.kind == reader.kind and writer.item is not None:
        return _items(writer.item, reader.item, reader.kind, path)
    return _leaf(writer, reader, path)


def _union(writer: Node, reader: Node, path: str) -> Convert | None:
    null = None if reader.kind == "union" else _never(f"{path}: null, but the schema does not allow it")
    if len(writer.rest) > 1:
        table = {
            number: _attempt(each, reader, path) for number, each in enumerate(writer.branches) if each.kind != "null"
        }

        def several(value: tuple[int, Any] | None) -> Any:
            if value is None:
                return null and null(None)
            convert = table[value[0]]
            return value[1] if convert is None else convert(value[1])

        return several
    if not writer.rest:
        return null
    convert = _attempt(writer.rest[0], reader, path)
    if null is None:
        return convert and (lambda value: None if value is None else convert(value))
    if len(writer.branches) == 1:
        return convert
    return lambda value: null(None) if value is None else value if convert is None else convert(value)


def _never(reason: str) -> Convert:
    def never(_: Any) -> NoReturn:
        raise Malformed(reason)

    return never


def _attempt(writer: Node, reader: Node, path: str) -> Convert | None:
    """As :func:`resolve`, for a branch of a union: whether the data has this branch is known for each value."""
    try:
        return resolve(writer, reader, path)
    except Unsupported as why:
        return _never(str(why))


def _same_name(writer: Node, reader: Node) -> bool:
    last = writer.name.rpartition(".")[2]
    return reader.name.rpartition(".")[2] == last or writer.name in reader.aliases or last in reader.aliases


def _check_name(writer: Node, reader: Node, path: str) -> None:
    if not _same_name(writer, reader):
        why = f"the payload's {writer.kind} {writer.name} is not {reader.name}; give it as an alias in the schema"
        raise Unsupported(path or reader.name, why)


def _record(writer: Node, reader: Node, path: str) -> Convert | None:
    _check_name(writer, reader, path)
    written = {each.name: each for each in writer.fields}
    inside = f"{path}." if path else ""
    taken: dict[str, tuple[str, Convert | None]] = {}
    defaults: dict[str, Any] = {}
    for field in reader.fields:
        source = next((name for name in (field.name, *field.aliases) if name in written), None)
        if source is not None:
            taken[field.name] = source, resolve(written[source].node, field.node, inside + field.name)
        elif field.optional:
            defaults[field.name] = _default(field, inside + field.name)
        else:
            why = "the payload's schema does not have this field, and it has no default"
            raise Unsupported(inside + field.name, why)
    if not defaults and all(name == source for name, (source, _) in taken.items()):
        return _in_place({name: convert for name, (_, convert) in taken.items() if convert is not None})

    def build(value: dict[str, Any]) -> dict[str, Any]:
        fields = {
            name: value[source] if convert is None else convert(value[source])
            for name, (source, convert) in taken.items()
        }
        return fields | defaults

    return build


def _in_place(changes: Mapping[str, Convert]) -> Convert | None:
    if not changes:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name, change in changes.items():
            value[name] = change(value[name])
        return value

    return convert


def _items(writer: Node, reader: Node, kind: str, path: str) -> Convert | None:
    if kind == "array":
        convert = resolve(writer, reader, f"{path}[]")
        return convert and (lambda items: [convert(each) for each in items])
    value = resolve(writer, reader, f"{path}{{}}") or (lambda same: same)

    def entries(items: list[dict[str, Any]]) -> dict[str, Any]:
        found = {each["key"]: value(each["value"]) for each in items}
        if len(found) < len(items):
            raise Malformed(f"{path}: a key is repeated")
        return found

    return entries


def _leaf(writer: Node, reader: Node, path: str) -> Convert | None:
    change = _promoted(writer, reader, path)
    if reader.logical is None:
        return change
    logical = LOGICAL[reader.logical].make(reader, path)
    if writer.logical not in (None, reader.logical):
        other = LOGICAL.get(str(writer.logical))
        if other is None or other.family != LOGICAL[reader.logical].family:
            raise Unsupported(path, f"the payload's {writer.logical} cannot be read as {reader.logical}")
        logical = check_logical(writer).make(writer, path)
    elif writer.logical == "decimal" and writer.stated.get("scale", 0) != reader.stated.get("scale", 0):
        scales = f"{writer.stated.get('scale', 0)} cannot be read as one of scale {reader.stated.get('scale', 0)}"
        raise Unsupported(path, f"the payload's decimal of scale {scales}")
    if change is None or logical is None:
        return change or logical
    return lambda value: logical(change(value))


def _promoted(writer: Node, reader: Node, path: str) -> Convert | None:
    """Return the conversion from the writer's type to the reader's, without its logical type."""
    if writer.kind == reader.kind:
        return _same_kind(writer, reader, path)
    match writer.kind, reader.kind:
        case ("float", "double"):
            return None
        case ("int", "long"):
            return _int(path)
        case ("int" | "long", "float" | "double"):
            return _floating(reader.kind, path)
        case ("string", "bytes"):
            return str.encode
        case ("bytes", "string"):
            return _text(path)
    raise Unsupported(path, f"the payload's {writer} cannot be read as {reader}")


def _same_kind(writer: Node, reader: Node, path: str) -> Convert | None:
    if writer.kind == "boolean":
        return _boolean(path)
    if writer.kind == "enum":
        _check_name(writer, reader, path)
        return _enum(writer, reader, path)
    if writer.kind == "fixed":
        _check_name(writer, reader, path)
        if writer.stated["size"] != reader.stated["size"]:
            sizes = f"{writer.stated['size']} bytes, not {reader.stated['size']}"
            raise Unsupported(path, f"the payload's fixed {writer.name} has {sizes}")
    return None


def _boolean(path: str) -> Convert:
    def convert(data: bytes) -> bool:
        if (found := _BOOLEANS.get(data)) is None:
            raise Malformed(f"{path}: the byte {data[0]} is not a boolean")
        return found

    return convert


def _int(path: str) -> Convert:
    def convert(value: int) -> int:
        if value not in _INT:
            raise Malformed(f"{path}: {value} is not an int")
        return value

    return convert


def _floating(kind: str, path: str) -> Convert:
    def convert(value: int) -> float:
        number = float(value)
        if kind == "float":
            number = struct.unpack("f", struct.pack("f", number))[0]
        if int(number) != value:
            raise inexact(path, value, kind.upper(), "an integer must not be rounded")
        return number

    return convert


def _text(path: str) -> Convert:
    def convert(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Malformed(f"{path}: the bytes are not UTF-8") from None

    return convert


def _enum(writer: Node, reader: Node, path: str) -> Convert:
    symbols, known = writer.stated["symbols"], set(reader.stated["symbols"])
    default = reader.stated.get("default")

    def convert(number: int) -> str:
        if not 0 <= number < len(symbols):
            raise Malformed(f"{path}: {number} is not the number of a symbol of {writer.name}")
        symbol: str = symbols[number]
        if symbol in known:
            return symbol
        if default is None:
            raise Malformed(f"{path}: the schema does not have the symbol {symbol}, and no default")
        return str(default)

    return convert


def _default(field: Field, path: str) -> Any:
    try:
        return _value(field.node, field.default, path)
    except (Malformed, KeyError, TypeError, ValueError, struct.error) as wrong:
        raise Unsupported(path, f"the default {field.default!r} is not a value of its type ({wrong})") from None


def _value(node: Node, default: Any, path: str) -> Any:
    """Return the column's value of the JSON of a default."""
    if node.kind == "union":
        first = node.branches[0]
        return None if first.kind == "null" and default is None else _value(first, default, path)
    if node.kind == "record":
        return {
            each.name: _value(each.node, default[each.name], f"{path}.{each.name}")
            if each.name in default
            else _default(each, f"{path}.{each.name}")
            for each in node.fields
        }
    if node.item is not None:
        if node.kind == "array":
            return [_value(node.item, each, f"{path}[]") for each in default]
        return {key: _value(node.item, each, f"{path}{{}}") for key, each in default.items()}
    if not _fits(node, default):
        raise ValueError(node.kind)
    value = default.encode("latin-1") if node.kind in ("bytes", "fixed") else default
    if node.kind in ("float", "double"):
        value = float(value)
    convert = LOGICAL[node.logical].make(node, path) if node.logical else None
    return value if convert is None else convert(value)


def _fits(node: Node, default: Any) -> bool:
    if node.kind == "boolean":
        return isinstance(default, bool)
    if node.kind in ("int", "long"):
        return type(default) is int and abs(default) < 2 ** (31 if node.kind == "int" else 63)
    if node.kind in ("float", "double"):
        return type(default) in (int, float)
    if node.kind == "enum":
        return default in node.stated["symbols"]
    return isinstance(default, str) and (node.kind != "fixed" or len(default) == node.stated["size"])
