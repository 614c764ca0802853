"""Messages as Arrow batches, with as few loops in Python as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_nats_jetstream.client.direct_message import DirectMessages


def record_batch(messages: DirectMessages, stream: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The given columns of the messages, in that order."""
    import pyarrow as pa

    build = {
        "stream": lambda: pa.array([stream]).take(pa.array([0] * len(messages))),
        "subject": lambda: _texts(messages.subjects),
        "sequence": lambda: pa.array(messages.sequences, pa.int64()),
        "timestamp": lambda: _timestamps(messages.times),
        "headers": lambda: _headers(messages.headers),
        "data": lambda: pa.array(messages.data, pa.binary()),
    }
    return pa.RecordBatch.from_arrays([build[name]() for name in columns], names=list(columns))


def _timestamps(times: Sequence[bytes]) -> pa.Array:
    import pyarrow as pa

    moments = _texts(times).cast(pa.int64()) if times[0].isdigit() else _texts(times)
    return moments.cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False)


def _headers(blocks: Sequence[bytes]) -> pa.Array:
    """A map of all values of each name; null for a message without headers."""
    import pyarrow as pa

    if not any(blocks):
        return pa.nulls(len(blocks), pa.map_(pa.string(), pa.list_(pa.string())))
    plain = _plain_headers(blocks)
    return plain if plain is not None else _any_headers(blocks)


def _plain_headers(blocks: Sequence[bytes]) -> pa.Array | None:
    """Without a loop in Python: UTF-8, a colon in every line, and no name twice in a message; else None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        lines = pc.split_pattern(pa.array(blocks, pa.binary()).cast(pa.string()), "\r\n")
    except pa.ArrowInvalid:
        return None
    filled = pc.not_equal(lines.flatten(), "")  # a block ends with a line break, so its last line is empty
    parts = pc.split_pattern(lines.flatten().filter(filled), ":", max_splits=1).flatten()
    counts = pc.subtract(pc.list_value_length(lines), 1)
    total = pc.sum(counts).as_py()
    if len(parts) != 2 * total:
        return None
    names, values = parts[::2], parts[1::2]
    codes = names.dictionary_encode()
    owners = pc.list_parent_indices(lines).filter(filled)
    pairs = pc.add(pc.multiply(owners, len(codes.dictionary)), codes.indices.cast(pa.int64()))
    if pc.count_distinct(pairs).as_py() != total:
        return None
    one_each = pa.ListArray.from_arrays(pa.array(range(total + 1), pa.int32()), pc.ascii_trim_whitespace(values))
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    # A null offset is a null map. A mask beside offsets that were computed is refused by pyarrow 18.
    begins = pc.if_else(pa.array([not block for block in blocks]), pa.scalar(None, pa.int32()), ends[:-1])
    return pa.MapArray.from_arrays(pa.concat_arrays([begins, ends[-1:]]), names, one_each)


def _any_headers(blocks: Sequence[bytes]) -> pa.Array:
    import pyarrow as pa

    names: list[bytes] = []
    values: list[bytes] = []
    value_ends, ends = [0], [0]
    for block in blocks:
        lines = [line.partition(b":") for line in block.split(b"\r\n") if line]
        for name, each in _grouped([(name, value.strip()) for name, _, value in lines]).items():
            names.append(name)
            values.extend(each)
            value_ends.append(len(values))
        ends.append(len(names))
    items = pa.ListArray.from_arrays(pa.array(value_ends, pa.int32()), _texts(values))
    mask = pa.array([not block for block in blocks])
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), _texts(names), items, mask=mask)


def _grouped(entries: Sequence[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """All values of each name, in order."""
    grouped: dict[bytes, list[bytes]] = {}
    for name, value in entries:
        grouped.setdefault(name, []).append(value)
    return grouped


def _texts(values: Sequence[bytes]) -> pa.Array:
    """As strings; bytes that are not UTF-8 are replaced."""
    import pyarrow as pa

    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())
