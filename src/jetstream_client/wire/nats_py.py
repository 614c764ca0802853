# SPDX-License-Identifier: Apache-2.0
"""nats-py's client, adapted for the control connection: it uses this package's parser, CONNECT line and headers."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import nats.aio.client
import nats.errors

from jetstream_client.errors import (
    LONGEST_TEXT,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    ProtocolError,
)
from jetstream_client.wire.authentication import connect_line
from jetstream_client.wire.parser import Columns, Frame, Parser, Run
from jetstream_client.wire.protocol import (
    DELIVERY,
    Reply,
    decode_headers,
    decode_info,
    decode_status,
    encode_publish,
    is_authentication_error,
)
from jetstream_client.wire.tls import check_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

Read = TypeVar("Read")

LOOK_UP_EVERY = 2.0
"""Seconds between two look-ups of settings whose credentials are refused."""
_PING = b"PING\r\n"


class StatusHeaders(dict[str, str]):
    """The server's status, which is all that nats-py reads, and the header block as it arrived."""

    def __init__(self, block: bytes) -> None:
        status, _ = decode_status(block)
        super().__init__({"Status": str(status)} if status else {})
        self.block = block

    def __bool__(self) -> bool:
        return True


class _Stream:
    """Replaces nats-py's parser by this package's, which limits its memory and refuses invalid data."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reset()

    def reset(self) -> None:
        self._parser = Parser()

    async def parse(self, data: bytes) -> None:
        """Parse and process. Raises nats-py's ProtocolError, at which nats-py reconnects."""
        client = self._client
        try:
            for piece in self._parser.cut(data):
                if isinstance(piece, Run):
                    await self._process(piece)
                elif piece.verb == "INFO":
                    await client._process_info(decode_info(piece.rest))
                elif piece.verb == "PING":
                    await client._process_ping()
                elif piece.verb == "PONG":
                    await client._process_pong()
                elif piece.verb == "-ERR":
                    await client._process_err(piece.rest[:LONGEST_TEXT].decode("utf-8", "replace").lower())
        except ProtocolError as error:
            log.warning("NATS connection: %s", error)
            raise nats.errors.ProtocolError from None

    async def _process(self, run: Run) -> None:
        """Deliver messages as columns if their subscription takes them, and otherwise one by one."""
        columns = run.columns()
        if columns is None:
            await self._one_by_one(run.frames())
            return
        for alike in columns.by_sid():
            subscription = self._client._subs.get(alike.sids[0])
            accept = getattr(subscription._cb, "accept", None) if subscription else None
            if accept is None or not self._accepted(accept, alike):
                await self._one_by_one(alike.frames())

    async def _one_by_one(self, frames: list[Frame]) -> None:
        client = self._client
        for frame in frames:
            subscription = client._subs.get(frame.sid)
            deliver = getattr(subscription._cb, "deliver", None) if subscription else None
            if deliver is None:
                await client._process_msg(frame.sid, frame.subject, frame.reply, frame.data, frame.header)
            else:
                self._deliver(deliver, frame)

    @staticmethod
    def _accepted(accept: Callable[[Columns], bool], columns: Columns) -> bool:
        try:
            return accept(columns)
        except Exception:
            log.exception("NATS connection: handling %d messages together failed", len(columns.data))
            return False

    @staticmethod
    def _deliver(deliver: Callable[[Reply], None], frame: Frame) -> None:
        subject, _, reply, header, data = frame
        size = len(subject) + len(reply) + len(header) + len(data)
        says = header and not data and not reply.startswith(DELIVERY)
        status, description = decode_status(header) if says else (0, "")
        # Any client can publish on a subject that is not UTF-8. The server keeps it, and replaces the invalid bytes in
        # its JSON only.
        texts = subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace")
        fields = (*texts, status, description, decode_headers(header), data, size)
        try:
            deliver(tuple.__new__(Reply, fields))  # calling the constructor would double the time
        except Exception:
            log.exception("NATS connection: handling a delivery on %r failed", fields[0][:LONGEST_TEXT])


class Client(nats.aio.client.Client):
    """nats-py's client with this package's CONNECT line. nats-py gets no secret, so it cannot send one before TLS."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__()
        self._settings = settings
        self._ps: Any = _Stream(self)
        self._unreadable = ""  # the last logged problem with a credential's file
        self._attempts = 0  # attempts to reconnect since the connection was lost
        self._refused_since: float | None = None
        """On the loop's clock: the first refused attempt to reconnect, if all attempts after it were refused too."""
        self._looked_up = -math.inf
        """On the loop's clock: when the settings were last looked up again."""
        self.ended = ""
        """Why the connection has ended; empty if it has not ended, or if a later attempt to reconnect succeeded."""
        self.when_lost: set[Callable[[ConnectionLost], None]] = set()
        """Called when the connection is lost, for good or until it is restored."""
        self.limits: set[asyncio.Timeout] = set()
        """The time limits of everything that waits for the server."""

    def lost(self) -> ConnectionLost:
        """The error for using the connection while it is lost, or after it has ended."""
        if not self.ended:
            return ConnectionLost("the connection to NATS is interrupted and is being restored; try again")
        servers = ", ".join(self._settings.servers)
        return ConnectionEnded(f"the connection to {servers} has ended because {self.ended}; open another connection")

    def interrupted(self) -> None:
        """Call the callbacks of ``when_lost``, because nothing that was sent so far will be answered."""
        for call in list(self.when_lost):
            call(self.lost() if self.ended else ConnectionLost("the connection to NATS was lost"))

    def end(self, reason: str) -> None:
        """End everything that waits for the server. The first reason is kept."""
        if self.ended:
            return
        self.ended = reason
        self.interrupted()
        now = asyncio.get_running_loop().time()
        for limit in self.limits:
            if not limit.expired():
                limit.reschedule(now)

    async def _process_err(self, err_msg: str) -> None:
        if not (self.is_connected and is_authentication_error(err_msg)):
            await super()._process_err(err_msg)
            return
        # A credential has expired, or was revoked or replaced. nats-py would close the connection for good. It may have
        # been renewed in its file, which is read when connecting again. If it was not, the handshake is refused.
        words = err_msg.strip("'")
        log.warning("NATS connection: the server said %r; connecting again with the current credentials", words)
        await self._process_op_err(nats.errors.Error(f"nats: {words}"))

    async def _connect_to_server(self, server: Any) -> None:
        if self._refused_since is not None:
            await self._look_up_again()
        if self._reconnection_task is not None and self._settings.tls:
            self.options["tls"] = self._readable(self._settings.ssl_context)  # its files may have been renewed
        limit = self._settings.max_reconnects
        if self._reconnection_task is not None and limit is not None:
            if self._attempts >= limit * len(self._server_pool):
                failed = f", and the last of {self._attempts} attempts to reconnect failed: {self._err}"
                self.end(f"it was lost{failed if self._attempts else ', and max_reconnects is 0'}")
                self._server_pool.clear()  # nats-py then closes the connection, because no server is left
                raise nats.errors.NoServersError
            self._attempts += 1
        await super()._connect_to_server(server)

    async def _look_up_again(self) -> None:
        """Use the credentials that the source of the settings has by now. Sources may be slow, so this is done at most
        every LOOK_UP_EVERY seconds."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_up >= LOOK_UP_EVERY:
            self._looked_up = now
            if renewed := await asyncio.to_thread(self._settings.renewed):
                self._settings = renewed

    async def on_disconnect(self) -> None:
        self.interrupted()
        # nats-py would send pending data on the next connection: requests whose callers have got ConnectionLost, and
        # PINGs whose answers would be taken for answers to later PINGs. nats-py renews all subscriptions.
        self._pending, self._pending_data_size = [], 0
        if not self.is_closed:
            log.warning("NATS connection lost, reconnecting")

    async def on_reconnect(self) -> None:
        self._attempts = 0
        self._refused_since = None
        self.ended = ""
        log.info("NATS connection restored")

    def failed_again(self, refusal: Exception | None) -> None:
        """Handle a failed attempt to reconnect. This closes the attempt's socket, which nats-py would leave to the
        garbage collector."""
        self.abort()
        if refusal is None:
            self._refused_since = None
            return
        now, patience = asyncio.get_running_loop().time(), self._settings.connect_timeout
        self._refused_since = self._refused_since or now
        if now - self._refused_since > patience:
            self.end(f"it was lost, and all attempts to reconnect were refused for {patience:g} s: {refusal}")

    def abort(self) -> None:
        """Close the socket at once."""
        transport: Any = self._transport
        if transport is not None and transport._io_writer is not None:
            transport._io_writer.transport.abort()

    async def leave(self) -> None:
        """Close the connection. The reason for its end is this call, and not an error that the server reported
        before."""
        self._err = None
        await self.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_closed:
            said = str(self._err).removeprefix("nats: ").strip("'") if self._err else ""
            self.end(f"the server said {said!r}" if said else "it was closed")
        with suppress(OSError):  # the socket was reset; nothing waits for nats-py's own closing
            await super()._close(status, do_cbs)

    async def _process_pong(self) -> None:
        # nats-py stops reading for good at the answer to a PING whose caller no longer waits.
        self._pings_outstanding = 0
        if self._pongs:
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(True)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        # nats-py sends the PING ahead of pending data, so that its answer would not confirm that data.
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        if self.write(_PING):
            await self._flush_pending()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._settings.follows:
            self._settings.learn(info.get("connect_urls"))  # for bulk connections
        else:
            info.pop("connect_urls", None)
        if initial_connection and self._settings.tls and info.get("tls_available"):
            info["tls_required"] = True  # nats-py continues in plain text if the server only offers TLS
        if initial_connection and not self._settings.tls:
            check_plain(info)  # nats-py would continue with a default TLS context
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        # nats-py 2.16 stops reading for good at a block that is only "NATS/1.0", and mistakes a publisher's header
        # named Status for the server's status.
        return StatusHeaders(headers) if headers else None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        # nats-py decodes both subjects strictly, and an error would end the connection.
        subject, reply = (each.decode("utf-8", "replace").encode() for each in (subject, reply))
        return super()._build_message(sid, subject, reply, data, headers)

    async def _send_publish(self, subject: str, reply: str, payload: bytes, payload_size: int, headers: Any) -> None:
        # nats-py allows one value for each header, and does not count headers in the size of a message, so that the
        # server would end the connection.
        block = headers or b""
        if len(block) + payload_size > self._max_payload:
            raise nats.errors.MaxPayloadError
        if self.write(encode_publish(subject, reply, payload, block)):
            await self._flush_pending()

    def write(self, command: bytes) -> bool:
        """Queue a command. Returns whether the caller must start a flush because none is under way."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        return self._flush_queue is not None and self._flush_queue.empty()

    def _connect_command(self) -> bytes:
        transport: Any = self._transport
        encrypted = transport._io_writer.get_extra_info("ssl_object") is not None
        return self._readable(lambda: connect_line(self._settings, self._server_info, encrypted=encrypted))

    def _readable(self, read: Callable[[], Read]) -> Read:
        """Read a credential's file. It may be in the middle of a replacement, so when reconnecting, an error is only
        one failed attempt."""
        try:
            content = read()
        except InvalidValue as unreadable:
            if self._reconnection_task is None:
                raise
            self.abort()  # nats-py leaves the socket open
            if self._unreadable != str(unreadable):
                self._unreadable = str(unreadable)
                log.warning("NATS connection, still reconnecting: %s", unreadable)
            raise ConnectionFailed(self._unreadable) from None
        self._unreadable = ""
        return content
