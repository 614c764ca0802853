# SPDX-License-Identifier: Apache-2.0
"""Many messages, each a sequence with the time at which the server stored it, in 16 bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_client.sequences import Sequences
from jetstream_client.times import time_text
from jetstream_tables.identity import SEQUENCE, TIMESTAMP

SCHEMA = pa.schema([("sequence", pa.int64()), ("time", pa.int64())])  # microseconds since 1970


class TwoTimes(ValueError):
    """One sequence with two times. ``sequence`` and ``times`` name them."""

    def __init__(self, sequence: int, times: tuple[int, int]) -> None:
        super().__init__(sequence, times)
        self.sequence = sequence
        self.times = tuple(time_text(each * 1_000) for each in times)


@dataclass(frozen=True)
class Messages:
    """Messages, ascending by sequence. ``table`` has the columns ``sequence`` and ``time``, without nulls."""

    table: pa.Table

    @classmethod
    def of(cls, pairs: Iterable[pa.Table | pa.RecordBatch]) -> Messages:
        """Make one entry of all rows of each message.

        pairs:  tables or batches with the two columns of :data:`SCHEMA`.

        Raises:
            TwoTimes: a sequence has two times.
        """
        seen = pa.concat_tables([SCHEMA.empty_table(), *map(_distinct, pairs)])
        if not _ascends(seen["sequence"]):
            seen = seen.sort_by("sequence")
        found = _distinct(seen)
        again = _same_as_before(found["sequence"])
        if pc.any(again).as_py():
            at = pc.index(again, True).as_py()
            first, second = found.slice(at, 2)["time"].to_pylist()
            raise TwoTimes(found["sequence"][at].as_py(), (min(first, second), max(first, second)))
        return cls(found)

    @property
    def sequences(self) -> Sequences:
        """Their sequences."""
        return sequences_in(self.table["sequence"])

    def within(self, sequences: Sequences) -> Messages:
        """Those of the messages that are among these sequences."""
        return Messages(self.table.filter(mask(self.table["sequence"], sequences)))

    def differing(self, other: Messages) -> tuple[int, str, str] | None:
        """The first sequence that both have, with different times, and the two times. None if there is none."""
        common = self.sequences & other.sequences
        mine, theirs = self.within(common).table, other.within(common).table
        odd = pc.not_equal(mine["time"], theirs["time"])
        if not pc.any(odd).as_py():
            return None
        at = pc.index(odd, True).as_py()
        here, there = (time_text(each["time"][at].as_py() * 1_000) for each in (mine, theirs))
        return mine["sequence"][at].as_py(), here, there


def pairs_of(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The messages of rows of a table."""
    return pa.table([rows[SEQUENCE].cast(pa.int64()), rows[TIMESTAMP].cast(pa.int64())], schema=SCHEMA)


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


def _distinct(pairs: pa.Table | pa.RecordBatch) -> pa.Table:
    """The pairs without those that are equal to the one before."""
    table = pa.Table.from_batches([pairs]) if isinstance(pairs, pa.RecordBatch) else pairs
    if len(table) < 2:
        return table
    again = pc.and_(_same_as_before(table["sequence"]), _same_as_before(table["time"]))
    if not pc.any(again).as_py():
        return table
    return table.filter(pc.invert(pa.concat_arrays([pa.array([False]), again])))


def _same_as_before(column: pa.ChunkedArray) -> pa.Array:
    """For each number but the first, whether it is that of the number before."""
    numbers = column.combine_chunks()
    return pc.equal(numbers[1:], numbers[:-1])


def _ascends(column: pa.ChunkedArray) -> bool:
    numbers = column.combine_chunks()
    return bool(pc.all(pc.greater_equal(numbers[1:], numbers[:-1])).as_py())
