# SPDX-License-Identifier: Apache-2.0
"""Replaying dead letters: publishing them again to their original subjects.

A dead letter is marked before it is published, and replaced by a note after the stream's PubAck. The mark contains the
id under which it is published and the target stream's last sequence. From these the next replay finds out whether a
replay that was killed had already published the dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import ConnectionLost, InvalidValue, RequestTimeout, WrongLastSequence
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.letters.letter import MARK, ORIGIN, Letter, content, own_lines
from jetstream_handoff.letters.parts import block
from jetstream_handoff.letters.replayable import (
    check_target,
    not_stored,
    objection,
    only_if_room,
    too_large,
    would_lose,
)
from jetstream_handoff.letters.selection import select
from jetstream_handoff.letters.stored import stored, stored_message

if TYPE_CHECKING:
    from jetstream_client.stream import Stream
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.selection import Selection

log = logging.getLogger(__name__)


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


async def replay(letters: DeadLetters, selection: Selection, into: str | None = None) -> Replayed:
    """Publish the selected dead letters to their original subjects.

    They are published under new ids into the source stream, or into the stream named by ``into``. After the stream's
    PubAck, each dead letter is replaced by a note. All consumers of the stream receive the messages, not only the
    consumer that gave them up.

    A dead letter is published only once, even if a replay is killed and run again. There are two exceptions. If the
    stream has removed the message that the killed replay stored, the dead letter is published again, and this is
    logged. If the replay is run again into another stream, the dead letter can then be in both streams.

    Any client that may publish to the dead-letter stream can forge dead letters. So a message is published only if the
    source stream could have contained it: see :mod:`.replayable`.

    Raises:
        StreamNotFound: the stream to publish into does not exist; or as :func:`select`.
        ReplayRefused: the stream accepts no messages, for example because it is a mirror.
        NoStreamResponse, ApiError: the stream refuses a dead letter. This dead letter and all later dead letters are
            kept.
    """
    target = await target_of(letters, into)
    published = found = unconfirmed = 0
    refused: dict[int, str] = {}
    async for each in select(letters, replace(selection, unconfirmed=True)):
        if each.head is None:
            refused[each.number] = each.problem
        elif not (each.confirmed or selection.unconfirmed):
            unconfirmed += 1
        else:
            outcome = await replay_one(letters, each.number, target)
            published += outcome.published
            found += outcome.found
            refused |= outcome.refused
    for number, problem in refused.items():
        log.warning("dead letter %d of stream %s was not replayed: %s", number, letters.name, problem)
    text = "replayed %d dead letters of stream %s; %d more had already been replayed"
    log.info(text, published, letters.name, found)
    return Replayed(published, found, unconfirmed, refused)


async def target_of(letters: DeadLetters, into: str | None = None) -> Stream:
    """Return the stream into which a replay publishes: the source stream, or the stream named by ``into``.

    Raises:
        StreamNotFound, ReplayRefused: as :func:`replay`.
    """
    target = letters.js.stream(into) if into is not None else letters.source
    check_target(target.name, (await target.info(patience=PATIENCE)).config)
    return target


async def replay_one(letters: DeadLetters, number: int, target: Stream) -> Replayed:
    """Publish the dead letter with this number as :func:`replay`; nothing if it was changed in the meantime."""
    message = await stored_message(letters.stream, {"seq": number})
    if message is None:
        return _changed(letters, number)
    letter = Letter.from_stored(message)
    try:
        whole = await letters.whole(letter)
    except InvalidValue as incomplete:
        return Replayed(refused={letter.number: str(incomplete)})
    if problem := await objection(letters, whole, target):
        return Replayed(refused={letter.number: problem})
    if letter.mark and await _arrived(letters, letter, letter.mark, target):
        await _finish(letters, letter, letter.number, letter.mark)
        return Replayed(found=1)
    return await _publish_again(letters, letter, whole, target)


async def _publish_again(letters: DeadLetters, letter: Letter, whole: Letter, target: Stream) -> Replayed:
    """Mark a dead letter, publish it, and replace it by a note.

    ``letter``: as it is stored.
    ``whole``: with its complete content.
    """
    most = letters.js.connection.max_payload
    number, mark = letter.number, letter.mark
    into = await target.info(patience=PATIENCE)
    if lost := await would_lose(target, into, letter):
        return Replayed(refused={letter.number: lost})
    dead = await letters.stream.info(patience=PATIENCE)
    if not mark:
        made = time_nanoseconds(dead.created)
        mark = f"dead-letter.{letters.name}.{made}.{number} {into.created} {into.state['last_seq']}"
    outgoing = await _outgoing(whole, mark, target, into.config)
    marked = _marked(letters, letter, mark)
    large = too_large(outgoing, most, target.name, into.config) or too_large(marked, most, letters.name, dead.config)
    if large:
        return Replayed(refused={letter.number: large})
    if not letter.mark:
        number = await _mark(letters, marked, mark)
        if not number:
            return _changed(letters, letter.number)
    if lost := await _publish_marked(letters, outgoing, letter, mark, target, into.config):
        return Replayed(refused={letter.number: lost})
    await _finish(letters, letter, number, mark)
    return Replayed(published=1)


def _changed(letters: DeadLetters, number: int) -> Replayed:
    log.info("dead letter %d of stream %s was changed in the meantime and is skipped", number, letters.name)
    return Replayed()


def _marked(letters: DeadLetters, letter: Letter, mark: str) -> OutgoingMessage:
    """A dead letter with a mark, which the server stores only if it replaces the dead letter without one."""
    expected = tuple(line.partition(b":")[0] + b":" for line in letters.conditions(0))
    lines = [line for line in letter.header.split(b"\r\n")[1:] if line and not line.startswith(expected)]
    lines += [f"{MARK}: {mark}".encode(), *letters.conditions(letter.number)]
    return OutgoingMessage(letter.address, letter.data, block(lines))


async def _mark(letters: DeadLetters, marked: OutgoingMessage, mark: str) -> int:
    """Mark a dead letter. Returns its new number; 0 if it no longer exists, or if another dead letter has replaced
    it."""
    try:
        ack = await letters.publish_one(letters.stream, marked, "replayed")
    except WrongLastSequence:
        number, there = await letters.last(marked.subject)
        mine = there is not None and there.mark == mark
        return number if mine else 0  # if it is ours, only the answer to the first write got lost
    return ack.seq


async def _outgoing(letter: Letter, mark: str, target: Stream, config: Mapping[str, Any]) -> OutgoingMessage:
    """The message as it is published again. In its own stream, it names the message that was published first."""
    lines = [
        *own_lines(letter.header),
        f"Nats-Msg-Id: {_id_of(mark)}".encode(),
        f"Nats-Expected-Stream: {target.name}".encode(),
        *await only_if_room(target, config, letter),
        *([f"{ORIGIN}: {letter.origin}".encode()] if target.name == letter.stream else []),
    ]
    return OutgoingMessage(letter.subject, letter.data, block(lines))


def _id_of(mark: str) -> str:
    return mark.split(" ", maxsplit=1)[0]


async def _publish_marked(  # noqa: PLR0917 - the message, the dead letter, and where it goes
    letters: DeadLetters,
    message: OutgoingMessage,
    letter: Letter,
    mark: str,
    target: Stream,
    config: Mapping[str, Any],
) -> str:
    """Publish to the original subject, and read the message back. Returns the reason why the stream does not have it,
    or why it would have removed a newer message; empty if it was published.

    If there is no answer, the stream is searched for the message before it is sent again, because the stream's
    duplicate window may be short.

    Raises:
        ConnectionLost, RequestTimeout: no answer within ``PATIENCE`` seconds. The dead letter keeps its mark.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE
    while True:
        try:
            ack = await letters.publish_one(target, message, "replayed", within=0)
        except WrongLastSequence:
            return f"another message was published to {letter.subject!r} in the meantime; replay the dead letter again"
        except (ConnectionLost, RequestTimeout):
            if clock() > deadline:
                raise
            await asyncio.sleep(0.2)
            if await _arrived(letters, letter, mark, target):
                return ""
        else:
            return await not_stored(target, config, ack.seq, _id_of(mark))


async def _arrived(letters: DeadLetters, letter: Letter, mark: str, target: Stream) -> bool:
    """Whether the stream contains a message with the mark's id after the mark's sequence."""
    message_id, created, position = mark.split(" ")
    info = await target.info(patience=PATIENCE)
    if info.created != created:
        return False
    first = int(position) + 1
    async for message in stored(target, letter.subject, first):
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


async def _finish(letters: DeadLetters, letter: Letter, number: int, mark: str) -> None:
    """Replace the dead letter with a note of the replay.

    A deletion could be lost: a killed server forgets its last deletions and restores a dead letter without its mark.
    """
    try:
        await letters.put_note(letter, number, "replayed", mark)
    except WrongLastSequence:  # our own note, if only the answer got lost, or a newer dead letter
        log.info("dead letter %d of stream %s was already replaced", number, letters.name)
    await letters.empty(letter)
