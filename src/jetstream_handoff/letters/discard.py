# SPDX-License-Identifier: Apache-2.0
"""Discarding dead letters: replacing them by notes without payload. The messages are then gone for good.

The dead letter of an attempt that could still settle its claim is never discarded. The attempt has copied the message
and would terminate it, trusting that the copy is stored: the message would be lost although nobody gave it up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, PermissionDenied, StreamNotFound, WrongLastSequence
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.errors import LedgerInvalid, WrongLedger
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import SECOND_READ
from jetstream_handoff.letters.letter import content
from jetstream_handoff.letters.note import Note
from jetstream_handoff.letters.selection import select
from jetstream_handoff.letters.stored import stored_message

if TYPE_CHECKING:
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Head
    from jetstream_handoff.letters.selection import Selection
    from jetstream_handoff.letters.stubs import Stub

log = logging.getLogger(__name__)

_MARKED = (
    "a replay has begun to publish it and may still be running. Run the replay again, which finds out whether the "
    "dead letter was published, and removes it"
)
_CHANGED = "it was changed in the meantime: replayed, discarded, or replaced by a newer dead letter of the same message"


@dataclass(frozen=True)
class Discarded:
    """The outcome of discarding.

    count:        number of dead letters that were discarded.
    unconfirmed:  number of selected dead letters that were kept, because the ledger does not confirm them.
    refused:      the dead letters that were kept for other reasons: the reasons by sequence in the dead-letter stream.
    """

    count: int = 0
    unconfirmed: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)


async def discard(letters: DeadLetters, selection: Selection) -> Discarded:
    """Discard the selected dead letters: a note takes the place of each, and its payload is deleted.

    A dead letter is kept if a replay has begun to publish it, if another client has changed it in the meantime, or if
    the ledger does not confirm it. With ``selection.unconfirmed`` it is discarded without confirmation, unless the
    attempt that wrote it may still settle its claim.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
        StreamNotFound: as :func:`~jetstream_handoff.letters.selection.select`.
        JetStreamError: the dead-letter stream refuses a note. This dead letter and all later ones are kept.
    """
    attempts = _Attempts(letters)
    count = unconfirmed = 0
    refused: dict[int, str] = {}
    async for each in select(letters, replace(selection, unconfirmed=True)):
        if each.head is not None and not (each.confirmed or selection.unconfirmed):
            unconfirmed += 1
        elif reason := await _discard(letters, each, attempts):
            refused[each.number] = reason
        else:
            count += 1
    for number, reason in refused.items():
        log.warning("dead letter %d of stream %s was not discarded: %s", number, letters.name, reason)
    log.info("discarded %d dead letters of stream %s", count, letters.name)
    return Discarded(count, unconfirmed, refused)


async def _discard(letters: DeadLetters, listed: Stub, attempts: _Attempts) -> str:
    """Discard one dead letter. Returns the reason why it was kept; empty if it was discarded."""
    letter = listed.head
    if letter is None:
        return listed.problem
    if letter.mark:
        return _MARKED
    if not listed.confirmed and (reason := await attempts.may_settle(letter)):
        return reason
    value = secrets.token_hex(8)
    try:
        await letters.put_note(letter, letter.number, "discarded", value)
    except WrongLastSequence:
        if not await _is_ours(letters, letter, value):
            return _CHANGED
    await letters.empty(letter)
    return ""


async def _is_ours(letters: DeadLetters, letter: Head, value: str) -> bool:
    """Whether our own note has taken the dead letter's place, because only the answer to its first write got lost."""
    message = await stored_message(letters.stream, {"last_by_subj": letter.address})
    if message is None:
        return False
    note = Note.of(message["seq"], message["time"], message["subject"], decode_headers(content(message)[0]))
    return note is not None and note.value == value


class _Attempts:
    """The attempts that hold claims. The record of each consumer is read after its dead letters were listed, so it is
    not older than the hold of any attempt that wrote one of them."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._records: dict[str, list[Record | None] | str] = {}

    async def may_settle(self, letter: Head) -> str:
        """The reason to assume that the attempt that wrote the dead letter may still settle its claim; empty if it
        cannot."""
        if letter.consumer not in self._records:
            self._records[letter.consumer] = await self._read(letter.consumer)
        records = self._records[letter.consumer]
        if isinstance(records, str):
            return records
        for record in records:
            if record is None:  # its attempt may use another ledger
                return (
                    f"the ledger {self._letters.js.settings.ledger!r} does not know consumer {letter.consumer!r}, so "
                    "its attempt may still settle. Use a connection with the ledger of this consumer"
                )
            entry = record.open.get(letter.claim_id)
            if entry is not None and entry.token == letter.token:
                return (
                    f"attempt {letter.token} still holds claim {letter.claim_id} and may settle it, relying on this "
                    "dead letter. Wait until its work has ended, or release the claim"
                )
        return ""

    async def _read(self, consumer: str) -> list[Record | None] | str:
        """Read the record twice, because a frozen leader that was replaced answers with old data when it continues."""
        ledger = Ledger(self._letters.js, self._letters.source.name, consumer)
        try:
            with suppress(ConsumerNotFound, StreamNotFound, PermissionDenied):
                await ledger.info()
            first, _ = await ledger.read()
            await asyncio.sleep(SECOND_READ)
            return [first, (await ledger.read())[0]]
        except WrongLedger as wrong:
            return f"its attempt may still settle: {wrong}"
        except LedgerInvalid as invalid:
            return f"the ledger does not show whether its attempt has ended: {invalid}"
