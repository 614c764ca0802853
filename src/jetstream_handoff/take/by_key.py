# SPDX-License-Identifier: Apache-2.0
"""Cut a batch into claims by key: all messages of a key that are entered are in one claim. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger import failures

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from jetstream_client.consume.metadata import Metadata
    from jetstream_handoff.rules.order_key import OrderKey
    from jetstream_handoff.take.taking import Taking


class Keys:
    """The keys of the messages of a batch, as numbers."""

    def __init__(self, rule: OrderKey) -> None:
        self._rule = rule
        self._numbers: dict[str, int] = {}
        self.of: dict[int, int] = {}
        """The number of the key of each message, by its sequence."""

    def add(self, arrived: Metadata) -> None:
        """Add messages that arrived together. Raises InvalidValue if one of them has no key."""
        numbers = self._numbers
        keys = self._rule.keys(arrived.subjects, arrived.blocks)
        found = [numbers.setdefault(key, len(numbers)) for key in keys]
        self.of.update(zip(arrived.sequences, found, strict=True))


class Cut(NamedTuple):
    """The result of cutting a batch.

    claims:  the messages of each claim.
    poison:  messages that failed alone too many times.
    """

    claims: list[Sequences]
    poison: Sequences


def cut(rest: Sequences, keys: Mapping[int, int], failed: failures.Failures, taking: Taking) -> Cut:
    """Cut ``rest`` into claims. What is not in one of them waits for a later batch.

    The messages of a key are entered in ascending order without a gap. Of a key with a message that has failed, only
    the first ones are entered, as many as the next size of its failed messages, in a claim of at most this size. Of a
    key whose first message has failed alone ``max_failures`` times, only this one is entered, to be buried. The other
    keys are divided into at most ``taking.claims`` claims of about the same size, beginning with the largest key.

    rest:    the messages that are not done.
    keys:    the key of each message.
    failed:  the failures of messages.
    """
    by_key: dict[int, list[int]] = {}
    for sequence in rest:
        by_key.setdefault(keys[sequence], []).append(sequence)
    sizes, poison = _sizes(rest, failed, taking.max_failures)
    fresh: list[list[int]] = []
    again: dict[int, list[list[int]]] = {}
    buried: list[int] = []
    for messages in by_key.values():
        if messages[0] in poison:
            buried.append(messages[0])
        elif size := min((sizes[each] for each in messages if each in sizes), default=0) if sizes else 0:
            again.setdefault(size, []).append(messages[:size])
        else:
            fresh.append(messages)
    most, longest = taking.max_claims, taking.claims or 1
    small = [part for size in sorted(again) for part in _packed(again[size], size)][: failures.MOST_PARTS]
    if most is not None:
        small = small[: max(most - min(longest, len(fresh)), -(-most // 10))]
        longest = min(longest, most - len(small))
    room = taking.max_messages - sum(map(len, small))
    parts = [*_divided(_lowest(fresh, room), longest), *small]
    return Cut([Sequences.of(part) for part in parts], Sequences.of(buried))


def _sizes(
    rest: Sequences, failed: failures.Failures, max_failures: int | None
) -> tuple[dict[int, int], Collection[int]]:
    """The next size of each message that has failed, and the messages that have failed alone too many times."""
    if max_failures is None:
        return {}, ()
    sizes = {sequence: each.next_size for each in failed.values() for sequence in rest & each.sequences}
    return sizes, set(rest & failures.poison(failed, max_failures))


def _packed(keys: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """Put keys, each of at most ``size`` messages, together into parts of at most this size."""
    part: list[int] = []
    for messages in keys:
        if part and len(part) + len(messages) > size:
            yield part
            part = []
        part = part + messages
    if part:
        yield part


def _lowest(keys: list[list[int]], most: int) -> list[list[int]]:
    """Return only the lowest ``most`` messages of these keys."""
    if sum(map(len, keys)) <= most:
        return keys
    if most <= 0:
        return []
    last = sorted(each for messages in keys for each in messages)[most - 1]
    return [messages[: bisect_right(messages, last)] for messages in keys if messages[0] <= last]


def _divided(keys: list[list[int]], most: int) -> list[list[int]]:
    """Divide keys into at most ``most`` parts: each key, the largest one first, goes to the smallest part so far."""
    count = min(most, len(keys))
    if count <= 0:
        return []
    parts: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, at) for at in range(count)]
    heapify(filled)
    for messages in sorted(keys, key=len, reverse=True):
        size, at = filled[0]
        parts[at] += messages
        heapreplace(filled, (size + len(messages), at))
    return sorted(parts, key=min)
