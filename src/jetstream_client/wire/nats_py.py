"""nats-py's client as the control connection needs it: with our parser, our CONNECT line and our headers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from jetstream_client.wire.parser import Frame, Parser
from jetstream_client.wire.protocol import DELIVERY, Reply, decode_headers, decode_info, decode_status, encode_publish
from jetstream_client.wire.tls import check_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

_PING = b"PING\r\n"


class StatusHeaders(dict[str, str]):
    """What nats-py looks at, the server's status, and the block as it came."""

    def __init__(self, block: bytes) -> None:
        status, _ = decode_status(block)
        super().__init__({"Status": str(status)} if status else {})
        self.block = block

    def __bool__(self) -> bool:
        return True


class _Stream:
    """Takes the place of nats-py's parser: our own, whose memory is bounded and which refuses what is no protocol."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reset()

    def reset(self) -> None:
        self._parser = Parser()

    async def parse(self, data: bytes) -> None:
        """Raises nats-py's ProtocolError, at which it connects again."""
        client = self._client
        try:
            for frame in self._parser.feed(data):
                if isinstance(frame, Frame):
                    subscription = client._subs.get(frame.sid)
                    deliver = getattr(subscription._cb, "deliver", None) if subscription else None
                    if deliver is not None:
                        self._deliver(deliver, frame)
                        continue
                    await client._process_msg(frame.sid, frame.subject, frame.reply, frame.data, frame.header)
                elif frame.verb == "INFO":
                    await client._process_info(decode_info(frame.rest))
                elif frame.verb == "PING":
                    await client._process_ping()
                elif frame.verb == "PONG":
                    await client._process_pong()
                elif frame.verb == "-ERR":
                    await client._process_err(frame.rest[:LONGEST_TEXT].decode("utf-8", "replace").lower())
        except ProtocolError as error:
            log.warning("NATS connection: %s", error)
            raise nats.errors.ProtocolError from None

    @staticmethod
    def _deliver(deliver: Callable[[Reply], None], frame: Frame) -> None:
        subject, _, reply, header, data = frame
        size = len(subject) + len(reply) + len(header) + len(data)
        says = header and not data and not reply.startswith(DELIVERY)
        status, description = decode_status(header) if says else (0, "")
        # Anybody can publish on a subject that is not UTF-8: the server keeps it, and replaces what is not in its JSON.
        texts = subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace")
        fields = (*texts, status, description, decode_headers(header), data, size)
        try:
            deliver(tuple.__new__(Reply, fields))  # its constructor takes as long as this
        except Exception:
            log.exception("NATS connection: a delivery on %r", fields[0][:LONGEST_TEXT])


class Client(nats.aio.client.Client):
    """nats-py's client with our CONNECT line. It is given no secret, so it cannot send one before TLS."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__()
        self._settings = settings
        self._ps: Any = _Stream(self)
        self._unreadable = ""  # what the log says already of a credential's file
        self._attempts = 0  # to connect again, since the connection was lost
        self._refused_since: float | None = None
        """On the loop's clock: when the first of the attempts to connect again was refused, if all since were."""
        self.ended = ""
        """Why nobody should wait for this connection any longer; empty while it is of use."""
        self.when_lost: set[Callable[[ConnectionLost], None]] = set()
        """Called when the connection is lost, for good or until it is made again."""
        self.limits: set[asyncio.Timeout] = set()
        """Of everything that waits for something from the server."""

    def lost(self) -> ConnectionLost:
        """The error of a connection that is not there: for good, or at this moment."""
        if not self.ended:
            return ConnectionLost("not connected to NATS at this moment")
        servers = ", ".join(self._settings.servers)
        return ConnectionEnded(f"the connection to {servers} has ended: {self.ended}; open another one")

    def interrupted(self) -> None:
        """No answer comes to what was sent."""
        for call in list(self.when_lost):
            call(self.lost() if self.ended else ConnectionLost("the connection to NATS was lost"))

    def end(self, reason: str) -> None:
        """End whatever waits. The first reason stands."""
        if self.ended:
            return
        self.ended = reason
        self.interrupted()
        now = asyncio.get_running_loop().time()
        for limit in self.limits:
            if not limit.expired():
                limit.reschedule(now)

    async def _connect_to_server(self, server: Any) -> None:
        limit = self._settings.max_reconnects
        if self._reconnection_task is not None and limit is not None:
            if self._attempts >= limit * len(self._server_pool):
                failed = f", and the last of {self._attempts} attempts to connect again failed: {self._err}"
                self.end(f"it was lost{failed if self._attempts else ', and max_reconnects is 0'}")
                self._server_pool.clear()  # nats-py closes it for want of servers
                raise nats.errors.NoServersError
            self._attempts += 1
        await super()._connect_to_server(server)

    async def on_disconnect(self) -> None:
        self.interrupted()
        # nats-py would send on the next connection what is pending: requests whose callers have been told that they are
        # lost, and PINGs whose answers would be taken for a later one's. It subscribes again to everything.
        self._pending, self._pending_data_size = [], 0
        if not self.is_closed:
            log.warning("NATS connection lost, reconnecting")

    async def on_reconnect(self) -> None:
        self._attempts = 0
        self._refused_since = None
        self.ended = ""
        log.info("NATS connection is back")

    def failed_again(self, refusal: Exception | None) -> None:
        """An attempt to connect again has failed. nats-py leaves its socket to the garbage collector."""
        self.abort()
        if refusal is None:
            self._refused_since = None
            return
        now, patience = asyncio.get_running_loop().time(), self._settings.connect_timeout
        self._refused_since = self._refused_since or now
        if now - self._refused_since > patience:
            self.end(f"it was lost, and for {patience:g} s {refusal}")

    def abort(self) -> None:
        """End its socket at once."""
        transport: Any = self._transport
        if transport is not None and transport._io_writer is not None:
            transport._io_writer.transport.abort()

    async def leave(self) -> None:
        """Close it; nothing that the server has said is the reason."""
        self._err = None
        await self.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_closed:
            said = str(self._err).removeprefix("nats: ") if self._err else ""
            self.end(f"the server said: {said}" if said else "it was closed")
        with suppress(OSError):  # a socket that was reset; nobody waits for nats-py's own closing
            await super()._close(status, do_cbs)

    async def _process_pong(self) -> None:
        # nats-py stops reading for good at the answer to a PING that nobody waits for any more.
        self._pings_outstanding = 0
        if self._pongs:
            pong = self._pongs.pop(0)
            if not pong.done():
                pong.set_result(True)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        # nats-py writes it past what waits to be sent, and the answer would say nothing of that.
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        if self.write(_PING):
            await self._flush_pending()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._settings.tls:
            # INFO comes in plain text before TLS, so whoever is on the way could name a server of theirs here, whose
            # certificate nats-py would check against the name that they chose.
            info.pop("connect_urls", None)
        if initial_connection and self._settings.tls and info.get("tls_available"):
            info["tls_required"] = True  # nats-py goes on in plain text where the server offers TLS and needs none
        if initial_connection and not self._settings.tls:
            check_plain(info)  # nats-py goes on with a TLS context of its own
        await super()._process_info(info, initial_connection)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        # nats-py 2.16 stops reading for good at a block that is only "NATS/1.0", and takes a publisher's own header
        # named Status for the server's word.
        return StatusHeaders(headers) if headers else None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
        # It decodes them strictly, and an error there would end the connection.
        subject, reply = (each.decode("utf-8", "replace").encode() for each in (subject, reply))
        return super()._build_message(sid, subject, reply, data, headers)

    async def _send_publish(self, subject: str, reply: str, payload: bytes, payload_size: int, headers: Any) -> None:
        # nats-py's headers have one value each, and it does not count them: the server would end the connection.
        block = headers or b""
        if len(block) + payload_size > self._max_payload:
            raise nats.errors.MaxPayloadError
        if self.write(encode_publish(subject, reply, payload, block)):
            await self._flush_pending()

    def write(self, command: bytes) -> bool:
        """Add it to what is to be sent. Whether somebody has to ask for that to be done: nobody has yet."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        return self._flush_queue is not None and self._flush_queue.empty()

    def _connect_command(self) -> bytes:
        transport: Any = self._transport
        encrypted = transport._io_writer.get_extra_info("ssl_object") is not None
        try:
            line = connect_line(self._settings, self._server_info, encrypted=encrypted)
        except InvalidValue as unreadable:
            if self._reconnection_task is None:
                raise
            # A file of a credential is being replaced: one failed attempt, not the end of all of them.
            self.abort()  # nats-py leaves it open
            if self._unreadable != str(unreadable):
                self._unreadable = str(unreadable)
                log.warning("NATS connection, still reconnecting: %s", unreadable)
            raise ConnectionFailed(self._unreadable) from None
        self._unreadable = ""
        return line
