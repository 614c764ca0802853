# SPDX-License-Identifier: Apache-2.0
"""Cut a batch into claims by key: all messages of a key that are entered are in one claim. No I/O."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger import failures
from jetstream_handoff.ledger.order import MOST_STOPPED
from jetstream_handoff.rules.order_key import STOP_KEY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from jetstream_client.consume.metadata import Metadata
    from jetstream_handoff.rules.order_key import OrderKey
    from jetstream_handoff.take.taking import Taking


def digest(key: str) -> str:
    """Return the name of a key in the record: the first 16 hexadecimal digits of its SHA-256. A key may be long."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


class Keys:
    """The keys of the messages of a batch, as numbers."""

    def __init__(self, rule: OrderKey) -> None:
        self._rule = rule
        self._numbers: dict[str, int] = {}
        self.without = 0
        """How many messages have no key, because they lack the header."""
        self.of: dict[int, int] = {}
        """The number of the key of each message, by its sequence."""

    def add(self, arrived: Metadata) -> None:
        """Add messages that arrived together. Raises InvalidValue if one of them has no key."""
        numbers = self._numbers
        keys = self._rule.keys(arrived.subjects, arrived.blocks)
        found = [numbers.setdefault(key, len(numbers)) for key in keys]
        if "" in numbers:
            self.without += found.count(numbers[""])
        self.of.update(zip(arrived.sequences, found, strict=True))

    def numbered(self, stopped: Mapping[str, int]) -> dict[int, int]:
        """The stopped keys of the batch by number, from those of the record by digest."""
        if not stopped:
            return {}
        return {number: stopped[name] for key, number in self._numbers.items() if (name := digest(key)) in stopped}

    def named(self, stopped: Mapping[int, int]) -> dict[str, int]:
        """The reverse of :meth:`numbered`."""
        keys = list(self._numbers) if stopped else []
        return {digest(keys[number]): at for number, at in stopped.items()}


class Cut(NamedTuple):
    """The result of cutting a batch.

    claims:   the messages of each claim.
    poison:   messages that failed alone too many times.
    behind:   messages that are given up because their key stopped, by the sequence at which it did.
    stopped:  the stopped keys of the batch, and the sequence at which each stopped.
    waiting:  messages that failed alone too many times, and are tried again, because no more keys may stop.
    """

    claims: list[Sequences]
    poison: Sequences
    behind: Mapping[int, Sequences] = {}
    stopped: Mapping[int, int] = {}
    waiting: Sequences = Sequences()

    @property
    def buried(self) -> Sequences:
        """All messages that become dead letters."""
        return Sequences.from_ranges(each for part in (self.poison, *self.behind.values()) for each in part.ranges)


def cut(
    rest: Sequences,
    keys: Mapping[int, int],
    failed: failures.Failures,
    taking: Taking,
    *,
    stopped: Mapping[int, int] | None = None,
    through: int | None = None,
    room: int = MOST_STOPPED,
) -> Cut:
    """Cut ``rest`` into claims. What is not in one of them waits for a later batch.

    The messages of a key are entered in ascending order without a gap. Of a key with a message that has failed, only
    the first ones are entered, as many as the next size of its failed messages, in a claim of at most this size. Of a
    key whose first message has failed alone ``max_failures`` times, only this one is entered, to be buried. With
    ``stop_key``, its key stops: all its messages are buried, now and later. If too many keys have stopped, the message
    is tried again instead. The other keys are divided into at most ``taking.claims`` claims of about the same size,
    beginning with the largest key.

    A key whose messages are redelivered from where it stopped, or from before that, goes on: the consumer was reset, or
    the message was not buried.

    rest:     the messages that are not done.
    keys:     the key of each message.
    failed:   the failures of messages.
    stopped:  the keys that have stopped, each with the sequence of the message at which it did.
    through:  messages of these keys after this sequence wait. Default: none of them.
    room:     how many more keys may stop.
    """
    by_key: dict[int, list[int]] = {}
    for sequence in rest:
        by_key.setdefault(keys[sequence], []).append(sequence)
    sizes, poison = _sizes(rest, failed, taking.max_failures)
    stops = _Stops(dict(stopped or {}), through, room if taking.on_poison == STOP_KEY else None)
    fresh: list[list[int]] = []
    again: dict[int, list[list[int]]] = {}
    waiting: list[list[int]] = []
    for key, messages in by_key.items():
        if stops.gives_up(key, messages, poison):
            continue
        if messages[0] in poison:
            waiting.append(messages[:1])
        elif size := min((sizes[each] for each in messages if each in sizes), default=0) if sizes else 0:
            again.setdefault(size, []).append(messages[:size])
        else:
            fresh.append(messages)
    most, longest = taking.max_claims, taking.claims or 1
    small = [part for size in sorted(again) for part in _packed(again[size], size)]
    small = [*small, *waiting][: failures.MOST_PARTS]
    if most is not None:
        small = small[: max(most - min(longest, len(fresh)), -(-most // 10))]
        longest = min(longest, most - len(small))
    room = taking.max_messages - sum(map(len, small))
    parts = [*_divided(_lowest(fresh, room), longest), *small]
    poisonous, more = Sequences.of(stops.buried), Sequences.of(each for part in waiting for each in part)
    return Cut([Sequences.of(part) for part in parts], poisonous, stops.behind, stops.stopped, more)


@dataclass
class _Stops:
    """Which messages of a batch become dead letters.

    stopped, through:  as in :func:`cut`; ``stopped`` is changed.
    room:              how many more keys may stop; None if a key goes on behind its dead letter.
    """

    stopped: dict[int, int]
    through: int | None
    room: int | None
    buried: list[int] = field(default_factory=list)
    behind: dict[int, Sequences] = field(default_factory=dict)

    def gives_up(self, key: int, messages: list[int], poison: Collection[int]) -> bool:
        """Note what becomes dead letters of a key, and return whether nothing else of it is entered."""
        first = messages[0]
        if (at := self.stopped.get(key, first)) < first:
            later = messages if self.through is None else messages[: bisect_right(messages, self.through)]
        else:
            self.stopped.pop(key, None)
            if first not in poison or self.room == 0:
                return False
            self.buried.append(first)
            if self.room is None:
                return True
            self.room -= 1
            at, later = first, messages[1:]
            self.stopped[key] = at
        if later:
            self.behind[at] = self.behind.get(at, Sequences()) | Sequences.of(later)
        return True


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
