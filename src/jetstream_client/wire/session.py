# SPDX-License-Identifier: Apache-2.0
"""What survives the loss of a connection: its settings and subscriptions, and everything that waits for the server."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from jetstream_client.errors import (
    ConnectionDenied,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    PermissionDenied,
)
from jetstream_client.wire.connecting import Address, Connecting
from jetstream_client.wire.link import Link
from jetstream_client.wire.protocol import UNSAFE, is_authentication_error, parse_violation
from jetstream_client.wire.subscription import Subscription, distribute

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from jetstream_client.wire.run import Run
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

RECONNECT_WAIT = 0.25
"""Seconds between two attempts to reach a server. It is short because acknowledgements wait for the connection."""
LOOK_UP_EVERY = 2.0
"""Seconds between two look-ups of settings whose credentials are refused."""
MOST_DENIED = 10_000
"""The largest number of refused subjects that are remembered. Without this limit, a user who tries ever more forbidden
subjects would fill the memory."""


class Session:
    """A link that is replaced by another one when it is lost.

    Nothing is buffered while it is lost: a buffered acknowledgement could reach a later life of its consumer, and a
    buffered publish would be stored after its caller had got an error.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self.link: Link
        """The present link, or the last one if :attr:`is_connected` is False."""
        self.is_connected = False
        self.reconnects = 0
        self.closed = False
        self.ended = ""
        """Why the connection has ended; empty if it has not ended, or if a later attempt to reconnect succeeded."""
        self.when_lost: set[Callable[[ConnectionLost], None]] = set()
        """Called when the connection is lost, for good or until it is restored."""
        self.denied: dict[str, PermissionDenied] = {}
        """Refused subjects, in lower case."""
        self.subscriptions: dict[int, Subscription] = {}
        self._sid = 0
        self._limits: set[asyncio.Timeout] = set()  # of everything that waits for the server
        self._reconnecting: asyncio.Task[None] | None = None
        self._attempts = 0  # attempts to reconnect since the connection was lost
        self._problem: Exception | None = None  # why the last one of them failed
        self._unreadable = ""  # the last logged problem with a credential's file
        self._refused_since: float | None = None
        """On the loop's clock: the first refused attempt to reconnect, if all attempts after it were refused too."""
        self._looked_up = -math.inf
        """On the loop's clock: when the settings were last looked up again."""

    async def open(self) -> None:
        """Connect. There is no second attempt if a configured server denies the connection."""
        context = self._settings.ssl_context()
        connecting = Connecting(self._settings, shuffled=True)
        while True:
            for address, limit in connecting.round():
                try:
                    return await self._connect(context, address, limit)
                except OSError as error:
                    connecting.failed(address, error)
            connecting.check()
            await asyncio.sleep(RECONNECT_WAIT)

    async def close(self, reason: str, within: float) -> None:
        """Close for good, and send pending data if the server accepts it within ``within`` seconds."""
        connected = self.is_connected
        self._shut(reason)
        if self._reconnecting:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if connected:
            await self.link.close(within)

    def lost(self) -> ConnectionLost:
        """The error for using the connection while it is lost, or after it has ended."""
        if not self.ended:
            return ConnectionLost("the connection to NATS is interrupted and is being restored; try again")
        servers = ", ".join(self._settings.servers)
        return ConnectionEnded(f"the connection to {servers} has ended because {self.ended}; open another connection")

    def check_open(self) -> None:
        """Raises ConnectionEnded if :attr:`ended`."""
        if self.ended:
            raise self.lost()

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[None]:
        """See :meth:`~jetstream_client.wire.control.Connection.timeout`."""
        self.check_open()
        limit = asyncio.timeout(seconds)
        self._limits.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired():
                self.check_open()
            raise
        finally:
            self._limits.discard(limit)

    def write(self, command: bytes) -> None:
        """Send encoded commands. Raises ConnectionLost if not connected at this moment."""
        if not self.is_connected:
            raise self.lost()
        self.link.write(command)

    def subscribe(self, subscription: Subscription) -> int:
        """Subscribe, until :meth:`unsubscribe`, however often the connection is lost. Returns the subscription's
        number."""
        if self.closed:
            raise self.lost()
        if not subscription.subject or UNSAFE.search(subscription.subject + subscription.queue):
            value = f"{subscription.subject} {subscription.queue}".rstrip()
            raise InvalidValue(
                "subject", value, "must not be empty; it and the queue group must not contain white space"
            )
        self._sid += 1
        self.subscriptions[self._sid] = subscription
        if self.is_connected:
            self.link.write(subscription.command(self._sid))
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. What was sent for it before is dropped when it arrives."""
        if self.subscriptions.pop(sid, None) and self.is_connected:
            self.link.write(b"UNSUB %d\r\n" % sid)

    async def _connect(self, context: ssl.SSLContext | None, address: Address, limit: float) -> None:
        link = Link(self._settings, self._arrived, self._said, self._lost)
        await link.open(context, address, limit)
        if link.failure:
            raise link.failure
        self.link, self.is_connected, self.ended = link, True, ""
        self._attempts, self._refused_since, self._unreadable = 0, None, ""
        for sid, subscription in self.subscriptions.items():
            link.write(subscription.command(sid))

    def _arrived(self, run: Run) -> None:
        distribute(run, self.subscriptions)

    def _said(self, link: Link, text: str) -> None:
        """Handle an error that the server reports on an accepted connection."""
        if not self._is_current(link):
            return
        if violation := parse_violation(text):
            log.log(logging.DEBUG if self.denied else logging.WARNING, "NATS connection: %s", text)
            if len(self.denied) == MOST_DENIED:
                del self.denied[next(iter(self.denied))]  # the oldest one, because callers check recent subjects
            self.denied[violation[0]] = PermissionDenied(*violation)
        elif is_authentication_error(text):
            # A credential has expired, or was revoked or replaced. It may have been renewed in its file, which is read
            # when connecting again. If it was not, the handshake is refused.
            log.warning("NATS connection: the server said %r; connecting again with the current credentials", text)
            self._lost(link, ConnectionLost(text))
        elif "stale connection" in text:
            self._lost(link, ConnectionLost(text))
        else:
            link.abort()
            self._shut(f"the server said {text!r}")

    def _is_current(self, link: Link) -> bool:
        return self.is_connected and link is self.link

    def _lost(self, link: Link, error: Exception) -> None:
        if not self._is_current(link):
            return
        link.abort()
        self.is_connected = False
        self._interrupted()
        log.warning("NATS connection lost, reconnecting: %s", error)
        self._problem = error
        self._reconnecting = asyncio.create_task(self._reconnect())

    def _interrupted(self) -> None:
        """Call the callbacks of ``when_lost``, because nothing that was sent so far will be answered."""
        for call in list(self.when_lost):
            call(self.lost() if self.ended else ConnectionLost("the connection to NATS was lost"))

    def _end(self, reason: str) -> None:
        """End everything that waits for the server. The first reason is kept."""
        if self.ended:
            return
        self.ended = reason
        self._interrupted()
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    def _shut(self, reason: str) -> None:
        """End for good."""
        self.closed, self.is_connected = True, False
        self._end(reason)
        self.subscriptions.clear()

    async def _reconnect(self) -> None:
        while True:
            servers = len(self._settings.addresses) + len(self._settings.named_addresses)
            for address, limit in Connecting(self._settings, shuffled=True).round():
                most = self._settings.max_reconnects
                if most is not None and self._attempts >= most * servers:
                    failed = f", and the last of {self._attempts} attempts to reconnect failed: {self._problem}"
                    self._shut(f"it was lost{failed if self._attempts else ', and max_reconnects is 0'}")
                    return
                self._attempts += 1
                try:
                    await self._attempt(address, limit)
                except OSError as error:
                    self._failed(error)
                else:
                    self.reconnects += 1
                    log.info("NATS connection restored")
                    return
            await asyncio.sleep(RECONNECT_WAIT)

    async def _attempt(self, address: Address, limit: float) -> None:
        """Connect with the credentials and certificates that are current by now. A file may be in the middle of a
        replacement, so an error of reading it is only one failed attempt."""
        now = asyncio.get_running_loop().time()
        # Sources may be slow.
        if self._refused_since is not None and now - self._looked_up >= LOOK_UP_EVERY:
            self._looked_up = now
            if renewed := await asyncio.to_thread(self._settings.renewed):
                self._settings = renewed
        try:
            await self._connect(self._settings.ssl_context(), address, limit)
        except InvalidValue as unreadable:
            if self._unreadable != str(unreadable):
                self._unreadable = str(unreadable)
                log.warning("NATS connection, still reconnecting: %s", unreadable)
            raise ConnectionFailed(self._unreadable) from None

    def _failed(self, error: OSError) -> None:
        """Handle a failed attempt to reconnect."""
        self._problem = error
        if not isinstance(error, ConnectionDenied):
            self._refused_since = None
            return
        now, patience = asyncio.get_running_loop().time(), self._settings.connect_timeout
        self._refused_since = self._refused_since or now
        if now - self._refused_since > patience:
            self._end(f"it was lost, and all attempts to reconnect were refused for {patience:g} s: {error}")
