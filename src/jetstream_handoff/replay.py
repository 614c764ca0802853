"""Dead letters on their way back: listed, and published again to the subjects that they came from.

Each letter is marked before it is published, and a note takes its place after the stream's PubAck. The mark holds the
id under which it is published and the source's last sequence: what a killed replay published is found there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.errors import (
    ConnectionLost,
    InvalidValue,
    JetStreamError,
    RequestTimeout,
    StreamNotFound,
    WrongLastSequence,
)
from jetstream_client.names import check_filter, subject_matches
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.dead_letters import (
    MARK,
    PREFIX,
    DeadLetters,
    Letter,
    block,
    content,
    own_lines,
    publish,
    stored_message,
)
from jetstream_handoff.errors import LedgerInvalid, ReplayRefused
from jetstream_handoff.ledger import PATIENCE, Ledger

if TYPE_CHECKING:
    from jetstream_client.stream import Stream

log = logging.getLogger(__name__)

_NOTE = f"{PREFIX}Replayed"
_UNREADABLE = "\ufffd"  # what the server writes for a byte that is not UTF-8


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
    """What a replay did: ``published`` dead letters, and those ``found`` published by an earlier replay that was
    killed. What it left: ``unconfirmed`` of the selection, and those ``refused``, each by its number with the reason.
    """

    published: int = 0
    found: int = 0
    unconfirmed: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.published + self.found


class Listed(NamedTuple):
    """A message of the dead-letter stream. ``letter`` is None for what is no dead letter: ``problem`` says why."""

    number: int
    stored_at: str
    letter: Letter | None
    confirmed: bool = False
    problem: str = ""


class _Decisions:
    """What the ledger says of dead letters. Each claim is asked for once."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._known: dict[tuple[str, str], Sequences] = {}

    async def confirm(self, letter: Letter) -> bool:
        """Whether the ledger gave the message up. Of a claim that it does not know (any more) it says nothing."""
        key = (letter.consumer, letter.claim_id)
        if key not in self._known:
            try:
                self._known[key] = await self._rejected(*key)
            except LedgerInvalid as invalid:
                log.warning("the dead letters of claim %s are not confirmed: %s", letter.claim_id, invalid)
                self._known[key] = Sequences()
        return letter.sequence in self._known[key]

    async def _rejected(self, consumer: str, claim_id: str) -> Sequences:
        ledger = Ledger(self._letters.js, self._letters.source.name, consumer)
        receipt = await ledger.receipt(claim_id)
        if receipt is not None and receipt.state == "done":  # newer than the record's, where they differ
            return receipt.rejected if (receipt.stream, receipt.consumer) == ledger.names else Sequences()
        record, _ = await ledger.read()
        entry = record.done.get(claim_id) if record else None
        return entry.rejected if entry else Sequences()


async def select(letters: DeadLetters, selection: Selection) -> AsyncIterator[Listed]:
    """The dead letters, oldest first, each with whether it is confirmed (see :class:`Selection`). Touches nothing.

    What is stored among them and is no dead letter is in a selection of everything.

    Raises:
        StreamNotFound: there is neither a dead-letter stream nor a source stream.
        LedgerUnavailable: the ledger cannot be asked.
    """
    try:
        last = (await letters.stream.info(patience=PATIENCE)).state["last_seq"]
    except StreamNotFound:
        if letters.named:
            raise
        await letters.source.info(patience=PATIENCE)
        return  # the first message that is rejected makes it
    decisions = _Decisions(letters)
    async for message in _stored(letters.stream, letters.subjects, 1):
        if message["seq"] > last:
            return
        place = (message["seq"], message["time"])
        try:
            letter = Letter.from_stored(message)
        except InvalidValue as wrong:
            if selection.everything and _NOTE not in decode_headers(content(message)[0]):
                yield Listed(*place, None, problem=str(wrong))
            continue
        if selection.holds(letter):
            confirmed = await decisions.confirm(letter)
            if confirmed or selection.unconfirmed:
                yield Listed(*place, letter, confirmed)


async def replay(letters: DeadLetters, selection: Selection, into: str | None = None) -> Replayed:
    """Publish the dead letters to their original subjects under fresh ids, into the stream that they came from, or
    another. After its PubAck a note takes a dead letter's place.

    Every consumer of the stream gets them, not only the one that gave them up. A dead letter is published once, also
    when a replay is killed and run again. One doubt is resolved by publishing again, and logged: when the stream may
    have removed by now what the killed replay stored.

    Whoever may publish to the dead-letter stream can forge what lies in it. So only what the source stream itself could
    have held is published: see :func:`_objection`.

    Raises:
        StreamNotFound: the stream that they are published into is not there, or neither of the other two.
        ReplayRefused: that stream takes no messages, for example because it is a mirror.
        NoStreamResponse, ApiError: it does not take a dead letter; this one stays, with all that follow.
    """
    target = letters.js.stream(into) if into is not None else letters.source
    published = found = unconfirmed = 0
    refused: dict[int, str] = {}
    async for each in select(letters, replace(selection, unconfirmed=True)):
        if each.letter is None:
            refused[each.number] = each.problem
        elif not (each.confirmed or selection.unconfirmed):
            unconfirmed += 1
        elif objection := await _objection(letters, each.letter, target):
            refused[each.number] = objection
        else:
            outcome = await _replay(letters, each.letter, target)
            published += outcome.published
            found += outcome.found
    for number, objection in refused.items():
        log.warning("dead letter %d of %s is not replayed: %s", number, letters.name, objection)
    log.info("replayed %d dead letters of %s; %d had been before", published, letters.name, found)
    return Replayed(published, found, unconfirmed, refused)


async def _objection(letters: DeadLetters, letter: Letter, target: Stream) -> str:
    """Why a dead letter must not be published into this stream; empty when it may.

    Raises:
        ReplayRefused: nothing may.
    """
    config = (await target.info(patience=PATIENCE)).config
    _check_target(target.name, config)
    if _UNREADABLE in letter.subject:
        return f"its subject {letter.subject!r} is not the original one, which is not valid UTF-8"
    if not any(subject_matches(pattern, letter.subject) for pattern in config["subjects"]):
        subjects = ", ".join(map(repr, config["subjects"]))
        return (
            f"{letter.subject!r} is not among the subjects of stream {target.name!r}, {subjects}"
            f"{_sources(config)}. If the message is genuine, replay it into a stream that listens on its subject (into)"
        )
    transform = config.get("subject_transform")
    if transform and subject_matches(transform.get("src") or ">", letter.subject):
        return (
            f"stream {target.name!r} would store it under another subject (subject_transform "
            f"{transform.get('src') or '>'!r} to {transform.get('dest')!r}): remove that, or replay it into a "
            "stream that listens on its subject (into)"
        )
    return await _difference(letters, letter)


async def _difference(letters: DeadLetters, letter: Letter) -> str:
    """How the dead letter differs from the message that it should be a copy of, if the source stream has that."""
    try:
        created = (await letters.source.info(patience=PATIENCE)).created
    except StreamNotFound:
        return ""
    if created != letter.stream_created:
        return ""
    original = await stored_message(letters.source, {"seq": letter.sequence})
    if original is None:
        return ""
    header, data = content(original)
    if (original["subject"], own_lines(header), data) == (letter.subject, own_lines(letter.header), letter.data):
        return ""
    return (
        f"message {letter.sequence} of stream {letters.source.name!r} is another than this copy of it: its subject, "
        "headers or data differ. Find out who publishes to the dead-letter stream"
    )


def _check_target(name: str, config: Mapping[str, Any]) -> None:
    def refuse(
        problem: str, remedy: str = "name another stream, which listens on the original subjects (into)"
    ) -> None:
        raise ReplayRefused(name, problem, remedy)

    if config.get("mirror"):
        refuse(f"it is a mirror of stream {config['mirror'].get('name')!r}", "name that one instead (into)")
    if config.get("sealed"):
        refuse("it is sealed")
    if config.get("no_ack"):
        refuse("it confirms nothing that it stores (no_ack)")
    if not config.get("subjects"):
        refuse(f"it has no subjects of its own{_sources(config)}")


def _sources(config: Mapping[str, Any]) -> str:
    """Where else the stream has messages from, as the end of a sentence."""
    names = ", ".join(repr(each.get("name")) for each in config.get("sources") or ())
    return f"; it copies messages of other streams ({names})" if names else ""


async def _replay(letters: DeadLetters, letter: Letter, target: Stream) -> Replayed:
    number, mark = letter.number, letter.mark
    if mark:
        if await _arrived(letters, letter, mark, target):
            await _finish(letters, letter, number, mark)
            return Replayed(found=1)
    else:
        into = await target.info(patience=PATIENCE)
        made = time_nanoseconds((await letters.stream.info(patience=PATIENCE)).created)
        mark = f"dead-letter.{letters.name}.{made}.{number} {into.created} {into.state['last_seq']}"
        number = await _mark(letters, letter, mark)
        if not number:
            log.info("dead letter %d of %s was changed by somebody else meanwhile", letter.number, letters.name)
            return Replayed()
    await _publish_marked(letters, letter, mark, target)
    await _finish(letters, letter, number, mark)
    return Replayed(published=1)


async def _mark(letters: DeadLetters, letter: Letter, mark: str) -> int:
    """The letter's new number; 0 when it is not there any more, or another one is in its place."""
    expected = tuple(line.partition(b":")[0] + b":" for line in letters.conditions(0))
    lines = [line for line in letter.header.split(b"\r\n")[1:] if line and not line.startswith(expected)]
    lines += [f"{MARK}: {mark}".encode(), *letters.conditions(letter.number)]
    try:
        ack = await _publish(letters, letters.stream, OutgoingMessage(letter.address, letter.data, block(lines)))
    except WrongLastSequence:
        number, there = await letters.last(letter.address)
        mine = there is not None and there.mark == mark
        return number if mine else 0  # our own write, whose answer got lost
    return ack.seq


async def _publish_marked(letters: DeadLetters, letter: Letter, mark: str, target: Stream) -> None:
    """To the original subject. What went unanswered is looked for before it is sent again: windows of ids may be short.

    Raises:
        ConnectionLost, RequestTimeout: not answered within ``PATIENCE``; the letter keeps its mark.
    """
    lines = [
        *own_lines(letter.header),
        f"Nats-Msg-Id: {mark.split(' ', maxsplit=1)[0]}".encode(),
        f"Nats-Expected-Stream: {target.name}".encode(),
    ]
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE
    while True:
        try:
            await _publish(letters, target, OutgoingMessage(letter.subject, letter.data, block(lines)), within=0)
        except (ConnectionLost, RequestTimeout):
            if clock() > deadline:
                raise
            await asyncio.sleep(0.2)
            if await _arrived(letters, letter, mark, target):
                return
        else:
            return


async def _arrived(letters: DeadLetters, letter: Letter, mark: str, target: Stream) -> bool:
    """Whether the stream holds what was published under the mark's id, behind the mark's position."""
    message_id, created, position = mark.split(" ")
    info = await target.info(patience=PATIENCE)
    if info.created != created:
        return False
    first = int(position) + 1
    async for message in _stored(target, letter.subject, first):
        header = decode_headers(content(message)[0])
        if header.get("Nats-Msg-Id") == [message_id]:
            return True
    if info.config.get("retention", "limits") != "limits" or info.state["first_seq"] > first:
        log.warning(
            "letter %d of %s may have been replayed before: stream %s could have removed it. It is published again",
            letter.number,
            letters.name,
            target.name,
        )
    return False


async def _publish(letters: DeadLetters, stream: Stream, message: OutgoingMessage, within: float = PATIENCE) -> PubAck:
    (outcome,) = await publish(letters.js.settings, [message], asyncio.get_running_loop().time() + within)
    if isinstance(outcome, JetStreamError):
        raise outcome.about(f"stream {stream.name} does not take a message of {letters.name}")
    return outcome


async def _finish(letters: DeadLetters, letter: Letter, number: int, mark: str) -> None:
    """Put a note of the replay in the letter's place.

    Not a deletion: a server that is killed forgets its last ones, and brings the letter back as it was before its mark.
    """
    note = [f"{_NOTE}: {mark}".encode(), *letters.conditions(number)]
    try:
        await _publish(letters, letters.stream, OutgoingMessage(letter.address, b"", block(note)))
    except WrongLastSequence:  # our own note, whose answer got lost, or a newer letter
        log.info("letter %d of %s has something else in its place by now", number, letters.name)


async def _stored(stream: Stream, subject: str, first: int) -> AsyncIterator[dict[str, Any]]:
    """What the stream holds on the subject from a sequence on, one by one, from its leader."""
    while (message := await stored_message(stream, {"seq": first, "next_by_subj": subject})) is not None:
        yield message
        first = message["seq"] + 1
