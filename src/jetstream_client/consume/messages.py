# SPDX-License-Identifier: Apache-2.0
"""An endless iterator over the messages that arrive on a subscription (ADR-37)."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

from jetstream_client.callbacks import check_handler
from jetstream_client.consume.message import Message
from jetstream_client.errors import (
    ConnectionEnded,
    ConnectionLost,
    DeliveriesMissed,
    HeartbeatMissed,
    JetStreamError,
    LeadershipChanged,
    PinLost,
    ProtocolError,
    RequestTimeout,
    SlowConsumer,
    TooManyPulls,
)
from jetstream_client.quantities import check_seconds

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.protocol import Reply

log = logging.getLogger(__name__)

OnError = Callable[[JetStreamError], object]
"""Called with errors after which consuming continues, and with the error that ends it."""

INTERRUPTIONS = (ConnectionLost, DeliveriesMissed, HeartbeatMissed, LeadershipChanged, RequestTimeout, SlowConsumer)
"""Errors after which messages may be missing, or no request is outstanding."""
PASSING_ERRORS = (*INTERRUPTIONS, PinLost, ProtocolError, TooManyPulls)
"""Errors after which consuming continues, as long as the connection can be restored."""
RETRY_WAIT = 0.25
"""Seconds between an error after which consuming continues and the next request."""
CHECK_EVERY = 1.0
"""Seconds between two checks of the connection while nothing arrives."""
TO_STOP = 0.5
"""Stopping waits at most this many seconds for messages that the server has already sent. Otherwise a frozen server
could delay stopping for longer."""
ROOM = 0.1
"""Seconds for reading data that arrived while the event loop was busy, before a heartbeat counts as missed."""


def passes(error: JetStreamError) -> bool:
    """Whether consuming continues after this error."""
    return isinstance(error, PASSING_ERRORS) and not isinstance(error, ConnectionEnded)


class Messages(ABC):
    """An asynchronous iterator of messages, and a context manager that stops it.

    ``async with consumer.messages() as messages: async for message in messages: …``. Several tasks may iterate over the
    same object. When the loop or the context is left, messages that had arrived stay unread and unacknowledged, and are
    redelivered after ``ack_wait``. :meth:`stop` returns such messages; after :meth:`drain` they can still be read.

    Iterating raises

        HeartbeatMissed, LeadershipChanged, TooManyPulls, RequestTimeout, ProtocolError (something arrived that is not a
            delivery): consuming continues after these errors. They are raised only without ``on_error``, and iterating
            can continue. PinLost is never raised, and neither is an error for a connection that is restored within two
            heartbeats.
        PermissionDenied, ConsumerDeleted, PullError and its other subclasses: these errors end consuming.
        ConnectionEnded: the connection has ended for good. Messages that had arrived are redelivered.
    """

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if left := await self.stop():
            log.info(
                "%d messages arrived and were not read; they are redelivered, unless the consumer's ack_policy is "
                "'none'",
                len(left),
            )

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Message: ...

    async def next(self, max_wait: float | None = None) -> Message | None:
        """The next message. None after the end, or if none arrives within ``max_wait`` seconds (default: no limit)."""
        if max_wait is not None:
            check_seconds("max_wait", max_wait, zero=True)
        try:
            async with asyncio.timeout(max_wait):
                return await anext(self, None)
        except RequestTimeout:
            raise
        except TimeoutError:
            return None

    @abstractmethod
    async def stop(self) -> list[Message]:
        """End consuming on the server and end the iteration. Returns delivered messages that were not read. This method
        may be called repeatedly.

        This takes at most half a second, even if the server does not answer. Unless they are answered, the returned
        messages are redelivered after ``ack_wait``, and so are messages that arrive later.
        """

    @abstractmethod
    async def drain(self) -> None:
        """End consuming on the server. The iteration continues with the messages that were delivered, then ends."""

    @abstractmethod
    async def _start(self) -> None: ...


class Subscribed(Messages):
    """:class:`Messages` that arrive on this object's subscription."""

    def __init__(self, js: JetStream, on_error: OnError | None) -> None:
        check_handler("on_error", on_error)
        self._js = js
        self._on_error = on_error
        # A string is a subject of flow control. It is answered when the items before it have been read.
        self._arrived: deque[Message | JetStreamError | str] = deque()
        self._something = asyncio.Event()
        self._stack = AsyncExitStack()
        self._inbox: Inbox | None = None
        self._opening = asyncio.Lock()
        self._opened = False
        self._ended = False  # nothing more arrives
        self._closed = False  # nothing more is returned
        self._clock = asyncio.get_running_loop().time
        self._reconnects = js.connection.reconnects
        self._paused_until = 0.0
        self._subject = ""  # the user needs a permission for it
        self._silence_allowed = math.inf  # seconds

    async def __anext__(self) -> Message:
        if not self._opened:
            await self._start()
        while not self._closed:
            try:
                if not self._ended:
                    self._js.connection.check_open()  # otherwise the returned messages could not be acknowledged
                    if not self._arrived or self._wants():
                        await self._keep_requesting()
                if self._arrived:
                    if message := await self._next_arrived():
                        return message
                elif self._ended:
                    break
                else:
                    await self._wait()
            except JetStreamError as error:
                if not self._survives(error):
                    await self.stop()
                    raise
        await self._close()
        raise StopAsyncIteration

    async def stop(self) -> list[Message]:
        await self._end(TO_STOP)
        self._closed = True
        left = [item for item in self._arrived if isinstance(item, Message)]
        self._arrived.clear()
        self._something.set()
        await self._close()
        return left

    async def drain(self) -> None:
        await self._end(None)
        self._something.set()

    async def _start(self) -> None:
        if self._opened:
            return
        async with self._opening:
            if not (self._opened or self._closed):
                try:
                    self._inbox = await self._open()
                except BaseException:
                    await self._stack.aclose()
                    raise
                self._opened = True

    async def _end(self, within: float | None) -> None:
        if not self._ended and self._inbox is not None and self._js.connection.is_connected:
            # Messages that the server has already sent arrive here. Without a connection, no message can arrive.
            with suppress(ConnectionLost, RequestTimeout):
                await self._inbox.drain(within)
        self._ended = True

    async def _close(self) -> None:
        self._closed = self._ended = True
        with suppress(ConnectionLost, RequestTimeout, OSError):
            await self._stack.aclose()

    def _survives(self, error: JetStreamError) -> bool:
        """Whether iterating continues after this error. Without ``on_error``, this method raises such an error, except
        PinLost."""
        if self._closed:
            return True  # stopped in the meantime: nobody needs what failed
        if self._on_error is not None:
            self._on_error(error)
        if not passes(error):
            return False
        if not isinstance(error, ProtocolError):
            self._interrupted()
            self._paused_until = self._clock() + RETRY_WAIT
        if self._on_error is None:
            if not isinstance(error, PinLost):
                raise error
            log.info("another client is now pinned: %s", error)
        return True

    async def _next_arrived(self) -> Message | None:
        """The next message, or None if the next item was a subject of flow control, which has been answered."""
        item = self._arrived.popleft()
        if isinstance(item, JetStreamError):
            raise await self._explained(item)
        if isinstance(item, str):
            await self._js.connection.publish(item)
            return None
        self._on_read(item)
        return item

    async def _keep_requesting(self) -> None:
        connection = self._js.connection
        if connection.reconnects != self._reconnects:
            self._reconnects = connection.reconnects
            self._interrupted()
        if connection.is_connected and not self._arrived and (wait := self._paused_until - self._clock()) > 0:
            await asyncio.sleep(wait)
        if connection.is_connected:
            await self._request_more()

    async def _wait(self) -> None:
        """Wait until something arrives, at most CHECK_EVERY seconds. Raises HeartbeatMissed, PermissionDenied."""
        self._something.clear()
        patience = self._remaining()
        with suppress(TimeoutError):
            async with self._js.connection.timeout(max(ROOM, min(CHECK_EVERY, patience))):
                await self._something.wait()
        if self._arrived or self._ended:
            return
        self._js.connection.check_permitted(self._subject)
        if patience <= CHECK_EVERY and self._remaining() <= 0:
            raise HeartbeatMissed(self._silence_allowed - self._remaining())

    @abstractmethod
    async def _open(self) -> Inbox:
        """Subscribe. Closing ``_stack`` ends the subscription."""

    def _wants(self) -> bool:
        """Whether to request more messages while others wait unread."""
        return False

    @abstractmethod
    async def _request_more(self) -> None:
        """Request more messages, if this kind of consumer delivers only on request."""

    @abstractmethod
    def _on_read(self, message: Message) -> None:
        """Record that a message is returned."""

    @abstractmethod
    def _interrupted(self) -> None:
        """Record that all outstanding requests are lost."""

    @abstractmethod
    def _remaining(self) -> float:
        """Seconds until HeartbeatMissed is raised if nothing arrives."""

    async def _explained(self, error: JetStreamError) -> JetStreamError:
        return error

    def _put(self, item: Message | JetStreamError | str) -> None:
        self._arrived.append(item)
        self._something.set()

    def _put_message(self, reply: Reply) -> Message | None:
        try:
            message = Message(self._js.connection, reply)
        except ProtocolError as error:
            self._put(error)
            return None
        self._put(message)
        return message
