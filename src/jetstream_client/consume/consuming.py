# SPDX-License-Identifier: Apache-2.0
"""Consuming without end: an iterator over pulled messages, or a callback that is called with each message (ADR-37)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

from jetstream_client.callbacks import check_coroutine_function, check_handler
from jetstream_client.consume.message import Message
from jetstream_client.consume.messages import Messages, Subscribed, passes
from jetstream_client.consume.priority import pin_of
from jetstream_client.consume.pull_window import ConsumeWindow, Pulling
from jetstream_client.errors import ConnectionLost, ConsumingMisused, JetStreamError, NoResponders, PinLost
from jetstream_client.wire.protocol import inbox_number

if TYPE_CHECKING:
    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.consume.messages import OnError
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.protocol import Reply

log = logging.getLogger(__name__)

Callback = Callable[[Message], Awaitable[object]]
OnFailure = Callable[[Exception], object]
"""Called with errors after which consuming continues, with the error that ends it, and with exceptions of the message
callback."""


class PullMessages(Subscribed):
    """:class:`Messages` of a pull consumer, requested with a
    :class:`~jetstream_client.consume.pull_window.ConsumeWindow`."""

    def __init__(self, consumer: Consumer, pulling: Pulling, on_error: OnError | None) -> None:
        super().__init__(consumer.js, on_error)
        self._consumer = consumer
        self._priority = pulling.priority
        largest = consumer.js.connection.max_payload + (64 << 10)  # bytes of a message with its subjects
        self._window = ConsumeWindow(pulling, now=self._clock(), smallest_bound=largest)
        self._subject = consumer._requests
        self._silence_allowed = self._window.silence_allowed

    async def _open(self) -> Inbox:
        await self._consumer._check_priority(self._priority)
        inbox = await self._stack.enter_async_context(self._js.connection.inbox(self._deliver))
        self._inbox = inbox
        await self._request_more()
        return inbox

    def _deliver(self, reply: Reply) -> None:
        now = self._clock()
        if not (reply.status or reply.reply):
            self._js.connection.ignored()
            return
        if not reply.status:
            if self._put_message(reply):
                self._window.on_messages(1, now, reply.size)
                if self._priority:
                    self._consumer._pinned(self._window, pin_of(reply.headers), self._priority)
            return
        try:
            self._window.on_status(inbox_number(reply.subject), reply.status, reply.description, reply.headers, now)
            self._something.set()  # there may be room to request more
        except JetStreamError as error:
            if isinstance(error, PinLost) and self._priority:
                self._consumer._unpinned(self._window, self._priority)
            self._put(error)

    def _wants(self) -> bool:
        return self._window.wants

    async def _request_more(self) -> None:
        if self._priority:
            self._window.pin = self._consumer._pins.get(self._priority.group, "")
        # Stopping can end this between two requests. The server would serve a request whose inbox no longer exists.
        while self._inbox and not self._ended and (request := self._window.next_request(self._clock())):
            number, body = request
            try:
                reply = self._inbox.subject(number)
                await self._js.connection.publish(self._subject, json.dumps(body).encode(), reply=reply)
            except ConnectionLost:
                self._window.on_unsent()  # HeartbeatMissed is raised later, unless the connection is restored in time
                return

    def _on_read(self, message: Message) -> None:
        self._window.on_read(message.counted)
        if self._window.complete:
            self._closed = True

    def _interrupted(self) -> None:
        self._window.on_interruption(self._clock())

    def _remaining(self) -> float:
        return self._window.remaining(self._clock())

    async def _explained(self, error: JetStreamError) -> JetStreamError:
        return await self._consumer._unanswered(error) if isinstance(error, NoResponders) else error


class Consuming:
    """Calls a callback with one message after the other, until the end of this context.

    ``async with consumer.consume(callback) as consuming: await consuming.closed()``

    ``on_error`` is called with errors after which consuming continues, and with the error that ends it. Without
    ``on_error`` these errors are logged. When the callback raises an exception, its message stays unanswered and
    ``on_error`` is called with the exception; without ``on_error`` the exception ends the consuming. :meth:`closed`,
    :meth:`drain` and the end of the context raise the error that ended the consuming.
    """

    def __init__(
        self,
        messages: Callable[[OnError], Messages],
        callback: Callback,
        on_error: OnFailure | None,
        *,
        ack: bool,
    ) -> None:
        check_coroutine_function("callback", callback)
        check_handler("on_error", on_error)
        self._make = messages
        self._callback = callback
        self._on_error = on_error
        self._ack = ack
        self._messages: Messages | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to consume. Raises PermissionDenied, ConnectionLost, and ConsumingMisused if consuming has begun."""
        if self._task is not None and not self._task.done():
            raise ConsumingMisused("this object is already consuming; call consume() again to get another object")
        self._messages = self._make(self._tell)
        await self._messages.__aenter__()
        self._task = asyncio.create_task(self._run(self._messages))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._messages is None or self._task is None:
            return
        if kind is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._messages.__aexit__(None, None, None)
            return
        try:
            await self._messages.__aexit__(None, None, None)
            await self.closed()
        finally:
            self._task.cancel()  # the last callback, if this method was cancelled while it was running
            await asyncio.gather(self._task, return_exceptions=True)

    async def stop(self) -> list[Message]:
        """Stop after the running callback. Returns delivered messages that were not passed to a callback.

        Unless they are answered, the returned messages are redelivered after ``ack_wait``.
        """
        left = await self._messages.stop() if self._messages else []
        if self._task and not self._in_callback:
            await asyncio.wait([self._task])
        return left

    async def drain(self) -> None:
        """End consuming on the server, and wait until the callback has been called with all delivered messages.

        In a callback, :meth:`drain` returns at once, and the callback is still called with the other delivered
        messages.
        """
        if self._messages:
            await self._messages.drain()
        if not self._in_callback:
            await self.closed()

    async def closed(self) -> None:
        """Wait for the end of the consuming. Raises the error that ended it, if an error did. Raises ConsumingMisused
        in a callback, which would wait for itself."""
        if self._in_callback:
            raise ConsumingMisused(
                "a callback cannot wait for the end of the consuming by which it is called; use stop()"
            )
        if self._task:
            await asyncio.shield(self._task)

    @property
    def _in_callback(self) -> bool:
        return asyncio.current_task() is self._task

    def _tell(self, error: JetStreamError) -> None:
        if self._on_error is not None:
            self._on_error(error)
        else:
            log.log(
                logging.WARNING if passes(error) else logging.ERROR,
                "an error occurred while messages were consumed: %s",
                error,
            )

    async def _run(self, messages: Messages) -> None:
        async for message in messages:
            try:
                await self._callback(message)
                if self._ack and not message.answered:
                    await message.ack()
            except Exception as error:
                if self._on_error is None:
                    await messages.stop()
                    raise
                self._on_error(error)
