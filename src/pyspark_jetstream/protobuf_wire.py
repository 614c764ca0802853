# SPDX-License-Identifier: Apache-2.0
"""What a Protobuf parser drops without an error, found in the encoded message.

A parser keeps the last occurrence of a field that can occur once, cuts an integer that is too long for its type, and
treats a field of another wire type as unknown. https://protobuf.dev/programming-guides/encoding/ describes the format.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.descriptor import Descriptor, FieldDescriptor


class Malformed(Exception):
    """The message is malformed. The first argument is the reason."""


class WireType(IntEnum):
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    GROUP = 3
    END_OF_GROUP = 4
    FIXED32 = 5


_F = FieldDescriptor
_LIMIT = 1 << 64
_SIGNED, _UNSIGNED = ((1 << 31) - 1, _LIMIT - (1 << 31)), ((1 << 32) - 1, _LIMIT)  # varints of types of 32 bits
_WIRE_TYPES = {
    **dict.fromkeys((_F.TYPE_DOUBLE, _F.TYPE_FIXED64, _F.TYPE_SFIXED64), WireType.FIXED64),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_FIXED32, _F.TYPE_SFIXED32), WireType.FIXED32),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE), WireType.BYTES),
    _F.TYPE_GROUP: WireType.GROUP,
}
_BOUNDS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_ENUM), _SIGNED),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_SINT32), _UNSIGNED),
    _F.TYPE_BOOL: (1, _LIMIT),
}
_NO_KEY: dict[WireType, bytes | int] = {
    WireType.VARINT: 0,
    WireType.BYTES: b"",
    WireType.FIXED32: bytes(4),
    WireType.FIXED64: bytes(8),
}
_SIZES = {WireType.FIXED64: 8, WireType.FIXED32: 4}
_DEEPEST = 100  # levels of messages, as in Google's parsers
CUT = "not a Protobuf message: it ends inside a field"
CORRUPT = "not a Protobuf message: it has a field that cannot exist"
TOO_MANY = "too many values"


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
    wire: WireType
    once: str | None
    most: int = _LIMIT - 1
    negative: int = _LIMIT
    symbols: Collection[int] | None = None
    text: bool = False
    message: WireMessage | None = None


@dataclass
class WireMessage:
    """The fields of a message by their numbers.

    path:    the path of the column that contains the message; empty for the payload.
    no_key:  the key of an entry of a map in which it is left out; None for any other message.
    """

    path: str
    fields: dict[int, WireField] = dataclasses.field(default_factory=dict)
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
        most, negative = _BOUNDS.get(field.type, (_LIMIT - 1, _LIMIT))
        one = field.containing_oneof or field
        wire.fields[field.number] = WireField(
            own,
            _WIRE_TYPES.get(field.type, WireType.VARINT),
            None if field.is_repeated else one.full_name,
            most,
            negative,
            {each.number & (_LIMIT - 1) for each in field.enum_type.values} if field.enum_type else None,
            field.type == _F.TYPE_STRING,
            wire_message(field.message_type, one_value, own, inside) if field.message_type else None,
        )
    if entry:
        wire.no_key = _NO_KEY[wire.fields[1].wire]
    return wire


class Scan:
    """Reads one encoded message.

    known:  whether a field of the message has occurred.
    """

    def __init__(self, data: bytes, most: int, refuse_unknown: bool) -> None:
        self._data, self._left, self._refuse = data, most, refuse_unknown
        self.known = False

    def check(self, message: WireMessage) -> None:
        """Raise Malformed if a parser would drop something, or if the message has too many values."""
        self._message(message, 0, len(self._data))

    def _message(
        self, message: WireMessage, at: int, end: int, depth: int = 0, group: int | None = None
    ) -> tuple[int, object]:
        """Return where the message ends and, for an entry of a map, its key."""
        if depth > _DEEPEST:
            raise Malformed(f"more than {_DEEPEST} messages inside each other")
        once: dict[str, WireField] = {}
        keys: set[tuple[int, object]] = set()
        key: object = message.no_key
        while at < end:
            number, wire, at = self._tag(at, end)
            if wire == WireType.END_OF_GROUP and number == group:
                return at, key
            found = message.fields.get(number)
            if found is None:
                if message.no_key is not None:  # google.protobuf would drop the entry
                    raise Malformed(f"{message.path}: an entry has the field {number}; expected key (1) and value (2)")
                at = self._unknown(message.path, number, wire, at, end)
                continue
            self.known = True
            at, value = self._field(found, number, wire, at, end, depth)
            if found.once is not None:
                _check_once(found, once.get(found.once))
                once[found.once] = found
            if found.message is not None and found.message.no_key is not None:
                if (number, value) in keys:
                    raise Malformed(f"{found.path}: the key {_shown(value)} occurs twice")
                keys.add((number, value))
            elif number == 1:
                key = value
        if group is not None:
            raise Malformed(CUT)
        return at, key

    def _field(  # noqa: PLR0917 - a position in the data
        self, found: WireField, number: int, wire: int, at: int, end: int, depth: int
    ) -> tuple[int, object]:
        """Return where the field ends, and its value, if it can be the key of a map."""
        if found.once is None:
            self._count()
        if wire != found.wire:
            if wire == WireType.BYTES and found.once is None and found.wire in (0, 1, 5):
                return self._packed(found, at, end), None
            raise Malformed(
                f"{found.path}: field {number} has the wire type {wire}, but its type in the schema has {found.wire:d}"
            )
        if wire == WireType.VARINT:
            return self._number(found, at, end)
        if wire == WireType.GROUP:
            assert found.message is not None  # noqa: S101 - a group is a message
            return self._message(found.message, at, end, depth + 1, number)
        start, stop = self._span(wire, at, end)
        if found.message is not None:
            _, key = self._message(found.message, start, stop, depth + 1)
            return stop, key
        value = self._data[start:stop]
        if found.text:
            try:
                value.decode()
            except UnicodeDecodeError:
                raise Malformed(f"{found.path}: the string is not UTF-8") from None
        return stop, value

    def _packed(self, found: WireField, at: int, end: int) -> int:
        at, stop = self._span(WireType.BYTES, at, end)
        while at < stop:
            self._count()
            if found.wire == WireType.VARINT:
                at, _ = self._number(found, at, stop)
            else:
                _, at = self._span(found.wire, at, stop)
        return stop

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Malformed(TOO_MANY)

    def _number(self, found: WireField, at: int, end: int) -> tuple[int, int]:
        value, at = self._varint(at, end)
        if found.most < value < found.negative or value >= _LIMIT:
            raise Malformed(f"{found.path}: {value} does not fit into the type that the field has in the schema")
        if found.symbols is not None and value not in found.symbols:
            raise Malformed(no_symbol(found.path, value))
        return at, value

    def _unknown(self, path: str, number: int, wire: int, at: int, end: int) -> int:
        """Return where a field ends that the schema does not contain."""
        if self._refuse:
            raise Malformed(f"{path and path + ': '}the schema does not contain the field {number}")
        groups: list[int] = []
        while True:
            if wire == WireType.GROUP:
                groups.append(number)
            elif wire == WireType.END_OF_GROUP:
                if not groups or groups.pop() != number:
                    raise Malformed(CORRUPT)
            elif wire == WireType.VARINT:
                _, at = self._varint(at, end)
            else:
                _, at = self._span(wire, at, end)
            if not groups:
                return at
            number, wire, at = self._tag(at, end)

    def _tag(self, at: int, end: int) -> tuple[int, int, int]:
        tag, at = self._varint(at, end)
        if not 8 <= tag < 1 << 32:
            raise Malformed(CORRUPT)
        return tag >> 3, tag & 7, at

    def _span(self, wire: int, at: int, end: int) -> tuple[int, int]:
        """Return the start and the end of a value that is not a varint."""
        if wire == WireType.BYTES:
            size, at = self._varint(at, end)
        elif wire in _SIZES:
            size = _SIZES[WireType(wire)]
        else:
            raise Malformed(CORRUPT)
        if size > end - at:
            raise Malformed(CUT)
        return at, at + size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        for index in range(at, min(end, at + 10)):
            byte = self._data[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, index + 1
            shift += 7
        raise Malformed(CUT if end - at < 10 else CORRUPT)


def no_symbol(path: str, number: int) -> str:
    return f"{path}: the enum in the schema has no symbol with the number {number}"


def _check_once(found: WireField, before: WireField | None) -> None:
    if before is found:
        raise Malformed(
            f"{found.path}: the field occurs twice, and can have only one value; the payload may be several messages,"
            " one after the other"
        )
    if before is not None:
        raise Malformed(f"{found.path}: the payload also has {before.path}, which is of the same oneof")


def _shown(key: object) -> str:
    return repr(key.decode(errors="replace") if isinstance(key, bytes) else key)
