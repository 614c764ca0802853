# SPDX-License-Identifier: Apache-2.0
"""The control connection: nats-py's connection, with safer behaviour.

nats-py does the TLS handshake, reconnects, and sends requests. This connection differs from nats-py's in these points:

* the CONNECT line is the same as on the bulk connection (``authentication``);
* connecting has one time limit, and stops at once if the credentials are wrong or TLS is missing;
* missing TLS is an error before any secret is sent (nats-py would continue in plain text);
* nothing is buffered while disconnected: a buffered acknowledgement could reach a later life of its consumer, and a
  buffered publish would be stored after its caller had got an error.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import nats.errors

from jetstream_client.errors import (
    LONGEST_TEXT,
    ConnectionDenied,
    ConnectionFailed,
    InvalidValue,
    JetStreamError,
    PermissionDenied,
    RequestTimeout,
)
from jetstream_client.wire.authentication import refused, unreachable
from jetstream_client.wire.nats_py import Client, StatusHeaders
from jetstream_client.wire.protocol import (
    NO_RESPONDERS,
    SUBSCRIBE,
    Reply,
    decode_headers,
    decode_status,
    encode_headers,
    encode_publish,
    is_authentication_error,
    parse_violation,
)
from jetstream_client.wire.tls import silence, tls_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from jetstream_client.wire.parser import Columns
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

RECONNECT_WAIT = 0.25
"""Seconds between two attempts to reach a server. It is short because acknowledgements wait for the connection."""

TO_CLOSE = 0.2
"""Seconds to wait for an unused socket to close."""
MOST_DENIED = 10_000
"""The largest number of refused subjects that are remembered. Without this limit, a user who tries ever more forbidden
subjects would fill the memory."""

Denied = dict[str, PermissionDenied]
Headers = Mapping[str, str | Sequence[str]] | bytes
"""Headers of a message to be sent: by name, or as an encoded block."""
Accept = Callable[["Columns"], bool]
"""A function that is offered messages that arrived together, and returns whether it has taken them. Messages that it
has not taken are delivered one by one."""


class Connection:
    """The control connection. Get one from :meth:`open`."""

    def __init__(self, settings: ConnectionSettings, client: Client, denied: Denied) -> None:
        self.settings = settings
        self._client = client
        self._denied = denied
        self.when_lost = client.when_lost
        """Callbacks that are called with the error when the connection is lost. Nothing that was sent before will be
        answered, whether the connection is restored or not."""
        self.pulls = 0
        """Number of open pulls. They share the amount of data that the server keeps for a slow connection."""
        self._ignored = 0  # answers

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ConnectionSettings) -> AsyncIterator[Connection]:
        """Connect, and close at the end of the block. Everything that still waits then raises ConnectionEnded.

        Raises:
            ConnectionFailed: no server answered within ``settings.connect_timeout`` seconds.
            AuthenticationFailed, TlsNotOffered, TlsFailed: the credentials or TLS failed. There is no second attempt.
        """
        client = Client(settings)
        denied: Denied = {}
        await _connect(settings, client, denied)
        try:
            yield cls(settings, client, denied)
        finally:
            with anyio.CancelScope(shield=True):  # a cancelled task must close its socket too
                await _finish(client, within=settings.request_timeout)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for good. This is so if its ``async with`` block has ended, if the server
        closed it with an error (for example because of a limit), or if ``max_reconnects`` attempts have failed."""
        return bool(self._client.is_closed)

    @property
    def ended(self) -> bool:
        """Whether the connection is closed, or every attempt to reconnect was refused for ``connect_timeout`` seconds,
        for example because the user was removed.

        After such refusals, the attempts to reconnect continue, which is right for a task that holds claims on the
        connection. Other callers can open a new connection with current settings. A connection that was lost in any
        other way reconnects automatically. When the connection has ended, everything that waits for the server raises
        ConnectionEnded.
        """
        return bool(self._client.ended)

    def check_open(self) -> None:
        """Raises ConnectionEnded if :attr:`ended`."""
        if self._client.ended:
            raise self._client.lost()

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[None]:
        """Limit a wait for the server, like ``asyncio.timeout``. The end of the connection ends the wait too.

        Raises:
            TimeoutError: ``seconds`` have passed. This never happens if it is None.
            ConnectionEnded: the connection has ended for good.
        """
        self.check_open()
        limits, limit = self._client.limits, asyncio.timeout(seconds)
        limits.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired():
                self.check_open()
            raise
        finally:
            limits.discard(limit)

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt. Raises ConnectionEnded if the connection is closed for good."""
        if self.closed:
            raise self._client.lost()
        await asyncio.sleep(seconds)

    @property
    def server_version(self) -> str:
        return str(self._client._server_info["version"])

    @property
    def max_payload(self) -> int:
        """The largest message in bytes, headers included."""
        return int(self._client.max_payload)

    @property
    def reconnects(self) -> int:
        """How many times the connection was lost and restored. Each time, all open pulls are lost."""
        return int(self._client.stats["reconnects"])

    def new_inbox(self) -> str:
        return str(self._client.new_inbox())

    async def round_trip(self) -> float:
        """Send a PING. Returns the seconds until its answer."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        with _Translated(self._client):
            if not self.is_connected:
                raise self._client.lost()  # nats-py would return at once
            async with self.timeout(None):
                await self._client.flush(timeout=max(1, round(self.settings.request_timeout)))
        return loop.time() - start

    async def flush(self) -> None:
        """Wait until the server has received everything that was published before."""
        await self.round_trip()

    async def publish(self, subject: str, data: bytes = b"", reply: str = "", headers: Headers | None = None) -> None:
        """Publish. Raises ConnectionLost if not connected at this moment, because nothing is buffered."""
        if self._denied:
            self._denied.pop(subject.lower(), None)  # the subject may be permitted by now
        with _Translated(self._client, subject):
            await self._client.publish(subject, data, reply, _block(headers))

    async def answer(self, subject: str, data: bytes) -> None:
        """Publish the answer to a message. This skips most checks of :meth:`publish`, because there are many
        answers."""
        client = self._client
        if self._denied or not client.is_connected or len(data) > client._max_payload:
            await self.publish(subject, data)  # makes all checks, and raises their errors
        elif client.write(encode_publish(subject, "", data)):
            with _Translated(self._client, subject):
                await client._flush_pending()

    async def answer_all(self, before: str, numbers: Sequence[int], after: str, data: bytes) -> None:
        """Answer many messages: publish ``data`` on the subject ``<before><number><after>`` for each of the numbers.
        After a :meth:`flush`, :meth:`check_permitted` tells whether the server refused the first answer."""
        client = self._client
        if not client.is_connected:
            raise client.lost()
        if self._denied:
            self._denied.pop(f"{before}{numbers[0]}{after}".lower(), None)  # the subject may be permitted by now
        start, _, end = encode_publish(f"{before}\n{after}", "", data).partition(b"\n")
        if client.write(start + (end + start).join(map(b"%d".__mod__, numbers)) + end):
            with _Translated(client, before):
                await client._flush_pending()

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
        limit = self.settings.request_timeout if timeout is None else timeout
        with _Translated(self._client, subject):
            try:
                async with self.timeout(None):
                    return _reply(await self._client.request(subject, data, timeout=limit, headers=_block(headers)))
            except nats.errors.TimeoutError:
                self.check_permitted(subject)
                raise
            except nats.errors.NoRespondersError:
                return Reply(subject, "", NO_RESPONDERS, "No Responders", {}, b"")

    def check_permitted(self, subject: str) -> None:
        """Raises PermissionDenied if the server refused a publish on the subject, or a subscription to an inbox.

        The server does not report a refusal as an answer: check after a :meth:`flush`, or if an answer is missing.
        """
        if subject.lower() in self._denied:
            raise PermissionDenied(subject)
        for denied in self._denied.values():
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
    async def inbox(self, deliver: Callable[[Reply], None], accept: Accept | None = None) -> AsyncIterator[Inbox]:
        """A separate inbox that passes arrivals to ``deliver``. It is unsubscribed at the end of the block, so that the
        server no longer serves its pulls. ``accept``: see :data:`Accept`."""
        inbox = await self.open_inbox(deliver, accept)
        try:
            yield inbox
        finally:
            await inbox.close()

    async def open_inbox(self, deliver: Callable[[Reply], None], accept: Accept | None = None) -> Inbox:
        """Open an :meth:`inbox` that stays open until :meth:`Inbox.close`, or until the connection is closed."""
        prefix = self.new_inbox()
        with _Translated(self._client, prefix):
            return Inbox(self, prefix, await self._client.subscribe(f"{prefix}.*", cb=_at_once(deliver, accept)))

    @asynccontextmanager
    async def listen(self, subject: str, deliver: Callable[[Reply], None], *, queue: str = "") -> AsyncIterator[Inbox]:
        """Pass every message on the subject, which may have wildcards, to ``deliver``. In a ``queue`` group, each
        message goes to one member.

        Raises:
            PermissionDenied: the user lacks the permission to subscribe to the subject.
        """
        with _Translated(self._client, subject):
            subscription = await self._client.subscribe(subject, queue, cb=_at_once(deliver))
        listening = Inbox(self, subject, subscription)
        try:
            await self.flush()  # a refusal arrives before the answer to the PING
            if self._denied.pop(subject.lower(), None):  # other requests need no such subscription
                raise PermissionDenied(subject, SUBSCRIBE)
            yield listening
        finally:
            await listening.close()


class Inbox:
    """Receives answers: each request gets a separate subject under ``prefix``."""

    def __init__(self, connection: Connection, prefix: str, subscription: Subscription) -> None:
        self._connection = connection
        self._prefix = prefix
        self._subscription = subscription
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
        client = self._connection._client
        try:
            with _Translated(client, self._prefix):
                async with asyncio.timeout(within):
                    await client._send_unsubscribe(self._subscription._id)
                    await self._connection.flush()
        finally:  # otherwise nats-py would renew the subscription when it reconnects
            self._subscription._stop_processing()
            client._remove_sub(self._subscription._id)

    async def close(self) -> None:
        if not (self.drained or self._subscription._conn.is_closed):
            with _Translated(self._connection._client, self._prefix):
                await self._subscription.unsubscribe()


def _block(headers: Headers | None) -> Any:  # nats-py passes it to Client._send_publish
    if not headers:
        return None
    return headers if isinstance(headers, bytes) else encode_headers(headers)


def _at_once(deliver: Callable[[Reply], None], accept: Accept | None = None) -> Callable[[Msg], Awaitable[None]]:
    """A callback that ``_Stream`` calls directly. nats-py's queue and task for each subscription would cost as much as
    everything else about a message."""

    async def receive(message: Msg) -> None:
        deliver(_reply(message))

    receive.deliver, receive.accept = deliver, accept  # type: ignore[attr-defined]
    return receive


def _reply(message: Msg) -> Reply:
    headers = message.headers
    if not headers:
        return Reply(message.subject, message.reply, 0, "", {}, message.data)
    block = headers.block if isinstance(headers, StatusHeaders) else b""
    status, description = (0, "") if message.data else decode_status(block)
    return Reply(message.subject, message.reply, status, description, decode_headers(block), message.data)


class _Translated:
    """Converts nats-py's exceptions to this package's exceptions, and restores a cancellation that nats-py swallowed.

    nats-py swallows a cancellation if an answer arrives at the same moment (``asyncio.wait_for`` before Python 3.12,
    https://github.com/python/cpython/issues/86296), or while it queues a flush. The cancelled task would not end.
    """

    def __init__(self, client: Client, subject: str | None = None) -> None:
        """``subject``: the subject of the request; None for a PING."""
        self._client = client
        self._subject = subject

    def __enter__(self) -> None:
        self._cancelled = _times_cancelled()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            return
        if _times_cancelled() > self._cancelled:
            raise asyncio.CancelledError from None
        if isinstance(error, JetStreamError):
            return
        if isinstance(error, nats.errors.TimeoutError | asyncio.TimeoutError):
            what = f"the request on {self._subject!r} got no answer" if self._subject else "a PING got no answer"
            timeouts = "request_timeout (or the timeout of this call)" if self._subject else "request_timeout"
            raise RequestTimeout(f"{what} in time; try again, or raise {timeouts}") from None
        if isinstance(error, nats.errors.OutboundBufferLimitError | nats.errors.ConnectionClosedError | OSError):
            raise self._client.lost() from None
        if isinstance(error, nats.errors.MaxPayloadError):
            remedy = "the message is larger than the server's max_payload; send less data, or raise max_payload"
            raise InvalidValue("data", "…", remedy) from None
        if isinstance(error, nats.errors.Error):
            raise JetStreamError(f"nats-py reported an error: {error}") from None


def _times_cancelled() -> int:
    """How many times this task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def _connect(settings: ConnectionSettings, client: Client, denied: Denied) -> None:
    failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    last: list[Exception] = []
    connected = False

    async def on_error(error: Exception) -> None:
        if client.is_connected:
            _said(error, denied)
            return
        last[:] = [error]
        final = _final(settings, error)
        if attempt.done():
            client.failed_again(final)
        if final is not None and not failure.done():
            failure.set_result(final)

    attempt: asyncio.Task[None] = asyncio.ensure_future(
        client.connect(
            **_options(settings),
            error_cb=on_error,
            disconnected_cb=client.on_disconnect,
            reconnected_cb=client.on_reconnect,
        )
    )
    try:
        async with asyncio.timeout(settings.connect_timeout):
            ends: list[asyncio.Future[Any]] = [attempt, failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise failure.result()
            await attempt
            if not client.is_connected:
                raise _no_server(settings)
            connected = True
    except TimeoutError:
        said = [str(error) or type(error).__name__ for error in last if "empty response" not in str(error)]
        reason = said[0] if said else silence(handshake_first=settings.tls_handshake_first)
        raise unreachable(settings, reason) from None
    except (nats.errors.Error, ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        raise _final(settings, error) or _no_server(settings, error) from None
    finally:
        if not connected:  # also if the caller was cancelled at the moment of connecting
            client.abort()
            with anyio.CancelScope(shield=True):
                await cancelled(attempt)
                await _finish(client, within=TO_CLOSE)


def _said(error: Exception, denied: Denied) -> None:
    """Handle an error that the server reports on a connection that stays open."""
    violation = parse_violation(str(error))
    log.log(logging.DEBUG if violation and denied else logging.WARNING, "NATS connection: %s", error)
    if violation:
        if len(denied) == MOST_DENIED:
            del denied[next(iter(denied))]  # drop the oldest refusal, because callers check recent subjects
        denied[violation[0]] = PermissionDenied(*violation)  # nats-py has converted it to lower case


async def cancelled(attempt: asyncio.Task[None]) -> None:
    """Cancel until the task ends. Its result or error is ignored.

    ``wait_for`` of Python 3.11 loses a cancellation that coincides with its own end, for example when a server hangs up
    at the time limit, and nats-py would then continue without end.
    """
    while not attempt.done():
        attempt.cancel()
        await asyncio.wait([attempt], timeout=TO_CLOSE)
    await asyncio.gather(attempt, return_exceptions=True)


async def finished(attempt: asyncio.Task[Any], within: float) -> None:
    """Wait until the task has ended, at most ``within`` seconds, and then cancel it. Its result or error is ignored.
    :func:`cancelled` cancels the waiting task repeatedly, and does not shorten the wait."""
    clock = asyncio.get_running_loop().time
    limit = clock() + within
    while not attempt.done() and (rest := limit - clock()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([attempt], timeout=rest)
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)


async def _finish(client: Client, *, within: float) -> None:
    """Close the connection, and send pending data if the server accepts it within ``within`` seconds.

    nats-py reports that it is closed while it still closes its socket. It waits without end for a socket whose TLS
    handshake failed, and for a server that does not read.
    """
    closing = asyncio.ensure_future(client.leave())
    try:
        await asyncio.wait([closing], timeout=within)
    finally:
        client.abort()
    await asyncio.wait([closing], timeout=TO_CLOSE)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)


def _no_server(settings: ConnectionSettings, error: Exception | None = None) -> ConnectionFailed:
    """The error for an invalid INFO or an invalid first answer, for which nats-py raises many kinds of exceptions."""
    words = str(error) if isinstance(error, nats.errors.Error) else "the answer is not in the NATS protocol"
    return ConnectionFailed(
        f"no NATS server answered at {', '.join(settings.servers)}: {words[:LONGEST_TEXT]}; correct the addresses and "
        "ports"
    )


def _final(settings: ConnectionSettings, error: Exception) -> Exception | None:
    """The error to raise if no later attempt can succeed after this error, else None."""
    if isinstance(error, ConnectionDenied | InvalidValue):
        return error
    if isinstance(error, ssl.SSLError):
        return tls_failure(error)
    text = str(error)
    if isinstance(error, nats.errors.Error) and is_authentication_error(text):
        return refused(settings, text.removeprefix("nats: ").strip("'"))
    return None


def _options(settings: ConnectionSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": list(settings.servers),
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_WAIT,
        "connect_timeout": settings.connect_timeout,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        "pending_size": 0,
        "inbox_prefix": settings.inbox_prefix,
    }
    if settings.tls:
        options["tls"] = settings.ssl_context()
        options["tls_handshake_first"] = settings.tls_handshake_first
        if settings.tls_hostname:
            options["tls_hostname"] = settings.tls_hostname
    return options
