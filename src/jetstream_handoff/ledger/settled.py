# SPDX-License-Identifier: Apache-2.0
"""The settled messages above the acknowledgement floor, in a compact form.

A message that is held for hours keeps the floor from rising. Settled messages above the floor must be recognised if
they are redelivered, and the record keeps only the numbers that this requires.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jetstream_client.sequences import MOST_RANGES, Sequences, inflated

_LONGEST = 8 << 10  # bytes of JSON that are stored as a list; a longer one is packed
_MOST = 4 * MOST_RANGES
_LARGEST = 64 * _MOST  # bytes of JSON that a packed string may contain
_HIGHEST = 2**64 - 1

Span = tuple[int, int, int]
"""First and last sequence of a claim's range, and the highest consumer sequence of the claim."""


@dataclass(frozen=True)
class Settled:
    """An immutable set of settled messages, each with the highest consumer sequence of its claim.

    The ``spans`` are in ascending order and do not overlap.
    """

    spans: tuple[Span, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spans)

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences.from_ranges((first, last) for first, last, _ in self.spans)

    def __and__(self, wanted: Sequences) -> Settled:
        """Return the settled messages that are also in ``wanted``."""
        return Settled(tuple(self._among(wanted)))

    def _among(self, wanted: Sequences) -> Iterator[Span]:
        for first, last in wanted.ranges:
            at = max(0, bisect_right(self.spans, (first, _HIGHEST + 1, 0)) - 1)
            while at < len(self.spans) and self.spans[at][0] <= last:
                start, end, counter = self.spans[at]
                if end >= first:
                    yield max(first, start), min(last, end), counter
                at += 1

    @property
    def first(self) -> int:
        return self.spans[0][0]

    @property
    def counter(self) -> int:
        """The highest consumer sequence; 0 if the set is empty."""
        return max((counter for _, _, counter in self.spans), default=0)

    def add(self, sequences: Sequences, counter: int) -> Settled:
        """Return the set with a claim's messages added. Messages that are already in the set are not changed."""
        new = sequences - (self & sequences).sequences
        return Settled(tuple(sorted((*self.spans, *((first, last, counter) for first, last in new.ranges)))))

    def above(self, floor: int) -> Settled:
        """Return the set without the spans that lie wholly at or below the floor."""
        at = bisect_left(self.spans, floor + 1, key=lambda span: span[1])
        return Settled(self.spans[at:]) if at else self

    def to_json(self) -> list[int] | str:
        """Return a list with three numbers for each span, or a packed string (JSON, zlib, base64) if the list is long.

        The numbers are the distance of the span's start from the end of the previous span, the span's length minus one,
        and its counter minus the counter of the previous span.
        """
        return self._json

    @cached_property
    def _json(self) -> list[int] | str:
        numbers: list[int] = []
        end = reached = 0
        for first, last, counter in self.spans:
            numbers += (first - end, last - first, counter - reached)
            end, reached = last, counter
        text = json.dumps(numbers, separators=(",", ":"))
        if len(text) <= _LONGEST:
            return numbers
        return base64.b64encode(zlib.compress(text.encode())).decode()

    @classmethod
    def from_json(cls, value: Any) -> Settled:
        """The reverse of :meth:`to_json`. Raises ValueError for anything else."""
        try:
            numbers = json.loads(inflated(value, _LARGEST)) if isinstance(value, str) else value
        except RecursionError:
            raise ValueError("not a set of settled messages") from None
        if not isinstance(numbers, list) or len(numbers) % 3 or len(numbers) > 3 * _MOST:
            raise ValueError("not a set of settled messages")
        spans: list[Span] = []
        end = counter = 0
        for at in range(0, len(numbers), 3):
            distance, length, more = numbers[at : at + 3]
            if not (type(distance) is type(length) is type(more) is int) or distance < 1 or length < 0:
                raise ValueError("not a set of settled messages")
            first = end + distance
            end, counter = first + length, counter + more
            if counter < 0 or counter > _HIGHEST or end > _HIGHEST:
                raise ValueError("not a set of settled messages")
            spans.append((first, end, counter))
        return cls(tuple(spans))
