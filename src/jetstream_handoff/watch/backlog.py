# SPDX-License-Identifier: Apache-2.0
"""The number of messages that could be claimed from a consumer, according to the server and the ledger.

Nothing is pulled or written.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from jetstream_client.errors import ApiError, ConsumerNotFound, PermissionDenied
from jetstream_client.filters import filters_of
from jetstream_client.sequences import Sequences
from jetstream_client.times import nanoseconds, time_nanoseconds
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.barrier import Barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_client.stream import Stream
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import OpenEntry, Record

AT_WORK = LONGEST_HOLD
"""How long a claim that an attempt holds counts as being worked on: the default longest hold, counted from the time at
which the claim was entered or last handed on. Without a limit, the claim of a worker that was killed in its last try
would count forever."""
AWAITING_TASK = 4 * HAND_OFF_TIMEOUT
"""How long a claim that no attempt holds counts as one that waits for its task or for a retry: four times the default
lease.
"""

_LISTED = 10_000
"""Of a stream with at most this many subjects, those that match a filter are listed to count their messages."""
_ABANDONED = nanoseconds(timedelta(seconds=10))


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many messages could be claimed from a consumer at one moment.

    new:          number of messages that were never delivered and that a pull would receive now. While the consumer
                  does not exist, these are all messages of the stream that its filter selects.
    again:        number of delivered messages that are neither acknowledged nor in an open claim, such as the messages
                  of failed claims.
    pulls:        number of pull requests that wait at the consumer; they receive the next messages.
    created:      when the consumer was created, RFC 3339; empty while the consumer does not exist.
    counter:      number of deliveries so far. It changes with every pull that receives messages.
    floor, ack_pending:  the acknowledgement floor and the number of unacknowledged messages, from the server's INFO.
    orphans:      the owners whose runs have ended, of open claims that no attempt holds. A take with these
                  ``predecessors`` hands the claims on.
    waited:       for how many seconds the oldest of these messages has waited; 0 unless it was asked for
                  (:mod:`.oldest`).
    """

    new: int
    again: int = 0
    pulls: int = 0
    created: str = ""
    counter: int = 0
    floor: int = 0
    ack_pending: int = 0
    orphans: tuple[Owner, ...] = ()
    waited: float = 0.0

    @property
    def count(self) -> int:
        """Number of messages that could be claimed."""
        return self.new + self.again

    def steady(self, before: Backlog | None) -> Backlog:
        """Return the same backlog, with ``again`` set to 0 unless the consumer's counters equal those of ``before``.

        ``again`` also includes messages that a sensor has pulled and not yet entered in the ledger, and messages of a
        settled claim whose acknowledgements are in transit. In both cases the consumer's counters soon change. They can
        also change between the request to the server and the request to the ledger.
        """
        if before is not None and before._place == self._place:
            return self
        return replace(self, again=0)

    @property
    def _place(self) -> tuple[str, int, int, int]:
        return self.created, self.counter, self.floor, self.ack_pending


@dataclass(frozen=True, slots=True)
class Look:
    """What the server and the ledger show of a consumer at one moment, before anything is known of its runs.

    info:     the consumer's INFO; None while the consumer does not exist.
    record:   its record; None if there is none of its present life.
    stored:   number of messages of the stream that its filter selects, while the consumer does not exist.
    now:      the server's time, in nanoseconds since 1970.
    filters:  the subjects that the consumer selects.
    """

    info: ConsumerInfo | None
    record: Record | None = None
    stored: int = 0
    now: int = 0
    filters: tuple[str, ...] = (">",)

    @classmethod
    def of(cls, info: ConsumerInfo, record: Record | None) -> Look:
        """Return the look at a consumer that exists.

        info:    its INFO.
        record:  its record in the ledger; None if there is none, or if no message is unacknowledged.
        """
        filters = filters_of(info.config)
        known = None if record is None or record.new_life(info) else record
        return cls(info, known, now=time_nanoseconds(info.now), filters=tuple(filters))

    @property
    def entries(self) -> tuple[OpenEntry, ...]:
        """The open claims."""
        return tuple(self.record.open.values()) if self.record else ()

    @property
    def owners(self) -> set[Owner]:
        """The owners of the open claims."""
        return {entry.owner for entry in self.entries}

    def backlog(self, ended: Callable[[Owner], bool]) -> Backlog:
        """Return how many messages could be claimed.

        ended:  as in :func:`measure`.
        """
        info, waits = self.info, self.waiting(ended)
        if info is None:
            return waits
        new = waits.new if info.deliverable and not info.paused else 0
        return replace(waits, new=new, again=0 if info.paused else waits.again)

    def waiting(self, ended: Callable[[Owner], bool]) -> Backlog:
        """Return how many messages wait, whether or not they could be claimed now: also those that the server does not
        deliver while the consumer is paused, or while as many as ``max_ack_pending`` are unacknowledged.

        ended:  as in :func:`measure`.
        """
        info = self.info
        if info is None:
            return Backlog(new=self.stored)
        over = {owner for owner in self.owners if ended(owner)}
        working = claimed(self._of_others(over), info)
        orphaned = [entry.owner for entry in self.entries if entry.token is None and entry.owner in over]
        return Backlog(
            new=info.pending,
            again=max(0, info.ack_pending - working),
            pulls=int(info.raw.get("num_waiting", 0)),
            created=info.created,
            counter=info.counter,
            floor=info.floor,
            ack_pending=info.ack_pending,
            orphans=tuple(dict.fromkeys(orphaned)),
        )

    def barrier(self, ended: Callable[[Owner], bool]) -> Barrier | None:
        """Return what a take would wait for that begins now; None if it would take messages, or could find out that
        the leases of all claims that block have ended, which only a take finds out.

        The lease of a claim that an attempt holds may have ended if no heartbeat has reached the server for
        ``ack_wait``.

        ended:  as in :func:`measure`.
        """
        barrier = Barrier.seen(self.record, self.info)
        if barrier is None:
            return None
        quiet, ack_wait = barrier.info.quiet, barrier.info.config["ack_wait"] / 1e9
        beats = quiet is not None and quiet <= ack_wait
        working = at_work((each for each in barrier.blocking.values() if not ended(each.owner)), barrier.info)
        return barrier if any(beats or each.token is None for each in working) else None

    def first(self, ended: Callable[[Owner], bool], *, again: bool) -> int:
        """Return the sequence before which there is no message that could be claimed.

        Subjects that the consumer does not select, and deleted messages, may make it lower than necessary.

        ended:  as in :func:`measure`.
        again:  whether delivered messages count.
        """
        if self.info is None:
            return 1
        new = self.info.delivered + 1
        if not again:
            return new
        others = self._of_others({owner for owner in self.owners if ended(owner)})
        rest = Sequences.from_ranges([(self.info.floor + 1, new)])
        if self.record:
            rest -= self.record.all_settled.sequences
        for entry in at_work(others, self.info):
            rest -= entry.sequences
        return rest.first if rest else new

    def _of_others(self, over: set[Owner]) -> list[OpenEntry]:
        return [entry for entry in self.entries if entry.owner not in over]


async def look(js: JetStream, stream: str, consumer: str, subject: str | None = None) -> Look:
    """Look at a consumer, as :func:`measure` does."""
    ledger = Ledger(js, stream, consumer)
    try:
        info = await ledger.consumer.info()
    except ConsumerNotFound:  # the first sensor will create it
        found = await ledger.stream.info()
        stored = int(found.state["messages"]) if subject is None else await _count(ledger.stream, found, subject)
        return Look(None, stored=stored, now=time_nanoseconds(found.now), filters=(subject or ">",))
    return Look.of(info, await ledger.known() if info.ack_pending else None)


async def _count(stream: Stream, info: StreamInfo, subject: str) -> int:
    """How many stored messages match the filter. A consumer knows it at once, and is deleted again; to list a million
    subjects takes the server 40 seconds. With another retention than ``limits``, a consumer would change what the
    stream keeps."""
    if info.state.get("num_subjects", 0) > _LISTED and info.config.get("retention", "limits") == "limits":
        config = {
            "ack_policy": "none",
            "filter_subject": subject,
            "mem_storage": True,
            "inactive_threshold": _ABANDONED,
        }
        with suppress(ApiError, PermissionDenied):  # then its subjects are listed
            consumer = await stream.create_consumer(config)
            pending = (await consumer.info()).pending
            await consumer.delete()
            return pending
    return sum(((await stream.info(subjects_filter=subject)).state.get("subjects") or {}).values())


def unknown(owner: Owner) -> bool:  # noqa: ARG001
    """What :func:`measure` is told of the runs where nothing is known of them: none has ended."""
    return False


async def measure(
    js: JetStream,
    stream: str,
    consumer: str,
    ended: Callable[[Owner], bool] = unknown,
    subject: str | None = None,
) -> Backlog:
    """Measure how many messages could be claimed now.

    This requests the consumer's INFO, and also reads the ledger's record if messages are unacknowledged.

    ended:  whether the run of an owner has ended, and will not be continued. The messages of its open claims count as
            claimable. Default: unknown for all owners, so that claims count as worked on for a limited time. It is
            called in the event loop. To ask a database for the runs of many consumers, use :func:`look`.
    subject:  the filter that the consumer will have, if it does not exist yet. Default: no filter.

    Raises:
        StreamNotFound: the stream does not exist.
        LedgerUnavailable: the ledger exists but cannot be read.
        JetStreamError: the server does not answer, or refuses the request.
    """
    return (await look(js, stream, consumer, subject)).backlog(ended)


def at_work(entries: Iterable[OpenEntry], info: ConsumerInfo) -> list[OpenEntry]:
    """The open claims that an attempt works on or will work on.

    Claims that can no longer be settled after a reset of the consumer are not among them, nor are claims that a person
    has released, because their messages are redelivered.
    """
    now = time_nanoseconds(info.now)
    return [
        entry
        for entry in entries
        if not entry.is_released
        and entry.counter <= info.counter
        and entry.sequences.last <= info.delivered
        and abs(now - time_nanoseconds(entry.at)) < nanoseconds(AT_WORK if entry.token is not None else AWAITING_TASK)
    ]


def claimed(entries: Iterable[OpenEntry], info: ConsumerInfo) -> int:
    """Number of unacknowledged messages in the open claims of :func:`at_work`."""
    acknowledged = Sequences.from_ranges([(1, info.floor)] if info.floor else [])
    return sum((entry.sequences - acknowledged).count for entry in at_work(entries, info))
