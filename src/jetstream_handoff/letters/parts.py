# SPDX-License-Identifier: Apache-2.0
"""Dead letters that are too large for one message: their content is in separate messages, the parts. No I/O.

A dead letter has more headers than its message, so a message that just fits the server's limits would not fit as a dead
letter. The parts contain the message's header lines and its payload, and the dead letter itself names them. They are
stored before it, under a name that only this dead letter has, so that nothing else needs them when it is replaced.

Releases that do not know parts do not take such a dead letter for one, because a header of dead letters is missing.
Otherwise they would replay it without its content.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.wire.protocol import HEADER_LINE

PARTS = "Nats-Dead-Letter-Parts"
"""Header of a dead letter in parts: its :class:`Parts`."""
PART = "Nats-Dead-Letter-Part"
"""Header of a part: its number."""
LARGEST_HEADER = (1 << 16) - 1
"""Bytes of the largest header block that JetStream stores (JSStreamHeaderExceedsMaximumErr)."""
FOR_MARK = 1 << 10
"""Bytes that a dead letter leaves free for the mark of a replay, which contains the names of two streams."""
_MOST = 10_000
_LARGEST = 65 << 20  # bytes of a message that a connection reads


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a dead letter, and what only its address says otherwise.

    sequence:  the sequence of the original message.
    name:      a random string, which is in the subjects of the parts.
    count:     how many parts there are.
    header:    bytes of the message's header lines, with which the content begins.
    size:      bytes of the payload, the rest of the content.
    """

    sequence: int
    name: str
    count: int
    header: int
    size: int

    @classmethod
    def of(cls, text: str) -> Self:
        """Read the value of the header :data:`PARTS`. Raises ValueError if it is invalid."""
        sequence, name, *numbers = text.split(" ")
        if not (name.isascii() and name.isalnum()):
            raise ValueError(text)
        count, header, size = map(unsigned, numbers)
        if count > _MOST or header + size > _LARGEST:
            raise ValueError(text)
        return cls(unsigned(sequence), name, count, header, size)

    def __str__(self) -> str:
        return f"{self.sequence} {self.name} {self.count} {self.header} {self.size}"

    def subjects(self, address: str) -> list[str]:
        """Return the subjects of the parts of the dead letter with this address."""
        place = ".".join(address.split(".")[:5])
        return [f"{place}.part-{self.name}-{index}" for index in range(1, self.count + 1)]


class Draft(NamedTuple):
    """A dead letter to be stored.

    ``letter``: the dead letter itself.
    ``parts``: its parts, which must be stored first.
    """

    letter: OutgoingMessage
    parts: Sequence[OutgoingMessage] = ()


def fits(message: OutgoingMessage, more: int, largest: int) -> bool:
    """Whether a stream can store a message with additional headers.

    more:     bytes of the additional headers.
    largest:  bytes that the message may have.
    """
    return message.size + more <= largest and len(message.header) + more <= LARGEST_HEADER


def in_parts(  # noqa: PLR0917 - a message, what is added to it, and where it goes
    address: str, sequence: int, own: list[bytes], data: bytes, ours: list[bytes], largest: int, only_here: bytes
) -> Draft:
    """Return a dead letter in parts.

    address:    its subject.
    sequence:   the sequence of the original message.
    own, data:  the content: the message's header lines, and its payload.
    ours:       the header lines of the dead letter, without the message's sequence.
    largest:    bytes that a message in the dead-letter stream may have.
    only_here:  a header line with which only the dead-letter stream stores the parts.
    """
    lines = b"\r\n".join(own)
    content = lines + data
    room = max(1, largest - len(_part_header(len(content), only_here)))
    pieces = [content[start : start + room] for start in range(0, len(content), room)]
    parts = Parts(sequence, secrets.token_hex(8), len(pieces), len(lines), len(data))
    messages = [
        OutgoingMessage(subject, piece, _part_header(index, only_here))
        for index, (subject, piece) in enumerate(zip(parts.subjects(address), pieces, strict=True), 1)
    ]
    return Draft(OutgoingMessage(address, b"", block([f"{PARTS}: {parts}".encode(), *ours])), messages)


def emptied(subjects: Sequence[str], only_here: bytes) -> list[OutgoingMessage]:
    """Return the messages that take the places of parts, because their dead letter was replaced. They have no payload.

    A deletion would need another permission, and a killed server forgets its last deletions.
    """
    lines = [f"{PART}: 0".encode(), only_here]
    return [OutgoingMessage(subject, b"", block(lines)) for subject in subjects]


def block(lines: list[bytes]) -> bytes:
    """Return a header block of these lines."""
    return b"\r\n".join([HEADER_LINE, *lines, b"", b""])


def unsigned(text: str) -> int:
    """Return an unsigned number of at most 64 bits. Raises ValueError if the text is something else."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**64):
        raise ValueError(text)
    return int(text)


def _part_header(index: int, only_here: bytes) -> bytes:
    return block([f"{PART}: {index}".encode(), only_here, b"Nats-Expected-Last-Subject-Sequence: 0"])
