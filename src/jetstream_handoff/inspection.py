"""Claims seen from outside, and one released by hand: for the command line. Only :func:`release` writes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.consume.message import IN_PROGRESS
from jetstream_client.errors import ConsumerNotFound, InvalidValue, StreamNotFound
from jetstream_client.times import time_nanoseconds
from jetstream_handoff import settle
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.errors import LedgerInvalid, Superseded
from jetstream_handoff.ledger import PATIENCE, Ledger, ledgers

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.protocol import Reply
    from jetstream_handoff.record import OpenEntry, Receipt, Record

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """A claim as ledger and server show it at this moment.

    state:      ``open``, ``done``, ``failed`` or ``superseded``.
    entry:      of an open claim.
    receipt:    of any other; for a claim that is done and has none yet, what it will say.
    info:       the consumer; None when it does not exist (any more).
    current:    whether the consumer still is in the life in which the record was written.
    floor_left: how many of the claim's messages lie above the acknowledgement floor.
    now:        the server's time, RFC 3339.
    alive:      whether a heartbeat was heard; None when nobody listened, or there is nobody to hear.
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

    @property
    def since(self) -> str:
        """When it was entered (open) or settled; empty where nobody wrote it down."""
        if self.entry is not None:
            return self.entry.at
        return self.receipt.at if self.receipt else ""

    @property
    def age(self) -> float | None:
        """Seconds since then, by the server's clock."""
        return (time_nanoseconds(self.now) - time_nanoseconds(self.since)) / 1e9 if self.since else None

    @property
    def holder(self) -> str | None:
        """The attempt that works on it, by its token: the number of its try, and something random."""
        return self.entry.token if self.entry else self.receipt.again if self.receipt else None

    @property
    def silence(self) -> float:
        """Seconds after which an attempt that is not heard does not live."""
        wait = self.info.config["ack_wait"] / 1e9 if self.info else 60.0
        return float(wait / HEARTBEATS * 1.5)

    @property
    def next(self) -> str:
        """What happens to it if nobody does anything, in words."""
        if self.entry is not None:
            return _next_of_open(self, self.entry)
        assert self.receipt is not None  # noqa: S101 - one of the two is there
        if self.state == "failed":
            return "Its work failed for the last time: its messages were given back, and belong to other claims."
        if self.state == "superseded":
            return "Its messages were delivered again, to other claims. Nothing more happens to this one."
        above = self.sequences.last > self.info.floor if self.info else False
        said = f"It is settled: the output of attempt {self.receipt.attempt_id} counts."
        if self.receipt.again:
            said += f" Attempt {self.receipt.again} processes it again; when that succeeds, its output counts instead."
        if above:
            said += (
                " Some of it may not be acknowledged yet: if it is delivered again, that is recognised and made good."
            )
        return said


def _next_of_open(seen: Seen, entry: OpenEntry) -> str:
    if seen.info is None:
        return "Its consumer does not exist any more: it cannot be settled, and is superseded by the next sensor."
    if not seen.current:
        return (
            "Its consumer was recreated, reset or rolled back: it cannot be settled, and the next sensor supersedes it."
        )
    wait = seen.info.config["ack_wait"] / 1e9
    if entry.token is None:
        return (
            "Nobody holds it: it waits for its task, or for a retry. If none comes, its messages are delivered again "
            "when their lease ends, and the next sensor takes them into another claim."
        )
    if seen.alive:
        return f"Attempt {entry.token} is alive. It settles the claim when its work has succeeded."
    silent = (
        "was not heard"
        if seen.alive is False
        else f"holds it: alive or dead, which `--listen {seen.silence:.0f}` tells"
    )
    return (
        f"Attempt {entry.token} {silent}. If it is dead, its messages are delivered again {wait:g} s after its last "
        "heartbeat, and the next sensor takes them into another claim; a retry of its task may hold it before that."
    )


async def open_claims(
    js: JetStream, stream: str | None = None, consumer: str | None = None, *, whatever_can_be_read: bool = False
) -> list[Seen]:
    """The open claims of all consumers in the ledger, or of those named, the oldest first.

    whatever_can_be_read: a record that cannot be read is only logged: it hides no other.

    Raises:
        LedgerUnavailable: there is no ledger, or it may not be read.
        LedgerInvalid: one of the records cannot be read.
    """
    found = []
    for ledger in await ledgers(js, stream, consumer):
        record = await _readable(ledger) if whatever_can_be_read else (await ledger.read())[0]
        if record and record.open:
            now, info = await _now(ledger)
            found += [_open(ledger, claim_id, record, now, info) for claim_id in record.open]
    return sorted(found, key=lambda seen: (seen.since, seen.sequences.first))


async def check_known(js: JetStream, stream: str | None, consumer: str | None) -> None:
    """That what was named exists, or has claims in the ledger.

    Raises:
        StreamNotFound, ConsumerNotFound: neither the ledger nor the server knows it.
        InvalidValue: the ledger has no consumer of this name, and its stream was not named.
    """
    if await ledgers(js, stream, consumer):
        return
    if stream is not None:
        await js.stream(stream).info(patience=PATIENCE)
        if consumer is not None:
            await js.stream(stream).consumer(consumer).info(patience=PATIENCE)
    elif consumer is not None:
        remedy = "no claim was taken by a consumer of this name; check it, or name its stream, too"
        raise InvalidValue("consumer", consumer, remedy)


async def find(js: JetStream, claim_id: str) -> Seen | None:
    """One claim, open or not; None when the ledger does not know it (any more). Raises LedgerUnavailable."""
    if not is_claim_id(claim_id):
        return None
    for ledger in await ledgers(js):
        record = await _readable(ledger)
        if record and claim_id in record.open:
            return _open(ledger, claim_id, record, *await _now(ledger))
        if record and claim_id in record.done:
            receipt = await ledger.receipt(claim_id)
            if receipt is None or receipt.state != "done":
                receipt = ledger.done_receipt(claim_id, record.done[claim_id])
            return await _closed(ledger, receipt)
    receipt = await Ledger(js, "any", "any").receipt(claim_id)
    return await _closed(Ledger(js, receipt.stream, receipt.consumer), receipt) if receipt else None


async def listen(js: JetStream, claims: list[Seen], seconds: float) -> list[Seen]:
    """The same claims, and of those that are held whether a heartbeat was heard within so many seconds.

    Raises:
        PermissionDenied: the account may not listen to acknowledgements.
        AddressUnknown: with a domain, the address of the acknowledgements cannot be learned.
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
    return [replace(seen, alive=seen.id not in silent) if seen.id in held else seen for seen in claims]


async def release(js: JetStream, seen: Seen) -> None:
    """Let an open claim go: its token in the ledger first, then its messages, which are delivered again at once.

    An attempt that lives stops at its next heartbeat, and cannot settle.

    Raises:
        Superseded: it is not open any more, or another attempt has taken it over since ``seen`` was read.
        ConsumerNotFound, StreamNotFound: nothing to deliver again.
    """
    assert seen.entry is not None  # noqa: S101 - the caller has checked it
    ledger = Ledger(js, seen.stream, seen.consumer)
    await ledger.locate()
    stream, consumer = await ledger.stream.info(patience=PATIENCE), await ledger.consumer.info(patience=PATIENCE)
    claim = ledger.claim_of(seen.id, seen.entry, stream.created, consumer.created)
    if not await settle.release(ledger, claim, seen.entry.token):
        raise Superseded(f"claim {seen.id} has changed since it was read: nothing was released; read it and try again")


async def _readable(ledger: Ledger) -> Record | None:
    try:
        return (await ledger.read())[0]
    except LedgerInvalid as invalid:
        log.warning("consumer %r of stream %r: %s", ledger.consumer.name, ledger.stream.name, invalid)
        return None


def _open(ledger: Ledger, claim_id: str, record: Record, now: str, info: ConsumerInfo | None) -> Seen:
    entry = record.open[claim_id]
    current = info is not None and not record.new_life(info)
    return Seen(claim_id, "open", *ledger.names, entry.sequences, now, entry=entry, info=info, current=current)


async def _closed(ledger: Ledger, receipt: Receipt) -> Seen:
    now, info = await _now(ledger)
    return Seen(receipt.claim_id, receipt.state, *ledger.names, receipt.sequences, now, receipt=receipt, info=info)


async def _now(ledger: Ledger) -> tuple[str, ConsumerInfo | None]:
    """The server's time, and the consumer if there is one."""
    try:
        info = await ledger.consumer.info(patience=PATIENCE)
    except (ConsumerNotFound, StreamNotFound):
        return (await ledger.bucket.info(patience=PATIENCE)).now, None
    return info.now, info


def plain(seen: Seen) -> dict[str, Any]:
    """As JSON. No payload; ``value`` is what the task returned."""
    entry, receipt, info = seen.entry, seen.receipt, seen.info
    shown: dict[str, Any] = {
        "id": seen.id,
        "state": seen.state,
        "stream": seen.stream,
        "consumer": seen.consumer,
        "count": seen.sequences.count,
        "ranges": seen.sequences.to_json(),
        "since": seen.since or None,
        "age_seconds": None if seen.age is None else round(seen.age, 1),
        "held_by": seen.holder,
        "alive": seen.alive,
    }
    if entry is not None:
        shown["bytes"] = entry.bytes
        shown["taken_by"], shown["owner"] = entry.taken_by, list(entry.owner)
    if receipt is not None:
        shown["token"], shown["value"] = receipt.token, receipt.value
        shown["rejected"] = receipt.rejected.to_json()
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
    return {**shown, "next": seen.next}
