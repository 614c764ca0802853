# SPDX-License-Identifier: Apache-2.0
"""The deliveries of a batch as columns, because a batch may have a million of them. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import lt
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jetstream_client.consume.metadata import Metadata

_CHUNK = 1_024
_LATE = 8_192
"""Number of deliveries out of order that are put into their places together, which takes some 20 ms."""


class Delivery(NamedTuple):
    """The data of a message that the hand-off needs: its stream sequence, its consumer sequence (``counter``), its
    size, whether this is its first delivery, and when the stream stored it, in nanoseconds since 1970."""

    sequence: int
    counter: int
    size: int
    first: bool
    stored: int


class Deliveries:
    """Deliveries in ascending order of their stream sequences, at 33 bytes each.

    If a message was delivered several times, its last delivery counts. ``first`` stays true if an earlier delivery was
    the first one.

    The server delivers new messages in this order, and redelivered messages nearly in this order. Deliveries that
    arrive out of order are put into their places later, some thousands at a time.
    """

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        self._sequences = array("Q")
        self._counters = array("Q")
        self._sizes = array("Q")
        self._firsts = bytearray()
        self._stored = array("Q")
        self._late: dict[int, Delivery] = {}
        self.bytes = 0
        """The sum of the sizes."""
        for each in deliveries:
            self._add(each)

    def __len__(self) -> int:
        return len(self._sequences) + len(self._late)

    def __iter__(self) -> Iterator[Delivery]:
        self._sort()
        columns = self._sequences, self._counters, self._sizes, map(bool, self._firsts), self._stored
        return map(Delivery._make, zip(*columns, strict=True))

    def add(self, arrived: Metadata) -> None:
        """Add messages that arrived together."""
        sequences, last = arrived.sequences, self._sequences[-1] if self._sequences else -1
        if last < sequences[0] and all(map(lt, sequences, sequences[1:])):
            self._append(sequences, arrived.counters, arrived.sizes, arrived.firsts, arrived.times)
            self.bytes += sum(arrived.sizes)
            return
        columns = sequences, arrived.counters, arrived.sizes, map(bool, arrived.firsts), arrived.times
        for each in map(Delivery._make, zip(*columns, strict=True)):
            self._add(each)
        if len(self._late) > _LATE:
            self._sort()

    @property
    def sequences(self) -> Sequence[int]:
        """The stream sequences, ascending."""
        self._sort()
        return self._sequences

    @property
    def counter(self) -> int:
        """The highest consumer sequence; there must be deliveries."""
        self._sort()
        return max(self._counters)

    @property
    def lowest_counter(self) -> int:
        """The lowest consumer sequence; there must be deliveries."""
        self._sort()
        return min(self._counters)

    @property
    def first_new(self) -> int | None:
        """The lowest sequence of a message that was delivered for the first time; None if there is none."""
        self._sort()
        at = self._firsts.find(1)
        return self._sequences[at] if at >= 0 else None

    def ranges(self) -> Sequences:
        """The stream sequences as ranges."""
        return Sequences.from_ranges(self._ranges())

    def totals(self, some: Sequences) -> tuple[int, int]:
        """Return the highest consumer sequence and the sum of the sizes of these messages, which must all be here."""
        counter = size = 0
        for here in self._slices(some):
            highest = max(self._counters[here])
            counter, size = max(counter, highest), size + sum(self._sizes[here])
        return counter, size

    def stored(self, some: Sequences) -> tuple[int, int]:
        """Return when the stream stored the first and the last of these messages, which must all be here."""
        first, last = (self._stored[bisect_left(self.sequences, each)] for each in (some.first, some.last))
        return first, last

    def delivered_anew(self, some: Sequences, counter: int) -> bool:
        """Whether one of these messages, all of which must be here, is a first delivery or has a consumer sequence that
        is not above ``counter``."""
        return any(any(self._firsts[here]) or min(self._counters[here]) <= counter for here in self._slices(some))

    def redelivered_within(self, some: Sequences, counter: int) -> Sequences:
        """Those of these messages, all of which must be here, that are no first deliveries and whose consumer sequences
        are not above ``counter``."""
        return Sequences.of(
            self._sequences[at]
            for here in self._slices(some)
            for at in range(*here.indices(len(self._sequences)))
            if not self._firsts[at] and self._counters[at] <= counter
        )

    def lower_half(self) -> Deliveries:
        """The half of the messages with the lower sequences."""
        self._sort()
        half = Deliveries()
        kept = slice(0, len(self) // 2)
        half._append(*(column[kept] for column in self._columns))
        half.bytes = sum(half._sizes)
        return half

    @property
    def _columns(self) -> tuple[array[int], array[int], array[int], bytearray, array[int]]:
        return self._sequences, self._counters, self._sizes, self._firsts, self._stored

    def _append(self, *columns: Sequence[int]) -> None:
        for column, more in zip(self._columns, columns, strict=True):
            column.extend(more)

    def _add(self, delivery: Delivery) -> None:
        sequence, counter, size, first, stored = delivery
        self.bytes += size
        at = bisect_left(self._sequences, sequence)
        if at == len(self._sequences):
            self._append((sequence,), (counter,), (size,), (first,), (stored,))
        elif self._sequences[at] == sequence:
            self.bytes -= self._sizes[at]
            self._counters[at], self._sizes[at], self._stored[at] = counter, size, stored
            self._firsts[at] |= first
        else:
            before = self._late.get(sequence)
            self.bytes -= before.size if before else 0
            self._late[sequence] = delivery._replace(first=True) if before and before.first else delivery

    def _sort(self) -> None:
        """Put the deliveries that arrived out of order into their places."""
        if not self._late:
            return
        late, self._late = self._late, {}
        ordered = Deliveries()
        end = 0
        for sequence in sorted(late):
            start, end = end, bisect_left(self._sequences, sequence, end)
            ordered._append(*(column[start:end] for column in self._columns))
            ordered._append(*((each,) for each in late[sequence]))
        ordered._append(*(column[end:] for column in self._columns))
        self._sequences, self._counters, self._sizes, self._firsts, self._stored = ordered._columns

    def _slices(self, some: Sequences) -> Iterator[slice]:
        self._sort()
        if not some:
            return
        every = slice(bisect_left(self._sequences, some.first), bisect_right(self._sequences, some.last))
        if every.stop - every.start == some.count:  # nothing else lies between, as in a batch of scattered sequences
            yield every
            return
        end = 0
        for first, last in some.ranges:
            start = bisect_left(self._sequences, first, end)
            end = bisect_right(self._sequences, last, start)
            yield slice(start, end)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        sequences = self.sequences
        for start in range(0, len(sequences), _CHUNK):
            chunk = sequences[start : start + _CHUNK]
            if chunk[-1] - chunk[0] == len(chunk) - 1:
                yield chunk[0], chunk[-1]
            else:
                yield from zip(chunk, chunk, strict=True)
