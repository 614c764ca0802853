# SPDX-License-Identifier: Apache-2.0
"""Selecting dead letters, and finding out which of them the ledger confirms. Nothing is changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_client.names import check_filter, subject_matches
from jetstream_client.sequences import Sequences
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import stored_message
from jetstream_handoff.letters.letter import Letter, content
from jetstream_handoff.letters.note import Note
from jetstream_handoff.letters.parts import PART

if TYPE_CHECKING:
    from jetstream_client.stream import Stream
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


class Listed(NamedTuple):
    """A message of the dead-letter stream. If it is not a dead letter, ``letter`` is None and ``problem`` contains the
    reason."""

    number: int
    stored_at: str
    letter: Letter | None
    confirmed: bool = False
    problem: str = ""


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


async def select(letters: DeadLetters, selection: Selection) -> AsyncIterator[Listed]:
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
    messages = stored(letters.stream, letters.subjects)
    if selection.numbers is not None:
        messages = _numbered(letters, selection.numbers, last)
    async for message in messages:
        if selection.numbers is None and message["seq"] > last:
            return
        listed = _listed(message, selection)
        if listed is None or listed.letter is None:
            if listed is not None:
                yield listed
            continue
        confirmed = await decisions.confirm(listed.letter)
        if confirmed or selection.unconfirmed:
            yield listed._replace(confirmed=confirmed)


def _listed(message: dict[str, Any], selection: Selection) -> Listed | None:
    """The message as it is listed, unconfirmed; None if it is not selected."""
    place = (message["seq"], message.get("time", ""))
    if "subject" not in message:
        return Listed(*place, None, problem="no message has this number; it was replayed or discarded in the meantime")
    try:
        letter = Letter.from_stored(message)
    except InvalidValue as wrong:
        headers = decode_headers(content(message)[0])
        if PART in headers:
            problem = "this is a part of the content of another dead letter, which has another number"
            return Listed(*place, None, problem=problem) if selection.numbers is not None else None
        note = Note.of(*place, message["subject"], headers)
        if note is None and (selection.everything or selection.numbers is not None):
            return Listed(*place, None, problem=str(wrong))
        if note is not None and selection.numbers is not None:
            return Listed(*place, None, problem=f"it was {note.outcome} at {note.stored_at}")
        return None
    return Listed(*place, letter) if selection.holds(letter) else None


async def _numbered(letters: DeadLetters, numbers: Sequences, last: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages with these numbers. A number without a message yields only ``seq``, as does a number after
    ``last``: its message was stored later than the decisions that are compared with it may be."""
    for number in numbers:
        message = await stored_message(letters.stream, {"seq": number}) if number <= last else None
        ours = message is not None and subject_matches(letters.subjects, message["subject"])
        yield message if message is not None and ours else {"seq": number}


async def stored(stream: Stream, subject: str, first: int = 1) -> AsyncIterator[dict[str, Any]]:
    """Yield the stream's messages on a subject from a sequence on, one by one, read from its leader."""
    while (message := await stored_message(stream, {"seq": first, "next_by_subj": subject})) is not None:
        yield message
        first = message["seq"] + 1
