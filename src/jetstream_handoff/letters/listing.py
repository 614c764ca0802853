# SPDX-License-Identifier: Apache-2.0
"""Dead letters as pages of a list, without their payloads, and one dead letter with its payload. Nothing is changed.

The list is read through a consumer without payloads, which exists for a moment only. A user who is not permitted to
create it reads the messages one by one instead, with their payloads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import InvalidValue, JetStreamError, StreamNotFound
from jetstream_client.names import check_consumer_name
from jetstream_client.quantities import check_count
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.letters.dead_letters import stored_message
from jetstream_handoff.letters.letter import Head, Letter, content
from jetstream_handoff.letters.note import Note
from jetstream_handoff.letters.parts import PART
from jetstream_handoff.letters.selection import Decisions, Listed, stored
from jetstream_handoff.rules import roles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.sequences import Sequences
    from jetstream_handoff.letters.dead_letters import DeadLetters

MOST = 1_000
"""How many messages are read for one page, at most. A page of few matching dead letters may therefore be short."""
LARGEST_SPAN = 5_000
"""How many messages are read to find chosen ones, at most."""
_AT_ONCE = 250
_CONFIRMED_AT_ONCE = 16
_ABANDONED = timedelta(seconds=10)


@dataclass(frozen=True)
class Stub:
    """A message of the dead-letter stream without its payload. Exactly one of ``head``, ``note`` and ``problem`` is
    set.

    number, stored_at:  its sequence in the dead-letter stream, and when it was stored, RFC 3339.
    address:            its subject there.
    head:               what the dead letter's headers say.
    confirmed:          whether the ledger confirms the dead letter.
    note:               what became of the dead letter that was here.
    problem:            why this is not a dead letter.
    is_part:            whether this is a part of a dead letter that is too large for one message.
    """

    number: int
    stored_at: str
    address: str
    head: Head | None = None
    confirmed: bool = False
    note: Note | None = None
    problem: str = ""
    is_part: bool = False


class Page(NamedTuple):
    """A page of a list.

    stubs:  the messages, the oldest first.
    next:   the number after which the next page begins; None if this is the last page.
    left:   how many messages the stream has after the last one that was read, matching or not; None if unknown.
    """

    stubs: tuple[Stub, ...]
    next: int | None
    left: int | None


async def listed(
    letters: DeadLetters,
    *,
    after: int = 0,
    limit: int = 50,
    consumer: str | None = None,
    reason: str | None = None,
    most: int = MOST,
) -> Page:
    """Return a page of the dead-letter stream: dead letters, the notes of replayed and discarded ones, and messages
    that are neither. The page is empty if the stream does not exist.

    after:     the number after which the page begins. Default 0: at the beginning.
    limit:     the largest number of messages on the page. Default 50.
    consumer:  only those of this consumer.
    reason:    only dead letters and notes whose reason contains this string.
    most:      how many messages to read at most. Default ``MOST``.

    Raises:
        InvalidValue: a parameter is invalid.
        LedgerUnavailable: the ledger cannot be read, so it is unknown which dead letters are confirmed.
        JetStreamError: the server does not answer, or refuses the request.
    """
    check_count("limit", limit)
    check_count("after", after, 0)
    found: list[Stub] = []
    last, read = after, 0
    left: int | None = None
    async with aclosing(stubs(letters, after, consumer, _AT_ONCE if reason else limit)) as reading:
        async for stub, behind in reading:
            last, left, read = stub.number, behind, read + 1
            if not stub.is_part and (reason is None or reason in _reason(stub)):
                found.append(stub)
            if len(found) == limit or read == most:
                break
        else:
            left = 0
    return Page(tuple(await _confirmed(letters, found)), None if left == 0 else last, left)


async def chosen(letters: DeadLetters, numbers: Sequences) -> tuple[Stub, ...]:
    """Return the messages of the dead-letter stream with these numbers, the oldest first, as far as they exist. The
    messages between them are read as well, but the ledger is asked only about the chosen ones.

    numbers:  their sequences in the dead-letter stream, at least one.

    Raises:
        InvalidValue: more than ``LARGEST_SPAN`` messages lie between the first and the last of them.
        LedgerUnavailable, JetStreamError: as :func:`listed`.
    """
    found: list[Stub] = []
    read = 0
    async with aclosing(stubs(letters, numbers.first - 1)) as reading:
        async for stub, _ in reading:
            if stub.number in numbers:
                found.append(stub)
            if stub.number >= numbers.last:
                break
            read += 1
            if read == LARGEST_SPAN:
                remedy = f"they are more than {LARGEST_SPAN:,} messages apart; choose fewer dead letters at a time"
                raise InvalidValue("numbers", str(numbers), remedy)
    return tuple(await _confirmed(letters, found))


async def letter(letters: DeadLetters, number: int) -> Listed | None:
    """Return one message of the dead-letter stream, with its payload; None if there is none with this number.

    number:  its sequence in the dead-letter stream.

    Raises:
        JetStreamError: as :func:`listed`.
    """
    check_count("number", number)
    with suppress(StreamNotFound):
        message = await stored_message(letters.stream, {"seq": number})
        if message is None:
            return None
        try:
            found = await letters.whole(Letter.from_stored(message))
        except InvalidValue as wrong:
            return Listed(message["seq"], message["time"], None, problem=str(wrong))
        return Listed(number, message["time"], found, await Decisions(letters).confirm(found))
    return None


async def stubs(
    letters: DeadLetters, after: int = 0, consumer: str | None = None, at_once: int = _AT_ONCE
) -> AsyncGenerator[tuple[Stub, int | None]]:
    """Yield the messages of a dead-letter stream without their payloads, oldest first, none of them confirmed. With
    each, yield how many messages come after it; None if that is unknown. Nothing if the stream does not exist.

    after:     the number after which to begin.
    consumer:  only messages of this consumer.
    at_once:   how many to request at once.
    """
    of = f"dead.{letters.source.name}.{check_consumer_name(consumer)}.>" if consumer else letters.subjects
    name = secrets.token_hex(8)
    requests = (f"CONSUMER.CREATE.{letters.name}.{name}.{of}", f"CONSUMER.MSG.NEXT.{letters.name}.{name}")
    needs = [roles.request(letters.js.settings.prefix, each) for each in requests]
    permitted = not await roles.denied(letters.js.connection, needs)
    reading = _by_consumer(letters, name, of, after, at_once) if permitted else _one_by_one(letters, of, after)
    with suppress(StreamNotFound):
        async with aclosing(reading):
            async for each in reading:
                yield each


async def _by_consumer(
    letters: DeadLetters, name: str, of: str, after: int, at_once: int
) -> AsyncGenerator[tuple[Stub, int | None]]:
    consumer = await letters.stream.create_consumer(
        {
            "name": name,
            "filter_subject": of,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "inactive_threshold": _ABANDONED,
        }
    )
    try:
        pending = 1
        while pending:
            messages = await consumer.fetch_no_wait(at_once)
            for message in messages:
                pending = message.metadata.pending
                at = f"{message.timestamp:%Y-%m-%dT%H:%M:%S.%f}Z"
                yield _stub(message.metadata.sequence, at, message.subject, message.headers, message.size), pending
            pending = pending if messages else 0
    finally:
        with suppress(JetStreamError):
            await consumer.delete()


async def _one_by_one(letters: DeadLetters, of: str, after: int) -> AsyncGenerator[tuple[Stub, int | None]]:
    async for message in stored(letters.stream, of, after + 1):
        header, data = content(message)
        place = (message["seq"], message["time"], message["subject"])
        yield _stub(*place, decode_headers(header), len(data)), None


def _stub(number: int, stored_at: str, address: str, headers: Mapping[str, list[str]], size: int) -> Stub:
    try:
        return Stub(number, stored_at, address, head=Head.of(number, stored_at, address, headers, size))
    except InvalidValue as wrong:
        note = Note.of(number, stored_at, address, headers)
        problem = "" if note else str(wrong)
        return Stub(number, stored_at, address, note=note, problem=problem, is_part=PART in headers)


def _reason(stub: Stub) -> str:
    return stub.head.reason if stub.head else stub.note.reason if stub.note else ""


async def _confirmed(letters: DeadLetters, found: list[Stub]) -> list[Stub]:
    """The same messages, with whether the ledger confirms them. Each claim is asked for once, some at the same time."""
    decisions = Decisions(letters)
    slots = asyncio.Semaphore(_CONFIRMED_AT_ONCE)

    async def confirm(head: Head) -> None:
        async with slots:
            await decisions.confirm(head)

    claims = {(each.head.consumer, each.head.claim_id): each.head for each in found if each.head}
    await asyncio.gather(*map(confirm, claims.values()))
    return [replace(each, confirmed=await decisions.confirm(each.head)) if each.head else each for each in found]
