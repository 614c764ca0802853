# SPDX-License-Identifier: Apache-2.0
"""Publishing with a JetStream context: single messages, many messages without waiting for each answer, and batches."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from jetstream_client import requirements
from jetstream_client.api import Api
from jetstream_client.errors import InvalidValue, JetStreamError, NoStreamResponse
from jetstream_client.more import route as routes
from jetstream_client.more.fast_batch import FastBatch
from jetstream_client.more.publish_async import ACK_TIMEOUT, MAX_PENDING, AsyncPublisher
from jetstream_client.publish.ack import RETRY_ATTEMPTS, RETRY_WAIT, PubAck, acknowledged
from jetstream_client.publish.batch import MAX_MESSAGES, Batch
from jetstream_client.publish.fast_window import FastWindow
from jetstream_client.publish.message import not_a_message, outgoing
from jetstream_client.quantities import check_count, check_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from typing import Unpack

    from jetstream_client.more.publish_async import OnAck, OnError, PublishFuture
    from jetstream_client.more.route import Route
    from jetstream_client.publish.message import Headers, OutgoingMessage, Publishable
    from jetstream_client.publish.options import PublishOptions


class Publishing(Api):
    """The publishing methods of :class:`JetStream`."""

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers | None = None,
        timeout: float | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: float = RETRY_WAIT,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """Publish one message and wait for the stream's answer.

        subject: the subject to publish on.
        data:    payload. Default: empty.
        headers: headers of the message, which are copied. A header that contradicts an option is refused.
        timeout: seconds to wait for the answer. Default ``settings.request_timeout`` (5 s).
        retry_attempts: how many times the message is sent again if no stream answers, for example because the stream
                 has no leader at this moment. Default 2, as in nats.go.
        retry_wait: seconds to wait before the message is sent again. Default 0.25, as in nats.go.
        options: see :class:`PublishOptions`.

        Raises:
            InvalidValue: a subject, header or option is invalid; nothing was sent.
            ServerTooOld: the server is too old for an option; nothing was sent.
            NoStreamResponse: no stream listens on the subject.
            WrongDomain: the connection has a domain, and a stream of another domain was the first to answer.
            WrongStream, WrongLastSequence, WrongLastMessageId: an expectation was not met.
            ApiError: the stream refused the message for another reason (usually a subclass).
            RequestTimeout, ConnectionLost: the message may be stored. Publish it again with the same ``msg_id``.
        """
        check_count("retry_attempts", retry_attempts, 0)
        check_seconds("retry_wait", retry_wait, zero=True)
        if timeout is not None:
            check_seconds("timeout", timeout)
        message = await outgoing(self, subject, data, headers, options)
        limit = self.settings.request_timeout if timeout is None else timeout
        while True:
            reply = await self.connection.request(subject, data, headers=message.header, timeout=limit)
            try:
                return acknowledged(reply.data, subject, self.settings.domain, reply.status)
            except NoStreamResponse:
                if not retry_attempts:
                    raise
            retry_attempts -= 1
            await asyncio.sleep(retry_wait)

    @asynccontextmanager
    async def publisher(
        self,
        *,
        max_pending: int = MAX_PENDING,
        stall_timeout: float | None = None,
        ack_timeout: float = ACK_TIMEOUT,
        on_error: OnError | None = None,
        on_ack: OnAck | None = None,
    ) -> AsyncIterator[AsyncPublisher]:
        """Open a separate :class:`AsyncPublisher` with these settings. The end of the block waits until every message
        is answered, and then closes the publisher. If the block ends with an exception, the publisher is closed without
        waiting."""
        publisher = AsyncPublisher(
            self,
            max_pending=max_pending,
            stall_timeout=stall_timeout,
            ack_timeout=ack_timeout,
            on_error=on_error,
            on_ack=on_ack,
        )
        try:
            yield publisher
            await publisher.complete()
        finally:
            await publisher.close()

    async def publish_async(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: float = RETRY_WAIT,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Send one message, and return a future of the stream's answer. See :meth:`AsyncPublisher.publish`.

        At most 4,000 messages can be unanswered at a time, and each waits for its answer for at most 30 s. Use
        :meth:`publisher` to set other limits, or handlers for answers and errors.
        """
        return await self._publisher.publish(
            subject, data, headers=headers, retry_attempts=retry_attempts, retry_wait=retry_wait, **options
        )

    @property
    def publish_async_pending(self) -> int:
        """Number of messages of :meth:`publish_async` without an answer."""
        return self._publisher.pending

    async def publish_async_complete(self, timeout: float | None = None) -> None:
        """Wait until all messages of :meth:`publish_async` are answered. See :meth:`AsyncPublisher.complete`."""
        await self._publisher.complete(timeout)

    async def publish_async_close(self) -> None:
        """Stop listening for answers to :meth:`publish_async`. Unanswered messages fail with :class:`PublisherClosed`,
        although they may be stored. :meth:`publish_async` can be called again afterwards."""
        publisher: AsyncPublisher | None = vars(self).pop("_publisher", None)
        if publisher is not None:
            await publisher.close()

    @asynccontextmanager
    async def batch(self, batch_id: str | None = None, *, max_messages: int = MAX_MESSAGES) -> AsyncIterator[Batch]:
        """Open an atomic batch: all of its messages are stored, or none. The stream needs ``allow_atomic`` (nats-server
        2.12).

        batch_id:     id of the batch, up to 64 bytes. Default: a random id.
        max_messages: the largest number of messages. Default 1,000, which is the server's default ``max_batch_size``.

        The block must end with :meth:`Batch.commit` or :meth:`Batch.discard`. An exception also discards the batch.

        Raises:
            ServerTooOld: the server does not support atomic batches; nothing was sent.
            JetStreamError: at the end of the block, if the batch was neither committed nor discarded.
        """
        batch = Batch(self, batch_id, max_messages)
        try:
            await self.require(requirements.ATOMIC_BATCHES)
            yield batch
            if not batch.ended:
                raise JetStreamError(
                    f"batch {batch.id} was neither committed nor discarded, so none of its messages is stored; end the "
                    "block with `await batch.commit()` or `batch.discard()`"
                )
        finally:
            await batch.close()

    async def publish_batch(
        self,
        messages: Iterable[Publishable],
        *,
        batch_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_sequence: int | None = None,
        max_messages: int = MAX_MESSAGES,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish all of the messages or none, as one atomic batch. See :meth:`batch`.

        messages: ``(subject, data)`` or ``(subject, data, headers)``. All are checked before the first is sent.
        expected_stream: the stream that must store every message.
        expected_last_sequence: the last sequence of the stream before the batch.
        batch_id, max_messages: see :meth:`batch`.
        timeout: seconds to wait for the last answer. Default ``settings.request_timeout`` (5 s).

        Raises:
            InvalidValue: a message is invalid, there is no message, or there are more than ``max_messages``. Nothing
                was sent.
            The errors of :meth:`Batch.add` and :meth:`Batch.commit`. Nothing is stored, unless they say otherwise.
        """
        check_count("max_messages", max_messages)
        if timeout is not None:
            check_seconds("timeout", timeout)
        checked: list[OutgoingMessage] = []
        options: PublishOptions = {"expected_stream": expected_stream, "expected_last_sequence": expected_last_sequence}
        for message in messages:
            if not isinstance(message, tuple | list) or len(message) not in (2, 3):
                raise not_a_message(message)
            if len(checked) == max_messages:
                remedy = "use several atomic batches, or raise max_messages if the server allows it"
                raise InvalidValue("messages", "…", f"there are more than {max_messages}; {remedy}")
            headers = message[2] if len(message) == 3 else {}
            checked.append(await outgoing(self, message[0], message[1], headers, options))
            options["expected_last_sequence"] = None  # only for the first message
        async with self.batch(batch_id, max_messages=max_messages) as batch:
            for each in checked:
                await batch.append(each)
            return await batch.commit(timeout)

    @asynccontextmanager
    async def fast_batch(self) -> AsyncIterator[FastBatch]:
        """Open a fast-ingest batch, which has any number of messages and needs few answers. The stream needs
        ``allow_batched`` (nats-server 2.14).

        For very many messages, ``publish.bulk.publish_fast`` is faster. The block must end with
        :meth:`FastBatch.commit`. Without a commit, messages may be stored nevertheless.

        Raises:
            ServerTooOld: the server does not support fast-ingest batches; nothing was sent.
            JetStreamError: at the end of the block, if the batch was not committed.
        """
        await self.require(requirements.FAST_BATCHES)
        window = FastWindow(self.connection.new_inbox(), self.settings.domain)
        batch = FastBatch(self, window)
        async with self.connection.listen(window.answers, batch.deliver):
            self.connection.when_lost.add(batch.lost)
            keeper = asyncio.ensure_future(batch.keep_open())
            try:
                yield batch
                if not batch.ended:
                    raise JetStreamError(
                        f"batch {batch.id} was not committed, and it is unknown how many of its messages are stored; "
                        "end the block with `await batch.commit()`"
                    )
            finally:
                self.connection.when_lost.discard(batch.lost)
                keeper.cancel()

    async def route(self, subject: str, data: bytes = b"", *, headers: Headers | None = None) -> Route:
        """Find the streams that would get this message. Nothing is stored or delivered (nats-server 2.11).

        subject, data, headers:  as for :meth:`publish`.

        Whether a stream would accept the message's headers and size is not checked.

        Raises:
            ServerTooOld: the server does not support tracing, and would store the message; nothing was sent.
            InvalidValue: as :meth:`publish`.
            RequestTimeout, PermissionDenied, ConnectionLost: not every server on the way answered.
        """
        return await routes.find(self, subject, data, headers)

    @cached_property
    def _publisher(self) -> AsyncPublisher:
        return AsyncPublisher(self)
