# SPDX-License-Identifier: Apache-2.0
"""Compressed payloads, decompressed in Python by the codecs of Arrow."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Compression = Literal["gzip", "zstd"]
LARGEST = 64 << 20
"""The largest number of bytes that a payload may have after it is decompressed: the largest max_payload of a server.
A kilobyte can become hundreds of megabytes."""
_CHUNK = 64 << 10
_TOGETHER = 16 << 20  # bytes of decompressed payloads in a batch that is sent to Spark


@dataclass(frozen=True)
class Packed:
    """The names of the columns that decompression adds.

    data:    the payload as it was published.
    reason:  why the payload cannot be decompressed; null if it can.
    """

    data: str
    reason: str


def unpacked(messages: DataFrame, compression: Compression) -> tuple[DataFrame, Packed]:
    """Return the messages with decompressed ``data``, which is null where this is impossible, and two more columns.

    Raises:
        InvalidValue: the compression is unknown.
    """
    if compression not in get_args(Compression):
        raise InvalidValue("compression", compression, "give 'gzip' or 'zstd', or leave it out")
    mark = secrets.token_hex(8)
    packed = Packed(f"packed_{mark}", f"unpacking_{mark}")
    more = [StructField(packed.data, BinaryType()), StructField(packed.reason, StringType())]

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield from _batches(batch, compression, packed)

    return messages.mapInArrow(batches, StructType([*messages.schema.fields, *more])), packed


def _batches(batch: pa.RecordBatch, compression: Compression, packed: Packed) -> Iterator[pa.RecordBatch]:
    """Divide a batch where it becomes too large, because each of its payloads may be large."""
    first, size = 0, 0
    rows: list[tuple[bytes | None, str | None]] = []
    for payload in batch.column("data"):
        rows.append(unpack(payload.as_py(), compression))
        size += len(rows[-1][0] or b"")
        if size >= _TOGETHER:
            yield _joined(batch.slice(first, len(rows)), rows, packed)
            first, size, rows = first + len(rows), 0, []
    yield _joined(batch.slice(first), rows, packed)


def _joined(batch: pa.RecordBatch, rows: list[tuple[bytes | None, str | None]], packed: Packed) -> pa.RecordBatch:
    before = batch.column("data")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["data"] = pa.array([data for data, _ in rows], before.type)
    columns |= {packed.data: before, packed.reason: pa.array([reason for _, reason in rows], pa.string())}
    return pa.RecordBatch.from_pydict(columns)


def unpack(payload: bytes | None, compression: Compression) -> tuple[bytes | None, str | None]:
    """Return the decompressed payload, or None and the reason why it is malformed."""
    if not payload:
        return None, "empty"
    chunks, size = [], 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(payload), compression) as stream:
            while chunk := stream.read(_CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                if size > LARGEST:
                    return None, f"larger than {LARGEST >> 20} MiB after decompression"
    except OSError as error:
        return None, f"cannot be decompressed as {compression}: {error}"
    return b"".join(chunks), None
