# SPDX-License-Identifier: Apache-2.0
"""Finding claims, in the ledger and on the server. Nothing is written."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.consume.message import IN_PROGRESS
from jetstream_client.errors import ConsumerNotFound, InvalidValue, StreamNotFound
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.buckets import PATIENCE, Buckets
from jetstream_handoff.ledger.ledger import Ledger, ledgers
from jetstream_handoff.watch.seen import Seen, opened
from jetstream_handoff.watch.timeline import milestones

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.wire.protocol import Reply
    from jetstream_handoff.ledger.record import Receipt, Record

log = logging.getLogger(__name__)

_AT_ONCE = 20  # records that are read at the same time


class OfConsumer(NamedTuple):
    """What the ledger has of one consumer.

    record:  its record; None if it has none, or if the record is invalid, which was logged.
    claims:  its open claims, in the record's order.
    """

    ledger: Ledger
    record: Record | None
    claims: list[Seen]


async def open_claims(js: JetStream, stream: str | None = None, consumer: str | None = None) -> list[Seen]:
    """Return the open claims of all consumers in the ledger, or of one stream or consumer, the oldest first.

    Raises:
        LedgerUnavailable: the ledger does not exist, or this account is not permitted to read it.
        LedgerInvalid: a record cannot be read.
    """
    return oldest_first(await look_at(js, stream, consumer))


async def look_at(
    js: JetStream, stream: str | None = None, consumer: str | None = None, *, whatever_can_be_read: bool = False
) -> list[OfConsumer]:
    """Look at all consumers in the ledger, or at those of one stream, or at one consumer, sorted by name.

    whatever_can_be_read: whether a record that cannot be read is only logged, instead of raising LedgerInvalid.

    Raises:
        LedgerUnavailable, LedgerInvalid: as :func:`open_claims`.
    """
    found: list[OfConsumer] = []
    for some in _together(await ledgers(js, stream, consumer)):
        looks = (look(each, whatever_can_be_read=whatever_can_be_read) for each in some)
        found += await asyncio.gather(*looks)
    return found


async def look(ledger: Ledger, *, whatever_can_be_read: bool = False) -> OfConsumer:
    """Look at one consumer. As :func:`look_at`."""
    record = await record_of(ledger) if whatever_can_be_read else (await ledger.read())[0]
    if not (record and record.open):
        return OfConsumer(ledger, record, [])
    now, info = await _now(ledger)  # after the record, so that its counters are not older
    return OfConsumer(ledger, record, opened(*ledger.names, record, now, info))


def oldest_first(looked: Iterable[OfConsumer]) -> list[Seen]:
    """Return the open claims of these consumers, the oldest first."""
    found = (seen for each in looked for seen in each.claims)
    return sorted(found, key=lambda seen: (seen.since, seen.sequences.first))


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
        for step in milestones(seen)
    ]
    return {**shown, "overlapping": list(seen.overlapping), "next": seen.next}
