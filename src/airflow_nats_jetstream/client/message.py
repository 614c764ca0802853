"""A delivered message and the ways to answer it (ADR-15)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_nats_jetstream.client.config import nanoseconds
from airflow_nats_jetstream.client.errors import JetStreamError
from airflow_nats_jetstream.client.protocol import AckSubject

if TYPE_CHECKING:
    from airflow_nats_jetstream.client.connection import Connection
    from airflow_nats_jetstream.client.protocol import Reply

ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
_SIZE = re.compile("[0-9]{1,10}")  # bytes of one message


def nak(delay: timedelta | None = None) -> bytes:
    """The body of a negative acknowledgement; with a delay the server keeps the message that long."""
    return b"-NAK" if delay is None else b"-NAK " + json.dumps({"delay": nanoseconds(delay)}).encode()


def term(reason: str = "") -> bytes:
    """The body that ends a message's deliveries; the reason goes into the server's advisory."""
    return f"+TERM {reason}".strip().encode()


class Message:
    """One delivery. Its ``repr`` does not show the payload."""

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self._connection = connection
        self._answered = False
        self.subject = reply.subject
        self.reply = reply.reply
        self.headers = reply.headers
        self.data = reply.data
        self.metadata = AckSubject.parse(reply.reply)

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
        await self._answer(ACK, confirmed=False)

    async def double_ack(self) -> None:
        """Acknowledge and wait for the server's confirmation. Raises RequestTimeout, JetStreamError."""
        await self._answer(ACK, confirmed=True)

    async def nak(self, delay: timedelta | None = None) -> None:
        """Ask for redelivery, at once or after ``delay``."""
        await self._answer(nak(delay), confirmed=False)

    async def in_progress(self) -> None:
        """Restart ``ack_wait``. Does not answer: may be repeated."""
        await self._connection.publish(self.reply, IN_PROGRESS)

    async def term(self, reason: str = "") -> None:
        """Never deliver again; the reason goes into the server's advisory."""
        await self._answer(term(reason), confirmed=False)

    async def _answer(self, body: bytes, *, confirmed: bool) -> None:
        if self._answered:
            raise JetStreamError(f"message {self.metadata.sequence} of {self.metadata.stream!r} was answered before")
        if confirmed:
            answer = await self._connection.request(self.reply, body)
            if answer.status:
                raise JetStreamError(f"nobody confirms message {self.metadata.sequence}: is the consumer gone?")
        else:
            await self._connection.publish(self.reply, body)
        self._answered = True
