"""Protobuf payloads of random schemas, well-formed and changed: each row is what a second decoder, which refuses what a
parser drops, makes of the payload. Memory is bounded."""

import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import strategies as st

from jetstream_arrow.payload.protobuf import Messages
from tests.hostile.attack import attack
from tests.pyspark_jetstream.proto_source import descriptor_set, message_class
from tests.pyspark_jetstream.proto_source import number as varint

ENUM = {0: "ZERO", 1: "ONE", 300: "MANY", -1: "BELOW"}
HEAD = "enum Kind { " + " ".join(f"{name} = {value};" for value, name in ENUM.items()) + " }"


class Refused(Exception):
    pass


def integer(low: int, high: int) -> Callable[[Random], int]:
    def pick(random: Random) -> int:
        return random.choice([low, high, 0, 1, random.randint(low, high), random.randint(max(low, -200), 200)])

    return pick


def signed(bits: int) -> tuple[Callable[[int], bytes], Callable[[int], int], Callable[[Random], int]]:
    low = -(1 << bits - 1)

    def read(raw: int) -> int:
        value = raw - (1 << 64) if raw >> 63 else raw
        if not low <= value < -low:
            raise Refused
        return value

    return varint, read, integer(low, -low - 1)


def zigzag(bits: int) -> tuple[Callable[[int], bytes], Callable[[int], int], Callable[[Random], int]]:
    def read(raw: int) -> int:
        if raw >> bits:
            raise Refused
        return -(raw + 1 >> 1) if raw & 1 else raw >> 1

    low = -(1 << bits - 1)
    return lambda value: varint(value << 1 if value >= 0 else (-value << 1) - 1), read, integer(low, -low - 1)


def within(
    high: int, kind: Callable[[int], Any] = int
) -> tuple[Callable[[Any], bytes], Callable[[int], Any], Callable[[Random], Any]]:
    def read(raw: int) -> Any:
        if raw > high:
            raise Refused
        return kind(raw)

    return lambda value: varint(int(value)), read, lambda random: kind(integer(0, high)(random))


def symbol(raw: int) -> str:
    value = raw - (1 << 64) if raw >> 63 else raw
    if value not in ENUM:
        raise Refused
    return ENUM[value]


def packed(layout: str, pick: Callable[[Random], Any], kind: Callable[[Any], Any] = lambda value: value) -> Any:
    return lambda value: struct.pack(f"<{layout}", value), lambda raw: kind(struct.unpack(f"<{layout}", raw)[0]), pick


def number(random: Random) -> float:
    return float(random.choice([0.0, -0.0, 0.5, -2.25, float("inf"), float("nan"), random.randint(-99, 99) / 8]))


def letters(random: Random) -> str:
    return random.choice(["", "a", "ä", "xyz", "\0", "😀" * 3])


TYPES: dict[str, tuple[int, Any]] = {  # type → its wire type; and functions that write, read and choose a value
    "int32": (0, signed(32)),
    "int64": (0, signed(64)),
    "uint32": (0, within((1 << 32) - 1)),
    "uint64": (0, within((1 << 64) - 1, Decimal)),
    "sint32": (0, zigzag(32)),
    "sint64": (0, zigzag(64)),
    "bool": (0, within(1, bool)),
    "Kind": (0, (varint, symbol, lambda random: random.choice(list(ENUM)))),
    "fixed32": (5, packed("I", integer(0, (1 << 32) - 1))),
    "sfixed32": (5, packed("i", integer(-(1 << 31), (1 << 31) - 1))),
    "float": (5, packed("f", number)),
    "fixed64": (1, packed("Q", integer(0, (1 << 64) - 1), Decimal)),
    "sfixed64": (1, packed("q", integer(-(1 << 63), (1 << 63) - 1))),
    "double": (1, packed("d", number)),
    "string": (2, (str.encode, bytes.decode, letters)),
    "bytes": (2, (bytes, bytes, lambda random: random.randbytes(random.randint(0, 4)))),
}
ZEROS: dict[str, Any] = {"bool": False, "Kind": "ZERO", "float": 0.0, "double": 0.0, "string": "", "bytes": b""}


@dataclass
class Field:
    """label: "", "optional", "required", "repeated", "oneof" or "map"; key: the type of a map's keys."""

    name: str
    number: int
    label: str
    type: str
    key: str = ""
    message: "Message | None" = None

    def wire(self) -> int:
        return 2 if self.message or self.label == "map" else TYPES[self.type][0]

    def entry(self) -> "Message":
        return Message("Entry", [Field("key", 1, "", self.key), Field("value", 2, "", self.type, message=self.message)])

    def absent(self, proto3: bool) -> Any:
        if self.label in ("repeated", "map"):
            return []
        if self.label or self.message or not proto3:
            return None
        return ZEROS.get(self.type, Decimal(0) if self.type in ("uint64", "fixed64") else 0)


@dataclass
class Message:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass
class Schema:
    """A random schema. message: the payload's type."""

    random: Random
    proto3: bool = True
    messages: list[Message] = field(default_factory=list)

    def make(self, depth: int = 2) -> Message:
        random = self.random
        fields = []
        numbers = random.sample(
            [1, 2, 3, 4, 5, 15, 16, 17, 200, 2047, 2048, 30000, (1 << 29) - 1], random.randint(1, 6)
        )
        for index, number in enumerate(numbers):
            plain = [""] * 4 if self.proto3 else ["optional"] * 3 + ["required"]
            label = random.choice([*plain, "optional", "repeated", "repeated", "oneof", "map"])
            message = self.make(depth - 1) if depth and random.random() < 0.25 else None
            kind = message.name if message else random.choice(list(TYPES))
            key = random.choice([each for each in TYPES if each not in ("Kind", "float", "double", "bytes")])
            fields.append(Field(f"f{index}", number, label, kind, key if label == "map" else "", message))
        # protoc puts the oneofs of optional fields after all others.
        fields.sort(key=lambda each: each.label != "oneof")
        self.messages.append(Message(f"M{len(self.messages)}", fields))
        return self.messages[-1]

    def source(self) -> str:
        syntax = "proto3" if self.proto3 else "proto2"
        return f'syntax = "{syntax}"; package t; {HEAD} ' + " ".join(map(self._message, self.messages))

    def _message(self, message: Message) -> str:
        found = []
        for each in message.fields:
            kind = f"map<{each.key}, {each.type}>" if each.label == "map" else each.type
            label = each.label if each.label in ("optional", "required", "repeated") else ""
            if label == "" and not self.proto3 and each.label not in {"map", "oneof"}:
                label = "optional"
            found.append((each.label == "oneof", f"{label} {kind} {each.name} = {each.number};".strip()))
        inside = " ".join(text for oneof, text in found if oneof)
        rest = " ".join(text for oneof, text in found if not oneof)
        return f"message {message.name} {{ {'oneof choice { ' + inside + ' }' if inside else ''} {rest} }}"


def chosen(random: Random, message: Message) -> dict[int, Any]:
    """Return values of a message by the fields' numbers, as Python has them."""
    values: dict[int, Any] = {}
    oneof = [each.number for each in message.fields if each.label == "oneof"]
    for each in message.fields:
        if each.label == "oneof" and each.number != random.choice([*oneof, oneof[0]]):
            continue
        if each.label == "oneof" and any(number in values for number in oneof):
            continue
        if each.label != "required" and random.random() < 0.3:
            continue
        if each.label == "repeated":
            values[each.number] = [one(random, each) for _ in range(random.randint(0, 3))]
        elif each.label == "map":
            keys = {TYPES[each.key][1][2](random) for _ in range(random.randint(0, 3))}
            values[each.number] = [(key, one(random, each)) for key in keys]
        else:
            values[each.number] = one(random, each)
    return values


def one(random: Random, each: Field) -> Any:
    return chosen(random, each.message) if each.message else TYPES[each.type][1][2](random)


def written(random: Random, message: Message, values: dict[int, Any]) -> bytes:
    """Return the encoding of a message: its fields in any order, lists packed or not, unknown fields in between."""
    chunks = []
    for each in message.fields:
        if each.number not in values:
            continue
        value = values[each.number]
        wire = each.wire()
        if each.label == "map":
            entry = each.entry()
            items = [written(random, entry, {1: key, 2: item}) for key, item in value]
        else:
            items = [raw(random, each, item) for item in (value if each.label == "repeated" else [value])]
        if each.label == "repeated" and wire != 2 and random.random() < 0.6:
            chunks.append(varint(each.number << 3 | 2) + sized(b"".join(items)))
        else:
            tag = varint(each.number << 3 | wire)
            chunks.append(b"".join(tag + (sized(item) if wire == 2 else item) for item in items))
    if message.name != "Entry" and random.random() < 0.3:
        group = varint(77 << 3 | 3) + varint(1 << 3) + b"\5" + varint(77 << 3 | 4)
        chunks.append(random.choice([varint(77 << 3) + b"\1", varint(77 << 3 | 2) + sized(b"abc"), group]))
    random.shuffle(chunks)
    return b"".join(chunks)


def raw(random: Random, each: Field, value: Any) -> bytes:
    if each.message:
        return written(random, each.message, value)
    found: bytes = TYPES[each.type][1][0](value)
    return found


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def row_of(message: Message, values: dict[int, Any], proto3: bool) -> dict[str, Any]:
    """Return the row of the values that were chosen."""

    def plain(each: Field, value: Any) -> Any:
        if each.message:
            return row_of(each.message, value, proto3)
        if each.type == "Kind":
            return ENUM[value]
        if each.type in ("uint64", "fixed64"):
            return Decimal(value)
        return struct.unpack("<f", struct.pack("<f", value))[0] if each.type == "float" else value

    row = {}
    for each in message.fields:
        if each.number not in values:
            row[each.name] = each.absent(proto3)
        elif each.label == "repeated":
            row[each.name] = [plain(each, value) for value in values[each.number]]
        elif each.label == "map":
            keys = Field("key", 1, "", each.key)
            row[each.name] = sorted(
                ((plain(keys, key), plain(each, value)) for key, value in values[each.number]), key=repr
            )
        else:
            row[each.name] = plain(each, values[each.number])
    return row


class Reader:
    """The second decoder."""

    def __init__(self, data: bytes, proto3: bool) -> None:
        self.data, self.at, self.proto3 = data, 0, proto3

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    raise Refused
                return value
        raise Refused

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Refused
        self.at += size
        return self.data[self.at - size : self.at]

    def tag(self) -> tuple[int, int]:
        tag = self.varint()
        if tag < 8 or tag >> 32:
            raise Refused
        return tag >> 3, tag & 7

    def content(self, wire: int, number: int) -> Any:
        if wire == 0:
            return self.varint()
        if wire == 3:
            while (inner := self.tag()) != (number, 4):
                self.content(inner[1], inner[0])
            return None
        if wire not in (1, 2, 5):
            raise Refused
        return self.take({1: 8, 5: 4}.get(wire) or self.varint())

    def message(self, message: Message) -> tuple[dict[str, Any], bool]:
        """Return the row, and whether it has a known field. Raises Refused or ValueError."""
        found: dict[int, list[Any]] = {}
        fields = {each.number: each for each in message.fields}
        known = 0
        while self.at < len(self.data):
            number, wire = self.tag()
            content = self.content(wire, number)
            if (each := fields.get(number)) is None:
                if message.name == "Entry":
                    raise Refused
                continue
            known += 1
            values = found.setdefault(number, [])
            if wire == each.wire():
                values.append(self.one(each, content))
            elif wire == 2 and each.label == "repeated":
                inner = Reader(content, self.proto3)
                while inner.at < len(content):
                    values.append(self.one(each, inner.content(each.wire(), number)))
            else:
                raise Refused
        if sum(fields[number].label == "oneof" for number in found) > 1:
            raise Refused
        return {
            each.name: self.whole(each, found.get(each.number), message.name == "Entry") for each in message.fields
        }, known > 0

    def whole(self, each: Field, values: list[Any] | None, entry: bool) -> Any:
        if each.label == "repeated":
            return values or []
        if each.label == "map":
            pairs = [(item["key"], item["value"]) for item in values or []]
            if len({repr(key) for key, _ in pairs}) < len(pairs):
                raise Refused
            return sorted(pairs, key=repr)
        if values is None:
            if each.label == "required":
                raise Refused
            if entry and each.message:
                return Reader(b"", self.proto3).message(each.message)[0]
            return each.absent(self.proto3 or entry)
        if len(values) > 1:
            raise Refused
        return values[0]

    def one(self, each: Field, content: Any) -> Any:
        if each.label == "map":
            return Reader(content, self.proto3).message(each.entry())[0]
        if each.message:
            return Reader(content, self.proto3).message(each.message)[0]
        return TYPES[each.type][1][1](content)


def second(data: bytes, message: Message, proto3: bool) -> dict[str, Any] | None:
    try:
        row, known = Reader(data, proto3).message(message)
    except (Refused, ValueError):
        return None
    return row if known else None


def changed(random: Random, payload: bytes) -> bytes:
    """Return the payload with a change that a network, a bug or an attacker could make."""
    at, size = random.randint(0, len(payload)), random.randint(0, 4)
    return random.choice(
        [
            payload[:at],
            payload * 2,
            payload + random.randbytes(size),
            payload[:at] + random.randbytes(size) + payload[at:],
            payload[:at] + payload[at + size :],
            payload[:at] + bytes([payload[at] ^ 1 << random.randint(0, 7)]) + payload[at + 1 :]
            if payload[at:]
            else b"\1",
            payload[at:] + payload[:at],
            payload + payload[at:],
            random.randbytes(random.randint(1, 30)),
        ]
    )


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted(((key, plain(each)) for key, each in value), key=repr)
    return [plain(each) for each in value] if isinstance(value, list) else value


def rounded(value: Any) -> Any:
    """Return a value of JSON with fractions of 32 bits, because json_format writes as few digits as these need."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] if isinstance(value, float) else value
    except OverflowError:
        return value


def as_json(message: Message, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as json_format writes the message."""

    def shown(kind: str, value: Any, inner: Message | None = None) -> Any:
        if inner is not None:
            return as_json(inner, value)
        if isinstance(value, bytes):
            return b64encode(value).decode()
        if isinstance(value, float):
            return (
                rounded(value)
                if isfinite(value)
                else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
            )
        return str(value) if "64" in kind else value

    found: dict[str, Any] = {}
    for each in message.fields:
        value = row[each.name]
        if value is None:
            continue
        if each.label == "map":
            found[each.name] = {
                str(key).lower() if each.key == "bool" else str(key): shown(each.type, item, each.message)
                for key, item in value
            }
        elif each.label == "repeated":
            found[each.name] = [shown(each.type, item, each.message) for item in value]
        else:
            found[each.name] = shown(each.type, value, each.message)
    return found


@attack(st.integers(0, 2**64 - 1), weight=4)
def test_a_row_is_what_a_second_decoder_reads(seed: int) -> None:
    random = Random(seed)
    schema = Schema(random, proto3=random.random() < 0.6)
    message = schema.make()
    files = descriptor_set(schema.source())
    messages, parser = Messages(files, f"t.{message.name}", {}), message_class(files, f"t.{message.name}")
    payloads, expected = [], []
    for _ in range(6):
        values = chosen(random, message)
        payload = written(random, message, values)
        payloads.append(payload)
        expected.append(row_of(message, values, schema.proto3) if second(payload, message, schema.proto3) else None)
        for _ in range(3):
            payloads.append(changed(random, payload))
            expected.append(second(payloads[-1], message, schema.proto3))
    rows = messages.decoded(pa.array(payloads, pa.binary())).to_pylist()
    for payload, row, wanted in zip(payloads, rows, expected, strict=True):
        assert (row["value"] is None) != (row["reason"] is None)
        if wanted is None or not payload or payload[0] == 0:
            assert row["reason"] is not None, (schema.source(), payload, row)
            continue
        # NaN does not equal itself, but its string does.
        assert repr(plain(row["value"])) == repr(plain(wanted)), (schema.source(), payload, row)
        given = MessageToDict(
            parser.FromString(payload), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert rounded(given) == as_json(message, row["value"]), (schema.source(), payload, row)


GROWTH = """
import resource, pyarrow as pa
from jetstream_arrow.payload.protobuf import Messages
from tests.pyspark_jetstream.proto_source import descriptor_set

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

wide = " ".join(f"int64 x{n} = {n};" for n in range(1, 101))
source = 'syntax = "proto3"; package t; message I { int32 x = 1; } message W { ' + wide + ''' }
message M { repeated I i = 1; repeated W w = 2; repeated int32 n = 3; google.protobuf.ListValue l = 4; }'''
messages = Messages(descriptor_set(source), "t.M", {})
count = 12_000_000
size = bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14 & 127 | 128, count >> 21])
for hostile, small in ((b"\\x0a\\0", 1000), (b"\\x12\\0", 500), (b"\\x1a" + size, 0), (b"\\x22" + size, 0)):
    payload = hostile + bytes(count) if not small else hostile * (count // 2)
    if hostile[0] == 0x22:
        payload = hostile + b"\\x0a\\2\\x32\\0" * (count // 4)
    before = peak()
    column = messages.decoded(pa.array([hostile * small or b"\\x18\\1", payload], pa.binary()))
    assert column.field("reason").to_pylist() == [None, "too many values"], column.field("reason")
    print(peak() - before)
"""


def test_a_repeated_field_does_not_grow_without_bound() -> None:
    ran = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert len(ran.stdout.split()) == 4
    assert all(int(grown) < 400 for grown in ran.stdout.split()), ran.stdout


@pytest.mark.parametrize("width", [1, 100])
def test_the_largest_message_that_is_decoded_takes_bounded_memory(width: int) -> None:
    """As many items as the limit allows, in a message that is decoded."""
    program = f"""
import resource, pyarrow as pa
from jetstream_arrow.payload.protobuf import Messages
from tests.pyspark_jetstream.proto_source import descriptor_set
fields = " ".join(f"int64 x{{n}} = {{n}};" for n in range(1, {width} + 1))
source = 'syntax = "proto3"; package t; message I {{ ' + fields + ' }} message M {{ repeated I i = 1; }}'
messages = Messages(descriptor_set(source), "t.M", {{}})
payload = b"\\x0a\\0" * (messages._most - 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
column = messages.decoded(pa.array([payload], pa.binary()))
assert column.field("reason").null_count == 1
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 400, ran.stdout
