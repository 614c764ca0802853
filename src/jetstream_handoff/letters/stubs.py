# SPDX-License-Identifier: Apache-2.0
"""The messages of a dead-letter stream without their payloads, in order. Nothing is changed.

They are read through a consumer without payloads, which exists for a moment only. A user who is not permitted to create
it reads the messages one by one instead, with their payloads.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue, JetStreamError, StreamNotFound
from jetstream_client.names import check_consumer_name
from jetstream_client.times import time_text
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.letters.letter import Head, content
from jetstream_handoff.letters.note import Note
from jetstream_handoff.letters.parts import PART
from jetstream_handoff.letters.stored import stored, stored_message
from jetstream_handoff.rules import roles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_handoff.letters.dead_letters import DeadLetters

AT_ONCE = 250
"""How many messages are requested at once by default."""
WITHIN = 1.0
"""Seconds after which no more messages are requested for a page or a count, which then goes on with the next one. The
server reads large messages whole, to send their headers."""
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

    @classmethod
    def of(cls, number: int, stored_at: str, address: str, headers: Mapping[str, list[str]], size: int) -> Stub:
        """Read a message of the dead-letter stream; the parameters are those of :meth:`Head.of`."""
        try:
            return cls(number, stored_at, address, head=Head.of(number, stored_at, address, headers, size))
        except InvalidValue as wrong:
            note = Note.of(number, stored_at, address, headers)
            problem = "" if note else str(wrong)
            return cls(number, stored_at, address, note=note, problem=problem, is_part=PART in headers)

    @classmethod
    def from_stored(cls, message: Mapping[str, Any]) -> Stub:
        """Read the ``message`` of a STREAM.MSG.GET answer."""
        header, data = content(message)
        return cls.of(message["seq"], message["time"], message["subject"], decode_headers(header), len(data))


async def every(letters: DeadLetters, consumer: str | None = None, last: int | None = None) -> AsyncIterator[Stub]:
    """Yield all messages of a dead-letter stream as :func:`stubs`, while the caller may change the stream. None if the
    stream does not exist.

    consumer:  only messages of this consumer.
    last:      the number after which to end. Default None: after the last message.

    They are read in pages, so that no consumer is open while the caller works on one of them. A page may come from a
    follower that does not have the last messages yet, so the leader is asked which is the last one.

    Raises:
        StreamNotFound: the stream does not exist, although it was named.
    """
    of, after = _subjects(letters, consumer), 0
    while (last is None or after < last) and await _last(letters, of) > after:
        page: list[Stub] = []
        async with aclosing(stubs(letters, after, consumer)) as reading:
            async for stub, _ in reading:
                page.append(stub)
                if len(page) == AT_ONCE:
                    break
        for stub in page:
            if last is not None and stub.number > last:
                return
            yield stub
            after = stub.number


async def _last(letters: DeadLetters, of: str) -> int:
    """The number of the last message on these subjects; 0 if there is none."""
    try:
        message = await stored_message(letters.stream, {"last_by_subj": of})
    except StreamNotFound:
        if letters.named:
            raise
        return 0
    return message["seq"] if message else 0


def _subjects(letters: DeadLetters, consumer: str | None) -> str:
    return f"dead.{letters.source.name}.{check_consumer_name(consumer)}.>" if consumer else letters.subjects


async def stubs(
    letters: DeadLetters, after: int = 0, consumer: str | None = None, at_once: int = AT_ONCE
) -> AsyncGenerator[tuple[Stub, int | None]]:
    """Yield the messages of a dead-letter stream without their payloads, oldest first, none of them confirmed. With
    each, yield how many messages come after it; None if that is unknown. Nothing if the stream does not exist.

    after:     the number after which to begin.
    consumer:  only messages of this consumer.
    at_once:   how many to request at once.
    """
    of = _subjects(letters, consumer)
    name = secrets.token_hex(8)
    requests = (f"CONSUMER.CREATE.{letters.name}.{name}.{of}", f"CONSUMER.MSG.NEXT.{letters.name}.{name}")
    needs = [roles.request(letters.js.settings.prefix, each) for each in requests]
    permitted = not await roles.denied(letters.js.connection, needs)
    reading = _by_consumer(letters, name, of, after, at_once) if permitted else _one_by_one(letters, of, after)
    with suppress(StreamNotFound):
        async with aclosing(reading):
            async for each in reading:
                yield each


def all_read(read: int, behind: int | None) -> bool:
    """Whether all messages that were requested together by :func:`stubs` have been read.

    read:    how many it has yielded.
    behind:  what it has yielded with the last one.
    """
    return behind is None or read % AT_ONCE == 0


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
                place = (message.metadata.sequence, time_text(message.metadata.timestamp), message.subject)
                yield Stub.of(*place, message.headers, message.size), pending
            pending = pending if messages else 0
    finally:
        with suppress(JetStreamError):
            await consumer.delete()


async def _one_by_one(letters: DeadLetters, of: str, after: int) -> AsyncGenerator[tuple[Stub, int | None]]:
    async for message in stored(letters.stream, of, after + 1):
        yield Stub.from_stored(message), None
