# SPDX-License-Identifier: Apache-2.0
"""Dead letters as pages of a list, without their payloads, and one dead letter with its payload. Nothing is changed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_client.quantities import check_count
from jetstream_handoff.letters.letter import Letter
from jetstream_handoff.letters.selection import Decisions
from jetstream_handoff.letters.stored import stored_message
from jetstream_handoff.letters.stubs import AT_ONCE, WITHIN, all_read, stubs

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Head
    from jetstream_handoff.letters.stubs import Stub

MOST = 1_000
"""How many messages are read for one page, at most, and no more after ``WITHIN`` seconds. A page of few matching dead
letters may therefore be short."""
LARGEST_SPAN = 5_000
"""How many messages are read to find chosen ones, at most."""
_CONFIRMED_AT_ONCE = 16


class Page(NamedTuple):
    """A page of a list.

    stubs:  the messages, the oldest first.
    next:   the number after which the next page begins; None if this is the last page.
    left:   how many messages the stream has after the last one that was read, matching or not; None if unknown.
    """

    stubs: tuple[Stub, ...]
    next: int | None
    left: int | None


class Whole(NamedTuple):
    """A message of the dead-letter stream with its payload. If it is not a dead letter, or a part of it is missing,
    ``letter`` is None and ``problem`` contains the reason."""

    letter: Letter | None
    confirmed: bool = False
    problem: str = ""


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
    clock = asyncio.get_running_loop().time
    end = clock() + WITHIN
    left: int | None = None
    async with aclosing(stubs(letters, after, consumer, AT_ONCE if reason else limit)) as reading:
        async for stub, behind in reading:
            last, left, read = stub.number, behind, read + 1
            if not stub.is_part and (reason is None or reason in _reason(stub)):
                found.append(stub)
            if len(found) == limit or read == most or (clock() > end and all_read(read, behind)):
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


async def letter(letters: DeadLetters, number: int) -> Whole | None:
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
            return Whole(None, problem=str(wrong))
        return Whole(found, await Decisions(letters).confirm(found))
    return None


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
