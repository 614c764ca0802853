# SPDX-License-Identifier: Apache-2.0
"""The control connection: requests, inboxes and publishing on an event loop. It reconnects when it is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from jetstream_client.errors import InvalidValue, PermissionDenied, RequestTimeout
from jetstream_client.wire.protocol import (
    NO_RESPONDERS,
    SUBSCRIBE,
    UNSAFE,
    Reply,
    encode_headers,
    encode_publish,
    inbox_number,
    too_large,
)
from jetstream_client.wire.session import Session
from jetstream_client.wire.subscription import Accept, Deliver, Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)


Headers = Mapping[str, str | Sequence[str]] | bytes
"""Headers of a message to be sent: by name, or as an encoded block."""


class Connection:
    """The control connection. Get one from :meth:`open`."""

    def __init__(self, settings: ConnectionSettings, session: Session) -> None:
        self.settings = settings
        self._session = session
        self.when_lost = session.when_lost
        """Callbacks that are called with the error when the connection is lost. Nothing that was sent before will be
        answered, whether the connection is restored or not."""
        self.pulls = 0
        """Number of open pulls. They share the amount of data that the server keeps for a slow connection."""
        self._ignored = 0  # answers
        self._requests: Inbox | None = None  # for the answers to all requests
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}  # for the answer to the request with this number

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ConnectionSettings) -> AsyncIterator[Connection]:
        """Connect, and close at the end of the block. Everything that still waits then raises ConnectionEnded.

        Raises:
            ConnectionFailed: no server answered within ``settings.connect_timeout`` seconds.
            AuthenticationFailed, TlsNotOffered, TlsFailed: the credentials or TLS failed. There is no second attempt.
        """
        session = Session(settings)
        await session.open()
        try:
            yield cls(settings, session)
        finally:
            with anyio.CancelScope(shield=True):  # a cancelled task must close its socket too
                await session.close("it was closed", settings.request_timeout)

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for good. This is so if its ``async with`` block has ended, if the server
        closed it with an error (for example because of a limit), or if ``max_reconnects`` attempts have failed."""
        return self._session.closed

    @property
    def ended(self) -> bool:
        """Whether the connection is closed, or every attempt to reconnect was refused for ``connect_timeout`` seconds,
        for example because the user was removed.

        After such refusals, the attempts to reconnect continue, which is right for a task that holds claims on the
        connection. Other callers can open a new connection with current settings. A connection that was lost in any
        other way reconnects automatically. When the connection has ended, everything that waits for the server raises
        ConnectionEnded.
        """
        return bool(self._session.ended)

    def check_open(self) -> None:
        """Raises ConnectionEnded if :attr:`ended`."""
        self._session.check_open()

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[None]:
        """Limit a wait for the server, like ``asyncio.timeout``. The end of the connection ends the wait too.

        Raises:
            TimeoutError: ``seconds`` have passed. This never happens if it is None.
            ConnectionEnded: the connection has ended for good.
        """
        return self._session.timeout(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt. Raises ConnectionEnded if the connection is closed for good."""
        if self.closed:
            raise self._session.lost()
        await asyncio.sleep(seconds)

    @property
    def server_version(self) -> str:
        return str(self._session.link.server["version"])

    @property
    def max_payload(self) -> int:
        """The largest message in bytes, headers included."""
        return int(self._session.link.server.get("max_payload", 1 << 20))

    @property
    def reconnects(self) -> int:
        """How many times the connection was lost and restored. Each time, all open pulls are lost."""
        return self._session.reconnects

    def new_inbox(self) -> str:
        return f"{self.settings.inbox_prefix}.{secrets.token_hex(11)}"

    async def round_trip(self) -> float:
        """Send a PING. Returns the seconds until its answer."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if not self.is_connected:
            raise self._session.lost()
        try:
            async with self.timeout(self.settings.request_timeout):
                await self._session.link.ping()
        except TimeoutError:
            raise RequestTimeout("a PING got no answer in time; try again, or raise request_timeout") from None
        return loop.time() - start

    async def flush(self) -> None:
        """Wait until the server has received everything that was published before."""
        await self.round_trip()

    async def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: Headers | None = None) -> None:
        """Publish. Raises ConnectionLost if not connected at this moment, because nothing is buffered."""
        if not subject or UNSAFE.search(subject) or (reply and UNSAFE.search(reply)):
            raise InvalidValue("subject", subject or reply, "must not be empty, or contain white space")
        if self._session.denied:
            self._session.denied.pop(subject.lower(), None)  # the subject may be permitted by now
        block = headers if isinstance(headers, bytes) else encode_headers(headers) if headers else b""
        if (size := len(block) + len(data)) > self.max_payload:
            raise too_large(size, self.max_payload)
        self._session.write(encode_publish(subject, reply, data, block))

    async def answer_all(self, before: str, numbers: Sequence[int], after: str, data: bytes) -> None:
        """Answer many messages: publish ``data`` on the subject ``<before><number><after>`` for each of the numbers.
        After a :meth:`flush`, :meth:`check_permitted` tells whether the server refused the first answer."""
        if self._session.denied:
            self._session.denied.pop(f"{before}{numbers[0]}{after}".lower(), None)  # it may be permitted by now
        start, _, end = encode_publish(f"{before}\n{after}", "", data).partition(b"\n")
        self._session.write(start + (end + start).join(map(b"%d".__mod__, numbers)) + end)

    async def request(
        self, subject: str, data: bytes = b"", *, timeout: float | None = None, headers: Headers | None = None
    ) -> Reply:
        """Send one request and return its reply; ``status`` is 503 if nothing listens.

        timeout:  seconds to wait, by default ``settings.request_timeout``.

        Raises:
            PermissionDenied: no reply arrived in time, because the server refused the request.
            RequestTimeout: no reply arrived in time.
            ConnectionLost: there is no connection at this moment.
        """
        if self._requests is None:
            self._requests = await self.open_inbox(self._answered)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with self.timeout(self.settings.request_timeout if timeout is None else timeout):
                await self.publish(subject, data, self._requests.subject(number), headers)
                reply = await answer
        except TimeoutError:
            self.check_permitted(subject)
            raise RequestTimeout(
                f"the request on {subject!r} got no answer in time; try again, or raise request_timeout (or the "
                "timeout of this call)"
            ) from None
        finally:
            del self._waiting[number]
        return Reply(subject, "", NO_RESPONDERS, "No Responders", {}, b"") if reply.status == NO_RESPONDERS else reply

    def _answered(self, reply: Reply) -> None:
        answer = self._waiting.get(inbox_number(reply.subject))
        if answer and not answer.done():
            answer.set_result(reply)

    def check_permitted(self, subject: str) -> None:
        """Raises PermissionDenied if the server refused a publish on the subject, or a subscription to an inbox.

        The server does not report a refusal as an answer: check after a :meth:`flush`, or if an answer is missing.
        """
        if subject.lower() in self._session.denied:
            raise PermissionDenied(subject)
        for denied in self._session.denied.values():
            if denied.act == SUBSCRIBE:
                raise denied

    def ignored(self) -> None:
        """Count an answer to a pull that no consumer can have sent, because it has no reply subject.

        Any client that subscribes to ``>`` can answer pulls, so such an answer must not end them. It is no delivery, so
        nothing is lost when it is ignored. The log has a line for the first one, the tenth, the hundredth and so on.
        """
        self._ignored += 1
        if str(self._ignored).rstrip("0") == "1":
            log.warning(
                "NATS connection: another client has answered %s to consumers, and its answers are ignored; find the "
                "client that subscribes to a wildcard such as '>' or '$JS.>' and answers what it gets, and deny it to "
                "subscribe to '$JS.>'",
                "1 request" if self._ignored == 1 else f"{self._ignored:,} requests",
            )

    @asynccontextmanager
    async def inbox(self, deliver: Deliver, accept: Accept | None = None) -> AsyncIterator[Inbox]:
        """A separate inbox that passes arrivals to ``deliver``. It is unsubscribed at the end of the block, so that the
        server no longer serves its pulls. ``accept``: see :data:`~jetstream_client.wire.subscription.Accept`."""
        inbox = await self.open_inbox(deliver, accept)
        try:
            yield inbox
        finally:
            await inbox.close()

    async def open_inbox(self, deliver: Deliver, accept: Accept | None = None) -> Inbox:
        """Open an :meth:`inbox` that stays open until :meth:`Inbox.close`, or until the connection is closed."""
        prefix = self.new_inbox()
        return Inbox(self, prefix, Subscription(f"{prefix}.*", deliver, accept))

    @asynccontextmanager
    async def listen(self, subject: str, deliver: Deliver, *, queue: str = "", most: int = 0) -> AsyncIterator[Inbox]:
        """Pass every message on the subject, which may have wildcards, to ``deliver``. In a ``queue`` group, each
        message goes to one member. The server sends at most ``most`` messages, unless the connection is lost; 0: all.

        Raises:
            PermissionDenied: the user lacks the permission to subscribe to the subject.
        """
        listening = Inbox(self, subject, Subscription(subject, deliver, queue=queue, most=most))
        try:
            await self.flush()  # a refusal arrives before the answer to the PING
            if self._session.denied.pop(subject.lower(), None):  # other requests need no such subscription
                raise PermissionDenied(subject, SUBSCRIBE)
            yield listening
        finally:
            await listening.close()


class Inbox:
    """Receives answers: each request gets a separate subject under ``prefix``."""

    def __init__(self, connection: Connection, prefix: str, subscription: Subscription) -> None:
        self._connection = connection
        self._session = connection._session
        self._prefix = prefix
        self._sid = self._session.subscribe(subscription)
        self.drained = False

    def subject(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    async def drain(self, within: float | None = None) -> None:
        """Unsubscribe, and deliver messages that the server had sent before, if they arrive within ``within``
        seconds.

        Raises:
            ConnectionLost, RequestTimeout: some messages may not have arrived.
        """
        self.drained = True
        try:
            async with asyncio.timeout(within):
                self._session.write(b"UNSUB %d\r\n" % self._sid)
                await self._connection.flush()
        except TimeoutError as late:
            raise RequestTimeout(str(late) or "a PING got no answer in time") from None
        finally:  # otherwise it would be renewed on the next link
            self._session.subscriptions.pop(self._sid, None)

    async def close(self) -> None:
        self._session.unsubscribe(self._sid)
