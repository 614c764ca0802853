"""Descriptor sets from the part of the .proto language that the tests use, because protoc is not a Python package."""

import re
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_F = FieldDescriptorProto
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _F.Type.items()
    if name not in ("TYPE_ENUM", "TYPE_GROUP", "TYPE_MESSAGE")
}
_LABELS = {"optional": _F.LABEL_OPTIONAL, "required": _F.LABEL_REQUIRED, "repeated": _F.LABEL_REPEATED}
_STATEMENT = re.compile(r"\s*([^{};]*)([{};])")
_FIELD = re.compile(
    r"(?:(?P<label>optional|required|repeated) )?(?:map<(?P<key>\w+), (?P<value>[\w.]+)>|(?P<type>[\w.]+))"
    r" (?P<name>\w+) = (?P<number>\d+)(?: \[default = (?P<default>.+)\])?"
)
WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")


def descriptor_set(source: str) -> bytes:
    """Return what ``protoc --include_imports --descriptor_set_out`` writes. Enums are declared
    at the top, before the messages that use them."""
    file = FileDescriptorProto(name="tests.proto", syntax="proto2")
    files = FileDescriptorSet()
    for name in WELL_KNOWN:
        imported = f"google/protobuf/{name}.proto"
        __import__(f"google.protobuf.{name}_pb2")
        Default().FindFileByName(imported).CopyToProto(files.file.add())
        file.dependency.append(imported)
    inside: list[Any] = [file]
    for match in _STATEMENT.finditer(source):
        _statement(match[1].strip(), match[2], inside, file)
    assert inside == [file]
    files.file.append(file)
    written: bytes = files.SerializeToString()
    return written


def _statement(text: str, end: str, inside: list[Any], file: FileDescriptorProto) -> None:
    kind, _, name = text.partition(" ")
    if end == "}":
        inside.pop()
    elif kind in ("message", "enum", "oneof"):
        parent = inside[-1]
        where = {
            "message": lambda: parent.nested_type if isinstance(parent, DescriptorProto) else parent.message_type,
            "enum": lambda: parent.enum_type,
            "oneof": lambda: parent.oneof_decl,
        }[kind]()
        inside.append(where.add(name=name))
    elif kind == "syntax":
        file.syntax = text.split('"')[1]
    elif kind == "package":
        file.package = name
    elif text == "option allow_alias = true":
        inside[-1].options.allow_alias = True
    elif hasattr(inside[-1], "value"):
        symbol, number = text.split(" = ")
        inside[-1].value.add(name=symbol, number=int(number))
    else:
        _field(text, inside, file)


def _field(text: str, inside: list[Any], file: FileDescriptorProto) -> None:
    found = _FIELD.fullmatch(text)
    assert found, text
    oneof = not isinstance(inside[-1], DescriptorProto)
    message = inside[-2] if oneof else inside[-1]
    field = message.field.add(name=found["name"], number=int(found["number"]))
    field.label = _LABELS[found["label"] or "optional"]
    if oneof:
        field.oneof_index = len(message.oneof_decl) - 1
    if found["default"]:
        field.default_value = found["default"]
    if found["label"] == "optional" and file.syntax == "proto3":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
    if not found["key"]:
        _type(field, found["type"], file)
        return
    entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        _type(entry.field.add(name=name, number=number, label=_F.LABEL_OPTIONAL), found[name], file)
    field.label, field.type = _F.LABEL_REPEATED, _F.TYPE_MESSAGE
    path = [each.name for each in inside[1:] if isinstance(each, DescriptorProto)]
    field.type_name = f".{file.package}.{'.'.join(path)}.{entry.name}"


def _type(field: FieldDescriptorProto, name: str, file: FileDescriptorProto) -> None:
    if name in _SCALARS:
        field.type = _SCALARS[name]
        return
    enums = {each.name for each in file.enum_type}
    field.type = _F.TYPE_ENUM if name in enums else _F.TYPE_MESSAGE
    field.type_name = f".{name}" if name.startswith("google.") else f".{file.package}.{name}"


def message_class(files: bytes, name: str) -> Any:
    """Return the class of a message of a descriptor set."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def number(value: int) -> bytes:
    """A number as a varint."""
    value &= (1 << 64) - 1
    digits = b""
    while value > 0x7F:
        digits += bytes([value & 0x7F | 0x80])
        value >>= 7
    return digits + bytes([value])
