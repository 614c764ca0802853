# SPDX-License-Identifier: Apache-2.0
"""Answers to direct gets. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from jetstream_client.errors import ConnectionLost, JetStreamError, JetStreamNotEnabled, ProtocolError
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.wire.attempts import PASSING
from jetstream_client.wire.protocol import FIRST_LINE, header_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetstream_client.wire.run import Frame, Run

OUTSTANDING = 16 << 20
"""The largest number of bytes that are outstanding, or that have arrived and wait for earlier messages. The server
closes a connection with more than 64 MiB of unread answers."""


class Taken(NamedTuple):
    """What the answers say about the next sequences.

    messages:  the messages, in ascending order.
    missing:   inclusive ranges in which the server that answered has no other messages.
    through:   the last sequence that this concerns.
    """

    messages: Sequence[RawMessages]
    missing: Sequence[tuple[int, int]]
    through: int


class Window(Protocol):
    """Decides which requests read certain sequences, and sorts the answers. The driver sends the :meth:`commands`,
    reports every run of messages that arrives in the inbox, and takes the messages in order."""

    @property
    def done(self) -> bool:
        """Whether everything has been taken."""

    def commands(self, address: str, inbox: str) -> bytes:
        """Encoded requests to send now.

        address:  the subject of direct gets.
        inbox:    the answer to each request arrives on ``<inbox>.<number>``.
        """

    def on_run(self, run: Run, inbox: str) -> bool:
        """Record messages. Returns whether at least one of them answers a request.

        Raises:
            JetStreamError: the server refused a request, or answered with a message that was not requested.
        """

    def take(self) -> Taken | None:
        """What has arrived and is next in order; None if that is nothing."""


def frames(run: Run) -> list[Frame]:
    """The messages of a run one by one. Raises ConnectionLost if the data is not the NATS protocol."""
    try:
        return run.frames()
    except ProtocolError as error:
        raise ConnectionLost(str(error)) from None


def answered_message(header: bytes, data: bytes) -> RawMessage:
    """Parse an answer to a direct get. The server appends lines to the publisher's headers: stream, subject, sequence,
    time and more."""
    start = header.rfind(b"Nats-Stream: ")
    lines = header[start:].split(b"\r\n", 4)
    if start < 0 or not lines[2].startswith(b"Nats-Sequence: ") or not lines[3].startswith(b"Nats-Time-Stamp: "):
        raise JetStreamError("the answer to a direct get is not a stored message")
    # Like header_lines; calling it would double the time.
    plain = header.startswith(FIRST_LINE) and header.endswith(b"\r\n", 0, start)
    own = header[len(FIRST_LINE) : start] if plain else header_lines(header[:start])
    fields = (int(lines[2][15:]), lines[1][14:], lines[3][17:], own, data)
    return tuple.__new__(RawMessage, fields)


def refused(status: int, description: str) -> JetStreamError:
    """The error for a status with which the server refuses a direct get."""
    if status in PASSING:
        return JetStreamNotEnabled(status, 0, description or "no server answers direct gets at this moment")
    return JetStreamError(f"the server refused a direct get: {status} {description}")
