"""What waits to be claimed from a consumer, as server and ledger show it. Nothing is pulled, nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound
from jetstream_client.sequences import Sequences
from jetstream_client.times import nanoseconds, time_nanoseconds
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.ledger import Ledger

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.record import Record

AT_WORK = LONGEST_HOLD
"""How long a claim that is held counts as being worked on: as long as a hold lasts by default. A worker that was killed
in its last try leaves its claim behind like this."""
AWAITING_TASK = 4 * HAND_OFF_TIMEOUT
"""How long a claim that nobody holds counts as waiting for its task, or for a retry: four times the default lease."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What could be claimed from a consumer at one moment.

    new:          messages that were never delivered, and would be. While there is no consumer, all of the stream.
    again:        messages that were delivered, not acknowledged, and are in no open claim: those of claims that failed.
    pulls:        pull requests that wait at the consumer. Whoever sent them gets what comes.
    created:      when the consumer was created, RFC 3339; empty while there is none.
    counter:      deliveries so far. Another one means that somebody has pulled.
    floor, ack_pending:  as the server's INFO has them.
    """

    new: int
    again: int = 0
    pulls: int = 0
    created: str = ""
    counter: int = 0
    floor: int = 0
    ack_pending: int = 0

    @property
    def count(self) -> int:
        """How many messages could be claimed."""
        return self.new + self.again

    def steady(self, before: Backlog | None) -> Backlog:
        """The same, with ``again`` only if the consumer has not moved since ``before``.

        What a sensor has pulled and not yet entered, and what is being acknowledged for a settled claim, is in no open
        claim either; but then the counters move. Besides, server and ledger are asked one after the other.
        """
        if before is not None and before._place == self._place:
            return self
        return replace(self, again=0)

    @property
    def _place(self) -> tuple[str, int, int, int]:
        return self.created, self.counter, self.floor, self.ack_pending


async def measure(js: JetStream, stream: str, consumer: str) -> Backlog:
    """Measure how much could be claimed now: one request, and another for the record if messages are unacknowledged.

    The record may count a few more messages in a claim than it has (:mod:`.record` joins ranges): what failed beside
    such a claim is then seen when that claim has ended.

    Raises:
        StreamNotFound: there is no such stream.
        LedgerUnavailable: the ledger is there and cannot be read.
        JetStreamError: the server is away, or refuses.
    """
    ledger = Ledger(js, stream, consumer)
    try:
        info = await ledger.consumer.info()
    except ConsumerNotFound:  # the first sensor will create it
        return Backlog(new=int((await ledger.stream.info()).state["messages"]))
    full = 0 < info.config.get("max_ack_pending", 0) <= info.ack_pending
    again = max(0, info.ack_pending - await _claimed(ledger, info)) if info.ack_pending else 0
    return Backlog(
        new=0 if full or info.paused else info.pending,
        again=0 if info.paused else again,
        pulls=int(info.raw.get("num_waiting", 0)),
        created=info.created,
        counter=info.counter,
        floor=info.floor,
        ack_pending=info.ack_pending,
    )


async def _claimed(ledger: Ledger, info: ConsumerInfo) -> int:
    """How many unacknowledged messages are in claims on which somebody works, or will."""
    record = await ledger.known()
    return 0 if record is None or record.new_life(info) else claimed(record, info)


def claimed(record: Record, info: ConsumerInfo) -> int:
    """As the record has it. A claim that could not be settled, because the consumer was reset since, is none."""
    now = time_nanoseconds(info.now)
    acknowledged = Sequences.from_ranges([(1, info.floor)] if info.floor else [])
    return sum(
        (entry.sequences - acknowledged).count
        for entry in record.open.values()
        if entry.counter <= info.counter
        and entry.sequences.last <= info.delivered
        and abs(now - time_nanoseconds(entry.at)) < nanoseconds(AT_WORK if entry.token is not None else AWAITING_TASK)
    )
