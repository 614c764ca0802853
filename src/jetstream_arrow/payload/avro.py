# SPDX-License-Identifier: Apache-2.0
"""Avro payloads as columns, decoded by fastavro in Arrow batches. Spark's ``from_avro`` needs a jar that is not part of
PySpark.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from fastavro import schemaless_reader

from jetstream_arrow.payload.avro_resolution import resolve
from jetstream_arrow.payload.avro_schema import Node, Unsupported, crc_64, parse, readable
from jetstream_arrow.payload.avro_types import Columns, Malformed, smallest
from jetstream_arrow.payload.in_pieces import Row, in_pieces
from jetstream_arrow.payload.registry import ID_BYTES, Answers, Framing, framed, looks_framed
from jetstream_client.errors import InvalidValue

_NOT_OF_THE_SCHEMA = "does not match the Avro schema"
_TOO_LONG = "longer than a message of the Avro schema"
_TOO_MANY = "too many values"
_ONE_OBJECT, _FINGERPRINT = b"\xc3\x01", 10  # the mark of single-object encoding, and where its fingerprint ends

_MOST_MEMORY = 256 << 20
"""The largest number of bytes of memory that a decoded message may take. An array of records can take 200 times as many
bytes as its payload."""
_TOGETHER = 64 << 10  # bytes of payloads that are decoded before their objects become an Arrow array


class Reading:
    """Reads the data of one writer's schema."""

    def __init__(self, writer: Node, reader: Node, largest_item: int) -> None:
        """Raises Unsupported if the schemas cannot be resolved."""
        self._convert = resolve(writer, reader)
        self._schema = readable(writer)
        self._most = _MOST_MEMORY // max(largest_item, _largest_item(writer))

    def row(self, payload: bytes, start: int) -> Row:
        # Each value has at least one byte, so a short payload cannot contain too many values. In a longer payload, the
        # calls of read() are counted, because each value takes at least one.
        stream = io.BytesIO(payload) if len(payload) <= self._most else _Counted(payload, self._most)
        stream.seek(start)
        try:
            value = schemaless_reader(stream, self._schema, None)
            if stream.tell() != len(payload):
                return {"reason": _TOO_LONG}
            return {"value": value if self._convert is None else self._convert(value)}
        except _TooManyError:
            return {"reason": _TOO_MANY}
        except Malformed as why:
            return {"reason": str(why)}
        except Exception:  # noqa: BLE001 - fastavro can raise any exception for malformed bytes
            return {"reason": _NOT_OF_THE_SCHEMA}


class Records:
    """Decodes payloads to records of one reader's schema: a binary Arrow column becomes a column with the fields
    ``value`` and ``reason``. For each message, exactly one of these two fields is set, and the other one is null.

    fields:  the names of the record's fields.
    ddl:     the record's type in Spark.
    type:    the type of the decoded column.
    """

    def __init__(
        self,
        schema: object,
        framing: Framing | None = None,
        writers: Iterable[object] = (),
        answers: Answers | None = None,
    ) -> None:
        """Check the schemas.

        schema:   the reader's schema as JSON.
        framing:  what payloads begin with; None: nothing, but a payload that seems to have a framing is malformed.
        writers:  the writers' schemas; with none, that of the reader.
        answers:  the schemas of the registry.

        Raises:
            InvalidValue: a schema cannot be used.
        """
        self._given = (schema, framing, tuple(writers), answers)
        self._reader = _parsed("schema", schema)
        columns = Columns()
        try:
            self.ddl, arrow = columns.of(self._reader)
        except Unsupported as why:
            raise InvalidValue("schema", why.where, why.why) from None
        self.fields = [field.name for field in self._reader.fields]
        self.type = pa.struct([("value", arrow), ("reason", pa.string())])
        self._largest_item = columns.largest_item
        self._framing, self._answers = framing, answers
        known = [(self._of_writer(each), crc_64(each)) for each in self._given[2] or (schema,)]
        self._plain = known[0][0]
        self._by_fingerprint = {crc: reading for reading, crc in known}
        if framing in (None, "single-object"):
            self._by_fingerprint.setdefault(crc_64(schema), self._of_writer(schema))
        self._by_id: dict[int, Reading | str] = {}

    def __reduce__(self) -> tuple[type[Records], tuple[Any, ...]]:
        return Records, self._given

    def _of_writer(self, schema: object) -> Reading:
        try:
            return Reading(_parsed("writer_schema", schema), self._reader, self._largest_item)
        except Unsupported as why:
            raise InvalidValue("writer_schema", str(schema)[:100], str(why)) from None

    def decoded(self, data: pa.Array) -> pa.Array:
        return in_pieces(data, self._row, self._column, _TOGETHER)

    def _column(self, rows: list[Row]) -> pa.Array:
        try:
            return pa.array(rows, self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:  # a value does not fit its column
            if len(rows) == 1:
                return pa.array([{"reason": self._misfit(rows[0]["value"], error)}], self.type)
            return pa.concat_arrays([self._column([row]) for row in rows])

    def _misfit(self, value: Row, error: Exception) -> str:
        for field in self.type.field("value").type:
            try:
                pa.array([value[field.name]], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return f"{field.name}: {_NOT_OF_THE_SCHEMA} ({error})"
        return _NOT_OF_THE_SCHEMA

    def _row(self, payload: bytes) -> Row:
        if self._answers is not None:
            return self._registered(payload, self._answers, str(self._framing))
        if self._framing == "none":
            return self._plain.row(payload, 0)
        if payload.startswith(_ONE_OBJECT) and len(payload) > _FINGERPRINT:
            return self._one_object(payload)
        if self._framing == "single-object":
            return {"reason": "does not begin with the mark (0xC3 0x01) and the fingerprint of single-object encoding"}
        if (number := looks_framed(payload)) is not None:
            remedy = "give registry=…, or framing='none' if the payloads have no framing"
            return {"reason": f"begins like the framing of a schema registry (schema id {number}); {remedy}"}
        return self._plain.row(payload, 0)

    def _one_object(self, payload: bytes) -> Row:
        crc = payload[len(_ONE_OBJECT) : _FINGERPRINT]
        if (reading := self._by_fingerprint.get(crc)) is not None:
            return reading.row(payload, _FINGERPRINT)
        remedy = "give this schema as writer_schema"
        if self._framing is None:
            remedy += ", or framing='none' if the payloads have no framing"
        number = crc[::-1].hex()
        return {
            "reason": f"begins like single-object encoding, with the fingerprint {number} of another schema; {remedy}"
        }

    def _registered(self, payload: bytes, answers: Answers, framing: str) -> Row:
        if (found := framed(payload, framing)) is None:
            size = ID_BYTES[framing]
            return {"reason": f"does not begin with the framing of a schema registry (0x00 and an id of {size} bytes)"}
        number, start = found
        reading = self._by_id.get(number)
        if reading is None:
            reading = self._by_id[number] = self._of_registry(number, answers, framing)
        return {"reason": reading} if isinstance(reading, str) else reading.row(payload, start)

    def _of_registry(self, number: int, answers: Answers, framing: str) -> Reading | str:
        schema = answers.find(number, framing)
        if isinstance(schema, str):
            return schema
        if schema.kind != "AVRO":
            return f"schema id {number} is of the type {schema.kind}, not AVRO"
        try:
            writer = parse(schema.text, [text for _, text in schema.references])
            if writer.kind != "record":
                return f"schema id {number} is not the schema of a record"
            return Reading(writer, self._reader, self._largest_item)
        except Exception as error:  # noqa: BLE001 - JSON and fastavro can raise any exception for a malformed schema
            why = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
            return f"data of schema id {number} cannot be read with the given schema: {why[:300]}"


def _parsed(parameter: str, schema: object) -> Node:
    """Return the tree of a record's schema. Raises InvalidValue."""
    try:
        node = parse(schema)
    except Unsupported as why:
        raise InvalidValue(parameter, why.where, why.why) from None
    except Exception as error:
        remedy = f"give an Avro schema as JSON; this one cannot be parsed ({type(error).__name__}: {error})"
        raise InvalidValue(parameter, str(schema)[:100], remedy) from error
    if node.kind != "record":
        remedy = "give the schema of a record, because each message is a record"
        raise InvalidValue(parameter, str(schema)[:100], remedy)
    return node


def _largest_item(node: Node) -> int:
    inside = [*node.branches, *(field.node for field in node.fields), *([node.item] if node.item else [])]
    return max([smallest(node) if node.item else 1, *map(_largest_item, inside)])


class _TooManyError(Exception):
    pass


class _Counted(io.BytesIO):
    """Raises an error if it is read more than ``most`` times."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._left = most

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError
        return super().read(size)
