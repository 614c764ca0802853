# SPDX-License-Identifier: Apache-2.0
"""The bulk connection: a blocking socket that sends encoded commands and does not reconnect.

It exists for speed, when Spark reads, when many messages are published, and when a claim is acknowledged. It needs no
event loop. The caller must notice missing answers; a connection that ends raises :class:`ConnectionLost`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Self

from jetstream_client.errors import (
    LONGEST_TEXT,
    AuthenticationFailed,
    ConnectionLost,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    TlsFailed,
)
from jetstream_client.wire.answers import decode_api_answer
from jetstream_client.wire.authentication import connect_line, ended_by_server
from jetstream_client.wire.connecting import Connecting
from jetstream_client.wire.parser import Parser, ServerLine
from jetstream_client.wire.protocol import (
    decode_info,
    decode_status,
    encode_publish,
    parse_violation,
)
from jetstream_client.wire.run import Frame, Run
from jetstream_client.wire.tls import TlsSocket, check_plain, silence, tls_failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetstream_client.wire.settings import ConnectionSettings

ANSWERED_WITHIN = 10.0
"""Seconds without any answer after which reading and publishing close a connection."""

_RECEIVE = 1 << 18  # bytes for one read: data that fits into the processor's caches is parsed twice as fast as 1 MiB
_BUFFER = 4 << 20  # size of the socket's send buffer and of its receive buffer, as requested from the kernel
_MOST_KEPT = 256 << 20  # bytes that wait to be received: a server that never stops must not fill the memory
_MOST_DENIED = 1_000
_GRACE = 1.0  # seconds after a time limit in which a message that has begun to arrive may be completed
_PING_AFTER = 10.0  # seconds of silence before a PING, and seconds to wait for its answer


class _Nothing(Exception):
    """Nothing arrived within the time limit."""


class Wire:
    """One blocking connection to one server. It is a context manager, and only one thread may use it."""

    def __init__(self, settings: ConnectionSettings, connection: socket.socket) -> None:
        self.settings = settings
        self.server: dict[str, Any] = {}
        """The server's INFO."""
        self._socket: socket.socket | TlsSocket = connection
        self._parser = Parser()
        self._arrived: list[Run] = []
        self._frames = 0  # number of frames in _arrived
        self._kept = 0  # bytes read since frames were last handed out
        self._denied: list[PermissionDenied] = []
        self._sid = 0
        self._pinged = 0.0  # when the unanswered PING was sent; 0 without one
        self._pongs_owed = 0
        self._accepted = False
        """Whether the server has accepted the credentials."""
        self._heard = time.monotonic()

    @classmethod
    def open(cls, settings: ConnectionSettings) -> Wire:
        """Connect to the first server that accepts, trying them in turn for ``settings.connect_timeout`` seconds. The
        configured servers are followed by those that servers have named to other connections with these settings.

        Raises:
            AuthenticationFailed, TlsNotOffered, TlsFailed: the credentials or TLS failed. There is no second attempt,
                unless the ``source`` of the settings has other credentials by now.
            ConnectionFailed: no server accepted the connection in time.
            InvalidValue: a certificate or key cannot be read.
        """
        try:
            return cls._open(settings)
        except (AuthenticationFailed, TlsFailed):
            if (renewed := settings.renewed()) is None:
                raise
        return cls._open(renewed)

    @classmethod
    def _open(cls, settings: ConnectionSettings) -> Wire:
        context = settings.ssl_context()
        connecting = Connecting(settings)
        while True:
            for address, limit in connecting.round():
                try:
                    return cls._connect(settings, context, address, limit)
                except OSError as error:
                    connecting.failed(address, error)
            connecting.check()
            time.sleep(0.1)

    @classmethod
    def _connect(
        cls, settings: ConnectionSettings, context: ssl.SSLContext | None, address: tuple[str, int], timeout: float
    ) -> Wire:
        deadline = time.monotonic() + timeout
        connection = socket.create_connection(address, timeout=timeout)
        wire = cls(settings, connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            connection.setblocking(False)
            wire._greet(context, settings.tls_hostname or address[0], deadline)
        except BaseException:
            wire.close()
            raise
        return wire

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def version(self) -> str:
        """The version of the server."""
        return str(self.server.get("version", ""))

    @property
    def max_payload(self) -> int:
        """The largest message in bytes, headers included."""
        return int(self.server.get("max_payload", 1 << 20))

    def new_inbox(self) -> str:
        return f"{self.settings.inbox_prefix}.{secrets.token_hex(11)}"

    def subscribe(self, subject: str) -> int:
        """Subscribe. Returns the number of the subscription, which is the ``sid`` of its frames."""
        self._sid += 1
        self.send(f"SUB {subject} {self._sid}\r\n".encode())
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        self.send(f"UNSUB {sid}\r\n".encode())

    def send(self, *commands: bytes) -> None:
        """Write encoded commands, and return when all are written.

        While the socket accepts no data, incoming data is read and kept for :meth:`receive`, because client and server
        would wait for each other if both only wrote. A PING that arrives during this time is answered after the
        commands.

        Raises:
            ConnectionLost: some of the commands may have reached the server.
        """
        data = memoryview(commands[0] if len(commands) == 1 else b"".join(commands))
        taken = time.monotonic()
        while data:
            try:
                data = data[self._socket.send(data) :]
                taken = time.monotonic()
            except BlockingIOError:
                ready = self._wait(select.POLLIN | select.POLLOUT, 2 * _PING_AFTER)
                if not ready or time.monotonic() - taken > 2 * _PING_AFTER:
                    raise ConnectionLost("the NATS server stopped reading from the connection") from None
                if ready & ~select.POLLOUT:
                    self._read()
            except OSError as error:
                raise ConnectionLost(f"the connection to NATS ended: {error}") from None
        if self._pongs_owed:
            owed, self._pongs_owed = self._pongs_owed, 0
            self.send(b"PONG\r\n" * owed)

    def receive(self, timeout: float) -> list[Frame]:
        """The messages that have arrived, one by one. Waits and raises like :meth:`receive_runs`."""
        new = tuple.__new__  # skips the named tuple's constructor, which would double the time
        return [new(Frame, fields) for run in self.receive_runs(timeout) for fields in self.read(run)]

    def receive_runs(self, timeout: float) -> list[Run]:
        """The messages that have arrived. Waits up to ``timeout`` seconds for the first message; 0 does not wait.

        Raises:
            PermissionDenied: the server refused something that was sent. Messages that have arrived are kept.
            RequestTimeout: nothing arrived, and ``timeout`` is above 0.
            ConnectionLost: the connection ended, or the server did not answer a PING within 10 s. A PING is sent after
                10 s without data. Time between two calls of this method does not count.
        """
        try:
            self._gather(0, time.monotonic() + timeout)
        except _Nothing:
            if timeout:
                raise RequestTimeout(f"no message arrived from the NATS server for {timeout:g} s") from None
        arrived, self._arrived, self._frames, self._kept = self._arrived, [], 0, 0
        return arrived

    @staticmethod
    def read(run: Run) -> Iterator[tuple[bytes, int, bytes, bytes, bytes]]:
        """The fields of each message's :class:`Frame`. Raises ConnectionLost if the data is not the NATS protocol."""
        try:
            columns = run.columns()
            return zip(*columns, strict=True) if columns else iter(run.frames())
        except ProtocolError as error:
            raise ConnectionLost(str(error)) from None

    def _gather(self, have: int, deadline: float) -> None:
        """Read until more than ``have`` frames have arrived."""
        while self._frames <= have and not self._denied:
            if self._wait(select.POLLIN, min(deadline - time.monotonic(), _PING_AFTER)):
                self._read()
                self.send()
                if time.monotonic() > deadline + _GRACE and self._frames <= have:
                    raise _Nothing  # the server sends data, but no message
                continue
            now = time.monotonic()
            if not self._pinged and now - self._heard >= _PING_AFTER:
                self._pinged = now
                self.send(b"PING\r\n")
            elif self._pinged and now - max(self._pinged, self._heard) >= _PING_AFTER:
                raise ConnectionLost(f"the NATS server did not answer a PING within {_PING_AFTER:g} s")
            if now >= deadline:
                raise _Nothing
        if self._denied:
            raise self._denied.pop(0)

    def request(self, subject: str, data: bytes = b"", timeout: float | None = None, *, header: bytes = b"") -> Frame:
        """Send one request and return its answer, which arrives in a separate inbox. Frames of other subscriptions are
        kept.

        timeout:  seconds to wait, by default ``settings.request_timeout``.
        header:   a header block from :func:`~jetstream_client.wire.protocol.encode_headers`. Default: none.

        Raises:
            PermissionDenied, RequestTimeout, ConnectionLost.
        """
        limit = self.settings.request_timeout if timeout is None else timeout
        inbox = self.new_inbox()
        command = encode_publish(subject, inbox, data, header)
        sid = self.subscribe(inbox)
        self.send(command)
        deadline = time.monotonic() + limit
        seen = 0  # runs that were searched
        try:
            while True:
                for run in self._arrived[seen:]:
                    for position, frame in enumerate(map(Frame._make, self.read(run))):
                        if frame.sid == sid:
                            run.pop(position)
                            self._frames -= 1
                            if not run:
                                self._arrived.remove(run)
                            return frame
                seen = len(self._arrived)
                if time.monotonic() > deadline:
                    raise _Nothing  # noqa: TRY301 - like _gather
                self._gather(self._frames, deadline)
        except _Nothing:
            raise RequestTimeout(
                f"the request on {subject!r} got no answer within {limit:g} s; try again, or raise request_timeout"
            ) from None
        finally:
            with contextlib.suppress(ConnectionLost):
                self.unsubscribe(sid)

    def api(self, request: str, payload: Mapping[str, Any] | None = None) -> Any:
        """Send a request of the JetStream API, e.g. ``STREAM.INFO.ORDERS``. Returns the decoded answer.

        Raises:
            ApiError: the server refused the request (usually a subclass).
            JetStreamNotEnabled: no server answers.
        """
        subject = f"{self.settings.prefix}.{request}"
        frame = self.request(subject, json.dumps(payload).encode() if payload is not None else b"")
        return decode_api_answer(frame.data, decode_status(frame.header)[0], subject, request, self.settings.words)

    def _greet(self, context: ssl.SSLContext | None, hostname: str, deadline: float) -> None:
        """Read INFO, begin TLS before or after it, and send CONNECT. Returns when the server has accepted it."""
        if context and self.settings.tls_handshake_first:
            self._encrypt(context, hostname, deadline)
        while not self.server:
            self._read_until(deadline, silence(handshake_first=self.settings.tls_handshake_first))
        if context is None:
            check_plain(self.server)
        if (
            context
            and isinstance(self._socket, socket.socket)
            and (self.server.get("tls_required") or self.server.get("tls_available"))
        ):
            # A server sends nothing but INFO before TLS: drop anything else that arrived.
            self._parser, self._arrived, self._frames, self._denied, self._pongs_owed = Parser(), [], 0, [], 0
            self._encrypt(context, hostname, deadline)
        line = connect_line(self.settings, self.server, encrypted=isinstance(self._socket, TlsSocket))
        self._pinged = time.monotonic()
        with contextlib.suppress(ConnectionLost):  # the server's reason has not been read yet
            self.send(line + b"PING\r\n")
        while self._pinged:
            self._read_until(deadline, "the server does not answer")
        self._accepted = True

    def _encrypt(self, context: ssl.SSLContext, hostname: str, deadline: float) -> None:
        assert isinstance(self._socket, socket.socket)  # noqa: S101 - not encrypted yet
        self._socket.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            encrypted = context.wrap_socket(self._socket, server_hostname=hostname)
        except ssl.SSLError as error:
            raise tls_failure(error) or error from None
        encrypted.setblocking(False)
        self._socket = TlsSocket(encrypted)

    def _read_until(self, deadline: float, silence: str) -> None:
        if time.monotonic() > deadline or not self._wait(select.POLLIN, deadline - time.monotonic()):
            raise ConnectionLost(silence)
        try:
            self._read()
        except ConnectionLost:
            if not self.server:
                raise ConnectionLost(silence) from None
            raise

    def _wait(self, events: int, seconds: float) -> int:
        """Wait up to ``seconds`` for one of the poll ``events``. Returns the events that occurred, or 0. Unlike select,
        poll works with any descriptor."""
        poll = select.poll()
        poll.register(self._socket, events)
        ready = poll.poll(max(0.0, seconds) * 1000)
        return ready[0][1] if ready else 0

    def _read(self) -> None:
        """Read from the socket once, and keep the data that has arrived."""
        try:
            data = self._socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            if isinstance(error, ssl.SSLError) and (denied := tls_failure(error)):
                raise denied from None
            raise ConnectionLost(f"the connection to NATS ended: {error or type(error).__name__}") from None
        if not data:
            raise ConnectionLost("the NATS server closed the connection")
        self._heard = time.monotonic()
        self._kept += len(data)
        if self._kept > _MOST_KEPT:
            raise ConnectionLost(f"the NATS server sent more than {_MOST_KEPT >> 20} MiB without being asked")
        try:
            for piece in self._parser.cut(data):
                if isinstance(piece, Run):
                    self._arrived.append(piece)
                    self._frames += len(piece)
                else:
                    self._handle(piece)
        except ProtocolError as error:
            raise ConnectionLost(str(error)) from None

    def _handle(self, line: ServerLine) -> None:
        if line.verb == "PING":
            self._pongs_owed += 1
        elif line.verb == "PONG":
            self._pinged = 0.0
        elif line.verb == "INFO":
            self.server = decode_info(line.rest)
            self.settings.learn(self.server.get("connect_urls"))
        elif line.verb == "-ERR":
            text = line.rest[:LONGEST_TEXT].decode("utf-8", "replace").strip("'")
            if violation := parse_violation(text):
                self._denied[_MOST_DENIED:] = [PermissionDenied(*violation)]
            else:
                raise ended_by_server(self.settings, text, accepted=self._accepted)
