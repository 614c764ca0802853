# SPDX-License-Identifier: Apache-2.0
"""How the messages of a schema are encoded. https://protobuf.dev/programming-guides/encoding/ describes the format."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

VARINT, FIXED64, BYTES, GROUP, END_OF_GROUP, FIXED32 = range(6)  # wire types

_F = FieldDescriptor
LIMIT = 1 << 64
_SIGNED, _UNSIGNED = ((1 << 31) - 1, LIMIT - (1 << 31)), ((1 << 32) - 1, LIMIT)  # varints of types of 32 bits
_WIRE_TYPES = {
    **dict.fromkeys((_F.TYPE_DOUBLE, _F.TYPE_FIXED64, _F.TYPE_SFIXED64), FIXED64),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_FIXED32, _F.TYPE_SFIXED32), FIXED32),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE), BYTES),
    _F.TYPE_GROUP: GROUP,
}
_BOUNDS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_ENUM), _SIGNED),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_SINT32), _UNSIGNED),
    _F.TYPE_BOOL: (1, LIMIT),
}
_NO_KEY: dict[int, bytes | int] = {
    VARINT: 0,
    BYTES: b"",
    FIXED32: bytes(4),
    FIXED64: bytes(8),
}


@dataclass
class WireField:
    """How a field of a message is encoded.

    path:      the name of the column.
    wire:      the wire type of one value.
    once:      the name of the oneof or the field of which at most one occurs; None for a repeated field.
    most:      the largest varint of the type.
    negative:  the smallest varint that stands for a negative number.
    symbols:   the numbers of an enum's symbols, if the parser drops others.
    text:      whether the bytes must be UTF-8.
    message:   the fields of the value, if it is a message.
    """

    path: str
    wire: int
    once: str | None
    most: int = LIMIT - 1
    negative: int = LIMIT
    symbols: Collection[int] | None = None
    text: bool = False
    message: WireMessage | None = None


@dataclass
class WireMessage:
    """The fields of a message by their numbers.

    path:    the path of the column that contains the message; empty for the payload.
    required: the paths of the fields that must occur, by the names in ``once``.
    no_key:  the key of an entry of a map in which it is left out; None for any other message.
    """

    path: str
    fields: dict[int, WireField] = dataclasses.field(default_factory=dict)
    required: dict[str, str] = dataclasses.field(default_factory=dict)
    no_key: bytes | int | None = None


def path_of(path: str, field: FieldDescriptor) -> str:
    """Return the path of the values of a message's field."""
    own = f"{path}.{field.name}" if path else field.name
    if not field.is_repeated:
        return own
    return f"{own}{{}}" if is_map(field) else f"{own}[]"


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def wire_message(
    descriptor: Descriptor, one_value: Collection[str], path: str = "", inside: dict[str, WireMessage] | None = None
) -> WireMessage:
    """Return how a message is encoded.

    one_value:  the types of messages that are one value in a column. Only these may contain themselves.
    inside:     the messages of the same value, by their types.
    """
    name = descriptor.full_name
    if name in one_value:
        inside = {} if inside is None else inside
    if inside and name in inside:
        return inside[name]
    wire = WireMessage(path)
    if inside is not None:
        inside[name] = wire
    entry = descriptor.GetOptions().map_entry
    for field in descriptor.fields:
        own = path if entry or inside is not None else path_of(path, field)
        most, negative = _BOUNDS.get(field.type, (LIMIT - 1, LIMIT))
        one = field.containing_oneof or field
        if field.is_required:
            wire.required[field.full_name] = own
        wire.fields[field.number] = WireField(
            own,
            _WIRE_TYPES.get(field.type, VARINT),
            None if field.is_repeated else one.full_name,
            most,
            negative,
            {each.number & (LIMIT - 1) for each in field.enum_type.values} if field.enum_type else None,
            field.type == _F.TYPE_STRING,
            wire_message(field.message_type, one_value, own, inside) if field.message_type else None,
        )
    if entry:
        wire.no_key = _NO_KEY[wire.fields[1].wire]
    return wire
