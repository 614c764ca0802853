"""Atomic batches: all of the messages are stored, one behind the other, or none (ADR-50, nats-server 2.12).

The server keeps a batch aside until it is committed. It gives one up for which nothing came for 10 s, takes 1,000
messages (``max_batch_size`` of its ``jetstream`` limits), and has at most 50 open for a stream and 1,000 in all.
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
_ANSWERED = 100  # messages between two answers that are waited for
_RESERVED = ("nats-batch-id", "nats-batch-sequence", "nats-batch-commit")


class Batch:
    """An atomic batch that is being sent. Get one from :meth:`JetStream.batch`.

    ``id`` names it in the answers and in the advisories of the server, ``size`` is how many messages were added.
    """

    def __init__(self, api: Api, batch_id: str | None, max_messages: int) -> None:
        self.id = secrets.token_hex(16) if batch_id is None else check_batch_id(batch_id)
        self.size = 0
        self._api = api
        self._max_messages = check_count("max_messages", max_messages)
        self._held: OutgoingMessage | None = None  # the last one, until it is known whether it commits
        self._subjects: list[str] = []  # of what was sent
        self._inbox: Inbox | None = None
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._failure: JetStreamError | None = None
        self.ended = False
        """Committed or discarded."""

    async def add(
        self, subject: str, data: bytes = b"", *, headers: Headers | None = None, **options: Unpack[PublishOptions]
    ) -> None:
        """Add a message. It is sent with the next one, or by :meth:`commit`; the first one's answer is waited for.

        Options as for :meth:`JetStream.publish`; ``expected_last_sequence`` for the first message only, and no
        ``expected_last_msg_id``. What is expected is looked at when the batch is committed, against what the stream
        held before it.

        Raises:
            InvalidValue: the message, or one more than the batch may have. It is not added.
            ServerTooOld: the server is too old for an option.
            BatchesDisabled: the stream has no ``allow_atomic``.
            TooManyBatches: 50 of the stream, or 1,000 of the server, are open.
            ApiError: or another subclass: what was sent before was refused, and with it the batch.
            NoStreamResponse, RequestTimeout, ConnectionLost: the batch is lost, nothing is stored.
        """
        if options.get("expected_last_msg_id") is not None:
            remedy = "the server does not look at it in a batch (err_code 10177)"
            raise InvalidValue("expected_last_msg_id", options["expected_last_msg_id"], remedy)
        if self.size and options.get("expected_last_sequence") is not None:
            remedy = "only the first message of a batch expects a sequence of the stream"
            raise InvalidValue("expected_last_sequence", options["expected_last_sequence"], remedy)
        await self.append(await outgoing(self._api, subject, data, headers, options))

    async def append(self, message: OutgoingMessage) -> None:
        """Add one that is made already. As :meth:`add`."""
        self._check_open()
        for name in message.headers:
            if name.lower() in _RESERVED:
                raise InvalidValue(f"headers[{name!r}]", "…", "the batch sets it")
        if self.size == self._max_messages:
            remedy = f"an atomic batch has at most {self._max_messages} messages: make several, or publish without"
            raise InvalidValue("messages", f"number {self.size + 1}", remedy)
        if self._held is not None:
            await self._send(self._held)
        self._held = message
        self.size += 1

    async def commit(self, timeout: float | None = None) -> PubAck:
        """Store the batch. ``PubAck.seq`` is the last message's sequence, the others lie directly before it.

        timeout: seconds for the answer, by default ``settings.request_timeout``.

        Raises:
            WrongLastSequence: what a message expected is not so; nothing is stored.
            BatchIncomplete: a message got lost, or nothing was sent for 10 s; nothing is stored.
            BatchDuplicate: a message's ``msg_id`` is known; nothing is stored now. All of it was before, if this is a
                repetition with the ids of the first time.
            ApiError: or another subclass; nothing is stored.
            RequestTimeout, ConnectionLost: it is all stored, or nothing: repeat it with the same ``msg_id`` for each.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._check_open()
        if self._held is None:
            raise InvalidValue("messages", 0, "a batch has at least one message: add some, or discard it")
        answer = await self._send(self._held, commit=True, timeout=timeout)
        self.ended = True
        return acknowledged(answer, self._held.subject, self._api.settings.domain)

    def discard(self) -> None:
        """Store nothing. The server gives the batch up when it has heard nothing of it for 10 s."""
        self.ended = True

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.ended:
            raise InvalidValue("batch", self.id, "it was committed or discarded: open another")

    async def _send(self, message: OutgoingMessage, *, commit: bool = False, timeout: float | None = None) -> bytes:
        """The answer to the first, to each hundredth and to the last message; empty for the others."""
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
            self._failure = error if isinstance(error, JetStreamError) else JetStreamError("sending was cancelled")
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
            text = f"no answer to message {number} of batch {self.id} within {limit:g} s"
            raise RequestTimeout(text) from None

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
        """Raises what an answer says, unless it is an empty one or the batch's."""
        if reply.status == NO_RESPONDERS:
            raise NoStreamResponse(self._subjects[number - 1])
        if reply.data and not (ack := PubAck.parse(reply.data)).batch_id:
            text = f"message {number} was stored outside of the batch, as sequence {ack.seq} of {ack.stream!r}"
            raise JetStreamError(text)

    def _lost(self, error: ConnectionLost) -> None:
        error.add_note(f"batch {self.id} was not committed before, or its answer is lost")
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
    """Raises InvalidValue for an id that the server refuses, or that is no token of a subject."""
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= _LONGEST_ID or set(value) & set(" .*>\t\r\n"):
        raise InvalidValue("batch_id", value, f"1 to {_LONGEST_ID} bytes without white space and . * >")
    return value
