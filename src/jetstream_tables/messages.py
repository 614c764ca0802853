# SPDX-License-Identifier: Apache-2.0
"""Many messages, each a sequence with the time at which the server stored it, in 16 bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_client.sequences import Sequences
from jetstream_client.times import time_text
from jetstream_tables.identity import SEQUENCE, TIMESTAMP

SCHEMA = pa.schema([("sequence", pa.int64()), ("time", pa.int64())])  # microseconds since 1970
TIME = pa.timestamp("us", tz="UTC")
"""The type of a time in a table. Delta Lake, Postgres and Spark keep no nanoseconds."""


@dataclass(frozen=True)
class Times:
    """A sequence with two times, as texts: two messages."""

    sequence: int
    first: str
    second: str

    @classmethod
    def of(cls, sequence: int, first: int, second: int) -> Times:
        return cls(sequence, time_text(first * 1_000), time_text(second * 1_000))


@dataclass(frozen=True)
class Messages:
    """Messages, ascending by sequence and time. ``table`` has the columns ``sequence`` and ``time``, without nulls. A
    sequence that a stream has used several times is there with each of its times."""

    table: pa.Table

    @classmethod
    def of(cls, pairs: Iterable[pa.Table]) -> Messages:
        """Make one entry of all rows of each message.

        pairs:  tables with the two columns of :data:`SCHEMA`.
        """
        seen = _distinct(pa.concat_tables([SCHEMA.empty_table(), *pairs]))
        if not pc.all(_rises(seen["sequence"])).as_py():
            seen = _distinct(seen.sort_by([("sequence", "ascending"), ("time", "ascending")]))
        return cls(seen)

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[int, int]]) -> Messages:
        """Make one entry of each message, from sequences with times in microseconds since 1970."""
        sequences, times = zip(*pairs, strict=True)
        return cls.of([pa.table([pa.array(sequences, pa.int64()), pa.array(times, pa.int64())], schema=SCHEMA)])

    @classmethod
    def unpacked(cls, packed: bytes) -> Messages:
        """The messages of :meth:`packed`."""
        numbers = pa.Array.from_buffers(
            pa.int64(), len(data := zlib.decompress(packed)) // 8, [None, pa.py_buffer(data)]
        )
        half = len(numbers) // 2
        return cls(pa.table([pc.cumulative_sum(each) for each in (numbers[:half], numbers[half:])], schema=SCHEMA))

    def packed(self) -> bytes:
        """The messages in two to four bytes each: the differences of the sequences, then those of the times."""
        columns = (self.table[name].combine_chunks() for name in SCHEMA.names)
        steps = [pa.concat_arrays([each[:1], pc.subtract(each[1:], each[:-1])]) for each in columns]
        return zlib.compress(memoryview(pa.concat_arrays(steps).buffers()[1]), 1)

    def packed_or_none(self) -> bytes | None:
        """The same, or None if there are none."""
        return self.packed() if len(self.table) else None

    @cached_property
    def sequences(self) -> Sequences:
        """Their sequences."""
        column = self.table["sequence"].combine_chunks()
        return sequences_in(column if pc.all(_rises(column)).as_py() else column.unique())

    def twice(self) -> Times | None:
        """The first sequence that has two times; None if there is none."""
        found = self.table
        again = pc.invert(_rises(found["sequence"]))
        if not pc.any(again).as_py():
            return None
        at = pc.index(again, True).as_py()
        return Times.of(found["sequence"][at].as_py(), *found.slice(at, 2)["time"].to_pylist())

    def span(self, sequences: Sequences) -> tuple[int, int]:
        """The earliest and the latest time of the messages among these sequences, at least one."""
        found = pc.min_max(self.within(sequences).table["time"])
        return found["min"].as_py(), found["max"].as_py()

    def within(self, sequences: Sequences) -> Messages:
        """Those of the messages that are among these sequences."""
        return Messages(self.table.filter(mask(self.table["sequence"], sequences)))

    def compared(self, others: Messages) -> Compared:
        """Compare with other messages, of which no sequence has two times."""
        if not len(self.table):
            return Compared(self, self, None)
        at = pc.index_in(self.table["sequence"], value_set=others.table["sequence"].combine_chunks())
        theirs = others.table["time"].combine_chunks().take(at.combine_chunks())
        mine = self.table["time"].combine_chunks()
        same, earlier, later = (
            self.table.filter(pc.fill_null(test(mine, theirs), False)) for test in (pc.equal, pc.less, pc.greater)
        )
        first: Times | None = None
        if len(later):
            sequence, time = later["sequence"][0].as_py(), later["time"][0].as_py()
            there = others.table["time"][pc.index(others.table["sequence"], sequence).as_py()].as_py()
            first = Times.of(sequence, time, there)
        return Compared(Messages(same), Messages(earlier), first)


@dataclass(frozen=True)
class Compared:
    """Which messages have the same time as others, and which an earlier one; and the first sequence that has a later
    time, then the other time."""

    equal: Messages
    before: Messages
    later: Times | None

    @property
    def same(self) -> Sequences:
        """The sequences of the messages that are the same."""
        return self.equal.sequences

    @property
    def earlier(self) -> Sequences:
        """The sequences that have been used by an earlier message."""
        return self.before.sequences


def pairs_of(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The messages of rows of a table."""
    times = pc.cast(rows[TIMESTAMP], TIME, safe=False)  # nanoseconds are cut off here as everywhere
    return pa.table([rows[SEQUENCE].cast(pa.int64()), times.cast(pa.int64())], schema=SCHEMA)


def stored(sequences: Sequence[int], times: Sequence[bytes]) -> pa.Table:
    """Messages with the times of the server, RFC 3339."""
    moments = pa.array(times, pa.binary()).cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
    columns = [pa.array(sequences, pa.int64()), pc.cast(moments, TIME, safe=False).cast(pa.int64())]
    return pa.table(columns, schema=SCHEMA)


def sequences_in(ascending: Any) -> Sequences:
    """The set of an ascending column of whole numbers without repetitions."""
    numbers = ascending.combine_chunks() if isinstance(ascending, pa.ChunkedArray) else ascending
    if not len(numbers):
        return Sequences()
    breaks = pc.not_equal(pc.subtract(numbers[1:], numbers[:-1]), 1)
    ends = numbers[:-1].filter(breaks).to_pylist()
    starts = numbers[1:].filter(breaks).to_pylist()
    return Sequences(tuple(zip([numbers[0].as_py(), *starts], [*ends, numbers[-1].as_py()], strict=True)))


FEW = 16
"""So many ranges are compared one after the other; more are put into a hash table."""


def mask(column: Any, sequences: Sequences) -> Any:
    """For each number in a column, whether it is among the sequences."""
    if len(sequences.ranges) > FEW:
        return pc.is_in(column, value_set=pa.array(sequences, pa.int64()))
    inside = pa.scalar(False)
    for first, last in sequences.ranges:
        inside = pc.or_(inside, pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last)))
    return inside if sequences else pc.is_null(column)


def _distinct(pairs: pa.Table) -> pa.Table:
    """The pairs without those that are equal to the one before."""
    if len(pairs) < 2:
        return pairs
    again = [pc.equal(each[1:], each[:-1]) for each in (column.combine_chunks() for column in pairs.columns)]
    new = pc.invert(pc.and_(*again))
    if pc.all(new).as_py():
        return pairs
    return pairs.filter(pa.concat_arrays([pa.array([True]), new]))


def _rises(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """For each number but the first, whether it is greater than the one before."""
    numbers = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.greater(numbers[1:], numbers[:-1])
