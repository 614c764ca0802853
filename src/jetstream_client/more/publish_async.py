# SPDX-License-Identifier: Apache-2.0
"""Publishing without waiting for each answer. Each message gets a future, and the number of unanswered messages is
limited.

This is modelled on nats.go's ``PublishAsync``. Each unanswered message occupies a slot. The slot becomes free when the
stream answers, after ``ack_timeout`` without an answer, when the connection is lost, when the message is refused before
it is sent, and when the caller cancels the future. So no message waits endlessly for a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.callbacks import check_handler
from jetstream_client.errors import (
    ConnectionLost,
    JetStreamError,
    NoStreamResponse,
    PermissionDenied,
    PublisherClosed,
    RequestTimeout,
    TooManyPending,
)
from jetstream_client.publish.ack import RETRY_ATTEMPTS, RETRY_WAIT, PubAck, acknowledged
from jetstream_client.publish.message import OutgoingMessage, outgoing
from jetstream_client.quantities import check_count, check_seconds
from jetstream_client.wire.protocol import inbox_number

if TYPE_CHECKING:
    from typing import Unpack

    from jetstream_client.api import Api
    from jetstream_client.publish.message import Headers
    from jetstream_client.publish.options import PublishOptions
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.protocol import Reply

log = logging.getLogger(__name__)

MAX_PENDING = 4_000
"""The largest number of unanswered messages, as in nats.go and nats-py."""
ACK_TIMEOUT = 30.0
"""Seconds to wait for an answer, as in async-nats. While the leader of a stream changes, an answer takes several
seconds."""

_CLOSED = "the message was not sent because the publisher was closed; open another publisher"

OnError = Callable[[OutgoingMessage, Exception], object]
OnAck = Callable[[OutgoingMessage, PubAck], object]


class PublishFuture(asyncio.Future[PubAck]):
    """A future of the stream's answer. Awaiting it returns the :class:`PubAck`, or raises the same errors as
    :meth:`JetStream.publish`.

    ``message`` is the message that was sent. When the future is done, ``exception()`` returns the error. Cancelling the
    future frees its slot; the message may be stored nevertheless.
    """

    def __init__(self, message: OutgoingMessage, free: Callable[[], object], attempts: int, wait: float) -> None:
        super().__init__()
        self.message = message
        self._free = free
        self._attempts = attempts  # remaining attempts, if no stream answers
        self._wait = wait

    def cancel(self, msg: Any = None) -> bool:
        self._free()
        return super().cancel(msg)


class AsyncPublisher:
    """Publishes without waiting for each answer. Get one from :meth:`JetStream.publisher`, or use the one of the
    context with :meth:`JetStream.publish_async`.

    max_pending:   the largest number of unanswered messages. Default 4,000.
    stall_timeout: seconds that :meth:`publish` waits while ``max_pending`` messages are unanswered; with 0 it does not
                   wait. Default None: it waits until one of them is answered or fails after ``ack_timeout``.
    ack_timeout:   seconds to wait for each answer. Default 30.
    on_error:      called with the message and its error when publishing fails. Without ``on_error``, asyncio logs an
                   error that was not retrieved from its future.
    on_ack:        called with the message and its :class:`PubAck` when the message is stored.
    """

    def __init__(
        self,
        api: Api,
        *,
        max_pending: int = MAX_PENDING,
        stall_timeout: float | None = None,
        ack_timeout: float = ACK_TIMEOUT,
        on_error: OnError | None = None,
        on_ack: OnAck | None = None,
    ) -> None:
        check_handler("on_error", on_error)
        check_handler("on_ack", on_ack)
        self._api = api
        self._slots = asyncio.Semaphore(check_count("max_pending", max_pending))
        self._stall_timeout = stall_timeout
        if stall_timeout is not None:
            check_seconds("stall_timeout", stall_timeout, zero=True)
        self._ack_timeout = check_seconds("ack_timeout", ack_timeout)
        self._on_error = on_error
        self._on_ack = on_ack
        self._pending: dict[int, PublishFuture] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closed = False
        self._number = 0
        self._opening = asyncio.Lock()
        self._inbox: Inbox | None = None

    @property
    def pending(self) -> int:
        """Number of messages without an answer."""
        return len(self._pending)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: float = RETRY_WAIT,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Send one message. Returns when it is sent, before it is answered.

        The parameters are the same as for :meth:`JetStream.publish`. All attempts must fit into ``ack_timeout``.

        Raises:
            InvalidValue, ServerTooOld: as for :meth:`JetStream.publish`. A ``reply`` subject is refused.
            TooManyPending: too many messages stayed unanswered for ``stall_timeout`` seconds; nothing was sent.
            PublisherClosed: the publisher was closed; nothing was sent.
            ConnectionLost: there is no connection at this moment; nothing was sent.
        """
        check_count("retry_attempts", retry_attempts, 0)
        check_seconds("retry_wait", retry_wait, zero=True)
        message = await outgoing(self._api, subject, data, headers, options)
        await self._slot()
        self._number += 1
        number = self._number
        future = PublishFuture(message, partial(self._free, number), retry_attempts, retry_wait)
        self._pending[number] = future
        self._timers[number] = asyncio.get_running_loop().call_later(self._ack_timeout, self._unanswered, number)
        try:
            inbox = self._inbox or await self._open()
            await self._api.connection.publish(subject, data, inbox.subject(number), message.header)
        except BaseException:
            if not future.cancel():
                future.exception()  # marks this error as retrieved, because the call raises another one
            raise
        return future

    async def complete(self, timeout: float | None = None) -> None:
        """Wait until every message is answered, including messages that are published during the wait.

        Failures are not reported here: check the futures, or set ``on_error``. This takes at most ``ack_timeout`` after
        the last publish; ``timeout`` sets a shorter limit in seconds. Raises RequestTimeout.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        try:
            async with asyncio.timeout(timeout):
                while self._pending:
                    await asyncio.wait(list(self._pending.values()))
        except TimeoutError:
            text = f"{self.pending} messages have no answer after {timeout:g} s; wait again, or set a longer 'timeout'"
            raise RequestTimeout(text) from None

    async def close(self) -> None:
        """Close the publisher, and stop listening for answers. Unanswered messages fail with PublisherClosed."""
        self._closed = True
        self._api.connection.when_lost.discard(self._lost)
        inbox, self._inbox = self._inbox, None
        self._give_up(
            PublisherClosed, "the publisher was closed before the stream answered; the message may have been stored"
        )
        if inbox is not None:
            await inbox.close()

    async def _slot(self) -> None:
        if self._stall_timeout == 0 and self._slots.locked():
            raise TooManyPending(self.pending)
        try:
            async with asyncio.timeout(self._stall_timeout or None):
                await self._slots.acquire()
        except TimeoutError:
            raise TooManyPending(self.pending) from None
        if self._closed:
            self._slots.release()
            raise PublisherClosed(_CLOSED)

    async def _open(self) -> Inbox:
        async with self._opening:
            if self._inbox is None:
                inbox = await self._api.connection.open_inbox(self._deliver)
                if self._closed:
                    await inbox.close()
                    raise PublisherClosed(_CLOSED)
                self._inbox = inbox
                self._api.connection.when_lost.add(self._lost)
        return self._inbox

    def _free(self, number: int) -> PublishFuture | None:
        """Free the slot of a message. Returns its future, or None if it was freed before."""
        future = self._pending.pop(number, None)
        if future is not None:
            self._timers.pop(number).cancel()
            self._slots.release()
        return future

    def _deliver(self, reply: Reply) -> None:
        number = inbox_number(reply.subject)
        future = self._pending.get(number)
        if future is None:
            return
        domain = self._api.settings.domain
        try:
            self._stored(number, acknowledged(reply.data, future.message.subject, domain, reply.status))
        except JetStreamError as error:
            if isinstance(error, NoStreamResponse) and future._attempts:
                future._attempts -= 1
                asyncio.get_running_loop().call_later(future._wait, self._again, number)
                return
            self._fail(number, error)

    def _again(self, number: int) -> None:
        if number in self._pending:
            sending = asyncio.ensure_future(self._send_again(number))
            self._pending[number].add_done_callback(lambda _: sending.cancel())

    async def _send_again(self, number: int) -> None:
        future = self._pending.get(number)
        if future is None or self._inbox is None:
            return
        message = future.message
        try:
            reply = self._inbox.subject(number)
            await self._api.connection.publish(message.subject, message.data, reply, message.header)
        except JetStreamError as error:
            self._fail(number, error)

    def _unanswered(self, number: int) -> None:
        subject = self._pending[number].message.subject
        error: Exception = RequestTimeout(
            f"the message on {subject!r} got no answer within {self._ack_timeout:g} s, and may have been stored; "
            "publish it again with the same msg_id if it had one. Without a msg_id, publishing it again may store it "
            "twice"
        )
        try:
            self._api.connection.check_permitted(subject)
        except PermissionDenied as denied:
            error = denied
        self._fail(number, error)

    def _lost(self, error: ConnectionLost) -> None:
        """Fail the futures of all unanswered messages. Their answers will not arrive, and each of these messages may be
        stored."""
        self._give_up(type(error), f"the stream did not answer, and the message may have been stored: {error}")

    def _give_up(self, kind: type[JetStreamError], what: str) -> None:
        for number in list(self._pending):
            self._fail(number, kind(what))

    def _stored(self, number: int, ack: PubAck) -> None:
        future = self._free(number)
        if future is None:
            return
        future.set_result(ack)
        if self._on_ack is not None:
            try:
                self._on_ack(future.message, ack)
            except Exception:
                log.exception("on_ack of publish_async raised an error for a message on %r", future.message.subject)

    def _fail(self, number: int, error: Exception) -> None:
        future = self._free(number)
        if future is None:
            return
        future.set_exception(error)
        if self._on_error is None:
            return
        future.exception()  # marks the error as retrieved, because the handler gets it
        try:
            self._on_error(future.message, error)
        except Exception:
            log.exception("on_error of publish_async raised an error for a message on %r", future.message.subject)
