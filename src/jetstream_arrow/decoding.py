# SPDX-License-Identifier: Apache-2.0
"""Decoding the payloads of Arrow batches into columns, and separating messages whose payload is malformed."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_arrow.columns import OBJECT_ERROR, TYPES
from jetstream_arrow.payload.compression import check_compression, pieces
from jetstream_arrow.payload.decoder import check_names, decoder
from jetstream_arrow.payload.registry import ID_BYTES, answers
from jetstream_client.errors import InvalidValue
from jetstream_client.read.message import MARKER_REASON

if TYPE_CHECKING:
    from jetstream_arrow.payload.compression import Compression
    from jetstream_arrow.payload.decoder import Decoder, Stated
    from jetstream_arrow.payload.registry import Answers, SchemaRegistry


IN_MEMORY = 64 << 20
"""Bytes of the messages that a reader has not asked for yet, above which they are moved to a temporary file."""


class _Payloads(NamedTuple):
    """A batch of messages with its payloads as they are decoded, and why some of them could not be decompressed."""

    batch: pa.RecordBatch
    data: pa.Array
    reasons: pa.Array


def split(
    messages: Any,
    format: str,  # noqa: A002
    schema: object,
    stated: Stated,
    *,
    into: str | None,
    compression: Compression | None,
) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
    """Return the decoded and the malformed messages, as :func:`jetstream_arrow.decoded` describes."""
    reader = _reader(messages)
    if compression is not None:
        check_compression(compression)
    payloads: Iterable[_Payloads] = _payloads(reader, compression)
    if stated.written.registry is not None:
        payloads = list(payloads)  # the registry is asked for the ids in all of them
    found = decoder(format, schema, stated, partial(_asked, payloads), "'json', 'avro' or 'protobuf'")
    shown = [field for field in reader.schema if field.name != OBJECT_ERROR]
    kept = [field for field in shown if field.name != "data"]
    names = [field.name for field in kept]
    check_names(names, found.fields, into, lambda name: f"rename_columns({{{name!r}: 'message_{name}'}})")
    value = found.type.field("value").type
    fields = [pa.field(into, value)] if into is not None else list(value)
    schemas = pa.schema([*kept, *fields]), pa.schema([*shown, pa.field("reason", pa.string())])
    return _sides(schemas, map(partial(_split, found, schemas, into is not None), payloads))


def readable(messages: pa.RecordBatchReader) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
    """Return the messages that were read with their objects, and those whose objects cannot be read, which have the
    column ``reason``. The payloads are not decoded."""
    shown = [field for field in messages.schema if field.name != OBJECT_ERROR]
    schemas = pa.schema(shown), pa.schema([*shown, pa.field("reason", pa.string())])

    def pair(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        reason, rest = batch.column(OBJECT_ERROR), batch.drop_columns([OBJECT_ERROR])
        read, unread = pc.is_null(reason), pc.is_valid(reason)
        columns = [*rest.filter(unread).columns, reason.filter(unread)]
        return rest.filter(read), pa.RecordBatch.from_arrays(columns, schema=schemas[1])

    return _sides(schemas, map(pair, messages))


def _sides(
    schemas: tuple[pa.Schema, pa.Schema], pairs: Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]
) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
    both = _Both(pairs)
    first, second = (
        pa.RecordBatchReader.from_batches(each, _Side(both, number)) for number, each in enumerate(schemas)
    )
    return first, second


def _reader(messages: Any) -> pa.RecordBatchReader:
    """Raises InvalidValue if these are no messages with payloads."""
    if not isinstance(messages, pa.RecordBatchReader):
        if not hasattr(messages, "__arrow_c_stream__"):
            remedy = "give claim.arrow(), or a table of polars, DuckDB or pyarrow: anything with __arrow_c_stream__"
            raise InvalidValue("messages", type(messages), remedy)
        messages = pa.RecordBatchReader.from_stream(messages)
    for name in ("data", "headers"):
        if messages.schema.get_field_index(name) >= 0:
            kind = messages.schema.field(name).type
            if not (pa.types.is_map(kind) if name == "headers" else _is_binary(kind)):
                raise InvalidValue("messages", f"{name} {kind}", f"the column must be {TYPES[name]}")
        elif name == "data":
            raise InvalidValue("messages", messages.schema.names, "these are the columns; one named 'data' is needed")
    return messages


def _is_binary(kind: pa.DataType) -> bool:
    return any(is_it(kind) for is_it in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


def _payloads(reader: pa.RecordBatchReader, compression: Compression | None) -> Iterator[_Payloads]:
    for batch in reader:
        if compression is None:
            yield _Payloads(batch, batch.column("data").cast(pa.binary()), pa.nulls(len(batch), pa.string()))
            continue
        for piece, rows, reasons in pieces(batch, compression):
            yield _Payloads(piece, pa.array(rows, pa.binary()), pa.array(reasons, pa.string()))


def _asked(payloads: Iterable[_Payloads], registry: SchemaRegistry, framing: str, form: str | None) -> Answers:
    size = 1 + ID_BYTES[framing]
    heads: Counter[bytes] = Counter()
    for each in payloads:
        for head in pc.value_counts(pc.binary_slice(each.data, 0, size).drop_null()).to_pylist():
            heads[head["values"]] += head["counts"]
    framed = [head for head in heads if len(head) == size and head.startswith(b"\0")]
    numbers = [int.from_bytes(head[1:]) for head in sorted(framed, key=lambda head: (-heads[head], head))]
    return answers(registry, numbers, framing, form)


def _split(
    found: Decoder, schemas: tuple[pa.Schema, pa.Schema], whole: bool, payloads: _Payloads
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the decoded messages of a batch and the malformed ones."""
    batch = payloads.batch
    decoded = found.decoded(payloads.data)
    reasons = [_markers(batch), payloads.reasons, decoded.field("reason")]
    if batch.schema.get_field_index(OBJECT_ERROR) >= 0:
        reasons.insert(0, batch.column(OBJECT_ERROR).cast(pa.string()))
        batch = batch.drop_columns([OBJECT_ERROR])
    reason = pc.coalesce(*reasons)
    valid = reason.is_null()
    good, value = batch.filter(valid), decoded.field("value").filter(valid)
    kept = [column for name, column in zip(batch.schema.names, good.columns, strict=True) if name != "data"]
    rows = [*kept, *([value] if whole else value.flatten())]
    malformed = pc.invert(valid)
    rest = [*batch.filter(malformed).columns, reason.filter(malformed)]
    return tuple(
        pa.RecordBatch.from_arrays(columns, schema=schema)
        for columns, schema in zip((rows, rest), schemas, strict=True)
    )


def _markers(batch: pa.RecordBatch) -> pa.Array:
    """For each message that is a delete marker, its reason; null for the others."""
    if batch.schema.get_field_index("headers") < 0 or batch.column("headers").null_count == len(batch):
        return pa.nulls(len(batch), pa.string())
    found = pc.map_lookup(batch.column("headers"), pa.scalar(MARKER_REASON), "first").to_pylist()
    last = [each[-1] if each else None for each in found]
    return pa.array([None if each is None else f"delete marker: {each}" for each in last], pa.string())


class _Both:
    """Reads pairs of batches for two sides."""

    def __init__(self, pairs: Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]) -> None:
        self._pairs = pairs
        self._waiting = _Waiting(), _Waiting()
        self._failed: BaseException | None = None

    def take(self, side: int) -> pa.RecordBatch:
        while (found := self._waiting[side].take()) is None:
            if self._failed is not None:
                raise self._failed  # also for the other side, which must not take it for the end
            try:
                pair = next(self._pairs)
            except StopIteration:
                raise
            except BaseException as error:
                self._failed = error
                raise
            for waiting, batch in zip(self._waiting, pair, strict=True):
                if batch.num_rows:
                    waiting.append(batch)
        return found


class _Waiting:
    """Batches that a side has not asked for yet, in order: the newest in memory, and those before in files."""

    def __init__(self) -> None:
        self._moved: deque[Iterator[pa.RecordBatch]] = deque()
        self._newest: deque[pa.RecordBatch] = deque()
        self._size = 0

    def append(self, batch: pa.RecordBatch) -> None:
        self._newest.append(batch)
        self._size += batch.nbytes
        if self._size > IN_MEMORY:
            self._moved.append(_in_file(self._newest))
            self._newest.clear()
            self._size = 0

    def take(self) -> pa.RecordBatch | None:
        while self._moved:
            if (found := next(self._moved[0], None)) is not None:
                return found
            self._moved.popleft()
        if not self._newest:
            return None
        self._size -= self._newest[0].nbytes
        return self._newest.popleft()


def _in_file(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write batches to a file that has no name any more, and return a reader of them."""
    descriptor, path = mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return iter(pa.ipc.open_stream(pa.OSFile(path)))
    finally:
        Path(path).unlink()


class _Side:
    def __init__(self, both: _Both, number: int) -> None:
        self._take: Callable[[], pa.RecordBatch] = partial(both.take, number)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._take()
