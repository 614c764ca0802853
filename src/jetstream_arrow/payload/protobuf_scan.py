# SPDX-License-Identifier: Apache-2.0
"""What a Protobuf parser drops without an error, found in the encoded message.

A parser keeps the last occurrence of a field that can occur once, cuts an integer that is too long for its type, and
treats a field of another wire type as unknown. https://protobuf.dev/programming-guides/encoding/ describes the format.
"""

from __future__ import annotations

from jetstream_arrow.payload.protobuf_wire import (
    BYTES,
    END_OF_GROUP,
    FIXED32,
    FIXED64,
    GROUP,
    LIMIT,
    VARINT,
    WireField,
    WireMessage,
)

_SIZES = {FIXED64: 8, FIXED32: 4}
_DEEPEST = 100  # levels of messages, as in Google's parsers
CUT = "not a Protobuf message: it ends inside a field"
CORRUPT = "not a Protobuf message: it has a field that cannot exist"
TOO_MANY = "too many values"


class Malformed(Exception):
    """The message is malformed. The first argument is the reason."""


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
        seen = _Seen()
        key: object = message.no_key
        while at < end:
            number, wire, at = self._tag(at, end)
            if wire == END_OF_GROUP and number == group:
                break
            found = message.fields.get(number)
            if found is None:
                at = self._unknown(message, number, wire, at, end)
                continue
            self.known = True
            at, value = self._field(found, number, wire, at, end, depth)
            seen.add(found, number, value)
            if number == 1:
                key = value
        else:
            if group is not None:
                raise Malformed(CUT)
        seen.check(message)
        return at, key

    def _field(  # noqa: PLR0917 - a position in the data
        self, found: WireField, number: int, wire: int, at: int, end: int, depth: int
    ) -> tuple[int, object]:
        """Return where the field ends, and its value, if it can be the key of a map."""
        if found.once is None:
            self._count()
        if wire != found.wire:
            if wire == BYTES and found.once is None and found.wire in (VARINT, FIXED64, FIXED32):
                return self._packed(found, at, end), None
            raise Malformed(
                f"{found.path}: field {number} has the wire type {wire}, but its type in the schema has {found.wire}"
            )
        if wire == VARINT:
            return self._number(found, at, end)
        if wire == GROUP:
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
        at, stop = self._span(BYTES, at, end)
        while at < stop:
            self._count()
            if found.wire == VARINT:
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
        if found.most < value < found.negative or value >= LIMIT:
            raise Malformed(f"{found.path}: {value} does not fit into the type that the field has in the schema")
        if found.symbols is not None and value not in found.symbols:
            raise Malformed(no_symbol(found.path, value))
        return at, value

    def _unknown(self, message: WireMessage, number: int, wire: int, at: int, end: int) -> int:
        """Return where a field ends that the schema does not contain."""
        if message.no_key is not None:  # google.protobuf would drop the entry
            raise Malformed(f"{message.path}: an entry has the field {number}; expected only key (1) and value (2)")
        if self._refuse:
            raise Malformed(f"{message.path and message.path + ': '}the schema does not contain the field {number}")
        groups: list[int] = []
        while True:
            if wire == GROUP:
                groups.append(number)
            elif wire == END_OF_GROUP:
                if not groups or groups.pop() != number:
                    raise Malformed(CORRUPT)
            elif wire == VARINT:
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
        if wire == BYTES:
            size, at = self._varint(at, end)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise Malformed(CORRUPT)
        if size > end - at:
            raise Malformed(CUT)
        return at, at + size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        if at < end and (byte := self._data[at]) < 0x80:  # as most are
            return byte, at + 1
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


class _Seen:
    """What has occurred in a message, to find what may occur only once."""

    def __init__(self) -> None:
        self._once: dict[str, WireField] = {}
        self._keys: set[tuple[int, object]] = set()

    def add(self, found: WireField, number: int, value: object) -> None:
        if found.once is not None:
            before = self._once.get(found.once)
            if before is found:
                raise Malformed(
                    f"{found.path}: the field occurs twice, and can have only one value; the payload may be several"
                    f" messages, one after the other"
                )
            if before is not None:
                raise Malformed(f"{found.path}: the payload also has {before.path}, which is of the same oneof")
            self._once[found.once] = found
        elif found.message is not None and found.message.no_key is not None:
            if (number, value) in self._keys:
                raise Malformed(f"{found.path}: the key {_shown(value)} occurs twice")
            self._keys.add((number, value))

    def check(self, message: WireMessage) -> None:
        """Raise Malformed if a required field has not occurred."""
        for name, path in message.required.items():
            if name not in self._once:
                raise Malformed(f"{path}: missing, but the schema says required")


def _shown(key: object) -> str:
    return repr(key.decode(errors="replace") if isinstance(key, bytes) else key)
