# SPDX-License-Identifier: Apache-2.0
"""Dead letters as values: their subjects, their headers, and their content. No I/O."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.ledger.failures import one_line
from jetstream_handoff.letters.parts import PARTS, Parts, block, unsigned

PREFIX = "Nats-Dead-Letter-"
"""Prefix of the headers that a dead letter adds. All headers of a dead letter that begin with ``Nats-`` are written by
this package; all other headers are copied from the message."""
ORIGINAL = f"{PREFIX}Original-"
"""Prefix for the message's own ``Nats-`` headers. They told the server what to do when the message was first published
(an id, a condition, a roll-up, a time to live), and the server must not apply them to the dead letter."""
ORIGIN = f"{PREFIX}Origin"
"""Header of a message that was published again into its stream: the sequence of the message that was published first.
It orders the dead letters of a stopped key if they become dead letters once more."""
MARK = f"{PREFIX}Replay"
"""Header of a dead letter that is being replayed: the id under which it is published, and the creation time and last
sequence of the target stream."""


def check_reason(reason: object) -> str:
    """Return the reason on one line, cut to 1 KiB.

    Raises:
        InvalidValue: it is not a string, or it is blank.
    """
    line = one_line(reason, 1 << 10) if isinstance(reason, str) else ""
    if not line:
        raise InvalidValue("reason", reason, "a reason must be a string that says why the message cannot be processed")
    return line


def address_of(stream: str, consumer: str, sequence: int, created: str, subject: str, *, hashed: bool) -> str:
    """Return the subject of a dead letter.

    hashed: whether it ends in a hash of the original subject, because the original subject is too long.
    """
    end = f"sha256-{hashlib.sha256(subject.encode()).hexdigest()}" if hashed else subject
    return f"dead.{stream}.{consumer}.{sequence}.{time_nanoseconds(created)}.{end}"


@dataclass(frozen=True)
class Head:
    """What the headers of a dead letter say. Times are the server's, RFC 3339.

    number, stored_at:    its sequence in the dead-letter stream, and when it was stored there.
    stream, stream_created, sequence, subject, time:  the stream of the original message and when it was created, and
                                                      the message's sequence, subject and time.
    consumer:             the consumer that gave the message up.
    reason:               why the message could not be processed.
    claim_id, token:      the claim and the attempt that copied it.
    failures:             how many times the message had failed alone.
    size:                 bytes of its payload.
    address:              its subject in the dead-letter stream.
    mark:                 the value of :data:`MARK`; empty if no replay has begun.
    parts:                the messages that contain its content; None if the dead letter itself contains it.
    origin:               the sequence of the message that was published first, if this one was published again (with
                          :data:`ORIGIN`); otherwise ``sequence``. As long as the content is in parts: ``sequence``.
    """

    number: int
    stored_at: str
    stream: str
    stream_created: str
    sequence: int
    subject: str
    time: str
    consumer: str
    reason: str
    claim_id: str
    token: str
    failures: int
    size: int
    address: str = field(repr=False)
    mark: str = field(repr=False)
    parts: Parts | None = field(repr=False)
    origin: int

    @classmethod
    def of(cls, number: int, stored_at: str, address: str, headers: Mapping[str, list[str]], size: int) -> Head:
        """Read a message of the dead-letter stream.

        number, stored_at:  its sequence, and when it was stored.
        address:            its subject.
        headers:            its headers.
        size:               bytes of its payload.

        Raises:
            InvalidValue: the message is not a dead letter; names the header that is missing or invalid.
        """
        values = {name: each[-1] for name, each in headers.items() if name.startswith(PREFIX)}

        def valid(name: str, check: Callable[[str], Any]) -> Any:
            value = values.get(f"{PREFIX}{name}", "")
            try:
                return check(value)
            except ValueError as wrong:
                remedy = (
                    wrong.remedy
                    if isinstance(wrong, InvalidValue)
                    else "a dead letter needs this header with a valid value"
                )
                raise InvalidValue(f"{PREFIX}{name}", value, remedy) from None

        parts = valid("Parts", Parts.of) if PARTS in values else None
        sequence = parts.sequence if parts else valid("Sequence", unsigned)
        head = Head(
            number,
            stored_at,
            valid("Stream", check_stream_name),
            valid("Stream-Created", _time),
            sequence,
            valid("Subject", _literal),
            valid("Time-Stamp", _time),
            valid("Consumer", check_consumer_name),
            valid("Reason", check_reason),
            valid("Claim", _that(is_claim_id)),
            valid("Token", _that(bool)),
            valid("Failures", unsigned),
            parts.size if parts else size,
            address,
            valid("Replay", _mark),
            parts,
            origin_of(headers, ORIGINAL) or sequence,
        )
        identity = (head.stream, head.consumer, head.sequence, head.stream_created, head.subject)
        if address not in (address_of(*identity, hashed=False), address_of(*identity, hashed=True)):
            remedy = "this is not the subject of a dead letter with these headers"
            raise InvalidValue("address", address, remedy)
        return head


@dataclass(frozen=True)
class Letter(Head):
    """One dead letter as it is stored. If it is in parts, its content is not complete:
    :meth:`~jetstream_handoff.letters.dead_letters.DeadLetters.whole` reads it.

    header:  its header block.
    data:    its payload.
    """

    header: bytes = field(repr=False)
    data: bytes = field(repr=False)

    @classmethod
    def from_stored(cls, message: Mapping[str, Any]) -> Letter:
        """Read a dead letter from the ``message`` of a STREAM.MSG.GET answer.

        Raises:
            InvalidValue: as :meth:`Head.of`.
        """
        header, data = content(message)
        head = Head.of(message["seq"], message["time"], message["subject"], decode_headers(header), len(data))
        return cls(**vars(head), header=header, data=data)

    def joined(self, found: bytes) -> Letter:
        """Return a dead letter in parts with its content, as if it had been stored in one message.

        found:  the content of all parts.

        Raises:
            InvalidValue: the content is not complete.
        """
        if self.parts is None or len(found) != self.parts.header + self.parts.size:
            remedy = (
                "a part of the dead letter's content is missing: it was purged, replaced, or has expired. Only the "
                "headers are left, so the dead letter can only be discarded"
            )
            raise InvalidValue(PARTS, str(self.parts), remedy)
        own = found[: self.parts.header].split(b"\r\n")
        lines = [*own, *self.header.split(b"\r\n")[1:]]
        header = block([line for line in lines if line])
        origin = origin_of(decode_headers(header), ORIGINAL) or self.sequence
        return replace(self, header=header, data=found[self.parts.header :], origin=origin)

    @property
    def own_header(self) -> bytes:
        """The header block of the message, with the lines of the dead letter behind its own."""
        return self.header.replace(b"\r\n" + ORIGINAL.encode(), b"\r\n")


def content(message: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return header block and data of the ``message`` of a STREAM.MSG.GET answer."""
    return base64.b64decode(message.get("hdrs", "")), base64.b64decode(message.get("data", ""))


def origin_of(headers: Mapping[str, list[str]], prefix: str = "") -> int:
    """Return the sequence of the message that was published first, as one that was published again names it; 0 if it
    names none.

    prefix:  what a dead letter puts before the names of its message's headers.
    """
    (value,) = headers.get(prefix + ORIGIN, [""])[-1:]
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0


def own_lines(header: bytes) -> list[bytes]:
    """Return the lines of a header block unchanged, except those whose names begin with ``Nats-``."""
    return [line for line in header.split(b"\r\n")[1:] if line and not is_ours(line)]


def _literal(text: str) -> str:
    tokens = text.split(".")
    if not all(tokens) or {"*", ">"}.intersection(tokens) or any(each.isspace() or each == "\0" for each in text):
        remedy = "the subject of a message has no wildcards, white space or empty tokens"
        raise InvalidValue("subject", text, remedy)
    return text


def _time(text: str) -> str:
    time_nanoseconds(text)
    return text


def _that(holds: Callable[[str], bool]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not holds(text):
            raise ValueError(text)
        return text

    return check


def _mark(text: str) -> str:
    if text:
        message_id, created, position = text.split(" ")
        return f"{message_id} {_time(created)} {unsigned(position)}"
    return ""


def is_ours(line: bytes) -> bool:
    """Whether the name of a header line begins with ``Nats-``."""
    return line[:5].lower() == b"nats-"
