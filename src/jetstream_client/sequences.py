# SPDX-License-Identifier: Apache-2.0
"""Sets of stream sequences as sorted, inclusive ranges."""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_RANGES = 1_000_000
"""The largest number of ranges in a JSON value. Without this limit, a string of a few kilobytes could unpack to
gigabytes. A million ranges take 200 MB."""
_LARGEST = 2**64 - 1  # sequences are unsigned 64-bit integers on the server
_LONGEST_RANGE = 2 * 10  # bytes of two variable-length numbers


def check_sequence(sequence: object, field: str = "sequence") -> int:
    """Check and return a sequence. Raises InvalidValue."""
    if type(sequence) is not int or sequence < 1:
        raise InvalidValue(field, sequence, "a sequence must be a whole number, 1 or more")
    return sequence


@dataclass(frozen=True, slots=True)
class Sequences:
    """An immutable set of sequences. ``ranges`` are inclusive and ascending, with a gap between any two."""

    ranges: tuple[tuple[int, int], ...] = ()
    _packed: str = field(default="", init=False, repr=False, compare=False)
    """The packed string of :meth:`to_json`, once it is known: a record is written many times with the same claims."""

    @classmethod
    def of(cls, sequences: Iterable[int]) -> Sequences:
        """Make a set from single ``sequences`` in any order; a repeated sequence counts once."""
        return cls.from_ranges((sequence, sequence) for sequence in sorted(sequences))

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> Sequences:
        """Make a set from inclusive ``ranges`` in any order, which may overlap or touch."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return cls(tuple(joined))

    @property
    def count(self) -> int:
        """Number of sequences."""
        firsts: int = sum(map(itemgetter(0), self.ranges))  # twice as fast as range by range
        lasts: int = sum(map(itemgetter(1), self.ranges))
        return lasts - firsts + len(self.ranges)

    @property
    def first(self) -> int:
        """The lowest sequence; the set must not be empty."""
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        """The highest sequence; the set must not be empty."""
        return self.ranges[-1][1]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self.ranges, (sequence, _LARGEST + 1)) - 1
        return at >= 0 and self.ranges[at][0] <= sequence <= self.ranges[at][1]

    def __or__(self, other: Sequences) -> Sequences:
        return Sequences.from_ranges(self.ranges + other.ranges)

    def __and__(self, other: Sequences) -> Sequences:
        common = []
        mine, theirs = iter(self.ranges), iter(other.ranges)
        a, b = next(mine, None), next(theirs, None)
        while a and b:
            first, last = max(a[0], b[0]), min(a[1], b[1])
            if first <= last:
                common.append((first, last))
            if a[1] < b[1]:
                a = next(mine, None)
            else:
                b = next(theirs, None)
        return Sequences(tuple(common))

    def __sub__(self, other: Sequences) -> Sequences:
        left = []
        holes = (self & other).ranges
        at = 0
        for first, last in self.ranges:
            start = first
            while at < len(holes) and holes[at][0] <= last:
                if start < holes[at][0]:
                    left.append((start, holes[at][0] - 1))
                start = holes[at][1] + 1
                at += 1
            if start <= last:
                left.append((start, last))
        return Sequences(tuple(left))

    def __str__(self) -> str:
        shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges[:10])
        return shown + (f" and {len(self.ranges) - 10:,} more ranges" if len(self.ranges) > 10 else "")

    def after(self, sequence: int) -> Sequences:
        """The sequences that are higher than ``sequence``."""
        at = bisect_right(self.ranges, (sequence, _LARGEST + 1)) - 1
        if at < 0 or self.ranges[at][1] <= sequence:
            return Sequences(self.ranges[at + 1 :])
        return Sequences(((sequence + 1, self.ranges[at][1]), *self.ranges[at + 1 :]))

    def selectors(self, first: int, last: int) -> bytes:
        """One byte for each sequence from ``first`` to ``last``: 1 if it is in the set, and 0 otherwise."""
        found = bytearray(last - first + 1)
        for start, end in islice(self.ranges, max(0, bisect_right(self.ranges, (first, _LARGEST + 1)) - 1), None):
            if start > last:
                break
            begin, stop = max(start, first) - first, min(end, last) - first + 1
            if begin < stop:
                found[begin:stop] = b"\1" * (stop - begin)
        return bytes(found)

    def windows(self, size: int) -> Iterator[Sequences]:
        """Split the sequences, in order, into sets of at most ``size`` sequences."""
        window: list[tuple[int, int]] = []
        room = size
        for start, last in self.ranges:
            first = start
            while first <= last:
                end = min(last, first + room - 1)
                window.append((first, end))
                room -= end - first + 1
                first = end + 1
                if not room:
                    yield Sequences(tuple(window))
                    window, room = [], size
        if window:
            yield Sequences(tuple(window))

    def to_json(self, longest: int = 8192) -> list[list[int]] | str:
        """A list of ``[first, last]``, or one packed string if the list is longer than ``longest`` bytes.

        The string has two variable-length numbers for each range: the difference between its first sequence and the end
        of the previous range, and the difference between its last and first sequence. A number has seven bits in each
        byte, low bits first; the top bit means that another byte follows. The bytes are compressed with zlib and
        encoded as base64.

        Raises:
            InvalidValue: there are more ranges than :meth:`from_json` reads.
        """
        if len(self.ranges) > MOST_RANGES:
            remedy = f"there must be at most {MOST_RANGES} ranges; take fewer messages at a time"
            raise InvalidValue("ranges", len(self.ranges), remedy)
        if len(self.ranges) * 6 <= longest:
            ranges = [[first, last] for first, last in self.ranges]
            if len(str(ranges)) <= longest:
                return ranges
        if not self._packed:
            object.__setattr__(self, "_packed", self._pack())
        return self._packed

    def _pack(self) -> str:
        packed = bytearray()
        before = 0
        for first, last in self.ranges:
            for number in (first - before, last - first):
                rest = number
                while rest > 0x7F:
                    packed.append(rest & 0x7F | 0x80)
                    rest >>= 7
                packed.append(rest)
            before = last
        return base64.b64encode(zlib.compress(bytes(packed), 9)).decode()

    @classmethod
    def from_json(cls, value: object, field: str = "ranges", most: int = MOST_RANGES) -> Sequences:
        """Read ``value``, which :meth:`to_json` returned: at most ``most`` ranges, ascending from 1, with a gap between
        any two. ``field`` is the name of the value in errors.

        Raises:
            InvalidValue: the value is anything else.
        """
        pairs: Iterable[object]
        if isinstance(value, str):
            pairs = _unpack(value, field, most)
        elif isinstance(value, list):
            pairs = value
        else:
            remedy = f"must be a list of pairs [first, last] or a packed string, not {type(value).__name__}"
            raise InvalidValue(field, "…", remedy)
        checked: list[tuple[int, int]] = []
        before = -1
        for pair in pairs:
            if (
                not isinstance(pair, list | tuple)
                or len(pair) != 2
                or type(pair[0]) is not int
                or type(pair[1]) is not int
                or not 1 <= pair[0] <= pair[1] <= _LARGEST
                or pair[0] <= before + 1
            ):
                remedy = "ranges must be pairs [first, last], ascending from 1, with a gap between any two"
                raise InvalidValue(field, pair, remedy)
            if len(checked) >= most:
                raise InvalidValue(field, "…", f"must have at most {most} ranges")
            before = pair[1]
            checked.append((pair[0], pair[1]))
        found = cls(tuple(checked))
        if isinstance(value, str):
            object.__setattr__(found, "_packed", value)
        return found


def inflated(text: str, most: int) -> bytes:
    """Unpack a base64 string of zlib data to at most ``most`` bytes. Raises ValueError if the string is invalid or
    unpacks to more."""
    unzip = zlib.decompressobj()
    try:
        found = unzip.decompress(base64.b64decode(text, validate=True), most)
    except (binascii.Error, zlib.error):
        found = b""
    if not unzip.eof or unzip.unconsumed_tail or unzip.unused_data:
        raise ValueError("not packed")
    return found


def _unpack(text: str, field: str, most: int) -> Iterator[tuple[int, int]]:
    try:
        packed = inflated(text, most * _LONGEST_RANGE)
    except ValueError:
        raise InvalidValue(field, text[:40], "this is not a packed string of ranges") from None
    start: int | None = None
    number = shift = before = 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > 63:
                break
            continue
        if start is None:
            start = before + number
        else:
            before = start + number
            yield start, before
            start = None
        number = shift = 0
    if shift or start is not None:
        raise InvalidValue(field, text[:40], "this packed string of ranges is incomplete or damaged")
