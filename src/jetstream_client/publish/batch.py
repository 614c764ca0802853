# SPDX-License-Identifier: Apache-2.0
"""Atomic batches: all messages are stored, with consecutive sequences, or none (ADR-50, nats-server 2.12).

The server keeps a batch apart until it is committed, and drops it if nothing arrives for 10 s. A batch has at most
1,000 messages (``max_batch_size`` of the server's ``jetstream`` limits). At most 50 batches of a stream, and 1,000 of a
server, can be open.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from jetstream_client.errors import ConnectionLost, InvalidValue, JetStreamError, NoStreamResponse, RequestTimeout
from jetstream_client.publish.ack import PubAck, acknowledged
from jetstream_client.publish.message import OutgoingMessage, outgoing
from jetstream_client.quantities import check_count, check_seconds
from jetstream_client.requirements import ATOMIC_BATCHES
from jetstream_client.wire.protocol import FIRST_LINE, NO_RESPONDERS, inbox_number

if TYPE_CHECKING:
    from typing import Unpack

    from jetstream_client.api import Api
    from jetstream_client.publish.message import Headers
    from jetstream_client.publish.options import PublishOptions
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.protocol import Reply

MAX_MESSAGES = 1_000
_LONGEST_ID = 64
_ANSWERED = 100  # sending waits for the answer to the first of this many messages
_RESERVED = ("nats-batch-id", "nats-batch-sequence", "nats-batch-commit")


class Batch:
    """An atomic batch that is being sent. Get one from :meth:`JetStream.batch`.

    ``id`` identifies it in the server's answers and advisories, ``size`` is the number of added messages.
    """

    def __init__(self, api: Api, batch_id: str | None, max_messages: int) -> None:
        self.id = secrets.token_hex(16) if batch_id is None else check_batch_id(batch_id)
        self.size = 0
        self._api = api
        self._max_messages = check_count("max_messages", max_messages)
        self._held: OutgoingMessage | None = None  # the last message, which may have to commit the batch
        self._subjects: list[str] = []  # subjects of the messages that were sent
        self._inbox: Inbox | None = None
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._failure: JetStreamError | None = None
        self.ended = False
        """Whether the batch was committed or discarded."""

    async def add(
        self, subject: str, data: bytes = b"", *, headers: Headers | None = None, **options: Unpack[PublishOptions]
    ) -> None:
        """Add a message. It is sent when the next message is added, or by :meth:`commit`. Sending the first message of
        each hundred waits for its answer.

        The options are the same as for :meth:`JetStream.publish`, except that ``expected_last_sequence`` is allowed
        only for the first message, and ``expected_last_msg_id`` is not allowed. Expectations are checked when the batch
        is committed, against the content of the stream before the batch.

        Raises:
            InvalidValue: the message is invalid, or the batch is full. The message is not added.
            ServerTooOld: the server is too old for an option.
            BatchesDisabled: the stream has no ``allow_atomic``.
            TooManyBatches: 50 batches of the stream, or 1,000 of the server, are open.
            ApiError: the server refused an earlier message, and therefore the whole batch (usually a subclass).
            NoStreamResponse, RequestTimeout, ConnectionLost: the batch is lost, and nothing is stored.
        """
        if options.get("expected_last_msg_id") is not None:
            remedy = "the server does not support this option in a batch (err_code 10177); leave it out"
            raise InvalidValue("expected_last_msg_id", options["expected_last_msg_id"], remedy)
        if self.size and options.get("expected_last_sequence") is not None:
            remedy = "set it only for the first message of a batch"
            raise InvalidValue("expected_last_sequence", options["expected_last_sequence"], remedy)
        await self.append(await outgoing(self._api, subject, data, headers, options))

    async def append(self, message: OutgoingMessage) -> None:
        """Add a message that is already encoded. Raises the same errors as :meth:`add`."""
        self._check_open()
        for name in message.headers:
            if name.lower() in _RESERVED:
                raise InvalidValue(f"headers[{name!r}]", "…", "leave this header out, because the batch sets it")
        if self.size == self._max_messages:
            remedy = (
                f"a batch has at most {self._max_messages} messages; use several batches, or publish without a batch"
            )
            raise InvalidValue("messages", self.size + 1, remedy)
        if self._held is not None:
            await self._send(self._held)
        self._held = message
        self.size += 1

    async def commit(self, timeout: float | None = None) -> PubAck:
        """Store the batch. ``PubAck.seq`` is the last message's sequence; the sequences of the other messages directly
        precede it.

        timeout: seconds to wait for the answer. Default ``settings.request_timeout``.

        Raises:
            WrongLastSequence: an expectation was not met; nothing is stored.
            BatchIncomplete: a message was lost, or nothing was sent for 10 s; nothing is stored.
            BatchDuplicate: the stream already has the ``msg_id`` of a message; nothing of this batch is stored. If it
                repeats a batch with the same ids, that batch was stored completely.
            ApiError: the batch was refused for another reason (usually a subclass); nothing is stored.
            RequestTimeout, ConnectionLost: either the whole batch is stored or nothing. Repeat the batch with the same
                message ids.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._check_open()
        if self._held is None:
            raise InvalidValue("messages", 0, "a batch needs at least one message; add one, or discard the batch")
        answer = await self._send(self._held, commit=True, timeout=timeout)
        self.ended = True
        return acknowledged(answer, self._held.subject, self._api.settings.domain)

    def discard(self) -> None:
        """Store nothing. The server drops the batch 10 s after its last message."""
        self.ended = True

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.ended:
            raise InvalidValue("batch", self.id, "this batch is already committed or discarded; open another batch")

    async def _send(self, message: OutgoingMessage, *, commit: bool = False, timeout: float | None = None) -> bytes:
        """Send a message. Returns the answer if it is the first message, the first of each hundred or the last one, and
        ``b""`` otherwise."""
        connection = self._api.connection
        if self._inbox is None:
            await self._api.require(ATOMIC_BATCHES)
            self._inbox = await connection.open_inbox(self._deliver)
            connection.when_lost.add(self._lost)
        self._subjects.append(message.subject)
        number = len(self._subjects)
        lines = f"Nats-Batch-Id: {self.id}\r\nNats-Batch-Sequence: {number}\r\n"
        lines += "Nats-Batch-Commit: 1\r\n" if commit else ""
        block = b"%b%b\r\n" % (message.header[:-2] or FIRST_LINE, lines.encode())
        waits = commit or number % _ANSWERED == 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if waits:
            self._answers[number] = answer
        try:
            await connection.publish(message.subject, message.data, self._inbox.subject(number), block)
            return await self._answer(message, number, answer, timeout) if waits else b""
        except BaseException as error:
            self._failure = (
                error if isinstance(error, JetStreamError) else JetStreamError(f"sending batch {self.id} was cancelled")
            )
            raise
        finally:
            self._answers.pop(number, None)

    async def _answer(
        self, message: OutgoingMessage, number: int, answer: asyncio.Future[bytes], timeout: float | None
    ) -> bytes:
        limit = self._api.settings.request_timeout if timeout is None else timeout
        try:
            async with self._api.connection.timeout(limit):
                return await answer
        except TimeoutError:
            self._api.connection.check_permitted(message.subject)
            text = f"no answer to message {number} of batch {self.id} arrived within {limit:g} s"
            raise RequestTimeout(f"{text}; repeat the batch with the same message ids") from None

    def _deliver(self, reply: Reply) -> None:
        number = inbox_number(reply.subject)
        answer = self._answers.get(number)
        try:
            self._check(number, reply)
        except JetStreamError as error:
            error.add_note(f"message {number} of batch {self.id}")
            self._fail(error)
        else:
            if answer and not answer.done():
                answer.set_result(reply.data)

    def _check(self, number: int, reply: Reply) -> None:
        """Raises the error in an answer that is neither empty nor the answer to the whole batch."""
        if reply.status == NO_RESPONDERS:
            raise NoStreamResponse(self._subjects[number - 1])
        if reply.data and not (ack := PubAck.parse(reply.data)).batch_id:
            raise JetStreamError(
                f"message {number} was stored outside the batch, as sequence {ack.seq} of stream {ack.stream!r}; use "
                "nats-server 2.12 or newer for the stream, because older servers do not support atomic batches"
            )

    def _lost(self, error: ConnectionLost) -> None:
        error.add_note(f"batch {self.id} was not committed, or the answer to its commit is lost")
        self._fail(error)

    def _fail(self, error: JetStreamError) -> None:
        self._failure = self._failure or error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    async def close(self) -> None:
        """Stop listening for answers."""
        self._api.connection.when_lost.discard(self._lost)
        if self._inbox is not None:
            await self._inbox.close()


def check_batch_id(value: str) -> str:
    """Check and return an id. Raises InvalidValue if the server would refuse the id, or if it is not a token of a
    subject."""
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= _LONGEST_ID or set(value) & set(" .*>\t\r\n"):
        raise InvalidValue(
            "batch_id", value, f"must have 1 to {_LONGEST_ID} bytes, and must not contain . * > or white space"
        )
    return value
