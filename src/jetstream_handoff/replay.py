# SPDX-License-Identifier: Apache-2.0
"""Replaying dead letters: listing them, and publishing them again to their original subjects.

A dead letter is marked before it is published, and replaced by a note after the stream's PubAck. The mark contains the
id under which it is published and the target stream's last sequence. From these the next replay finds out whether a
replay that was killed had already published the dead letter.
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
_UNREADABLE = "\ufffd"  # written by the server for a byte that is not UTF-8


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selection of dead letters. A dead letter is selected if it meets all given conditions.

    sequences:   sequences of messages in the original stream.
    subject:     a filter for the original subject.
    consumer:    the consumer that gave the messages up.
    reason:      a string that the reason contains.
    everything:  whether to select all dead letters; then no condition may be given.
    unconfirmed: whether to include dead letters that the ledger does not confirm. Usually an attempt that died left
                 them, and another attempt processes their messages.
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
            remedy = (
                "either set at least one of 'sequences', 'subject', 'consumer' and 'reason', or set everything=True to "
                "select all dead letters"
            )
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
    """The outcome of a replay.

    published:    number of dead letters that it published.
    found:        number of dead letters that an earlier, killed replay had already published.
    unconfirmed:  number of selected dead letters that were skipped, because the ledger does not confirm them.
    refused:      the dead letters that were skipped for other reasons: the reasons by sequence in the dead-letter
                  stream.
    """

    published: int = 0
    found: int = 0
    unconfirmed: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.published + self.found


class Listed(NamedTuple):
    """A message of the dead-letter stream. If it is not a dead letter, ``letter`` is None and ``problem`` contains the
    reason."""

    number: int
    stored_at: str
    letter: Letter | None
    confirmed: bool = False
    problem: str = ""


class _Decisions:
    """The ledger's decisions about dead letters. The ledger is asked once for each claim."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._known: dict[tuple[str, str], Sequences] = {}

    async def confirm(self, letter: Letter) -> bool:
        """Whether the message was given up according to the ledger. False if the ledger does not know the claim."""
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
        receipt = await ledger.receipt(claim_id)
        if receipt is not None and receipt.state == "done":  # if they differ, the receipt is newer than the record
            return receipt.rejected if (receipt.stream, receipt.consumer) == ledger.names else Sequences()
        record, _ = await ledger.read()
        entry = record.done.get(claim_id) if record else None
        return entry.rejected if entry else Sequences()


async def select(letters: DeadLetters, selection: Selection) -> AsyncIterator[Listed]:
    """Yield the selected dead letters, oldest first, and for each whether the ledger confirms it. Nothing is changed.

    With ``everything`` this includes messages in the dead-letter stream that are not dead letters.

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
    """Publish the selected dead letters to their original subjects.

    They are published under new ids into the source stream, or into the stream named by ``into``. After the stream's
    PubAck, each dead letter is replaced by a note. All consumers of the stream receive the messages, not only the
    consumer that gave them up.

    A dead letter is published only once, even if a replay is killed and run again. There are two exceptions. If the
    stream has removed the message that the killed replay stored, the dead letter is published again, and this is
    logged. If the replay is run again into another stream, the dead letter can then be in both streams.

    Any client that may publish to the dead-letter stream can forge dead letters. So a message is published only if the
    source stream could have contained it: see :func:`_objection`.

    Raises:
        StreamNotFound: the stream to publish into does not exist; or as :func:`select`.
        ReplayRefused: the stream accepts no messages, for example because it is a mirror.
        NoStreamResponse, ApiError: the stream refuses a dead letter. This dead letter and all later dead letters are
            kept.
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
        log.warning("dead letter %d of stream %s was not replayed: %s", number, letters.name, objection)
    text = "replayed %d dead letters of stream %s; %d more had already been replayed"
    log.info(text, published, letters.name, found)
    return Replayed(published, found, unconfirmed, refused)


async def _objection(letters: DeadLetters, letter: Letter, target: Stream) -> str:
    """The reason why a dead letter must not be published into this stream; empty if there is none.

    Raises:
        ReplayRefused: no dead letter may be published into this stream.
    """
    config = (await target.info(patience=PATIENCE)).config
    _check_target(target.name, config)
    if _UNREADABLE in letter.subject:
        return f"its original subject is not valid UTF-8, and is known only as {letter.subject!r}"
    if not any(subject_matches(pattern, letter.subject) for pattern in config["subjects"]):
        subjects = ", ".join(map(repr, config["subjects"]))
        return (
            f"stream {target.name!r} does not listen on {letter.subject!r}, only on {subjects}{_sources(config)}. If "
            "the dead letter is genuine, use 'into' to name a stream that listens on its original subject"
        )
    transform = config.get("subject_transform")
    if transform and subject_matches(transform.get("src") or ">", letter.subject):
        return (
            f"stream {target.name!r} would store it under another subject (subject_transform "
            f"{transform.get('src') or '>'!r} to {transform.get('dest')!r}); remove that transform, or use 'into' to "
            "name another stream that listens on the original subject"
        )
    return await _difference(letters, letter)


async def _difference(letters: DeadLetters, letter: Letter) -> str:
    """The reason why the dead letter is not a copy of its original message; empty if it is a copy, or if the source
    stream no longer contains the original."""
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
        f"it is not a copy of message {letter.sequence} of stream {letters.source.name!r}, because its subject, "
        "headers or data differ. Find out which client published it to the dead-letter stream"
    )


def _check_target(name: str, config: Mapping[str, Any]) -> None:
    def refuse(
        problem: str, remedy: str = "use 'into' to name another stream that listens on the original subjects"
    ) -> None:
        raise ReplayRefused(name, problem, remedy)

    if config.get("mirror"):
        refuse(f"it is a mirror of stream {config['mirror'].get('name')!r}", "use 'into' to name that stream instead")
    if config.get("sealed"):
        refuse("it is sealed")
    if config.get("no_ack"):
        refuse("it does not confirm stored messages (no_ack)")
    if not config.get("subjects"):
        refuse(f"it listens on no subjects{_sources(config)}")


def _sources(config: Mapping[str, Any]) -> str:
    """The streams that this stream copies messages from, as the end of a sentence."""
    names = ", ".join(repr(each.get("name")) for each in config.get("sources") or ())
    return f", and it copies messages of other streams ({names})" if names else ""


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
            log.info(
                "dead letter %d of stream %s was changed in the meantime and is skipped", letter.number, letters.name
            )
            return Replayed()
    await _publish_marked(letters, letter, mark, target)
    await _finish(letters, letter, number, mark)
    return Replayed(published=1)


async def _mark(letters: DeadLetters, letter: Letter, mark: str) -> int:
    """Mark a dead letter. Returns its new number; 0 if it no longer exists, or if another dead letter has replaced
    it."""
    expected = tuple(line.partition(b":")[0] + b":" for line in letters.conditions(0))
    lines = [line for line in letter.header.split(b"\r\n")[1:] if line and not line.startswith(expected)]
    lines += [f"{MARK}: {mark}".encode(), *letters.conditions(letter.number)]
    try:
        ack = await _publish(letters, letters.stream, OutgoingMessage(letter.address, letter.data, block(lines)))
    except WrongLastSequence:
        number, there = await letters.last(letter.address)
        mine = there is not None and there.mark == mark
        return number if mine else 0  # if it is ours, only the answer to the first write got lost
    return ack.seq


async def _publish_marked(letters: DeadLetters, letter: Letter, mark: str, target: Stream) -> None:
    """Publish to the original subject.

    If there is no answer, the stream is searched for the message before it is sent again, because the stream's
    duplicate window may be short.

    Raises:
        ConnectionLost, RequestTimeout: no answer within ``PATIENCE`` seconds. The dead letter keeps its mark.
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
    """Whether the stream contains a message with the mark's id after the mark's sequence."""
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
            "dead letter %d of stream %s is published again: an earlier replay may have published it, but stream %s "
            "may have removed the message since",
            letter.number,
            letters.name,
            target.name,
        )
    return False


async def _publish(letters: DeadLetters, stream: Stream, message: OutgoingMessage, within: float = PATIENCE) -> PubAck:
    (outcome,) = await publish(letters.js.settings, [message], asyncio.get_running_loop().time() + within)
    if isinstance(outcome, JetStreamError):
        raise outcome.about(
            f"dead letters of stream {letters.name!r} are being replayed, but publishing a message to stream "
            f"{stream.name!r} failed"
        )
    return outcome


async def _finish(letters: DeadLetters, letter: Letter, number: int, mark: str) -> None:
    """Replace the dead letter with a note of the replay.

    A deletion could be lost: a killed server forgets its last deletions and restores a dead letter without its mark.
    """
    note = [f"{_NOTE}: {mark}".encode(), *letters.conditions(number)]
    try:
        await _publish(letters, letters.stream, OutgoingMessage(letter.address, b"", block(note)))
    except WrongLastSequence:  # our own note, if only the answer got lost, or a newer dead letter
        log.info("dead letter %d of stream %s was already replaced", number, letters.name)


async def _stored(stream: Stream, subject: str, first: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the stream's messages on a subject from a sequence on, one by one, read from its leader."""
    while (message := await stored_message(stream, {"seq": first, "next_by_subj": subject})) is not None:
        yield message
        first = message["seq"] + 1
