"""Failures, counted by us: which messages failed, in how large a claim, and how often alone. Values; no I/O.

The server's own count, ``max_deliver``, hides a message when it is used up; and a claim that fails says nothing of
which of its messages did it. So what failed is claimed again in smaller claims until each bad message fails alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jetstream_client.sequences import Sequences

PARTS = 10
"""Into how many claims a failed one is cut. A claim of 100,000 comes down to one message in 5 cuts (halves: 17), and
what is worked on again for a single bad message is 1.1 times the claim (halves: twice)."""
MOST_PARTS = 100
"""Claims of what failed in one take: each is a mapped task, and an entry in the record."""
LARGEST = 64 << 10
"""Bytes of JSON that failures may take in the record."""
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """A claim that failed. ``sequences`` are its messages, without those of which something else became since.

    ``size`` is how many it had, ``alone`` how often its message has failed alone (0 for a claim of several), ``reason``
    why the last time (for those alone).
    """

    sequences: Sequences
    size: int
    alone: int = 0
    reason: str = ""

    @property
    def next_size(self) -> int:
        """How large a claim may be that takes these messages again."""
        return max(1, -(-self.size // PARTS))

    def to_json(self) -> list[Any]:
        return [self.sequences.to_json(), self.size, self.alone, self.reason]

    @classmethod
    def from_json(cls, value: Any) -> Failure:
        ranges, size, alone, reason = value
        return cls(Sequences.from_json(ranges), size, alone, reason)


Failures = Mapping[str, Failure]
"""By the id of the claim that failed last; no two share a message."""


def failed(failures: Failures, claim_id: str, sequences: Sequences, reason: str) -> dict[str, Failure]:
    """With one more failed claim. What failed in a smaller one before is known better than this one tells.

    Past ``LARGEST`` the largest claims are forgotten: that costs rounds, no message.
    """
    size = sequences.count
    smaller = [each for failure in failures.values() if failure.size < size for each in failure.sequences.ranges]
    news = sequences - Sequences.from_ranges(smaller)
    if not news:
        return dict(failures)
    last = Failure(news, size)
    if size == 1:
        last = Failure(news, size, times_alone(failures, news.first) + 1, reason[:LONGEST_REASON])
    counted = {**without(failures, news), claim_id: last}
    sizes = {each: len(json.dumps(failure.to_json())) + len(each) + 6 for each, failure in counted.items()}
    total = sum(sizes.values())
    for each in sorted(counted, key=lambda each: (-counted[each].size, counted[each].alone)):
        if total <= LARGEST:
            break
        total -= sizes[each]
        del counted[each]
    return counted


def times_alone(failures: Failures, sequence: int) -> int:
    """How often this message has failed alone."""
    return max((each.alone for each in failures.values() if sequence in each.sequences), default=0)


def without(failures: Failures, sequences: Sequences) -> dict[str, Failure]:
    """Without messages of which something else became."""
    left = {each: replace(failure, sequences=failure.sequences - sequences) for each, failure in failures.items()}
    return {each: failure for each, failure in left.items() if failure.sequences}


def poison(failures: Failures, max_failures: int) -> Sequences:
    """The messages that have failed so often alone."""
    return Sequences.from_ranges(
        each for failure in failures.values() if failure.alone >= max_failures for each in failure.sequences.ranges
    )


def parts(failures: Failures, rest: Sequences, size: int) -> Iterator[Sequences]:
    """``rest`` as claims: what never failed in claims of ``size``, first; what did in smaller ones, at most
    ``MOST_PARTS``: the others wait for the next take."""
    known = Sequences.from_ranges(each for failure in failures.values() for each in failure.sequences.ranges)
    yield from (rest - known).windows(size)
    room = MOST_PARTS
    for failure in failures.values():
        for part in (rest & failure.sequences).windows(min(size, failure.next_size)):
            if not room:
                return
            room -= 1
            yield part
