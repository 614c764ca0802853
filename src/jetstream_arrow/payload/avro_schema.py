# SPDX-License-Identifier: Apache-2.0
"""Avro schemas as trees, and the form in which fastavro reads their data.

fastavro reads invalid bytes as values: a negative index of an enum or a union counts from the end, each byte but 0 is
true, and of repeated keys of a map the last one counts. So it reads enums as numbers, booleans as bytes, and maps as
arrays of entries, which have the same encoding, and :mod:`jetstream_arrow.payload.avro_resolution` converts and checks
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from fastavro import parse_schema
from fastavro.read import LOGICAL_READERS
from fastavro.schema import fingerprint, to_parsing_canonical_form

_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_STATED = ("precision", "scale", "size", "symbols", "default")
_MOST_NODES = 20_000
_BRANCH = "branch-of-a-union"
ONE_BYTE_EACH = (
    "this type cannot be a column; null and types that contain themselves are not supported, nor records without "
    "fields and fixed types of size 0"
)


class Unsupported(Exception):
    """A schema cannot be used. The message says why.

    where:  the part of the schema.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass(frozen=True, eq=False)
class Field:
    """A field of a record. ``default`` is its JSON, if ``optional``."""

    name: str
    aliases: tuple[str, ...]
    node: Node
    optional: bool
    default: Any


@dataclass(frozen=True, eq=False)
class Node:
    """A type in a schema, with the types that it contains instead of their names.

    kind:      an Avro type, or ``union``.
    name:      the full name of a record, an enum or a fixed type.
    logical:   the logical type.
    stated:    further attributes: ``precision``, ``scale``, ``size``, ``symbols``, ``default``.
    item:      the type of an array's elements or a map's values.
    branches:  the types of a union.
    """

    kind: str
    name: str
    aliases: tuple[str, ...]
    logical: str | None
    stated: dict[str, Any]
    fields: tuple[Field, ...] = ()
    branches: tuple[Node, ...] = ()
    item: Node | None = None

    @property
    def rest(self) -> tuple[Node, ...]:
        """The branches of a union except null."""
        return tuple(each for each in self.branches if each.kind != "null")

    def __str__(self) -> str:
        return self.logical or (f"{self.kind} {self.name}" if self.name else self.kind)


def parse(schema: object, references: Iterable[str] = ()) -> Node:
    """Return the tree of a schema.

    schema:      JSON.
    references:  the JSON of schemas that it refers to, each after those that it refers to itself.

    Raises:
        Unsupported: a type takes no bytes or contains itself.
        Exception: the schema is invalid, with the words of JSON or fastavro.
    """
    named: dict[str, Any] = {}
    for each in references:
        parse_schema(json.loads(each), named)
    return _Tree(named).of(parse_schema(json.loads(str(schema)), named))


def crc_64(schema: object) -> bytes:
    """Return the fingerprint of a schema as single-object encoding contains it."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(str(schema))), "CRC-64-AVRO"))


class _Tree:
    def __init__(self, named: dict[str, Any]) -> None:
        self._named, self._inside, self._left = named, list[str](), _MOST_NODES

    def of(self, schema: Any) -> Node:
        self._left -= 1
        if self._left < 0:
            raise Unsupported("schema", f"it has more than {_MOST_NODES} types")
        if isinstance(schema, list):
            branches = tuple(self.of(each) if each != "null" else _NULL for each in schema)
            return Node("union", "", (), None, {}, branches=branches)
        if isinstance(schema, str):
            if schema in _PRIMITIVE and schema != "null":
                return Node(schema, "", (), None, {})
            if schema not in self._named or schema in self._inside:
                raise Unsupported(schema, ONE_BYTE_EACH)
            return self.of(self._named[schema])
        if isinstance(schema["type"], (dict, list)):
            return self.of(schema["type"])
        return self._described(schema)

    def _described(self, schema: dict[str, Any]) -> Node:
        kind, name = schema["type"], schema.get("name", "")
        if kind == "error":
            kind = "record"
        if kind not in (*_PRIMITIVE[1:], "record", "enum", "fixed", "array", "map"):
            return self.of(kind)
        logical = schema.get("logicalType")
        stated = {each: value for each, value in schema.items() if each in _STATED}
        if (kind == "fixed" and not stated["size"]) or (kind == "record" and not schema["fields"]):
            raise Unsupported(name, ONE_BYTE_EACH)
        item = self.of(schema["items" if kind == "array" else "values"]) if kind in ("array", "map") else None
        fields: tuple[Field, ...] = ()
        if kind == "record":
            self._inside.append(name)
            fields = tuple(self._field(each) for each in schema["fields"])
            self._inside.pop()
        aliases = tuple(schema.get("aliases", ()))
        return Node(kind, name, aliases, str(logical) if logical else None, stated, fields, (), item)

    def _field(self, field: dict[str, Any]) -> Field:
        aliases = tuple(field.get("aliases", ()))
        return Field(field["name"], aliases, self.of(field["type"]), "default" in field, field.get("default"))


_NULL = Node("null", "", (), None, {})


class Branches(list[Any]):
    """The branches of a union, without a length: C code asks for it only to count a negative number from the end."""

    def __len__(self) -> int:
        raise IndexError("a union does not have this branch")


def readable(node: Node) -> Any:
    """Return the schema with which fastavro reads the data of a schema. Its values are described in
    :mod:`jetstream_arrow.payload.avro_resolution`."""
    return _guarded(parse_schema(_Readable().of(node)))


class _Readable:
    def __init__(self) -> None:
        self._names: Iterator[str] = map("T{}".format, count())

    def of(self, node: Node) -> Any:
        if node.kind == "union":
            several = len(node.rest) > 1
            return [
                {**self._dict(each), "logicalType": _BRANCH, "tag": number}
                if several and each is not _NULL
                else self.of(each)
                for number, each in enumerate(node.branches)
            ]
        return self._dict(node) if node.kind not in _PRIMITIVE or node.kind == "boolean" else node.kind

    def _dict(self, node: Node) -> dict[str, Any]:
        if node.kind == "boolean":
            return {"type": "fixed", "name": next(self._names), "size": 1}
        if node.kind == "fixed":
            return {"type": "fixed", "name": next(self._names), "size": node.stated["size"]}
        if node.kind == "enum":
            return {"type": "int"}
        if node.kind == "record":
            fields = [{"name": each.name, "type": self.of(each.node)} for each in node.fields]
            return {"type": "record", "name": next(self._names), "fields": fields}
        if node.item is not None:
            item = self.of(node.item)
            if node.kind == "map":
                fields = [{"name": "key", "type": "string"}, {"name": "value", "type": item}]
                item = {"type": "record", "name": next(self._names), "fields": fields}
            return {"type": "array", "items": item}
        return {"type": node.kind}


def _guarded(schema: Any) -> Any:
    if isinstance(schema, list):
        return Branches(_guarded(each) for each in schema)
    if isinstance(schema, dict):
        for name in ("type", "items"):
            if name in schema:
                schema[name] = _guarded(schema[name])
        for field in schema.get("fields", ()):
            field["type"] = _guarded(field["type"])
    return schema


def _tagged(value: Any, schema: Any, _: Any = None) -> tuple[int, Any]:
    return schema["tag"], value


for _kind in (*_PRIMITIVE[1:], "fixed", "record", "array"):
    LOGICAL_READERS[f"{_kind}-{_BRANCH}"] = _tagged
