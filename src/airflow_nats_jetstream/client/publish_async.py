"""Publishing without waiting for each answer: one future a message, in a bounded number.

After nats.go's ``PublishAsync``. Nothing waits for ever: a slot becomes free when the stream answers, when it has not
for ``ack_timeout``, when the connection is lost, and when the caller cancels the future.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_nats_jetstream.client.errors import (
    ConnectionLost,
    InvalidValue,
    JetStreamError,
    NoStreamResponse,
    PermissionDenied,
    RequestTimeout,
    TooManyPending,
)
from airflow_nats_jetstream.client.options import OutgoingMessage, outgoing
from airflow_nats_jetstream.client.protocol import NO_RESPONDERS, inbox_number
from airflow_nats_jetstream.client.publish import RETRY_ATTEMPTS, RETRY_WAIT, PubAck
from airflow_nats_jetstream.client.requirements import of_headers

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from airflow_nats_jetstream.client.connection import Inbox
    from airflow_nats_jetstream.client.options import Headers, PublishOptions
    from airflow_nats_jetstream.client.protocol import Reply
    from airflow_nats_jetstream.client.publishing import Publishing

log = logging.getLogger(__name__)

MAX_PENDING = 4_000
"""Messages without an answer, as in nats.go and nats-py."""
ACK_TIMEOUT = 30.0
"""Seconds, as in async-nats: a stream whose leader changes answers after several."""


class PublishFuture(asyncio.Future[PubAck]):
    """The stream's answer to come. Awaited it gives the :class:`PubAck`, or raises what :meth:`JetStream.publish` does.

    ``message`` is what was sent. ``exception()`` is the error once it is done. Cancelling it frees its slot; the
    message may be stored nevertheless.
    """

    def __init__(self, message: OutgoingMessage) -> None:
        super().__init__()
        self.message = message
        self.timer: asyncio.TimerHandle | None = None


class AsyncPublisher:
    """Get one from :meth:`JetStream.publisher`, or use the context's own: :meth:`JetStream.publish_async`.

    max_pending:   how many messages may be without an answer.
    stall_timeout: seconds that :meth:`publish` waits for a slot. None: as long as it takes, which ``ack_timeout``
                   bounds. 0: not at all.
    ack_timeout:   seconds for each answer.
    on_error:      called with the message and its error when it fails. Without one, asyncio logs an error that nobody
                   has asked its future for.
    """

    def __init__(
        self,
        js: Publishing,
        *,
        max_pending: int = MAX_PENDING,
        stall_timeout: float | None = None,
        ack_timeout: float = ACK_TIMEOUT,
        on_error: Callable[[OutgoingMessage, Exception], object] | None = None,
    ) -> None:
        if type(max_pending) is not int or max_pending < 1:
            raise InvalidValue("max_pending", max_pending, "at least one message")
        if not ack_timeout > 0:
            raise InvalidValue("ack_timeout", ack_timeout, "seconds, more than 0")
        self._js = js
        self._slots = asyncio.Semaphore(max_pending)
        self._stall_timeout = stall_timeout
        self._ack_timeout = ack_timeout
        self._on_error = on_error
        self._pending: dict[int, PublishFuture] = {}
        self._attempts: dict[int, int] = {}  # of those that nobody answered
        self._number = 0
        self._opening = asyncio.Lock()
        self._inbox: Inbox | None = None

    @property
    def pending(self) -> int:
        """Messages without an answer."""
        return len(self._pending)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers | None = None,
        **options: Unpack[PublishOptions],
    ) -> PublishFuture:
        """Send one message. Returns when it is sent, and before it is answered.

        Raises:
            InvalidValue, ServerTooOld: as :meth:`JetStream.publish`; a ``reply`` subject is one of the former.
            TooManyPending: no slot became free within ``stall_timeout``; nothing was sent.
            ConnectionLost: not connected at this moment; nothing was sent.
        """
        message = outgoing(subject, data, headers, options)
        await self._js.require(of_headers(message.headers))
        await self._slot()
        future = PublishFuture(message)
        self._number += 1
        number = self._number
        self._pending[number] = future
        future.timer = asyncio.get_running_loop().call_later(self._ack_timeout, self._unanswered, number)
        future.add_done_callback(lambda _: self._free(number))
        try:
            inbox = self._inbox or await self._open()
            await self._js.connection.publish(subject, data, inbox.subject(number), message.block)
        except BaseException:
            future.cancel()
            raise
        return future

    async def complete(self, timeout: float | None = None) -> None:
        """Wait until no message is without an answer, those that are published meanwhile included.

        It says nothing about success: ask the futures, or give ``on_error``. At most ``ack_timeout`` after the last
        publish, so ``timeout`` seconds are only a shorter limit. Raises RequestTimeout.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._pending:
                    await asyncio.wait(list(self._pending.values()))
                    await asyncio.sleep(0)  # what is done leaves the pending ones with a callback
        except TimeoutError:
            raise RequestTimeout(f"{self.pending} messages have no answer after {timeout:g} s") from None

    async def close(self) -> None:
        """Stop listening for answers. What has none fails as lost."""
        self._js.connection.when_lost.discard(self._lost)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.close()
        self._lost()

    async def _slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        if self._stall_timeout == 0:
            raise TooManyPending(self.pending)
        try:
            async with asyncio.timeout(self._stall_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise TooManyPending(self.pending) from None

    async def _open(self) -> Inbox:
        async with self._opening:
            if self._inbox is None:
                self._inbox = await self._js.connection.open_inbox(self._deliver)
                self._js.connection.when_lost.add(self._lost)
        return self._inbox

    def _free(self, number: int) -> None:
        future = self._pending.pop(number)
        self._attempts.pop(number, None)
        if future.timer:
            future.timer.cancel()
        self._slots.release()

    def _deliver(self, reply: Reply) -> None:
        number = inbox_number(reply.subject)
        future = self._pending.get(number)
        if future is None or future.done():
            return
        try:
            if reply.status != NO_RESPONDERS:
                future.set_result(self._js.acknowledged(future.message.subject, reply.data))
                return
            attempts = self._attempts[number] = self._attempts.get(number, 0) + 1
            if attempts > RETRY_ATTEMPTS:
                raise NoStreamResponse(future.message.subject)
            asyncio.get_running_loop().call_later(RETRY_WAIT, self._again, number)
        except JetStreamError as error:
            self._fail(future, error)

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
            await self._js.connection.publish(message.subject, message.data, reply, message.block)
        except JetStreamError as error:
            self._fail(future, error)

    def _unanswered(self, number: int) -> None:
        future = self._pending[number]
        error: Exception = RequestTimeout(
            f"no answer on {future.message.subject!r} within {self._ack_timeout:g} s; the message may be stored"
        )
        try:
            self._js.connection.check_permitted(future.message.subject)
        except PermissionDenied as denied:
            error = denied
        self._fail(future, error)

    def _lost(self) -> None:
        """The answers of before will not come, and what was sent may be stored or not."""
        for future in list(self._pending.values()):
            self._fail(future, ConnectionLost("the connection was lost before the stream's answer"))

    def _fail(self, future: PublishFuture, error: Exception) -> None:
        if future.done():
            return
        future.set_exception(error)
        if self._on_error is None:
            return
        future.exception()  # the handler has it
        try:
            self._on_error(future.message, error)
        except Exception:
            log.exception("the error handler of publish_async failed for a message on %r", future.message.subject)
