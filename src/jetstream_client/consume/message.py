"""A delivered message and the ways to answer it (ADR-15; ``processAck`` in nats-server's ``server/consumer.go``)."""

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
    """The body of a negative acknowledgement; with a delay the server keeps the message that long.

    Raises InvalidValue: of a delay that it cannot read the server knows only that the message is refused, and delivers
    it at once.
    """
    if delay is None:
        return b"-NAK"
    return b"-NAK " + json.dumps({"delay": nanoseconds(check_duration("delay", delay))}).encode()


def term(reason: str = "") -> bytes:
    """The body that ends a message's deliveries; the reason goes into the server's advisory. Raises InvalidValue."""
    if not isinstance(reason, str):
        raise InvalidValue("reason", reason, "give a text")
    return f"+TERM {reason}".strip().encode()


class Message:
    """One delivery of a consumer. Its ``repr`` does not show the payload.

    It can be answered once: by :meth:`ack`, :meth:`double_ack`, :meth:`Consumer.ack_next`, :meth:`nak` or
    :meth:`term`. An answer that failed may be given again. All answers raise

        MessageAlreadyAnswered: it was answered before.
        ConnectionLost: not connected at this moment; nothing was sent.

    subject:  where it was published.
    data:     the payload; ``b""`` for an empty one and with the consumer's ``headers_only``.
    headers:  every name with all its values, in order.
    metadata: :class:`~jetstream_client.wire.protocol.AckSubject`: stream, consumer, sequence (of the stream),
              consumer_sequence, delivered (how often, from 1), pending (how many come after it), timestamp, domain.
    reply:    the subject that takes the answers.
    counted:  bytes of subject, reply subject, headers and data: what the server counts where bytes bound a pull.

    Raises:
        NotJetStreamMessage: made of something that no consumer delivered.
    """

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self._connection = connection
        self.answered = False
        """Whether it was acknowledged, refused or ended by this object."""
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
        """Bytes of the payload; for a consumer with ``headers_only`` what the server says that it would be."""
        # A publisher may have set the header as well: the server's own is the last one.
        stated = self.headers.get("Nats-Msg-Size", [""])[-1]
        return int(stated) if not self.data and _SIZE.fullmatch(stated) else len(self.data)

    @property
    def timestamp(self) -> datetime:
        """When the stream stored it."""
        return datetime.fromtimestamp(self.metadata.timestamp / 1e9, UTC)

    async def ack(self) -> None:
        """Acknowledge, unconfirmed: the answer may get lost on the way."""
        await self._answer(ACK)

    async def double_ack(self) -> None:
        """Acknowledge and wait for the server's confirmation.

        Raises:
            RequestTimeout: no confirmation within ``request_timeout``; it may have been acknowledged.
            JetStreamError: nobody confirms: the consumer is gone.
        """
        with self._answering(BaseException):
            if (await self._connection.request(self.reply, ACK)).status:
                raise JetStreamError(f"nobody confirms message {self.metadata.sequence}: is the consumer gone?")

    async def nak(self, delay: timedelta | None = None) -> None:
        """Ask for redelivery, at once or after ``delay``. Raises InvalidValue for a negative one."""
        await self._answer(nak(delay))

    async def in_progress(self) -> None:
        """Restart ``ack_wait``: the work goes on. May be repeated, until the message is answered."""
        if self.answered:
            raise MessageAlreadyAnswered(self.metadata.stream, self.metadata.sequence)
        await self._connection.answer(self.reply, IN_PROGRESS)

    async def term(self, reason: str = "") -> None:
        """Never deliver again; the reason goes into the server's advisory."""
        await self._answer(term(reason))

    @contextmanager
    def _answering(self, *unanswered: type[BaseException]) -> Iterator[None]:
        """While an answer is being sent. After an exception of ``unanswered`` another one may be given."""
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
            await self._connection.answer(self.reply, body)
