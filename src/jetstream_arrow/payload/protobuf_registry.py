# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages whose schemas are in a registry: the framing of Confluent's serializers, and whether the writer's
schema gives each field the meaning that it has in the given one.

A message says only the numbers of its fields. Without the writer's schema, a number that has been given to another
field is decoded as that field.
"""

from __future__ import annotations

from base64 import b64decode
from importlib import import_module

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from jetstream_arrow.payload.protobuf_scan import Malformed
from jetstream_arrow.payload.protobuf_wire import is_map, path_of
from jetstream_arrow.payload.registry import Answers, Registered, SchemaRegistryFailed, framed

_F = FieldDescriptor
_WIDER = {  # types whose values another type has, too, in the same encoding
    (_F.TYPE_INT32, _F.TYPE_INT64),
    (_F.TYPE_UINT32, _F.TYPE_UINT64),
    (_F.TYPE_SINT32, _F.TYPE_SINT64),
    (_F.TYPE_STRING, _F.TYPE_BYTES),
}
_TYPES = {getattr(_F, name): name.removeprefix("TYPE_").lower() for name in dir(_F) if name.startswith("TYPE_")}
_MOST_CHECKED = 10_000  # pairs of an id and a message type whose result is kept
_DEEPEST = 20  # message types inside each other


class Writers:
    """The schemas with which the messages of a batch were written."""

    def __init__(self, answers: Answers, reader: Descriptor) -> None:
        """Raises SchemaRegistryFailed if the registry has answered with the source of a schema."""
        self._answers, self._reader = answers, reader
        self._checked: dict[tuple[int, tuple[int, ...]], str | None] = {}
        for number, schema in answers.schemas.items():
            if schema.kind == "PROTOBUF":
                for text in (schema.text, *(text for _, text in schema.references)):
                    _file(text, number)

    def start(self, payload: bytes) -> int:
        """Return where the message begins. Raises Malformed."""
        found = framed(payload, "confluent")
        if found is None:
            raise Malformed("does not begin with the framing of a schema registry (0x00 and an id of 4 bytes)")
        number, at = found
        indexes, at = _indexes(payload, at)
        if (number, indexes) not in self._checked:
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked[number, indexes] = self._why_not(number, indexes)
        if reason := self._checked[number, indexes]:
            raise Malformed(reason)
        return at

    def _why_not(self, number: int, indexes: tuple[int, ...]) -> str | None:
        """Return why messages of this schema and type are malformed, or None."""
        schema = self._answers.find(number, "confluent")
        if isinstance(schema, str):
            return schema
        if schema.kind != "PROTOBUF":
            return f"schema id {number} is of the type {schema.kind}, not PROTOBUF"
        try:
            writer = _message(schema, number, indexes)
        except (ImportError, KeyError, TypeError, ValueError) as error:
            return f"schema id {number} cannot be used: {str(error)[:300]}"
        if writer is None:
            return f"schema id {number} has no message type with the index {list(indexes)}"
        if writer.full_name != self._reader.full_name:
            return f"the message is of the type {writer.full_name} (schema id {number}), not {self._reader.full_name}"
        found = _difference(writer, self._reader, "", set())
        return found and f"{found}, which schema id {number} says; change the given schema, or that of the producer"


def _indexes(payload: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message type: its place in the schema's file, and in the messages around it."""

    def read(at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 35, 7):
            if at >= len(payload):
                break
            value |= (payload[at] & 0x7F) << shift
            at += 1
            if payload[at - 1] < 0x80:
                return value >> 1 if not value & 1 else -1, at
        raise Malformed("ends in the framing of a schema registry, or has an invalid index of the message type")

    count, at = read(at)
    if count > _DEEPEST or count < 0:
        raise Malformed("has an invalid index of the message type in the framing of a schema registry")
    found = []
    for _ in range(count):
        index, at = read(at)
        found.append(index)
    return tuple(found) or (0,), at


def _file(text: str, number: int) -> FileDescriptorProto:
    try:
        return FileDescriptorProto.FromString(b64decode(text, validate=True))
    except Exception as error:
        raise SchemaRegistryFailed(
            f"the schema registry did not serve schema id {number} as a descriptor (format=serialized), but as its"
            " source; decode without a registry, or use a registry that supports this format; no message was rejected"
        ) from error


def _message(schema: Registered, number: int, indexes: tuple[int, ...]) -> Descriptor | None:
    """Return the message type of a registered schema, or None if it has none with these indexes."""
    pool, added = DescriptorPool(), set[str]()
    given = {name: _file(text, number) for name, text in schema.references}

    def add(name: str, file: FileDescriptorProto) -> None:
        added.add(name)
        for each in file.dependency:
            if each not in added:
                add(each, given[each] if each in given else _well_known(each))
        file.name = name
        pool.AddSerializedFile(file.SerializeToString())

    file = _file(schema.text, number)
    add(f"schema-{number}.proto", file)
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        found: DescriptorProto = messages[index]
        names.append(found.name)
        messages = found.nested_type
    return pool.FindMessageTypeByName(".".join(names))


def _well_known(name: str) -> FileDescriptorProto:
    if not name.startswith("google/protobuf/"):
        raise KeyError(f"it imports {name}, to which it has no reference")
    file = FileDescriptorProto()
    import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def _difference(writer: Descriptor, reader: Descriptor, path: str, seen: set[tuple[str, str]]) -> str | None:
    """Return which field of the reader has another meaning in the writer's schema, or None."""
    if (writer.full_name, reader.full_name) in seen:
        return None
    seen.add((writer.full_name, reader.full_name))
    for field in reader.fields:
        other, own = writer.fields_by_number.get(field.number), path_of(path, field)
        if other is None:
            if field.name in writer.fields_by_name:
                return f"{own}: the field has the number {writer.fields_by_name[field.name].number}"
            continue
        if other.name != field.name:
            return f"{own}: the field {field.number} is {other.name!r}"
        if _shape(other) != _shape(field) or (other.type, field.type) not in {*_WIDER, (field.type, field.type)}:
            return f"{own}: the field is {_shown(other)}, not {_shown(field)}"
        found = None
        if field.enum_type is not None:
            found = _renamed(other.enum_type, field.enum_type, own)
        elif field.message_type is not None:
            found = _difference(other.message_type, field.message_type, own, seen)
        if found:
            return found
    return None


def _renamed(writer: EnumDescriptor, reader: EnumDescriptor, path: str) -> str | None:
    for number in {each.number for each in reader.values}:
        ours = {each.name for each in reader.values if each.number == number}
        theirs = {each.name for each in writer.values if each.number == number}
        if theirs and not ours & theirs:
            return f"{path}: the symbol {number} is {min(theirs)}, not {min(ours)}"
    return None


def _shape(field: FieldDescriptor) -> tuple[bool, bool, bool]:
    return field.is_repeated, is_map(field), field.has_presence


def _shown(field: FieldDescriptor) -> str:
    if is_map(field):
        return "a map"
    label = "repeated " if field.is_repeated else "optional " if field.has_presence and not field.message_type else ""
    return f"{label}{_TYPES[field.type]}"
