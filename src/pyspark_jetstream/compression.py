# SPDX-License-Identifier: Apache-2.0
"""Compressed payloads, decompressed in Spark's Python workers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jetstream_arrow.payload.compression import check_compression, pieces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetstream_arrow.payload.compression import Compression


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
    check_compression(compression)
    mark = secrets.token_hex(8)
    packed = Packed(f"packed_{mark}", f"unpacking_{mark}")
    more = [StructField(packed.data, BinaryType()), StructField(packed.reason, StringType())]

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield from _batches(batch, compression, packed)

    return messages.mapInArrow(batches, StructType([*messages.schema.fields, *more])), packed


def _batches(batch: pa.RecordBatch, compression: Compression, packed: Packed) -> Iterator[pa.RecordBatch]:
    for piece, rows, reasons in pieces(batch, compression):
        before = piece.column("data")
        columns = dict(zip(piece.schema.names, piece.columns, strict=True))
        columns["data"] = pa.array(rows, before.type)
        columns |= {packed.data: before, packed.reason: pa.array(reasons, pa.string())}
        yield pa.RecordBatch.from_pydict(columns)
