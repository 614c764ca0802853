# SPDX-License-Identifier: Apache-2.0
"""What the next batch of a consumer with ``ordered_by`` waits for: which claims, of whom, since when, and how many
messages wait behind them. No I/O.

The log of a take, the page, the command line, the metrics and a sensor that requests runs say what is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jetstream_client.quantities import lasting, number
from jetstream_client.sequences import Sequences
from jetstream_client.times import seconds_between, time_nanoseconds
from jetstream_handoff.ledger.history import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import OpenEntry, Record

_NAMED = 3
"""How many claims a sentence names."""


@dataclass(frozen=True)
class Barrier:
    """What the next batch of a consumer waits for, at one moment.

    blocking:  the open claims that must end first, by their ids; the one that has been open longest first.
    of:        the number of claims in their batch.
    info:      the consumer at that moment.
    """

    blocking: Mapping[str, OpenEntry]
    of: int
    info: ConsumerInfo

    @classmethod
    def seen(cls, record: Record | None, info: ConsumerInfo | None) -> Barrier | None:
        """Return what the next batch waits for; None if nothing blocks it, or if the consumer has no order.

        record:  the consumer's record in the ledger; None if there is none, or if it could not be read.
        info:    the consumer; None if it does not exist or could not be read.
        """
        if record is None or record.order is None or info is None or record.new_life(info):
            return None
        blocking = record.order.blocking(record.open, info)
        if not blocking:
            return None
        oldest = dict(sorted(blocking.items(), key=lambda item: time_nanoseconds(item[1].whole_history.taken)))
        return cls(oldest, max(record.order.claims, len(oldest)), info)

    @property
    def first(self) -> str:
        """The id of the claim that has been open longest."""
        return next(iter(self.blocking))

    @property
    def held(self) -> bool:
        """Whether an attempt holds this claim."""
        return self.blocking[self.first].token is not None

    @property
    def by(self) -> Owner:
        """The task that holds or held this claim; if that is unknown, or if there is none, the claim's owner."""
        return self.blocking[self.first].by

    @property
    def age(self) -> float:
        """Seconds since this claim was taken, on the server's clock."""
        return self._since(self.blocking[self.first].whole_history.taken)

    @cached_property
    def waiting(self) -> int:
        """How many messages wait for the next batch: those that were never delivered, and those that were delivered and
        are in no claim that blocks. Acknowledgements on their way count, too, until the server knows them."""
        passed = Sequences.from_ranges([(1, self.info.floor)] if self.info.floor else [])
        claimed = sum((entry.sequences - passed).count for entry in self.blocking.values())
        return self.info.pending + max(0, self.info.ack_pending - claimed)

    @property
    def count(self) -> str:
        """How many claims block: ``1 of 8 claims``."""
        return f"{len(self.blocking)} of {number(self.of, 'claim')}"

    @property
    def queue(self) -> str:
        """How many messages wait: ``12,400 messages wait``."""
        return f"{number(self.waiting, 'message')} {'waits' if self.waiting == 1 else 'wait'}"

    @property
    def brief(self) -> str:
        """What is waited for, in words, without the names of tasks."""
        return f"waits for {self.count} (ordered_by), and {self.queue} for it"

    @property
    def text(self) -> str:
        """What is waited for, in words, with the names of the tasks."""
        entries = list(self.blocking.items())
        named = "; ".join(f"{claim_id}, {self._held(entry)}" for claim_id, entry in entries[:_NAMED])
        more = f"; {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
        return f"waits for {len(self.blocking)} of {number(self.of, 'claim')} ({named}{more}); {self.queue}"

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, and the ids of the claims, as JSON."""
        return {
            "claims": list(self.blocking),
            "of": self.of,
            "seconds": round(self.age, 1),
            "waiting": self.waiting,
        }

    def _held(self, entry: OpenEntry) -> str:
        """The holder of a claim, and for how long it has held it."""
        if entry.is_released:
            return f"released, and not taken for {lasting(self._since(entry.history.released))}"
        if entry.token is None:
            return f"taken by {entry.taken_by} and not held, for {lasting(self._since(entry.at))}"
        attempt = entry.history.attempt(entry.token)
        holder = readable(attempt.by) or entry.token
        return f"held by {holder}, for {lasting(self._since(attempt.at or entry.at))}"

    def _since(self, at: str) -> float:
        return max(0.0, seconds_between(at, self.info.now))
