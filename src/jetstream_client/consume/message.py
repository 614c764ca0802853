# SPDX-License-Identifier: Apache-2.0
"""A delivered message and its answers (ADR-15; ``processAck`` in nats-server's ``server/consumer.go``)."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, JetStreamError, MessageAlreadyAnswered
from jetstream_client.quantities import check_duration
from jetstream_client.times import nanoseconds
from jetstream_client.wire.protocol import AckSubject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_client.wire.control import Connection
    from jetstream_client.wire.protocol import Reply

ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
NEXT = b"+NXT "
_SIZE = re.compile("[0-9]{1,10}")  # bytes of one message


def nak(delay: timedelta | None = None) -> bytes:
    """The body of a negative acknowledgement (NAK). The server redelivers the message after ``delay``, by default at
    once.

    Raises InvalidValue for a delay that the server cannot read, because the server would redeliver at once.
    """
    if delay is None:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": nanoseconds(check_duration("delay", delay))}).encode()


def term(reason: str = "") -> bytes:
    """The body of an answer that terminates a message. The server's advisory contains the reason. Raises
    InvalidValue."""
    if not isinstance(reason, str):
        raise InvalidValue("reason", reason, "must be a string")
    return f"+TERM {reason}".strip().encode()


class Message:
    """One delivery of a consumer. Its ``repr`` does not show the payload.

    It can be answered once, with :meth:`ack`, :meth:`double_ack`, :meth:`Consumer.ack_next`, :meth:`nak` or
    :meth:`term`. An answer that failed may be repeated. All of these methods raise

        MessageAlreadyAnswered: the message was answered before.
        ConnectionLost: there is no connection at this moment; nothing was sent.

    subject:  subject on which the message was published.
    data:     payload; ``b""`` if it is empty, or if the consumer has ``headers_only``.
    headers:  every name with all its values, in order.
    metadata: :class:`~jetstream_client.wire.protocol.AckSubject` with ``stream``, ``consumer``, ``sequence`` (in the
              stream), ``consumer_sequence``, ``delivered`` (number of deliveries), ``pending`` (number of messages that
              wait for their first delivery), ``timestamp`` and ``domain``.
    reply:    subject for the answers.
    counted:  bytes of subject, reply subject, headers and data: the size that the server counts in a pull with
              ``max_bytes``.

    Raises:
        NotJetStreamMessage: no consumer delivered the message.
    """

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self._connection = connection
        self.answered = False
        """Whether this object has acknowledged, negatively acknowledged or terminated the message."""
        self.subject = reply.subject
        self.reply = reply.reply
        self.headers = reply.headers
        self.data = reply.data
        self.metadata = AckSubject.parse(reply.reply)
        self.counted = reply.size

    def __repr__(self) -> str:
        return f"<Message {self.metadata.sequence} of {self.metadata.stream} on {self.subject!r}>"

    @property
    def size(self) -> int:
        """Bytes of the payload. For a consumer with ``headers_only``, the size that the server states."""
        # A publisher may have set the same header. The server's is the last one.
        stated = self.headers.get("Nats-Msg-Size", [""])[-1]
        return int(stated) if not self.data and _SIZE.fullmatch(stated) else len(self.data)

    @property
    def timestamp(self) -> datetime:
        """When the stream stored the message."""
        return datetime.fromtimestamp(self.metadata.timestamp / 1e9, UTC)

    async def ack(self) -> None:
        """Acknowledge without confirmation: the acknowledgement may get lost."""
        await self._answer(ACK)

    async def double_ack(self) -> None:
        """Acknowledge and wait for the server's confirmation.

        Raises:
            RequestTimeout: no confirmation arrived within ``request_timeout``; the message may be acknowledged.
            JetStreamError: nothing listens for acknowledgements, because the consumer no longer exists or has no
                leader.
        """
        with self._answering(BaseException):
            if (await self._connection.request(self.reply, ACK)).status:
                of = f"consumer {self.metadata.consumer!r} of stream {self.metadata.stream!r}"
                raise JetStreamError(
                    f"the acknowledgement of message {self.metadata.sequence} was not confirmed, because no server "
                    f"answers for {of}; run `nats consumer info` to see whether the consumer exists"
                )

    async def nak(self, delay: timedelta | None = None) -> None:
        """Negatively acknowledge: ask for redelivery at once, or after ``delay``, which must not be negative."""
        await self._answer(nak(delay))

    async def in_progress(self) -> None:
        """Send an in-progress acknowledgement, which restarts ``ack_wait``. It may be repeated until the message is
        answered."""
        if self.answered:
            raise MessageAlreadyAnswered(self.metadata.stream, self.metadata.sequence)
        await self._connection.publish(self.reply, IN_PROGRESS)

    async def term(self, reason: str = "") -> None:
        """Terminate: the message is never redelivered. The server's advisory contains the ``reason``."""
        await self._answer(term(reason))

    @contextmanager
    def _answering(self, *unanswered: type[BaseException]) -> Iterator[None]:
        """Wrap the sending of an answer, which may be repeated after one of the ``unanswered`` exceptions."""
        if self.answered:
            raise MessageAlreadyAnswered(self.metadata.stream, self.metadata.sequence)
        self.answered = True
        try:
            yield
        except unanswered:
            self.answered = False
            raise

    async def _answer(self, body: bytes) -> None:
        with self._answering(BaseException):
            await self._connection.publish(self.reply, body)
