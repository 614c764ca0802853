# SPDX-License-Identifier: Apache-2.0
"""Selecting dead letters, and finding out which of them the ledger confirms. Nothing is changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_client.names import check_filter, subject_matches
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.stored import stored_message
from jetstream_handoff.letters.stubs import Stub, every

if TYPE_CHECKING:
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Head

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selection of dead letters. A dead letter is selected if it meets all given conditions.

    sequences:   sequences of messages in the original stream.
    subject:     a filter for the original subject.
    consumer:    the consumer that gave the messages up.
    reason:      a string that the reason contains.
    numbers:     sequences in the dead-letter stream. Only these messages are read, which is faster in a large stream.
    everything:  whether to select all dead letters; then no condition may be given.
    unconfirmed: whether to include dead letters that the ledger does not confirm. Usually an attempt that died left
                 them, and another attempt processes their messages.
    """

    sequences: Sequences | None = None
    subject: str | None = None
    consumer: str | None = None
    reason: str | None = None
    numbers: Sequences | None = None
    everything: bool = False
    unconfirmed: bool = False

    def __post_init__(self) -> None:
        chosen = [self.sequences, self.subject, self.consumer, self.reason, self.numbers]
        if self.everything == any(each is not None for each in chosen):
            remedy = (
                "either set at least one of 'sequences', 'subject', 'consumer', 'reason' and 'numbers', or set "
                "everything=True to select all dead letters"
            )
            raise InvalidValue("everything", self.everything, remedy)
        if self.subject is not None:
            check_filter(self.subject, "subject")

    def holds(self, letter: Head) -> bool:
        """Whether a dead letter meets the conditions."""
        return (
            (self.sequences is None or letter.sequence in self.sequences)
            and (self.subject is None or subject_matches(self.subject, letter.subject))
            and (self.consumer is None or letter.consumer == self.consumer)
            and (self.reason is None or self.reason in letter.reason)
            and (self.numbers is None or letter.number in self.numbers)
        )


class Decisions:
    """The ledger's decisions about dead letters. The ledger is asked once for each claim."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._known: dict[tuple[str, str], Sequences] = {}

    async def confirm(self, letter: Head) -> bool:
        """Whether the message was given up according to the ledger. False if the ledger does not know the claim.

        Raises:
            LedgerUnavailable: the ledger cannot be read.
        """
        key = (letter.consumer, letter.claim_id)
        if key not in self._known:
            try:
                self._known[key] = await self._rejected(*key)
            except LedgerInvalid as invalid:
                log.warning("the dead letters of claim %s count as unconfirmed: %s", letter.claim_id, invalid)
                self._known[key] = Sequences()
        return letter.sequence in self._known[key]

    async def _rejected(self, consumer: str, claim_id: str) -> Sequences:
        ledger = Ledger(self._letters.js, self._letters.source.name, consumer)
        receipt = await ledger.receipts.read(claim_id)
        if receipt is not None and receipt.state == "done":  # if they differ, the receipt is newer than the record
            return receipt.rejected if (receipt.stream, receipt.consumer) == ledger.names else Sequences()
        record, _ = await ledger.read()
        entry = record.done.get(claim_id) if record else None
        return entry.rejected if entry else Sequences()


async def select(letters: DeadLetters, selection: Selection) -> AsyncIterator[Stub]:
    """Yield the selected dead letters, oldest first, and for each whether the ledger confirms it.

    With ``everything`` this includes messages in the dead-letter stream that are not dead letters. With ``numbers`` it
    also includes the numbers without a dead letter, for example because it was replayed in the meantime.

    Raises:
        StreamNotFound: a dead-letter stream that was named does not exist; or no name was given, and neither
            ``DEAD_<stream>`` nor the source stream exists.
        LedgerUnavailable: the ledger cannot be read.
    """
    try:
        last = (await letters.stream.info(patience=PATIENCE)).state["last_seq"]
    except StreamNotFound:
        if letters.named:
            raise
        await letters.source.info(patience=PATIENCE)
        return  # it is created when the first message is rejected
    decisions = Decisions(letters)
    found = every(letters, selection.consumer, last)
    if selection.numbers is not None:
        found = _numbered(letters, selection.numbers, last)
    async for stub in found:
        if stub.head is None:
            if problem := _why_not(stub, selection):
                yield Stub(stub.number, stub.stored_at, stub.address, problem=problem)
        elif selection.holds(stub.head):
            confirmed = await decisions.confirm(stub.head)
            if confirmed or selection.unconfirmed:
                yield replace(stub, confirmed=confirmed)


def _why_not(stub: Stub, selection: Selection) -> str:
    """Why a message is not a dead letter; empty if it is not selected."""
    problem = stub.problem
    if stub.is_part:
        problem = "this is a part of the content of another dead letter, which has another number"
    elif stub.note is not None:
        problem = f"it was {stub.note.outcome} at {stub.note.stored_at}"
    elif selection.everything:
        return problem
    return problem if selection.numbers is not None else ""


async def _numbered(letters: DeadLetters, numbers: Sequences, last: int) -> AsyncIterator[Stub]:
    """Yield the messages with these numbers. A number after ``last`` counts as one without a message: its message was
    stored later than the decisions that are compared with it may be."""
    for number in numbers:
        message = await stored_message(letters.stream, {"seq": number}) if number <= last else None
        if message is not None and subject_matches(letters.subjects, message["subject"]):
            yield Stub.from_stored(message)
        else:
            gone = "no message has this number; it was replayed or discarded in the meantime"
            yield Stub(number, "", "", problem=gone)
