# SPDX-License-Identifier: Apache-2.0
"""What the record of a consumer knows about the order per key: the rule, the take that gathers, and which open claims
a new batch need not wait for. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.record import OpenEntry

_SETTLED_IN = 10**9  # nanoseconds; as long as the ledger believes no counter, it does not believe this either
_LONGEST_RULE = 1_000
HELD = 60.0
"""Seconds for which the messages of stopped keys wait after a resume has last said that it goes on."""
MOST_STOPPED = 1_000
"""How many keys may be stopped at the same time: about 30 KB of the record. The messages of further keys wait."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a consumer's messages.

    by:         the key rule of every take (:class:`~.rules.order_key.OrderKey`).
    gathering:  the take that gathers a batch or waits for one, and when it last said so; None if there is none.
    gone:       the ids of open claims that a new batch does not wait for: the server has none of their messages to
                deliver, because they were removed.
    claims:     the number of claims of the last batch, for people.
    stopped:    for the digest of each stopped key (:func:`~.take.by_key.digest`), the sequence of the message that was
                given up. All later messages of the key become dead letters.
    resuming:   a resume (:mod:`~.repair.resume`) in progress: messages of stopped keys after this sequence wait; the
                token of the resume; and when it last said that it goes on. None if there is none.
    """

    by: str
    gathering: tuple[str, str] | None = None
    gone: tuple[str, ...] = ()
    claims: int = 0
    stopped: Mapping[str, int] = field(default_factory=dict, hash=False)
    resuming: tuple[int, str, str] | None = None

    def gathers(self, take: str) -> bool:
        """Whether this take was the last one to say that it gathers."""
        return self.gathering is not None and self.gathering[0] == take

    def taken(self, take: str, now: str, for_nanoseconds: float) -> bool:
        """Whether another take gathers, and said so within this time. A time in the future does not count."""
        if self.gathering is None or self.gathers(take):
            return False
        return 0 <= time_nanoseconds(now) - time_nanoseconds(self.gathering[1]) < for_nanoseconds

    def through(self, now: str) -> int | None:
        """After which sequence the messages of stopped keys wait; None if none wait, because no resume is in
        progress. One with a time in the future does not count."""
        if self.resuming is None or not 0 <= time_nanoseconds(now) - time_nanoseconds(self.resuming[2]) < HELD * 1e9:
            return None
        return self.resuming[0]

    def left_by(self, take: str) -> Order:
        """Return the order after this take has ended."""
        return replace(self, gathering=None) if self.gathers(take) else self

    def blocking(self, entries: Mapping[str, OpenEntry], info: ConsumerInfo) -> dict[str, OpenEntry]:
        """The open claims that a new batch waits for."""
        return {
            claim_id: entry
            for claim_id, entry in entries.items()
            if claim_id not in self.gone and entry.sequences.last > info.floor
        }

    def without_gone(self, entries: Mapping[str, OpenEntry], info: ConsumerInfo) -> Order:
        """Return the order in which it is noted of which open claims the server has nothing to deliver any more: of all
        that it has delivered, if nothing is unacknowledged."""
        gone = {each for each in self.gone if each in entries}
        if not info.ack_pending:
            gone |= {each for each, entry in entries.items() if _delivered(entry, info)}
        return replace(self, gone=tuple(sorted(gone)))

    def to_json(self) -> dict[str, Any]:
        gathering = list(self.gathering) if self.gathering else None
        value = {"by": self.by, "gathering": gathering, "gone": list(self.gone), "claims": self.claims}
        newer = {"stopped": dict(self.stopped), "resuming": list(self.resuming or ())}
        return {**value, **{name: each for name, each in newer.items() if each}}

    @classmethod
    def from_json(cls, value: Any) -> Order:
        """The reverse of :meth:`to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        by, gathering, gone, claims = (value[each] for each in ("by", "gathering", "gone", "claims"))
        known = isinstance(by, str) and 0 < len(by) <= _LONGEST_RULE and isinstance(gone, list)
        if not known or not all(isinstance(each, str) for each in gone) or type(claims) is not int or claims < 0:
            raise ValueError("not an order")
        stopped = value.get("stopped", {})
        if not isinstance(stopped, dict) or not all(type(at) is int and at > 0 for at in stopped.values()):
            raise ValueError("not an order")
        if gathering is not None:
            take, at = gathering
            if not isinstance(take, str):
                raise ValueError("not an order")
            time_nanoseconds(at)
            gathering = (take, at)
        resuming = value.get("resuming")
        if resuming is not None:
            through, token, at = resuming
            if type(through) is not int or through < 0 or not isinstance(token, str):
                raise ValueError("not an order")
            time_nanoseconds(at)
            resuming = (through, token, at)
        return cls(by, gathering, tuple(gone), claims, stopped, resuming)


def _delivered(entry: OpenEntry, info: ConsumerInfo) -> bool:
    """Whether the server has delivered all messages of a claim and has not forgotten it, as a killed one can."""
    old = time_nanoseconds(info.now) - time_nanoseconds(entry.at) >= _SETTLED_IN
    return old and entry.sequences.last <= info.delivered and entry.counter <= info.counter
