"""Pairs of Avro schemas, a value of the writer's schema, and what its column must contain in the reader's schema.

Each pair is made together with its expected result, and the payloads are written by a small encoder, so that neither
the code under test nor fastavro, which it uses, decides what is right.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

MALFORMED = object()
"""The payload must be malformed."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = -62135596800000000, 253402300799999999


class Pair(NamedTuple):
    """A type of the writer and of the reader; ``draw`` returns a value to write, and what must be read."""

    writer: Any
    reader: Any
    draw: Callable[[Random], tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    writer: str
    reader: str
    payload: bytes
    expected: Any


class Branch(NamedTuple):
    """A value of a branch of a union."""

    number: int
    value: Any


def number(value: int) -> bytes:
    """Avro's encoding of an int or a long."""
    value = (value << 1) ^ (value >> 63)
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def encoded(schema: Any, value: Any, rng: Random) -> bytes:
    """Encode a value by the specification. Its logical types are numbers and bytes already."""
    if isinstance(schema, list):
        branch = value if isinstance(value, Branch) else Branch(0, value)
        return number(branch.number) + encoded(schema[branch.number], branch.value, rng)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return b"".join(encoded(each["type"], value[each["name"]], rng) for each in schema["fields"])
    if kind == "array":
        return blocks([encoded(schema["items"], each, rng) for each in value], rng)
    if kind == "map":
        entries = [encoded("string", key, rng) + encoded(schema["values"], each, rng) for key, each in value.items()]
        return blocks(entries, rng)
    return number(schema["symbols"].index(value)) if kind == "enum" else SCALARS[kind](value)


def sized(data: bytes) -> bytes:
    return number(len(data)) + data


SCALARS: dict[str, Callable[[Any], bytes]] = {
    "null": lambda _: b"",
    "boolean": lambda value: bytes([value]),
    "int": number,
    "long": number,
    "float": lambda value: struct.pack("<f", value),
    "double": lambda value: struct.pack("<d", value),
    "string": lambda value: sized(value.encode()),
    "bytes": sized,
    "fixed": bytes,
}


def blocks(items: list[bytes], rng: Random) -> bytes:
    """The items of an array or a map, in one block or several, with or without their size in bytes."""
    size = rng.choice([1, len(items) or 1])
    data = b""
    for begin in range(0, len(items), size):
        block = items[begin : begin + size]
        joined = b"".join(block)
        data += number(-len(block)) + number(len(joined)) if rng.random() < 0.3 else number(len(block))
        data += joined
    return data + b"\0"


def integer(rng: Random, bits: int) -> int:
    edge: int = rng.choice([0, 1, -1, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
    value = rng.choice([edge, rng.getrandbits(bits) - 2 ** (bits - 1), rng.randrange(-100, 100)])
    least = -(1 << (bits - 1))
    return int(max(least, min(-least - 1, value)))


def text(rng: Random) -> str:
    return rng.choice(["", "a", "ä€😀", "x" * 100, "\0", "0", str(rng.random())])


def octets(rng: Random) -> bytes:
    return rng.choice([b"", b"\0", b"a", "ä".encode(), b"\xff\xfe", rng.randbytes(7)])


def floating(rng: Random) -> float:
    return rng.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324, rng.gauss(0, 1e9)])


def single(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def rounded(bits: int) -> Callable[[Random], tuple[Any, Any]]:
    def to_double(rng: Random) -> tuple[Any, Any]:
        value = integer(rng, bits)
        return value, float(value) if int(float(value)) == value else MALFORMED

    return to_double


def to_float(bits: int) -> Callable[[Random], tuple[Any, Any]]:
    def draw(rng: Random) -> tuple[Any, Any]:
        value = integer(rng, bits)
        near = single(float(value))
        return value, near if int(near) == value else MALFORMED

    return draw


def utf_8(rng: Random) -> tuple[Any, Any]:
    value = octets(rng)
    try:
        return value, value.decode()
    except UnicodeDecodeError:
        return value, MALFORMED


def as_bytes(rng: Random) -> tuple[Any, Any]:
    value = text(rng)
    return value, value.encode()


def same(draw: Callable[[Random], Any]) -> Callable[[Random], tuple[Any, Any]]:
    def both(rng: Random) -> tuple[Any, Any]:
        value = draw(rng)
        return value, value

    return both


def logical(kind: str, name: str, **stated: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **stated}


def moment(nanos: int, zone: Any) -> Callable[[Random], tuple[Any, Any]]:
    """nanos: how many nanoseconds are in the unit."""

    def draw(rng: Random) -> tuple[Any, Any]:
        edge = rng.choice([FIRST, FIRST - 1, LAST, LAST + 1, 0, -1, 1763694000123456]) * 1000 // nanos
        value = rng.choice([edge, rng.getrandbits(63) - 2**62, rng.randrange(10**9)])
        value = max(-(2**63), min(2**63 - 1, value))
        micros, rest = divmod(value * nanos, 1000)
        if rest or not FIRST <= micros <= LAST:
            return value, MALFORMED
        return value, (EPOCH + timedelta(microseconds=micros)).replace(tzinfo=zone)

    return draw


def day(rng: Random) -> tuple[Any, Any]:
    value = rng.choice([0, -719162, -719163, 2932896, 2932897, 20260101, rng.randrange(-(10**6), 10**6)])
    return value, date.fromordinal(value + 719163) if -719162 <= value <= 2932896 else MALFORMED


def day_time(micros: int) -> Callable[[Random], tuple[Any, Any]]:
    def draw(rng: Random) -> tuple[Any, Any]:
        most = 86_400_000_000 // micros
        value = rng.choice([0, most - 1, most, -1, rng.randrange(most)])
        return value, timedelta(microseconds=value * micros) if 0 <= value < most else MALFORMED

    return draw


def decimal(precision: int, scale: int, size: int | None = None) -> Callable[[Random], tuple[Any, Any]]:
    def draw(rng: Random) -> tuple[Any, Any]:
        most = 10**precision
        unscaled = rng.choice([0, 1, -1, most - 1, 1 - most, most, rng.randrange(-most, most)])
        length = size or (unscaled.bit_length() // 8 + 1 + rng.choice([0, 0, 3]))
        digits = tuple(map(int, str(abs(unscaled))))
        value = Decimal((int(unscaled < 0), digits, -scale))
        return unscaled.to_bytes(length, "big", signed=True), value if abs(unscaled) < most else MALFORMED

    return draw


def big_decimal(rng: Random) -> tuple[Any, Any]:
    unscaled, scale = integer(rng, 64), rng.randrange(-5, 20)
    octets = unscaled.to_bytes(9, "big", signed=True)
    return sized(octets) + number(scale), str(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)))


def uuid(rng: Random) -> tuple[Any, Any]:
    value = UUID(int=rng.getrandbits(128))
    return value.bytes, str(value)


def duration(rng: Random) -> tuple[Any, Any]:
    parts = [rng.choice([0, 1, 2**32 - 1]) for _ in range(3)]
    return struct.pack("<III", *parts), dict(zip(("months", "days", "milliseconds"), parts, strict=True))


INT32, INT64 = same(lambda rng: integer(rng, 32)), same(lambda rng: integer(rng, 64))
LEAVES: list[Pair] = [
    Pair("boolean", "boolean", same(lambda rng: rng.random() < 0.5)),
    Pair("int", "int", INT32),
    Pair("long", "long", INT64),
    Pair("float", "float", same(lambda rng: single(rng.choice([0.0, 1.5, -2.25, float("inf"), float("nan")])))),
    Pair("double", "double", same(floating)),
    Pair("string", "string", same(text)),
    Pair("bytes", "bytes", same(octets)),
    Pair("int", "long", INT32),
    Pair("int", "float", to_float(32)),
    Pair("int", "double", rounded(32)),
    Pair("long", "float", to_float(64)),
    Pair("long", "double", rounded(64)),
    Pair("float", "double", same(lambda rng: single(rng.gauss(0, 100)))),
    Pair("string", "bytes", as_bytes),
    Pair("bytes", "string", utf_8),
    Pair(logical("int", "date"), logical("int", "date"), day),
    Pair("int", logical("int", "date"), day),
    Pair(logical("int", "date"), "int", same(lambda rng: day(rng)[0])),
    Pair(logical("string", "uuid"), logical("string", "uuid"), same(lambda rng: uuid(rng)[1])),
    Pair(logical("bytes", "big-decimal"), logical("bytes", "big-decimal"), big_decimal),
]
UNITS = {"millis": 10**6, "micros": 1000, "nanos": 1}
for _name, _zone in (("timestamp", UTC), ("local-timestamp", None)):
    for _written, _nanos in UNITS.items():
        for _read in UNITS:
            _type = logical("long", f"{_name}-{_read}")
            LEAVES.append(Pair(logical("long", f"{_name}-{_written}"), _type, moment(_nanos, _zone)))
        LEAVES.append(Pair("long", logical("long", f"{_name}-{_written}"), moment(_nanos, _zone)))
_MILLIS, _MICROS = logical("int", "time-millis"), logical("long", "time-micros")
LEAVES += [
    Pair(_MILLIS, _MILLIS, day_time(1000)),
    Pair(_MICROS, _MICROS, day_time(1)),
    Pair(_MILLIS, _MICROS, day_time(1000)),
    Pair("int", _MICROS, lambda _: (1_500_000, timedelta(seconds=1.5))),
]
for _precision, _scale in ((1, 0), (6, 2), (18, 18), (38, 10)):
    _type = logical("bytes", "decimal", precision=_precision, scale=_scale)
    LEAVES.append(Pair(_type, _type, decimal(_precision, _scale)))
    LEAVES.append(Pair("bytes", _type, decimal(_precision, _scale)))


def like(found: Any, expected: Any) -> bool:
    """Whether what Arrow returns is the expected value. NaN is like NaN, and 0.0 is not like -0.0."""
    if isinstance(found, str) != isinstance(expected, str):
        return False
    if isinstance(expected, dict):
        entries = dict(found)
        return entries.keys() == expected.keys() and all(like(entries[key], each) for key, each in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(like, found, expected))
    if isinstance(expected, datetime):
        return bool(found == expected) and (found.tzinfo is None) == (expected.tzinfo is None)
    return repr(found) == repr(expected)


class Generator:
    """Draws cases; each name is used once."""

    def __init__(self, rng: Random) -> None:
        self.rng, self._names = rng, 0

    def case(self) -> Case:
        pair = self.record(2)
        value, expected = pair.draw(self.rng)
        return Case(json.dumps(pair.writer), json.dumps(pair.reader), encoded(pair.writer, value, self.rng), expected)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def any(self, depth: int) -> Pair:
        makers: list[Callable[[], Pair]] = [self.leaf] * 6
        makers += [self.enum, self.fixed, lambda: self.nullable(depth), lambda: self.union(depth)]
        if depth:
            makers += [lambda: self.array(depth), lambda: self.map(depth), lambda: self.record(depth - 1)] * 2
        return self.rng.choice(makers)()

    def leaf(self) -> Pair:
        return self.rng.choice(LEAVES)

    def enum(self) -> Pair:
        symbols = ["A", "B", "C", "D"]
        kept = self.rng.sample(symbols, self.rng.randrange(1, 5))
        name = self.name("E")
        reader: dict[str, Any] = {"type": "enum", "name": f"space.{name}", "symbols": kept}
        other: Any = MALFORMED
        if self.rng.random() < 0.5:
            other = reader["default"] = kept[-1]

        def draw(rng: Random) -> tuple[Any, Any]:
            symbol = rng.choice(symbols)
            return symbol, symbol if symbol in kept else other

        return Pair({"type": "enum", "name": name, "symbols": symbols}, reader, draw)

    def fixed(self) -> Pair:
        kinds: list[tuple[int, dict[str, Any], Callable[[Random], tuple[Any, Any]]]] = [
            (3, {}, same(lambda rng: rng.randbytes(3))),
            (16, {"logicalType": "uuid"}, uuid),
            (12, {"logicalType": "duration"}, duration),
            (9, {"logicalType": "decimal", "precision": 20, "scale": 4}, decimal(20, 4, 9)),
        ]
        size, stated, draw = self.rng.choice(kinds)
        old, new = self.name("F"), self.name("F")
        reader = {"type": "fixed", "name": new, "aliases": [old], "size": size, **stated}
        return Pair({"type": "fixed", "name": old, "size": size, **stated}, reader, draw)

    def nullable(self, depth: int) -> Pair:
        pair = self.not_union(depth)
        written, read = self.rng.choice([(True, True), (True, True), (False, True), (True, False)])
        first = self.rng.choice([0, 1])  # where null is

        def draw(rng: Random) -> tuple[Any, Any]:
            if not written:
                return pair.draw(rng)
            if rng.random() < 0.3:
                return Branch(first, None), None if read else MALFORMED
            value, expected = pair.draw(rng)
            return Branch(1 - first, value), expected

        def either(schema: Any, null: bool) -> Any:
            return ([schema, "null"] if first else ["null", schema]) if null else schema

        return Pair(either(pair.writer, written), either(pair.reader, read), draw)

    def union(self, depth: int) -> Pair:
        """A union of several types, of which the reader knows one."""
        known = self.not_union(depth)
        kind = known.writer if isinstance(known.writer, str) else known.writer["type"]
        others: list[tuple[Any, Any]] = [
            ({"type": "record", "name": self.name("O"), "fields": [{"name": "o", "type": "int"}]}, {"o": 5}),
            ({"type": "enum", "name": self.name("O"), "symbols": ["O"]}, "O"),
            ({"type": "array", "items": "long"}, [1, 2]),
            ({"type": "map", "values": "long"}, {"a": 1}),
        ]
        other, value = self.rng.choice([each for each in others if each[0]["type"] != kind])
        branches = [known.writer, other, "null"]
        self.rng.shuffle(branches)

        def draw(rng: Random) -> tuple[Any, Any]:
            chosen = rng.random()
            if chosen < 0.1:
                return Branch(branches.index("null"), None), None
            if chosen < 0.3:
                return Branch(branches.index(other), value), MALFORMED
            written, expected = known.draw(rng)
            return Branch(branches.index(known.writer), written), expected

        return Pair(branches, ["null", known.reader], draw)

    def not_union(self, depth: int) -> Pair:
        while isinstance((pair := self.any(depth)).writer, list) or isinstance(pair.reader, list):
            pass
        return pair

    def array(self, depth: int) -> Pair:
        item = self.any(depth - 1)

        def draw(rng: Random) -> tuple[Any, Any]:
            items = [item.draw(rng) for _ in range(rng.choice([0, 1, 3]))]
            read = [each for _, each in items]
            return [each for each, _ in items], MALFORMED if MALFORMED in read else read

        return Pair({"type": "array", "items": item.writer}, {"type": "array", "items": item.reader}, draw)

    def map(self, depth: int) -> Pair:
        item = self.any(depth - 1)

        def draw(rng: Random) -> tuple[Any, Any]:
            items = {key: item.draw(rng) for key in rng.sample(["", "a", "ä", "b"], rng.choice([0, 1, 3]))}
            read = {key: each for key, (_, each) in items.items()}
            return {key: each for key, (each, _) in items.items()}, MALFORMED if MALFORMED in read.values() else read

        return Pair({"type": "map", "values": item.writer}, {"type": "map", "values": item.reader}, draw)

    def record(self, depth: int) -> Pair:
        """Fields in another order, renamed, dropped and added."""
        rng, name = self.rng, self.name("R")
        writer: list[Any] = []
        reader: list[Any] = []
        drawn = []
        for _ in range(rng.randrange(1, 5)):
            pair, old = self.any(depth), self.name("f")
            writer.append({"name": old, "type": pair.writer})
            kept = old
            change = rng.random()
            if change < 0.15 and reader:
                kept = ""
            elif change < 0.3:
                kept = self.name("f")
                reader.append({"name": kept, "aliases": [old], "type": pair.reader})
            else:
                reader.append({"name": old, "type": pair.reader})
            drawn.append((old, kept, pair))
        added: dict[str, Any] = {}
        for schema, default, value in (
            ("int", 7, 7),
            (["null", "string"], None, None),
            (logical("bytes", "decimal", precision=4, scale=1), "\x7b", Decimal("12.3")),
            ({"type": "array", "items": "boolean"}, [True], [True]),
        ):
            if rng.random() < 0.1:
                new = self.name("f")
                reader.append({"name": new, "type": schema, "default": default})
                added[new] = value
        if rng.random() < 0.5:
            rng.shuffle(reader)

        def draw(rng: Random) -> tuple[Any, Any]:
            values = {old: pair.draw(rng) for old, _, pair in drawn}
            read = {kept: values[old][1] for old, kept, _ in drawn if kept} | added
            wrong = any(each is MALFORMED for each in read.values())
            return {old: value for old, (value, _) in values.items()}, MALFORMED if wrong else read

        written, read = ({"type": "record", "name": name, "fields": fields} for fields in (writer, reader))
        return Pair(written, read, draw)
