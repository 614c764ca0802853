# SPDX-License-Identifier: Apache-2.0
"""Compressed payloads, decompressed by the codecs of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import pyarrow as pa

from jetstream_client.errors import InvalidValue

Compression = Literal["gzip", "zstd"]
LARGEST = 64 << 20
"""The largest number of bytes that a payload may have after it is decompressed: the largest max_payload of a server.
A kilobyte can become hundreds of megabytes."""
_CHUNK = 64 << 10
_TOGETHER = 16 << 20  # bytes of decompressed payloads in one piece


def check_compression(compression: object) -> None:
    if compression not in get_args(Compression):
        raise InvalidValue("compression", compression, "give 'gzip' or 'zstd', or leave it out")


def pieces(
    batch: pa.RecordBatch, compression: Compression
) -> Iterator[tuple[pa.RecordBatch, list[bytes | None], list[str | None]]]:
    """Decompress the column ``data``. Yields pieces of the batch, because each of its payloads may become large, with
    the decompressed payloads, which are None where that is impossible, and the reasons why."""
    first, size = 0, 0
    rows: list[bytes | None] = []
    reasons: list[str | None] = []
    for payload in batch.column("data"):
        row, reason = unpack(payload.as_py(), compression)
        rows.append(row)
        reasons.append(reason)
        size += len(row or b"")
        if size >= _TOGETHER:
            yield batch.slice(first, len(rows)), rows, reasons
            first, size, rows, reasons = first + len(rows), 0, [], []
    yield batch.slice(first), rows, reasons


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
