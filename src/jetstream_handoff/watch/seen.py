# SPDX-License-Identifier: Apache-2.0
"""A claim as the ledger and the server show it, and what happens to it next. No I/O."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetstream_client.times import seconds_between
from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.ledger.history import History
from jetstream_handoff.take.barrier import Barrier
from jetstream_handoff.take.conservation import again

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.sequences import Sequences
    from jetstream_handoff.ledger.record import OpenEntry, Receipt, Record

OFTEN = 2
"""How many claims with the same messages end neither settled nor failed before that is reported."""
IF_UNSETTLED = (
    "Read the log of its task: if it skips messages because there is nothing to do for them, let it settle the claim "
    "instead; if no attempt holds these claims, find out why the task does not run."
)

PASSED = (
    "the server will not deliver its messages again: another client has acknowledged them, they were removed from the "
    "stream, or the server has given their deliveries up and the stream was purged after that"
)
"""What it means that the floor has passed an open claim."""


def after_passed(info: ConsumerInfo | None, first: int) -> str:
    """Return the remedy for an open claim that the floor has passed, or for several; ``first`` is their first
    sequence."""
    return f"If they are still in the stream, {again(info, first)}."


@dataclass(frozen=True)
class Seen:
    """A claim as the ledger and the server show it at one moment.

    state:      ``open``, ``done``, ``failed`` or ``superseded``.
    now:        the server's time, RFC 3339.
    entry:      the entry of an open claim.
    receipt:    the receipt of any other claim. For a done claim that has no receipt yet, the receipt that it will get.
    info:       the consumer; None if it does not exist or could not be read.
    current:    False if an open claim can no longer be settled, because its consumer does not exist, or was recreated
                or reset.
    alive:      whether the attempt that holds the claim is alive; None if that is unknown (:func:`listen`).
    overlapping:  the ids of other open claims of the consumer that contain some of its messages now.
    barrier:    for an open claim for which the next batch of a consumer with ``ordered_by`` waits, all that it waits
                for; None for any other claim.
    """

    id: str
    state: str
    stream: str
    consumer: str
    sequences: Sequences = field(repr=False)
    now: str
    entry: OpenEntry | None = None
    receipt: Receipt | None = None
    info: ConsumerInfo | None = None
    current: bool = True
    alive: bool | None = None
    overlapping: tuple[str, ...] = ()
    barrier: Barrier | None = field(default=None, repr=False)

    @property
    def history(self) -> History:
        """The owner for which the claim was taken, and the attempts that held it; empty if the ledger does not know."""
        if self.entry is not None:
            return self.entry.whole_history
        return self.receipt.history if self.receipt else History()

    @property
    def since(self) -> str:
        """For an open claim, when it was entered or last handed on; for a done claim, when it was settled. Empty if the
        ledger does not contain the time."""
        if self.entry is not None:
            return self.entry.at
        return self.receipt.at if self.receipt else ""

    @property
    def age(self) -> float | None:
        """Seconds since the time :attr:`since`, on the server's clock; None if that time is unknown."""
        return seconds_between(self.since, self.now) if self.since else None

    @property
    def holder(self) -> str | None:
        """The token of the attempt that works on the claim: the number of its try and a random string."""
        return self.entry.token if self.entry else self.receipt.again if self.receipt else None

    @property
    def unsettled(self) -> int:
        """How many claims with messages of this open claim have ended neither settled nor failed, this one included."""
        return self.entry.unsettled + self.entry.is_released if self.entry else 0

    @property
    def why_unsettled(self) -> str:
        """What it means that claims end neither settled nor failed, in a sentence; empty if it happened only once."""
        if self.entry is None or self.unsettled < OFTEN:
            return ""
        skipped = self.entry.history.skipped if self.entry.is_released else ""
        last = f"; the last attempt, {skipped}, skipped its work" if skipped else ""
        return f"its messages were delivered in {self.unsettled} claims that ended neither settled nor failed{last}"

    @property
    def passed(self) -> bool:
        """Whether the consumer's floor has passed all messages of an open claim, which is not settled."""
        return self.entry is not None and self.info is not None and self.sequences.last <= self.info.floor

    @property
    def silence(self) -> float:
        """Seconds without a heartbeat after which an attempt counts as dead."""
        wait = self.info.config["ack_wait"] / 1e9 if self.info else 60.0
        return float(wait / HEARTBEATS * 1.5)

    @property
    def next(self) -> str:
        """The next change of the claim if nobody intervenes, in words."""
        if self.entry is not None:
            blocks = f" The next batch {self.barrier.brief}." if self.barrier else ""
            return _next_of_open(self, self.entry) + blocks
        assert self.receipt is not None  # noqa: S101 - a claim that is not open has a receipt
        if self.state == "failed":
            return "Its last attempt failed. Its messages were or will be redelivered in other claims."
        if self.state == "superseded":
            return "Its messages were or will be redelivered in other claims. Nothing more happens to this claim."
        above = self.sequences.last > self.info.floor if self.info else False
        said = f"It is settled, and the output of attempt {self.receipt.attempt_id} counts."
        if not self.receipt.processed:
            said = "It is settled, and it has no output, because all its messages became dead letters or were skipped."
        if self.receipt.again:
            said += (
                f" Attempt {self.receipt.again} is processing the claim again; if this attempt succeeds, its output "
                "counts instead."
            )
        if above:
            said += " Messages that are not acknowledged yet may be redelivered; the next take acknowledges them."
        return said


def revision(seen: Seen) -> str:
    """Return a fingerprint of everything that an action on the claim depends on. An action that was chosen for another
    revision must be refused, because the claim has changed since.

    seen:  the claim. Whether it is alive does not change the fingerprint.
    """
    settled_by = seen.receipt.token if seen.receipt else None
    attempts = [attempt.token for attempt in seen.history.attempts]
    holder = (seen.holder, seen.since, settled_by, attempts, seen.history.released)
    return fingerprint(seen.id, seen.state, seen.current, *holder)


def fingerprint(*state: object) -> str:
    """Return 16 hexadecimal digits that change with the state, which consists of JSON values."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _next_of_open(seen: Seen, entry: OpenEntry) -> str:
    if not seen.current:
        gone = "does not exist" if seen.info is None else "was recreated or reset"
        return f"It cannot be settled, because its consumer {gone}. The next take supersedes it."
    if seen.info is None:
        return "What happens next is unknown, because its consumer could not be read."
    return _next_of_current(seen, entry, seen.info.config["ack_wait"] / 1e9)


def _next_of_current(seen: Seen, entry: OpenEntry, wait: float) -> str:
    if entry.is_released:
        skipped = entry.history.skipped
        how = f"Attempt {skipped} skipped its work" if skipped else "It was released by hand"
        then = "so its messages are redelivered to the next take, in another claim"
        return f"{how}, {then}. Until then, its task can still hold it."
    if entry.token is None:
        return (
            "No attempt holds it. It waits for its task or for a retry. If none begins before its lease ends, its "
            "messages are redelivered to the next take, in another claim."
        )
    if seen.alive:
        return f"Attempt {entry.token} is alive. It settles the claim when its work has succeeded."
    silent = "sent no heartbeat" if seen.alive is False else "holds it"
    return (
        f"Attempt {entry.token} {silent}. If the attempt is dead, the messages are redelivered {wait:g} s after its "
        "last heartbeat to the next take, in another claim, unless a retry of the task holds the claim first."
    )


def opened(
    stream: str, consumer: str, record: Record, now: str, info: ConsumerInfo | None, *, readable: bool = True
) -> list[Seen]:
    """Return the open claims of a record, in the record's order. No I/O.

    stream, consumer:  the names of the record's stream and consumer.
    record:            the record.
    now:               the server's time, RFC 3339.
    info:              the consumer; None if it does not exist or could not be read.
    readable:          whether the consumer could be read. Otherwise it counts as the one that the record knows.
    """
    current = not record.new_life(info) if info else not readable
    barrier = Barrier.seen(record, info)
    blocking = barrier.blocking if barrier else ()
    return [
        Seen(
            each,
            "open",
            stream,
            consumer,
            entry.sequences,
            now,
            entry=entry,
            info=info,
            current=current,
            barrier=barrier if each in blocking else None,
        )
        for each, entry in record.open.items()
    ]
