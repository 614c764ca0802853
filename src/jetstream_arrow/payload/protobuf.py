# SPDX-License-Identifier: Apache-2.0
"""Protobuf payloads as columns, decoded by google.protobuf in Arrow batches. Spark's ``from_protobuf`` needs a jar that
is not part of PySpark, and drops without an error what :mod:`jetstream_arrow.payload.protobuf_scan` finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from jetstream_arrow.payload.in_pieces import Row, in_pieces
from jetstream_arrow.payload.protobuf_registry import Writers
from jetstream_arrow.payload.protobuf_scan import Malformed, Scan
from jetstream_arrow.payload.protobuf_types import ONE_VALUE, Types
from jetstream_arrow.payload.protobuf_wire import wire_message
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from jetstream_arrow.payload.registry import Answers

_NANOSECONDS = "nanoseconds.as.struct"
_SHARES_NOTHING = "shares no field with the schema"
_MOST_MEMORY = 256 << 20
"""The largest number of bytes of memory that a decoded message may take. A repeated message of two bytes can take
hundreds of times as many."""
_TOGETHER = 64 << 10  # bytes of payloads that are decoded before their objects become an Arrow array
_REMEDY = (
    "give the bytes of a descriptor set, as `protoc --include_imports --descriptor_set_out=orders.binpb orders.proto`"
    " or `buf build -o orders.binpb` writes it"
)


class Messages:
    """Decodes payloads of one type of message: a binary Arrow column becomes a column with the fields ``value`` and
    ``reason``. For each message, exactly one of these two fields is set, and the other one is null.

    fields:  the names of the message's fields.
    ddl:     the message's type in Spark.
    type:    the type of the decoded column.
    """

    def __init__(
        self,
        schema: object,
        message: str | None,
        options: Mapping[str, str],
        refuse_unknown: bool = False,
        answers: Answers | None = None,
    ) -> None:
        """Check what is given.

        schema:          the descriptor set.
        message:         the full name of the message type.
        options:         the options for Protobuf.
        refuse_unknown:  whether a field that the schema does not contain makes a payload malformed.
        answers:         the schemas of the registry. Default None: the payloads have no framing.

        Raises:
            InvalidValue: the schema, the message or an option cannot be used.
            SchemaRegistryFailed: a schema of the registry is not a descriptor.
        """
        self._given = (schema, message, options, refuse_unknown, answers)
        keep_nanoseconds = _keep_nanoseconds(options)
        descriptor = _descriptor(schema, message)
        types = Types(keep_nanoseconds=keep_nanoseconds)
        kind = types.record(descriptor)
        self.ddl, self._read = kind.ddl, kind.read
        self.fields: list[str] = [field.name for field in descriptor.fields]
        self._name, self._class = descriptor.full_name, GetMessageClass(descriptor)
        self._wire = wire_message(descriptor, ONE_VALUE)
        self._refuse = refuse_unknown
        self._writers = None if answers is None else Writers(answers, descriptor)
        self.type = pa.struct([("value", kind.arrow), ("reason", pa.string())])
        self._most = _MOST_MEMORY // types.largest_item

    def __reduce__(self) -> tuple[type[Messages], tuple[Any, ...]]:
        return Messages, self._given

    def decoded(self, data: pa.Array) -> pa.Array:
        return in_pieces(data, self._row, partial(pa.array, type=self.type), _TOGETHER)

    def _row(self, payload: bytes) -> Row:
        try:
            return {"value": self._value(payload)}
        except Malformed as malformed:
            return {"reason": malformed.args[0]}

    def _value(self, payload: bytes) -> Any:
        if self._writers is not None:
            payload = payload[self._writers.start(payload) :]
        elif payload[0] == 0:
            raise Malformed(_framing(payload))
        # Each value has at least one byte, so a short payload cannot contain too many values.
        scanned = len(payload) > self._most
        if scanned:
            self._scan(payload)
        try:
            message = self._class.FromString(payload)
        except DecodeError:
            raise Malformed(self._why_not(payload)) from None
        # If the parser has dropped something, or does not know a field, the message without its unknown fields is
        # encoded otherwise than the payload. So is one that another encoder has written in another order.
        message.DiscardUnknownFields()
        if not scanned and not (message.SerializePartialToString() == payload and message.IsInitialized()):
            self._scan(payload)
        return self._read(message)

    def _scan(self, payload: bytes) -> None:
        scan = Scan(payload, self._most, self._refuse)
        scan.check(self._wire)
        if not scan.known:
            raise Malformed(_SHARES_NOTHING)

    def _why_not(self, payload: bytes) -> str:
        """Return why the parser refuses a payload."""
        if self._delimited(payload):
            return "begins with its own length, as in a stream of messages; publish each message without it"
        try:
            Scan(payload, len(payload), refuse_unknown=False).check(self._wire)
        except Malformed as malformed:
            return str(malformed.args[0])
        return f"not a Protobuf message: the parser of {self._name} refuses it"

    def _delimited(self, payload: bytes) -> bool:
        """Return whether a varint with the length of the rest comes before a message."""
        size, shift = 0, 0
        for index, byte in enumerate(payload[:5]):
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                rest = payload[index + 1 : index + 1 + size]
                break
        else:
            return False
        scan = Scan(rest, len(rest), refuse_unknown=False)
        try:
            scan.check(self._wire)
        except Malformed:
            return False
        return scan.known and len(rest) == size


def _keep_nanoseconds(options: Mapping[str, str]) -> bool:
    for name, value in options.items():
        if name != _NANOSECONDS or value not in ("true", "false"):
            raise InvalidValue(
                "options", f"{name}={value}", f"Protobuf has one option, {_NANOSECONDS}: 'true' or 'false'"
            )
    return options.get(_NANOSECONDS) == "true"


def _descriptor(schema: object, message: str | None) -> Descriptor:
    if not isinstance(schema, bytes):
        raise InvalidValue("schema", str(schema)[:100], _REMEDY)
    try:
        files = FileDescriptorSet.FromString(schema).file
    except DecodeError as error:
        raise InvalidValue("schema", f"{len(schema)} bytes", _REMEDY) from error
    if not files:
        raise InvalidValue("schema", f"{len(schema)} bytes", _REMEDY)
    pool = DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except Exception as error:
            remedy = f"{_REMEDY}; this one cannot be used ({error})"
            raise InvalidValue("schema", file.name or f"{len(schema)} bytes", remedy) from error
    names = [name for file in files for name in _names(file.package, file.message_type)]
    if message not in names:
        shown = ", ".join(names[-10:]) or "none"
        remedy = f"give the full name of a message of the descriptor set, whose last ones are: {shown}"
        raise InvalidValue("message", message, remedy)
    found: Descriptor = pool.FindMessageTypeByName(message)
    if found.full_name in ONE_VALUE or not found.fields:
        raise InvalidValue("message", message, "this message has no fields that can be columns; give another one")
    return found


def _names(prefix: str, messages: Any) -> list[str]:
    """Return the full names of messages and of those that are declared inside them."""
    found = []
    for each in messages:
        if not each.options.map_entry:
            name = f"{prefix}.{each.name}" if prefix else each.name
            found += [name, *_names(name, each.nested_type)]
    return found


def _framing(payload: bytes) -> str:
    """Return the reason for a payload with a first byte that no Protobuf message has."""
    if len(payload) >= 5 and int.from_bytes(payload[1:5]) == len(payload) - 5:
        return "begins with the five bytes of a gRPC message; publish each message without them"
    if len(payload) < 6:
        return "not a Protobuf message: it begins with the byte 0x00"
    number = int.from_bytes(payload[1:5])
    return f"begins like the framing of a schema registry (schema id {number}); give registry=…"
