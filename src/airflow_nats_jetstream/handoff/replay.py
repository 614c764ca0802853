"""Dead letters on their way back: listed, and published again to the subjects that they came from.

Each letter is marked before it is published, and a note takes its place after the stream's PubAck. The mark holds the
id under which it is published and the source's last sequence: what a killed replay published is found there.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from airflow_nats_jetstream.client.errors import (
    ConnectionLost,
    InvalidValue,
    JetStreamError,
    MessageNotFound,
    RequestTimeout,
    WrongLastSequence,
)
from airflow_nats_jetstream.client.names import check_filter, subject_matches
from airflow_nats_jetstream.client.protocol import decode_headers, time_nanoseconds
from airflow_nats_jetstream.client.publish import PubAck
from airflow_nats_jetstream.client.sequences import Sequences
from airflow_nats_jetstream.handoff.dead_letters import PREFIX, DeadLetters, Letter, block, publish
from airflow_nats_jetstream.handoff.ledger import PATIENCE, Ledger

log = logging.getLogger(__name__)

_MARK = f"{PREFIX}Replay"
_NOTE = f"{PREFIX}Replayed"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which letters. What is given must all hold; to have all of them, say ``everything=True``.

    sequences:   of the original stream.
    subject:     a filter on the original subject.
    consumer:    whose letters.
    reason:      a text that the reason contains.
    unconfirmed: also letters of which the ledger does not say that their messages were given up. Such a one is left by
                 an attempt that died: its message was, or will be, processed by another.
    """

    sequences: Sequences | None = None
    subject: str | None = None
    consumer: str | None = None
    reason: str | None = None
    everything: bool = False
    unconfirmed: bool = False

    def __post_init__(self) -> None:
        chosen = [self.sequences, self.subject, self.consumer, self.reason]
        if self.everything == any(each is not None for each in chosen):
            remedy = "choose letters by sequences, subject, consumer or reason, or all of them with everything=True"
            raise InvalidValue("everything", self.everything, remedy)
        if self.subject is not None:
            check_filter(self.subject, "subject")

    def holds(self, letter: Letter) -> bool:
        return (
            (self.sequences is None or letter.sequence in self.sequences)
            and (self.subject is None or subject_matches(self.subject, letter.subject))
            and (self.consumer is None or letter.consumer == self.consumer)
            and (self.reason is None or self.reason in letter.reason)
        )


@dataclass(frozen=True)
class Replayed:
    """What a replay did: ``published`` letters, those that ``found`` had been published by one that was killed."""

    published: int = 0
    found: int = 0

    @property
    def count(self) -> int:
        return self.published + self.found


class _Decisions:
    """What the ledger says of letters. Each claim is asked for once."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._known: dict[tuple[str, str], Sequences | None] = {}

    async def confirm(self, letter: Letter) -> bool:
        """Whether the ledger gave the message up; a claim that it does not know any more counts as if it had."""
        key = (letter.consumer, letter.claim_id)
        if key not in self._known:
            self._known[key] = await self._rejected(*key)
        rejected = self._known[key]
        return rejected is None or letter.sequence in rejected

    async def _rejected(self, consumer: str, claim_id: str) -> Sequences | None:
        ledger = Ledger(self._letters.js, self._letters.source.name, consumer)
        record, _ = await ledger.read()
        receipt = await ledger.receipt(claim_id)
        if receipt is not None and receipt.state == "done":
            return receipt.rejected  # newer than the record's, where they differ
        if record is not None and claim_id in record.done:
            return record.done[claim_id].rejected
        if receipt is None and (record is None or claim_id not in record.open):
            return None
        return Sequences()


async def select(letters: DeadLetters, selection: Selection) -> AsyncIterator[tuple[Letter, bool]]:
    """The letters, oldest first, each with whether it is confirmed (see :class:`Selection`). Touches nothing.

    Raises:
        StreamNotFound: there is no dead-letter stream.
        LedgerUnavailable: the ledger cannot be asked.
    """
    last = (await letters.stream.info(patience=PATIENCE)).state["last_seq"]
    decisions = _Decisions(letters)
    async for message in _stored(letters.name, letters, letters.subjects, 1):
        if message["seq"] > last:
            return
        letter = Letter.from_stored(message)
        if letter is None and _NOTE in decode_headers(base64.b64decode(message.get("hdrs", ""))):
            continue
        if letter is None:
            log.warning("message %d of stream %s is no dead letter", message["seq"], letters.name)
        elif selection.holds(letter):
            confirmed = await decisions.confirm(letter)
            if confirmed or selection.unconfirmed:
                yield letter, confirmed


async def replay(letters: DeadLetters, selection: Selection) -> Replayed:
    """Publish the letters to their original subjects under fresh ids. After its PubAck a note takes a letter's place.

    Every consumer of the stream gets them, not only the one that gave them up. A letter is published once, also when a
    replay is killed and run again. One doubt is resolved by publishing again, and logged: when the stream may have
    removed by now what the killed replay stored.

    Raises:
        StreamNotFound: the dead-letter stream or the source stream is not there.
        NoStreamResponse, ApiError: the source stream does not take a letter; it stays, with all that follow.
    """
    published = found = 0
    async for letter, _ in select(letters, selection):
        outcome = await _replay(letters, letter)
        published += outcome.published
        found += outcome.found
    log.info("replayed %d letters of %s; %d had been before", published, letters.name, found)
    return Replayed(published, found)


async def _replay(letters: DeadLetters, letter: Letter) -> Replayed:
    number, mark = letter.number, decode_headers(letter.header).get(_MARK, [""])[-1]
    if mark:
        if await _arrived(letters, letter, mark):
            await _finish(letters, letter, number, mark)
            return Replayed(found=1)
    else:
        source = await letters.source.info(patience=PATIENCE)
        made = time_nanoseconds((await letters.stream.info(patience=PATIENCE)).created)
        mark = f"dead-letter.{letters.name}.{made}.{number} {source.created} {source.state['last_seq']}"
        number = await _mark(letters, letter, mark)
        if not number:
            log.info("letter %d of %s was changed by somebody else meanwhile", letter.number, letters.name)
            return Replayed()
    await _publish_marked(letters, letter, mark)
    await _finish(letters, letter, number, mark)
    return Replayed(published=1)


async def _mark(letters: DeadLetters, letter: Letter, mark: str) -> int:
    """The letter's new number; 0 when it is not there any more, or another one is in its place."""
    expected = tuple(line.partition(b":")[0] + b":" for line in letters.conditions(0))
    lines = [line for line in letter.header.split(b"\r\n")[1:] if line and not line.startswith(expected)]
    lines += [f"{_MARK}: {mark}".encode(), *letters.conditions(letter.number)]
    try:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        ack = await _publish(letters, (letter.address, block(lines), letter.data), deadline)
    except WrongLastSequence:
        number, there = await letters.last(letter.address)
        mine = there is not None and decode_headers(there.header).get(_MARK) == [mark]
        return number if mine else 0  # our own write, whose answer got lost
    return ack.seq


async def _publish_marked(letters: DeadLetters, letter: Letter, mark: str) -> None:
    """To the original subject. What went unanswered is looked for before it is sent again: windows of ids may be short.

    Raises:
        ConnectionLost, RequestTimeout: not answered within ``PATIENCE``; the letter keeps its mark.
    """
    lines = [
        *letter.own_lines,
        f"Nats-Msg-Id: {mark.split(' ', maxsplit=1)[0]}".encode(),
        f"Nats-Expected-Stream: {letters.source.name}".encode(),
    ]
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE
    while True:
        try:
            await _publish(letters, (letter.subject, block(lines), letter.data), deadline=0)
        except (ConnectionLost, RequestTimeout):
            if clock() > deadline:
                raise
            await asyncio.sleep(0.2)
            if await _arrived(letters, letter, mark):
                return
        else:
            return


async def _arrived(letters: DeadLetters, letter: Letter, mark: str) -> bool:
    """Whether the source stream holds what was published under the mark's id, behind the mark's position."""
    message_id, created, position = mark.split(" ")
    source = await letters.source.info(patience=PATIENCE)
    if source.created != created:
        return False
    first = int(position) + 1
    async for message in _stored(letters.source.name, letters, letter.subject, first):
        header = decode_headers(base64.b64decode(message.get("hdrs", "")))
        if header.get("Nats-Msg-Id") == [message_id]:
            return True
    if source.config.get("retention", "limits") != "limits" or source.state["first_seq"] > first:
        log.warning(
            "letter %d of %s may have been replayed before: stream %s could have removed it. It is published again",
            letter.number,
            letters.name,
            letters.source.name,
        )
    return False


async def _publish(letters: DeadLetters, message: tuple[str, bytes, bytes], deadline: float) -> PubAck:
    (outcome,) = await publish(letters.js.settings, [message], deadline)
    if isinstance(outcome, JetStreamError):
        raise outcome
    return outcome


async def _finish(letters: DeadLetters, letter: Letter, number: int, mark: str) -> None:
    """Put a note of the replay in the letter's place.

    Not a deletion: a server that is killed forgets its last ones, and brings the letter back as it was before its mark.
    """
    note = [f"{_NOTE}: {mark}".encode(), *letters.conditions(number)]
    deadline = asyncio.get_running_loop().time() + PATIENCE
    try:
        await _publish(letters, (letter.address, block(note), b""), deadline)
    except WrongLastSequence:  # our own note, whose answer got lost, or a newer letter
        log.info("letter %d of %s has something else in its place by now", number, letters.name)


async def _stored(stream: str, letters: DeadLetters, subject: str, first: int) -> AsyncIterator[dict[str, Any]]:
    """What the stream holds on the subject from a sequence on, one by one, from its leader."""
    while True:
        request = {"seq": first, "next_by_subj": subject}
        try:
            answer = await letters.js.api(f"STREAM.MSG.GET.{stream}", request, patience=PATIENCE)
        except MessageNotFound:
            return
        message: dict[str, Any] = answer["message"]
        yield message
        first = message["seq"] + 1
