# SPDX-License-Identifier: Apache-2.0
"""One connection of an event loop to one server, from its first byte to its last. It does not reconnect.

It is to the control connection what a socket is to the bulk connection: both use the same parser, CONNECT line and
errors.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, cast

from jetstream_client.errors import LONGEST_TEXT, ConnectionFailed, ConnectionLost, ProtocolError
from jetstream_client.wire.authentication import connect_line, ended_by_server
from jetstream_client.wire.parser import Parser, ServerLine
from jetstream_client.wire.protocol import decode_info
from jetstream_client.wire.run import Run
from jetstream_client.wire.tls import check_plain, silence, tls_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetstream_client.wire.settings import ConnectionSettings

PING_EVERY = 10.0
"""Seconds between two PINGs. The connection is lost when the next one is due and two are unanswered."""
TO_ABORT = 0.2
"""Seconds to wait for an aborted socket to close."""
_MOST_UNANSWERED = 2
_MOST_QUEUED = 1 << 18  # bytes; more are passed to the socket at once, instead of at the end of this turn of the loop


class Link(asyncio.Protocol):
    """One accepted connection. Get one from :meth:`open`.

    arrived:  called with messages.
    said:     called with this link and the text of ``-ERR``, in lower case, after which the server usually closes the
              connection.
    lost:     called with this link and the reason when the connection has ended, unless :meth:`close` ended it.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        arrived: Callable[[Run], None],
        said: Callable[[Link, str], None],
        lost: Callable[[Link, Exception], None],
    ) -> None:
        self._settings = settings
        self._arrived, self._said, self._lost = arrived, said, lost
        self._loop = asyncio.get_running_loop()
        self.server: dict[str, Any] = {}
        """The server's INFO."""
        self.failure: Exception | None = None
        """Why the connection has ended."""
        self._transport: asyncio.Transport | None = None
        self._parser = Parser()
        self._step: asyncio.Future[None] = self._loop.create_future()  # what the handshake waits for
        self._deaf = False  # a server sends nothing but INFO before TLS: anything else is dropped
        self._introduced = False  # whether CONNECT was sent
        self._accepted = False
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._queue: list[bytes] = []
        self._queued = 0  # bytes
        self._full = False  # whether the server reads more slowly than commands are written
        self._pongs_owed = 0
        self._pings: list[asyncio.Future[None]] = []
        self._unanswered = 0
        self._next_ping: asyncio.TimerHandle | None = None

    async def open(self, context: ssl.SSLContext | None, address: tuple[str, int], limit: float) -> None:
        """Connect to one server. Returns when the server has accepted the credentials.

        limit:  seconds.

        Raises:
            ConnectionDenied: the credentials or TLS failed.
            InvalidValue: the file of a credential cannot be read.
            OSError: the connection failed in another way, usually as ConnectionFailed.
        """
        try:
            async with asyncio.timeout(limit):
                await self._greet(context, address)
        except TimeoutError:
            self.abort()
            raise ConnectionLost(self._silence()) from None
        except BaseException:
            self.abort()
            raise
        self._next_ping = self._loop.call_later(PING_EVERY, self._ping)

    async def _greet(self, context: ssl.SSLContext | None, address: tuple[str, int]) -> None:
        first = context is not None and self._settings.tls_handshake_first
        hostname = self._settings.tls_hostname or address[0]
        tls: dict[str, Any] = {"ssl": context, "server_hostname": hostname} if first else {}
        try:
            await self._loop.create_connection(lambda: self, *address, **tls)
            await self._step  # INFO
            encrypted = first
            if context is None:
                check_plain(self.server)
            elif not first and (self.server.get("tls_required") or self.server.get("tls_available")):
                encrypted = True
                self._parser, self._pongs_owed, self._deaf = Parser(), 0, False
                transport = cast("asyncio.Transport", self._transport)
                self._transport = await self._loop.start_tls(transport, self, context, server_hostname=hostname)
        except ssl.SSLError as error:
            raise tls_failure(error) or ConnectionFailed(str(error)) from None
        except (ConnectionResetError, ConnectionAbortedError):
            raise ConnectionLost(self._silence()) from None
        if self.failure:
            raise self.failure
        self._step, self._introduced, self._deaf = self._loop.create_future(), True, False
        self._send(connect_line(self._settings, self.server, encrypted=encrypted) + b"PING\r\n")
        await self._step  # PONG

    def _silence(self) -> str:
        """The likely reason if a server does not answer."""
        first = self._settings.tls_handshake_first
        return "the server does not answer" if self.server else silence(handshake_first=first)

    def write(self, command: bytes) -> None:
        """Queue encoded commands. They are sent together at the end of this turn of the event loop."""
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.append(command)
        self._queued += len(command)
        if self._queued > _MOST_QUEUED:
            self._flush()

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not accepted yet."""
        return self._queued + (self._transport.get_write_buffer_size() if self._transport else 0)

    def ping(self) -> asyncio.Future[None]:
        """Send a PING after everything that was written before. Returns a future for the server's answer."""
        answer: asyncio.Future[None] = self._loop.create_future()
        self._pings.append(answer)
        self.write(b"PING\r\n")
        return answer

    def abort(self) -> None:
        """Close the socket at once."""
        if self._next_ping:
            self._next_ping.cancel()
        if self._transport:
            self._transport.abort()

    async def close(self, within: float) -> None:
        """Send what is queued, if the server accepts it within ``within`` seconds, and close the socket."""
        self.failure = self.failure or ConnectionLost("the connection was closed")
        self._flush()
        if self._next_ping:
            self._next_ping.cancel()
        if self._transport:
            self._transport.close()
            try:
                await asyncio.wait([self._gone], timeout=within)
            finally:
                self._transport.abort()
            await asyncio.wait([self._gone], timeout=TO_ABORT)

    def _flush(self) -> None:
        if self._queue:
            commands, self._queue, self._queued = b"".join(self._queue), [], 0
            self._send(commands)

    def _send(self, commands: bytes) -> None:
        if self._transport and not self._gone.done():
            self._transport.write(commands)

    def _ping(self) -> None:
        if self._unanswered == _MOST_UNANSWERED:
            self._end(ConnectionLost(f"the NATS server did not answer {_MOST_UNANSWERED} PINGs"))
            return
        self._unanswered += 1
        self.ping()
        self._next_ping = self._loop.call_later(PING_EVERY, self._ping)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        if isinstance(exc, ssl.SSLError) and (denied := tls_failure(exc)):
            self._end(denied)
        elif self.server:
            ended = f"the connection to NATS ended: {exc}" if exc else "the NATS server closed the connection"
            self._end(ConnectionLost(ended))
        else:
            self._end(ConnectionLost(self._silence()))

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._answer_pings()

    def data_received(self, data: bytes) -> None:
        try:
            for piece in [] if self._deaf else self._parser.cut(data):
                if self.failure or self._deaf:
                    return
                if not isinstance(piece, Run):
                    self._handle(piece)
                elif self._accepted:
                    self._arrived(piece)
        except ProtocolError as error:
            self._end(ConnectionLost(str(error)))
        self._answer_pings()

    def _handle(self, line: ServerLine) -> None:
        if line.verb == "PING":
            self._pongs_owed += 1
        elif line.verb == "PONG":
            self._pong()
        elif line.verb == "INFO":
            greeted, self.server = bool(self.server), decode_info(line.rest)
            self._settings.learn(self.server.get("connect_urls"))
            if not greeted:
                self._deaf = self._settings.tls and not self._settings.tls_handshake_first
                self._next_step()
        elif line.verb == "-ERR":
            text = line.rest[:LONGEST_TEXT].decode("utf-8", "replace").strip("'")
            if self._accepted:
                self._said(self, text.lower())
            else:
                self._end(ended_by_server(self._settings, text, accepted=False))

    def _pong(self) -> None:
        self._unanswered = 0
        if self._introduced and not self._accepted:
            self._accepted = True
            self._next_step()
        elif self._pings:
            answer = self._pings.pop(0)
            if not answer.done():  # its caller no longer waits
                answer.set_result(None)

    def _next_step(self) -> None:
        if not self._step.done():
            self._step.set_result(None)

    def _answer_pings(self) -> None:
        """Answer PINGs, unless the server does not read: it could fill the memory with answers."""
        if self._pongs_owed and not self._full:
            owed, self._pongs_owed = self._pongs_owed, 0
            self.write(b"PONG\r\n" * owed)

    def _end(self, error: Exception) -> None:
        """End because of an error. The first one is kept."""
        if self.failure:
            return
        self.failure = error
        self.abort()
        if self._accepted:
            self._lost(self, error)
        elif not self._step.done():
            self._step.set_exception(error)
            self._step.exception()  # marks the error as retrieved, because opening may have been cancelled
