# SPDX-License-Identifier: Apache-2.0
"""Failures of messages: the failed messages, the sizes of their claims, and how many times each failed alone. No I/O.

The server's own limit, ``max_deliver``, cannot be used, because the server never redelivers a message that has reached
it. The failure of a claim does not show which of its messages was bad. So failed messages are claimed again in smaller
claims until each bad message fails alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from jetstream_client.sequences import Sequences

PARTS = 10
"""The number of claims into which the messages of a failed claim are divided. A claim of 100,000 messages is cut down
to single messages in 5 steps (17 with halves). For a single bad message, 1.1 times the claim's messages are processed
again (twice with halves)."""
MOST_PARTS = 100
"""How many claims of failed messages one take makes at most. Each is a mapped task and an entry in the record."""
LARGEST = 64 << 10
"""How many bytes of JSON the failures may take in the record."""
LONGEST_REASON = 200
"""How many bytes of a reason the record and a receipt contain. A dead letter has room for more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A claim that failed.

    sequences:  its messages, except those that have since been settled or failed in a smaller claim.
    size:       how many messages the claim had.
    alone:      how many times its message has failed alone; 0 for a claim of several messages.
    reason:     why it failed the last time; only for a claim of one message.
    """

    sequences: Sequences
    size: int
    alone: int = 0
    reason: str = ""

    @property
    def next_size(self) -> int:
        """The largest size of the claims in which these messages are taken again."""
        return max(1, -(-self.size // PARTS))

    def to_json(self) -> list[Any]:
        return [self.sequences.to_json(), self.size, self.alone, self.reason]

    @classmethod
    def from_json(cls, value: Any) -> Failure:
        ranges, size, alone, reason = value
        return cls(Sequences.from_json(ranges), size, alone, reason)


Failures = Mapping[str, Failure]
"""Failures by the id of the claim that failed last. No message is in two failures."""


def failed(failures: Failures, claim_id: str, sequences: Sequences, reason: str) -> dict[str, Failure]:
    """Return the failures with one more failed claim.

    A message that failed before in a smaller claim stays in the failure of that claim. If the failures take more than
    ``LARGEST`` bytes, the failures of the largest claims are dropped. Finding the bad messages then takes more claims,
    but no message is lost.
    """
    size = sequences.count
    smaller = [each for failure in failures.values() if failure.size < size for each in failure.sequences.ranges]
    new = sequences - Sequences.from_ranges(smaller)
    if not new:
        return dict(failures)
    last = Failure(new, size)
    if size == 1:
        last = Failure(new, size, times_alone(failures, new.first) + 1, one_line(reason))
    counted = {**without(failures, new), claim_id: last}
    sizes = {each: len(json.dumps(failure.to_json())) + len(each) + 6 for each, failure in counted.items()}
    total = sum(sizes.values())
    for each in sorted(counted, key=lambda each: (-counted[each].size, counted[each].alone)):
        if total <= LARGEST:
            break
        total -= sizes[each]
        del counted[each]
    return counted


def one_line(reason: str, longest: int = LONGEST_REASON) -> str:
    """Return a reason on one line, cut to ``longest`` bytes of UTF-8."""
    return " ".join(reason.split()).encode(errors="replace")[:longest].decode(errors="ignore")


def times_alone(failures: Failures, sequence: int) -> int:
    """How many times this message has failed alone."""
    return max((each.alone for each in failures.values() if sequence in each.sequences), default=0)


def without(failures: Failures, sequences: Sequences) -> dict[str, Failure]:
    """Return the failures without these messages."""
    left = {each: replace(failure, sequences=failure.sequences - sequences) for each, failure in failures.items()}
    return {each: failure for each, failure in left.items() if failure.sequences}


def poison(failures: Failures, max_failures: int) -> Sequences:
    """The messages that have failed alone ``max_failures`` times."""
    return Sequences.from_ranges(
        each for failure in failures.values() if failure.alone >= max_failures for each in failure.sequences.ranges
    )


def parts(failures: Failures, rest: Sequences, size: int, most: int | None = None) -> Iterator[Sequences]:
    """Cut ``rest`` into claims. Messages that never failed come first, in claims of ``size``. Failed messages follow in
    smaller claims, at most ``MOST_PARTS`` of them; the other failed messages wait for the next take.

    most:  the largest number of claims in all; default: no limit. A tenth of them is kept for failed messages, so that
           new messages cannot keep these from being taken again.
    """
    known = Sequences.from_ranges(each for failure in failures.values() for each in failure.sequences.ranges)
    again = (
        part
        for failure in failures.values()
        for part in (rest & failure.sequences).windows(min(size, failure.next_size))
    )
    fresh, failed = list(islice((rest - known).windows(size), most)), list(islice(again, MOST_PARTS))
    if most is not None:
        failed = failed[: max(most - len(fresh), -(-most // 10))]
        fresh = fresh[: most - len(failed)]
    yield from fresh
    yield from failed
