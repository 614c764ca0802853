# SPDX-License-Identifier: Apache-2.0
"""Gathering a batch: how many messages to ask for, when to renew leases, when the batch is complete or too old.

No I/O and no clock: :mod:`.take` reports the arrivals and their times, and carries out the decisions of
:class:`GatherWindow`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.moment import Moment
from jetstream_handoff.take.deliveries import Deliveries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetstream_client.consume.metadata import Metadata
    from jetstream_client.sequences import Sequences
    from jetstream_handoff.take.taking import Taking

# Seconds. Pull requests make up most of the cost of a waiting sensor. After two minutes a server unpins a client
# (ADR-42).
LONGEST_PULL = 100.0
LOOK = 1.0  # seconds that Take.look() waits for a first message
QUIET = 0.5  # seconds without a message after which no more are expected, unless two came that far apart before
_LEASED = 0.75  # a batch older than this part of ack_wait could be redelivered while it is entered
_HEARTBEAT = 15.0  # seconds between the server's heartbeats, as in nats.go's Consume; a pull that misses two is lost
_REFUSED = 1.0  # seconds within which the server reports that a pull is not permitted
_STALLED = 3.0  # seconds after which pending messages must be waiting for acknowledgements or for another client


class LeaseOver(Exception):
    """Some messages of the batch may have been delivered to another client."""


@dataclass(frozen=True)
class Batch:
    """The deliveries of a batch.

    since:     a moment after which every message was delivered or renewed.
    began:     when the first message arrived, on our clock.
    ack_wait:  the consumer's ``ack_wait``, in seconds.
    """

    deliveries: Deliveries
    since: Moment
    began: float
    ack_wait: float

    @cached_property
    def sequences(self) -> Sequences:
        return self.deliveries.ranges()

    @cached_property
    def counter(self) -> int:
        """The highest consumer sequence."""
        return self.deliveries.counter

    def check(self, at: Moment) -> None:
        """Raise LeaseOver if some of the messages may have been redelivered by that moment."""
        if self.since.age(at) > _LEASED * self.ack_wait:
            raise LeaseOver(
                f"the batch is older than {_LEASED:.0%} of ack_wait ({self.ack_wait:g} s), so its messages may have "
                "been redelivered; if this happens often, raise ack_wait, or lower min_messages or max_messages"
            )

    def halved(self) -> Batch:
        """Return a batch of the half of the messages with the lower sequences."""
        return replace(self, deliveries=self.deliveries.lower_half())


class GatherWindow:
    """Keeps track of one batch of a take. Times are seconds of the take's clock.

    Before each pull, the take reads the ledger's record and the consumer's INFO (:meth:`on_look`), and then opens the
    pull that :meth:`next_pull` describes. While the pull is open, the take waits for messages, each time for as long as
    :meth:`wait` says, and reports the arrived messages, if any (:meth:`on_messages`). If :meth:`renewal_due` returns
    True, it renews the leases (:meth:`on_renewed`). If ``wait`` returns 0, it stops the pull. If ``next_pull`` returns
    None, the :attr:`batch` is complete, or too few messages have arrived in time.

    deadline:     when gathering ends in any case.
    longest_pull: the longest duration of a pull that the consumer allows, in seconds.
    look:         whether to take only the messages that can be delivered now, however few, and messages that follow
                  within ``gather``.
    most:         the largest number of messages in the batch; default: ``max_messages``.
    """

    def __init__(
        self,
        taking: Taking,
        *,
        deadline: float,
        ack_wait: float,
        longest_pull: float,
        look: bool = False,
        most: int | None = None,
    ) -> None:
        self._taking = taking
        self._most = most or taking.max_messages
        self._deadline = self._patience = deadline
        self._ack_wait = ack_wait
        self._longest_pull = longest_pull
        self._look = look
        self._life: tuple[str, int] | None = None
        self._seen = self._since = Moment(0.0, 0)
        self._pulled = Deliveries()
        self._began = 0.0
        self._more_until = 0.0  # until when to wait for messages that the server still has
        self._latest = 0.0  # when the latest message arrived
        self._apart = 0.0  # the longest time between two arrivals
        self._quiet = _REFUSED  # how long to wait for a first message
        self._slow = False  # whether the last renewal took so long that the next one was due at its end
        self._over = False
        self._threshold = taking.threshold
        self._oldest = 0  # when the stream stored the oldest message

    @property
    def count(self) -> int:
        return len(self._pulled)

    @property
    def life(self) -> tuple[str, int]:
        """The life of the consumer in which the messages were delivered; there must have been a look."""
        return self._life or ("", 0)

    def enough(self, now: float) -> bool:
        """Whether enough messages have arrived: the batch has ``min_messages`` and ``min_bytes``, or is full, or its
        oldest message has waited for ``max_wait``."""
        return self.filled or self._threshold.enough(len(self._pulled), self._pulled.bytes, self.waited(now))

    @property
    def filled(self) -> bool:
        """Whether enough messages have arrived, however long they have waited."""
        count = len(self._pulled)
        return count >= self._most or self._threshold.reached(count, self._pulled.bytes)

    def waited(self, now: float) -> float:
        """Return for how many seconds the oldest message has waited: by the server's clock since it was stored, or by
        ours since the first one arrived, whichever is longer. So a server's clock that is set back does not prolong
        the wait."""
        return max(now - self._began, (self._seen.at(now).server - self._oldest) / 1e9)

    @property
    def batch(self) -> Batch:
        """The messages gathered so far."""
        return Batch(self._pulled, self._since, self._began, self._ack_wait)

    def on_look(self, life: tuple[str, int], at: Moment, *, elsewhere: bool) -> None:
        """Record what the take has read from the ledger and in INFO. Messages of an earlier life are dropped.

        life:      the consumer's present life.
        elsewhere: whether the ledger has claims that another try of the owner entered and that no attempt holds yet.

        Raises:
            LeaseOver: the batch was gathered too slowly.
        """
        if life != self._life:
            self._pulled = Deliveries()  # messages of an earlier life, which are redelivered
        if self._look and self._life is None:
            self._patience = min(self._deadline, at.ours + LOOK)
        self._life, self._seen = life, at
        if self._pulled:
            self.batch.check(at)
        elif elsewhere:
            self._patience = at.ours

    def next_pull(self, now: float) -> dict[str, Any] | None:
        """Return the parameters of the next pull; None if no more messages are needed."""
        if not self.wait(now):
            return None
        # A look is shorter than its pull request, because on a busy machine a pull can miss two heartbeats within a
        # second although the server sends them.
        expires = max(5.0 if self._look else 1.0, self._ends(now) - now)
        self._quiet = _REFUSED
        return self.request(min(self._most - len(self._pulled), self._taking.max_messages), expires)

    def request(self, batch: int, expires: float) -> dict[str, Any]:
        """Return the parameters of a pull of ``batch`` messages that lasts for ``expires`` seconds, if it may."""
        expires = min(self._longest_pull, expires)
        heartbeat = min(_HEARTBEAT, expires / 2.5, self._ack_wait / 4)
        return {"batch": batch, "expires": expires, "heartbeat": heartbeat, "priority": self._taking.priority}

    def wait(self, now: float) -> float:
        """Seconds to wait for more messages; 0 if no more are needed."""
        left = self._ends(now) - now
        if left <= 0 or self._over or len(self._pulled) >= self._most:
            return 0.0
        return max(0.01, min(left, min(1.0, self._ack_wait / 10) if self._pulled else self._quiet))

    def _ends(self, now: float) -> float:
        """Return the time at which the batch is handed over if nothing else arrives.

        Until then, the take fetches the messages that the server has, and waits for others: for ``gather`` after the
        first one, or, if there are :meth:`enough`, until nothing has arrived for ``QUIET`` seconds and for twice as
        long as between any two messages so far. After a renewal that took too long, a batch that is :meth:`enough` is
        handed over at once, because the leases of a larger batch would end before it is entered.
        """
        if not self._pulled:
            return self._patience
        if self.enough(now) and self._slow:
            return self._began
        gathered = self._began + self._taking.gather.total_seconds()
        if self.enough(now):
            gathered = min(gathered, self._latest + max(QUIET, 2 * self._apart))
        gathered = max(gathered, self._more_until)
        if self._look or self.enough(now):
            return min(self._deadline, gathered)
        left = self._threshold.left(self.waited(now))
        return self._deadline if left is None else min(self._deadline, max(gathered, now + max(0.01, left)))

    def on_messages(self, arrived: Iterable[Metadata], now: float, *, silence: float, pending: int | None) -> None:
        """Record the messages that have arrived by ``now``, if any.

        arrived: the messages, in groups that arrived together.
        silence: the longest time so far without a message or heartbeat of this pull. No message was in transit for
                 longer than this.
        pending: how many more messages the server can deliver; None if no message has arrived or the pull was stopped.
        """
        before, began = len(self._pulled), not self._pulled
        for together in arrived:
            oldest = min(together.times)
            self._oldest = min(self._oldest, oldest) if self._pulled else oldest
            self._pulled.add(together)
        self._quiet = self._longest_pull
        if pending is not None:
            self._more_until = now + _STALLED if pending else 0.0
        if len(self._pulled) > before:
            self._apart = 0.0 if began else max(self._apart, now - self._latest)
            self._latest = now
        if began and self._pulled:
            self._since, self._began, self._slow = self._seen.at(now - silence), now, False

    def end(self) -> None:
        """Record that no message that could follow belongs to the batch."""
        self._over = True

    def said(self, now: float) -> str:
        """Return how many messages have arrived and for how long they have waited, in words."""
        return self._threshold.said(len(self._pulled), self._pulled.bytes, self.waited(now))

    def renewal_due(self, now: float) -> bool:
        return bool(self._pulled) and now - self._since.ours > self._ack_wait / HEARTBEATS

    def on_renewed(self, began: Moment, ended: Moment) -> None:
        """Record that the leases of all messages delivered before ``began`` were renewed between these moments.

        Raises:
            LeaseOver: a lease may have ended before it was renewed.
        """
        self.batch.check(ended)
        self._since, self._seen = began, ended
        took = ended.ours - began.ours
        self._slow = took > self._ack_wait / HEARTBEATS
        self._latest += took  # renewing many leases takes seconds, during which nothing is received
        if self._more_until:
            self._more_until += took
