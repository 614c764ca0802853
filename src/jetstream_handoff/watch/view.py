# SPDX-License-Identifier: Apache-2.0
"""What a page shows of streams and consumers at one moment, as values. No I/O.

Strings in these values come from messages, the ledger and the server: they were written by others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from jetstream_client.times import time_nanoseconds
from jetstream_handoff.take.barrier import Barrier
from jetstream_handoff.watch.seen import Seen, opened
from jetstream_handoff.watch.stopped import StoppedKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import Record

Kind = Literal[
    "paused_consumer",
    "no_puller",
    "unheld",
    "awaiting_retry",
    "released",
    "unsettled",
    "barrier",
    "stopped",
    "full",
    "growing",
    "old_claim",
    "dead_holder",
    "failing",
    "dead_letters",
    "consumer_missing",
    "reset",
    "given_up",
    "passed",
    "storage",
    "unreceipted",
    "unsuitable",
    "edited",
    "uncounted",
    "unreadable_record",
    "permission",
    "ledger",
    "unreachable",
]


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something that is stuck, or that will be. Its sentences name no task, because not everybody may see every task.

    kind:    the kind.
    level:   ``error`` if messages wait until somebody acts; ``warning`` if that is possible.
    cause:   one sentence: the cause, as far as it is known.
    effect:  sentences: what that does to which messages, with the names of stream and consumer, unless ``cause`` has
             them.
    remedy:  one sentence: what to do.
    claim:   the id of the claim that a repair would act on; empty if there is none.
    by:      the task that it concerns: that of the attempt that holds or held the claim, or the owner of a claim; empty
             if there is none, or if it is unknown.
    """

    kind: Kind
    level: Literal["error", "warning"]
    cause: str
    effect: str
    remedy: str
    claim: str = ""
    by: Owner = ()

    @property
    def text(self) -> str:
        """What is the case: the cause and its effect."""
        return f"{self.cause} {self.effect}".strip()


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of a consumer at one moment.

    at:           the server's time in seconds since 1970.
    life:         when the consumer was created.
    pending:      number of messages that were never delivered.
    ack_pending:  number of messages that were delivered and not acknowledged.
    redelivered:  number of these that were delivered more than once.
    counter:      number of deliveries so far.
    claimed:      number of messages in open claims.
    held:         number of messages in claims that attempts hold.
    quiet:        as :attr:`ConsumerInfo.quiet`.
    """

    at: float
    life: str
    pending: int
    ack_pending: int
    redelivered: int
    counter: int
    claimed: int
    held: int = 0
    quiet: float | None = None

    @classmethod
    def of(cls, info: ConsumerInfo, claimed: int, held: int) -> Sample:
        """Return the numbers of this INFO."""
        at = time_nanoseconds(info.now) / 1e9
        redelivered = int(info.raw.get("num_redelivered", 0))
        counts = (info.pending, info.ack_pending, redelivered, info.counter)
        return cls(at, info.created, *counts, claimed, held, info.quiet)


@dataclass(frozen=True)
class ConsumerView:
    """A consumer from which claims are taken.

    stream, consumer:  the names.
    now:               the server's time, RFC 3339.
    info:              the consumer; None if it does not exist or could not be read.
    record:            its record in the ledger; None if it has none, or if it could not be read.
    usual:             seconds for which a claim of this consumer is usually held, the median of the claims that were
                       settled lately; None if unknown.
    dead_letters:      number of its dead letters, as far as they were counted.
    samples:           the numbers of the last minutes, the oldest first.
    findings:          what is stuck, errors first.
    readable:          whether ``info`` could be read. Otherwise it is unknown whether the consumer exists.
    waited:            for how many seconds the oldest message has waited that is neither acknowledged nor in a claim at
                       work; None if unknown, or if the survey does not ask.
    unmatched:         the clause that its filter has matched no message so far; empty if it has matched one.
    streams:           INFO of its stream: that of the look before, if there was one, and the present one.
    """

    stream: str
    consumer: str
    now: str
    info: ConsumerInfo | None = field(default=None, repr=False)
    record: Record | None = field(default=None, repr=False)
    usual: float | None = None
    dead_letters: int = 0
    samples: tuple[Sample, ...] = field(default=(), repr=False)
    findings: tuple[Symptom, ...] = ()
    readable: bool = True
    waited: float | None = None
    unmatched: str = ""
    streams: tuple[StreamInfo, ...] = field(default=(), repr=False)

    @cached_property
    def claims(self) -> tuple[Seen, ...]:
        """The open claims, the oldest first."""
        if self.record is None:
            return ()
        found = opened(self.stream, self.consumer, self.record, self.now, self.info, readable=self.readable)
        return tuple(sorted(found, key=lambda seen: (time_nanoseconds(seen.since), seen.sequences.first)))

    @property
    def open(self) -> int:
        """Number of open claims."""
        return len(self.record.open) if self.record else 0

    @cached_property
    def held(self) -> int:
        """Number of open claims that an attempt holds."""
        return sum(entry.token is not None for entry in self.record.open.values()) if self.record else 0

    @cached_property
    def claimed_messages(self) -> int:
        """Number of messages in open claims."""
        return sum(entry.sequences.count for entry in self.record.open.values()) if self.record else 0

    @cached_property
    def held_messages(self) -> int:
        """Number of messages in claims that attempts hold."""
        entries = self.record.open.values() if self.record else ()
        return sum(entry.sequences.count for entry in entries if entry.token is not None)

    @property
    def quiet(self) -> float | None:
        """Seconds since the consumer last delivered a message, or an attempt last sent a heartbeat; None if unknown."""
        return self.info.quiet if self.info else None

    @cached_property
    def unheard(self) -> float | None:
        """Seconds for which no attempt has sent a heartbeat, at least; None if unknown.

        A server that has restarted, or the new leader of a consumer, does not know when it last heard one. Then it is
        the time between the first and the last of the latest looks that found this.
        """
        if self.quiet is not None:
            return self.quiet
        since = [*takewhile(lambda sample: sample.quiet is None, reversed(self.samples))]
        return since[0].at - since[-1].at if since else None

    @cached_property
    def barrier(self) -> Barrier | None:
        """What the next batch waits for, with ``ordered_by``; None if nothing blocks it."""
        return Barrier.seen(self.record, self.info)

    @cached_property
    def stopped(self) -> StoppedKeys | None:
        """The keys that have stopped; None if none has."""
        return StoppedKeys.seen(self.stream, self.consumer, self.record)

    @property
    def oldest(self) -> Seen | None:
        """The oldest open claim; None if no claim is open."""
        return self.claims[0] if self.claims else None


@dataclass(frozen=True)
class DeadLettersView:
    """The dead-letter stream of a stream.

    stream:    its name.
    exists:    whether it exists, as far as this user is permitted to see it.
    count:     number of dead letters, without the notes of those that were replayed or discarded.
    complete:  whether all of them are counted. Otherwise there may be more.
    """

    stream: str
    exists: bool = False
    count: int = 0
    complete: bool = True


@dataclass(frozen=True)
class StreamView:
    """A stream from which claims are taken.

    name:          the name.
    info:          the stream; None if it does not exist or could not be read.
    dead_letters:  its dead letters.
    consumers:     the consumers that the ledger knows, or that belong to it by their marks or receipts, by name.
    """

    name: str
    info: StreamInfo | None = field(repr=False)
    dead_letters: DeadLettersView
    consumers: tuple[ConsumerView, ...]


@dataclass(frozen=True)
class Overview:
    """Everything that the ledger of a connection knows, at one moment.

    now:      the server's time, RFC 3339; that of this machine if nothing that exists shows it; empty if unknown.
    server:   the servers of the connection.
    version:  the version of the connected server.
    domain:   the JetStream domain; empty if there is none.
    ledger:   the prefix of the names of the ledger's buckets.
    streams:  the streams, by name.
    findings: what is wrong with the connection or the ledger as a whole.
    since:    when the survey looked for the first time, RFC 3339; empty if unknown. What only the numbers of the last
              minutes show, such as a backlog that grows, is found from these looks alone.
    """

    now: str
    server: str
    version: str
    domain: str
    ledger: str
    streams: tuple[StreamView, ...] = ()
    findings: tuple[Symptom, ...] = ()
    since: str = ""

    @property
    def consumers(self) -> Iterator[ConsumerView]:
        """The consumers of all streams."""
        return (view for stream in self.streams for view in stream.consumers)
