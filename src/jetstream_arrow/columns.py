# SPDX-License-Identifier: Apache-2.0
"""Messages as Arrow batches, with as few loops in Python as possible.

Arrays are made from buffers, because ``pyarrow.array`` imports pandas to check whether its argument is a pandas object.
This import takes a second and 50 MiB in each new Python worker. ``pyarrow.compute`` is imported only where it is used,
because planning loads this file but computes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import decode_headers

if TYPE_CHECKING:
    from jetstream_client.read.message import RawMessages


TYPES = {
    "stream": pa.string(),
    "subject": pa.string(),
    "sequence": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
    "data": pa.binary(),
}
"""The columns, in order. The time is the server's, and the headers are null if there are none."""
OBJECT_ERROR = "object_error"
"""The last column, if objects are read: why the object that a message refers to cannot be read; null if it can, or if
the message refers to none."""


def schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of :func:`record_batch`."""
    return pa.schema([pa.field(name, TYPES.get(name, pa.string())) for name in columns])


def record_batch(
    messages: RawMessages, stream: str, columns: Sequence[str], errors: Sequence[str | None] = ()
) -> pa.RecordBatch:
    """Return the given columns of the messages, in the given order.

    errors:  the column :data:`OBJECT_ERROR`. Default: all are null.
    """
    build = {
        "stream": lambda: _texts([stream.encode()] * len(messages)),
        "subject": lambda: _texts(messages.subjects),
        "sequence": lambda: _int64(messages.sequences),
        "timestamp": lambda: _timestamps(messages.times),
        "headers": lambda: _headers(messages.headers),
        "data": lambda: _binary(messages.data),
        OBJECT_ERROR: lambda: _errors(errors, len(messages)),
    }
    return pa.RecordBatch.from_arrays([build[name]() for name in columns], schema=schema(columns))


def _errors(errors: Sequence[str | None], count: int) -> pa.Array:
    none = pa.nulls(count, pa.string())
    if not any(errors):
        return none
    import pyarrow.compute as pc

    texts = _texts([(each or "").encode() for each in errors])
    return pc.if_else(pc.equal(pc.binary_length(texts), _int32([0])[0]), none, texts)


def replaced(messages: RawMessages, columns: Sequence[str]) -> list[int]:
    """Return the sequences of the messages of which :func:`record_batch` replaces bytes, because they are not UTF-8:
    in the subject, or in the names and values of headers."""
    blocks = [
        values for name, values in (("subject", messages.subjects), ("headers", messages.headers)) if name in columns
    ]
    if all(map(_utf8, (b"\n".join(values) for values in blocks))):
        return []
    return [
        sequence for sequence, *values in zip(messages.sequences, *blocks, strict=True) if not all(map(_utf8, values))
    ]


def _utf8(value: bytes) -> bool:
    try:
        return value.isascii() or bool(value.decode())
    except UnicodeDecodeError:
        return False


def _timestamps(times: Sequence[bytes]) -> pa.Array:
    moments = _texts(times)
    if any(map(bytes.isdigit, times)):
        try:
            moments = moments.cast(pa.int64())
        except pa.ArrowInvalid:  # the leader gives times as RFC 3339, a consumer as digits
            moments = _int64([int(each) if each.isdigit() else time_nanoseconds(each.decode()) for each in times])
    return moments.cast(pa.timestamp("ns", "UTC")).cast(TYPES["timestamp"], safe=False)


def _headers(blocks: Sequence[bytes]) -> pa.Array:
    """Return, for each message, a map from each header name to all its values, or null if the message has no
    headers."""
    if not any(blocks):
        return pa.nulls(len(blocks), TYPES["headers"])
    plain = _plain_headers(blocks)
    return plain if plain is not None else _any_headers(blocks)


def _plain_headers(blocks: Sequence[bytes]) -> pa.Array | None:
    """Decode headers without a loop in Python. Returns None if the blocks need :func:`_any_headers`.

    The blocks must be UTF-8, consist of whole lines with a colon in each, and contain no name twice. A publisher can
    write anything into a block. The counts below make sure that each line is assigned to the right message.
    """
    import pyarrow.compute as pc

    try:
        lines = pc.split_pattern(_binary(blocks).cast(pa.string()), "\r\n")
    except pa.ArrowInvalid:
        return None
    zero, one = _int32([0, 1])  # Arrow scalars, because pyarrow also converts Python's numbers with pandas
    texts, lengths = lines.flatten(), pc.list_value_length(lines)
    filled = pc.not_equal(pc.binary_length(texts), zero)
    last = pc.subtract(lines.offsets[1:], one)
    counts = pc.subtract(lengths, one)
    total = pc.sum(counts).as_py()
    # The last line of each block must be empty, because the block ends with a line break. No other line may be empty.
    if pc.any(filled.take(last)).as_py() or pc.sum(filled).as_py() != total:
        return None
    parts = pc.split_pattern(texts.filter(filled), ":", max_splits=1)
    if len(parts.flatten()) != 2 * total:
        return None
    names, values = pc.list_element(parts, zero), pc.list_element(parts, one)  # pyarrow 18 slices with pandas
    codes = names.dictionary_encode()
    owners = pc.list_parent_indices(lines).filter(filled)
    pairs = pc.add(pc.multiply(owners, _int64([len(codes.dictionary)])[0]), codes.indices.cast(pa.int64()))
    if pc.count_distinct(pairs).as_py() != total:
        return None
    one_each = pa.ListArray.from_arrays(_int32(range(total + 1)), pc.ascii_trim_whitespace(values))
    ends = pa.concat_arrays([_int32([0]), pc.cumulative_sum(counts).cast(pa.int32())])
    # A null offset makes a null map. pyarrow 18 refuses a mask together with computed offsets.
    begins = pc.if_else(_empty(blocks), pa.nulls(1, pa.int32())[0], ends[:-1])
    return pa.MapArray.from_arrays(pa.concat_arrays([begins, ends[-1:]]), names, one_each)


def _any_headers(blocks: Sequence[bytes]) -> pa.Array:
    names: list[bytes] = []
    values: list[bytes] = []
    value_ends, ends = [0], [0]
    for block in blocks:
        for name, each in decode_headers(b"\r\n" + block).items():
            names.append(name.encode())
            values.extend(value.encode() for value in each)
            value_ends.append(len(values))
        ends.append(len(names))
    items = pa.ListArray.from_arrays(_int32(value_ends), _binary(values).cast(pa.string()))
    return pa.MapArray.from_arrays(_int32(ends), _binary(names).cast(pa.string()), items, mask=_empty(blocks))


def _texts(values: Sequence[bytes]) -> pa.Array:
    """Return an array of strings. Bytes that are not UTF-8 are replaced."""
    try:
        return _binary(values).cast(pa.string())
    except pa.ArrowInvalid:
        return _binary([value.decode("utf-8", "replace").encode() for value in values]).cast(pa.string())


def _empty(values: Sequence[bytes]) -> pa.Array:
    """Return an array that is true where the value is empty."""
    import pyarrow.compute as pc

    return pc.equal(pc.binary_length(_binary(values)), _int32([0])[0])


def _binary(values: Sequence[bytes]) -> pa.Array:
    offsets = _packed("i", list(accumulate(map(len, values), initial=0)))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, offsets, pa.py_buffer(b"".join(values))])


def _int32(values: Sequence[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, _packed("i", values)])


def _int64(values: Sequence[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, _packed("q", values)])


def _packed(code: str, values: Sequence[int]) -> pa.Buffer:
    return pa.py_buffer(struct.pack(f"{len(values)}{code}", *values))
