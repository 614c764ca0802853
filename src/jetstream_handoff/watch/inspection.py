# SPDX-License-Identifier: Apache-2.0
"""Claims as the ledger and the server show them. Nothing is written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.consume.message import IN_PROGRESS
from jetstream_client.errors import ConsumerNotFound, InvalidValue, StreamNotFound
from jetstream_client.times import seconds_between
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.buckets import PATIENCE, Buckets
from jetstream_handoff.ledger.history import History, readable
from jetstream_handoff.ledger.ledger import Ledger, ledgers
from jetstream_handoff.take.barrier import Barrier
from jetstream_handoff.take.conservation import again
from jetstream_handoff.watch.timeline import Milestone, milestones

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.protocol import Reply
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import OpenEntry, Receipt, Record

log = logging.getLogger(__name__)

_AT_ONCE = 20  # records that are read at the same time
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

    def timeline(self, name: Callable[[Owner], str] = readable) -> list[Milestone]:
        """What happened to the claim, the oldest first. ``name`` returns the name of a task in the texts."""
        return milestones(self, name)

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


async def open_claims(
    js: JetStream, stream: str | None = None, consumer: str | None = None, *, whatever_can_be_read: bool = False
) -> list[Seen]:
    """Return the open claims of all consumers in the ledger, or of one stream or consumer, the oldest first.

    whatever_can_be_read: whether a record that cannot be read is only logged, instead of raising LedgerInvalid.

    Raises:
        LedgerUnavailable: the ledger does not exist, or this account is not permitted to read it.
        LedgerInvalid: a record cannot be read.
    """
    found = []
    for some in _together(await ledgers(js, stream, consumer)):
        for each in await asyncio.gather(*(open_in(one, whatever_can_be_read=whatever_can_be_read) for one in some)):
            found += each
    return sorted(found, key=lambda seen: (seen.since, seen.sequences.first))


async def open_in(ledger: Ledger, *, whatever_can_be_read: bool = False) -> list[Seen]:
    """Return the open claims of one consumer. As :func:`open_claims`."""
    record = await record_of(ledger) if whatever_can_be_read else (await ledger.read())[0]
    if not (record and record.open):
        return []
    now, info = await _now(ledger)
    return opened(*ledger.names, record, now, info)


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


async def check_known(js: JetStream, stream: str | None, consumer: str | None) -> None:
    """Check that the named stream or consumer exists, or has claims in the ledger.

    Raises:
        StreamNotFound, ConsumerNotFound: neither the ledger nor the server knows it.
        InvalidValue: the ledger does not know the consumer, and its stream was not named.
    """
    if await ledgers(js, stream, consumer):
        return
    if stream is not None:
        await js.stream(stream).info(patience=PATIENCE)
        if consumer is not None:
            await Ledger(js, stream, consumer).info()
    elif consumer is not None:
        remedy = "the ledger has no claims of a consumer with this name; correct the name, or give its stream as well"
        raise InvalidValue("consumer", consumer, remedy)


async def find(js: JetStream, claim_id: str) -> Seen | None:
    """Return one claim, open or not; None if the ledger does not know it, perhaps because its receipt has expired.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
    """
    if not is_claim_id(claim_id):
        return None
    receipt = await Buckets(js).receipt(claim_id)
    books = await ledgers(js) if receipt is None else [Ledger(js, receipt.stream, receipt.consumer)]
    async for ledger, record in records_of(books):
        if record and claim_id in record.open:
            claims = opened(*ledger.names, record, *await _now(ledger))
            return next(seen for seen in claims if seen.id == claim_id)
        if record and claim_id in record.done and (receipt is None or receipt.state != "done"):
            receipt = ledger.receipts.of_done(claim_id, record.done[claim_id])
        if receipt is not None:
            return await _closed(ledger, receipt, record)
    return None


def _together(books: list[Ledger]) -> Iterator[list[Ledger]]:
    """Those whose records are read at the same time."""
    return (books[at : at + _AT_ONCE] for at in range(0, len(books), _AT_ONCE))


async def listen(js: JetStream, claims: list[Seen], seconds: float) -> list[Seen]:
    """Return the same claims. For each held claim, ``alive`` is set: True if a heartbeat was heard within ``seconds``,
    False if none was, and None if none was but ``seconds`` is less than :attr:`Seen.silence`, so it is unknown.

    Raises:
        PermissionDenied: this user is not permitted to subscribe to acknowledgements.
        AddressUnknown: the consumer is in a domain, and the address of its acknowledgements cannot be found.
    """
    silent = {seen.id: seen for seen in claims if seen.entry and seen.entry.token}
    held = set(silent)
    prefixes = {
        consumer: (await Ledger(js, *consumer).locate()).prefix
        for consumer in {(seen.stream, seen.consumer) for seen in silent.values()}
    }
    all_heard = asyncio.Event()

    def heard(reply: Reply) -> None:
        prefix, sequence = reply.subject.rsplit(".", 5)[0], int(reply.subject.split(".")[-4])
        for seen in list(silent.values()) if reply.data.startswith(IN_PROGRESS) else ():
            if prefix == prefixes[seen.stream, seen.consumer] and sequence in seen.sequences:
                del silent[seen.id]
        if not silent:
            all_heard.set()

    async with AsyncExitStack() as stack:
        for prefix in prefixes.values():
            await stack.enter_async_context(js.connection.listen(f"{prefix}.>", heard))
        with suppress(TimeoutError):
            async with js.connection.timeout(seconds):
                await (all_heard.wait() if silent else asyncio.sleep(0))
    alive = {seen.id: True if seen.id not in silent else False if seconds >= seen.silence else None for seen in claims}
    return [replace(seen, alive=alive[seen.id]) if seen.id in held else seen for seen in claims]


async def records_of(books: list[Ledger]) -> AsyncIterator[tuple[Ledger, Record | None]]:
    """Yield each ledger with what :func:`record_of` returns, reading twenty at a time."""
    for some in _together(books):
        for each in zip(some, await asyncio.gather(*map(record_of, some)), strict=True):
            yield each


async def record_of(ledger: Ledger) -> Record | None:
    """Return a consumer's record; None if it has none, or if the record is invalid, which is logged."""
    try:
        return (await ledger.read())[0]
    except LedgerInvalid as invalid:
        log.warning("%s", invalid)
        return None


async def _closed(ledger: Ledger, receipt: Receipt, record: Record | None) -> Seen:
    now, info = await _now(ledger)
    entries = record.open.items() if record else ()
    by = tuple(each for each, entry in entries if entry.sequences & receipt.sequences)
    names = (receipt.claim_id, receipt.state, *ledger.names, receipt.sequences, now)
    return Seen(*names, receipt=receipt, info=info, overlapping=by)


async def _now(ledger: Ledger) -> tuple[str, ConsumerInfo | None]:
    """The server's time, and the consumer if it exists."""
    try:
        info = await ledger.consumer.info(patience=PATIENCE)
    except (ConsumerNotFound, StreamNotFound):
        return (await ledger.buckets.records.info(patience=PATIENCE)).now, None
    return info.now, info


def plain(seen: Seen) -> dict[str, Any]:
    """Return a claim as JSON, without payloads. ``value`` is the task's return value."""
    entry, receipt, info = seen.entry, seen.receipt, seen.info
    shown: dict[str, Any] = {
        "id": seen.id,
        "state": seen.state,
        "stream": seen.stream,
        "consumer": seen.consumer,
        "count": seen.sequences.count,
        "ranges": seen.sequences.to_json(),
        "stored": seen.history.stored_at,
        "since": seen.since or None,
        "age_seconds": None if seen.age is None else round(seen.age, 1),
        "held_by": seen.holder,
        "alive": seen.alive,
    }
    if entry is not None:
        shown["bytes"] = entry.bytes
        shown["taken_by"], shown["owner"] = entry.taken_by, list(entry.owner)
        shown["barrier"] = seen.barrier and seen.barrier.to_json()
    if receipt is not None:
        shown["token"], shown["value"] = receipt.token, receipt.value
        shown["rejected"], shown["skipped"] = receipt.rejected.to_json(), receipt.skipped.to_json()
    if info is not None:
        shown["consumer_info"] = {
            "created": info.created,
            "delivered_consumer_sequence": info.counter,
            "delivered_stream_sequence": info.delivered,
            "ack_floor": info.floor,
            "ack_pending": info.ack_pending,
            "redelivered": int(info.raw["num_redelivered"]),
            "pending": info.pending,
            "waiting_pulls": int(info.raw["num_waiting"]),
            "ack_wait_seconds": info.config["ack_wait"] / 1e9,
        }
    shown["history"] = [
        {"what": step.what, "at": step.at or None, "text": step.text, "by": list(step.by), "token": step.token or None}
        for step in seen.timeline()
    ]
    return {**shown, "overlapping": list(seen.overlapping), "next": seen.next}
