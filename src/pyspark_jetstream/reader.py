"""Batch reading: the driver plans partitions by sequence, executors read them by direct get into Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from airflow_nats_jetstream.client.direct import DirectMessage, read
from airflow_nats_jetstream.client.errors import DirectGetDisabled, StreamRecreated
from airflow_nats_jetstream.client.sequences import Sequences
from airflow_nats_jetstream.client.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_jetstream.options import Options

ROWS = 2_000
"""Rows after which an Arrow batch is given on, while it is in the processor's caches; 10,000 took a fifth longer. What
came at once stays together, so the window of direct get bounds the bytes."""


@dataclass
class Sequenced(InputPartition):
    """The sequences of one partition, and the stream that they are of."""

    sequences: Sequences
    created: str

    def __init__(self, sequences: Sequences, created: str) -> None:
        super().__init__(None)
        self.sequences = sequences
        self.created = created


class JetStreamReader(DataSourceReader):
    """Reads a claim or a range of a stream, exactly: a planned message that cannot be read is an error."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()

    def partitions(self) -> Sequence[InputPartition]:
        """Even in count.

        Raises:
            StreamNotFound, StreamRecreated, DirectGetDisabled, ConnectionFailed: while planning.
        """
        options = self._options
        with Wire.open(options.settings()) as wire:
            info = wire.api(f"STREAM.INFO.{options.stream}")
            if options.claim and options.claim.stream_created != info["created"]:
                raise StreamRecreated(
                    f"stream {options.stream!r} was recreated at {info['created']}; "
                    f"the claim is of the one of {options.claim.stream_created}"
                )
            if not info["config"].get("allow_direct"):
                raise DirectGetDisabled(options.stream)
            wanted = options.claim.sequences if options.claim else self._range(wire, info["state"])
        if not wanted:
            return [Sequenced(wanted, info["created"])]  # without any Spark would read a partition of its own making
        # Spark plans in a process that knows nothing of its executors: a cluster is told by minPartitions.
        count = min(wanted.count, options.min_partitions or os.cpu_count() or 1)
        return [Sequenced(part, info["created"]) for part in _split(wanted, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Sequenced)  # noqa: S101 - Spark hands back what partitions() gave
        if not partition.sequences:
            return
        options = self._options
        rows: list[DirectMessage] = []
        for batch in read(options.settings(), options.stream, partition.sequences, partition.created):
            rows += batch
            if len(rows) >= ROWS:
                yield self._arrow(rows)
                rows = []
        if rows:
            yield self._arrow(rows)

    def _range(self, wire: Wire, state: dict[str, Any]) -> Sequences:
        """What the stream holds of the range now: what was deleted before is a gap, what vanishes later a loss."""
        first = max(self._options.starting or 1, state["first_seq"])
        last = min(self._options.ending or state["last_seq"], state["last_seq"])
        if not state["messages"] or first > last:
            return Sequences()
        wanted = Sequences.from_ranges([(first, last)])
        if state.get("num_deleted"):
            details = wire.api(f"STREAM.INFO.{self._options.stream}", {"deleted_details": True})
            wanted -= Sequences.of(details["state"].get("deleted") or ())
        return wanted

    def _arrow(self, rows: list[DirectMessage]) -> pa.RecordBatch:
        import pyarrow as pa

        sequences, subjects, times, headers, data = zip(*rows, strict=True)
        build = {
            "stream": lambda: pa.array([self._options.stream]).take(pa.array([0] * len(rows))),
            "subject": lambda: _texts(subjects),
            "sequence": lambda: pa.array(sequences, pa.int64()),
            "timestamp": lambda: _timestamps(times),
            "headers": lambda: _headers(headers),
            "data": lambda: pa.array(data, pa.binary()),
        }
        return pa.RecordBatch.from_arrays([build[name]() for name in self._columns], names=self._columns)


def _split(wanted: Sequences, count: int) -> Iterator[Sequences]:
    """``count`` parts in order, none more than one longer than another."""
    size, longer = divmod(wanted.count, count)
    front = next(wanted.windows(longer * (size + 1))) if longer else Sequences()
    yield from front.windows(size + 1)
    yield from (wanted - front).windows(size)


def _timestamps(times: Sequence[bytes]) -> pa.Array:
    import pyarrow as pa

    return _texts(times).cast(pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), safe=False)


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
    return pa.MapArray.from_arrays(ends, names, one_each, mask=pa.array([not block for block in blocks]))


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
