# SPDX-License-Identifier: Apache-2.0
"""Fast-ingest batches on the control connection (ADR-50, nats-server 2.14).

For very many messages, ``publish.bulk.publish_fast`` is faster. A fast-ingest batch is not atomic: messages that
arrived before a failure are stored. If a message was lost, the server ends the batch with an answer that looks like
success. So a batch has succeeded only if the count in this answer is the number of sent messages. Batches that continue
after gaps (``ok`` in the reply subject) are not supported, because their count does not show the loss.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jetstream_client.errors import ConnectionLost, InvalidValue, JetStreamError, RequestTimeout
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.fast_window import PING_AFTER, SILENT_FOR, FastWindow
from jetstream_client.publish.message import OutgoingMessage, outgoing

if TYPE_CHECKING:
    from typing import Unpack

    from jetstream_client.api import Api
    from jetstream_client.publish.message import Headers
    from jetstream_client.publish.options import PublishOptions
    from jetstream_client.wire.protocol import Reply


class FastBatch:
    """A fast-ingest batch on the control connection. Get one from :meth:`JetStream.fast_batch`.

    Messages are stored as they arrive. While no message is added, a ping every 2 s keeps the batch open.
    """

    def __init__(self, api: Api, window: FastWindow) -> None:
        self.id = window.id
        self._api = api
        self._window = window
        self._held: OutgoingMessage | None = None
        self._news = asyncio.Event()
        self._heard = asyncio.get_running_loop().time()

    @property
    def size(self) -> int:
        """Number of messages that were added."""
        return self._window.added

    @property
    def ended(self) -> bool:
        """Whether the batch was committed or has failed."""
        return self._window.ended

    async def add(
        self, subject: str, data: bytes = b"", *, headers: Headers | None = None, **options: Unpack[PublishOptions]
    ) -> None:
        """Add a message. It is sent when the next one is added, or by :meth:`commit`. Adding waits while the server is
        busy.

        The options are the same as for :meth:`JetStream.publish`. If the stream already has a message with the same
        ``msg_id``, the message is not stored again, but ``batch_size`` includes it.

        Raises:
            InvalidValue, ServerTooOld: the message was refused, and is not added.
            PublishFailed: an earlier message was refused, or no answer arrived; the batch has ended.
            BatchGap: an earlier message did not arrive; the batch has ended.
        """
        if self._window.ended:
            self._window.result()
            raise InvalidValue("batch", self.id, "this batch is already committed; open another batch")
        if options.get("expected_last_msg_id") is not None:
            remedy = (
                "leave it out, because the server would count the message as stored even if the id is not the "
                "expected one"
            )
            raise InvalidValue("expected_last_msg_id", options["expected_last_msg_id"], remedy)
        message = await outgoing(self._api, subject, data, headers, options)
        if self._held is not None:
            await self._send(self._held)
        while self._window.sent and self._window.busy and not self._window.failed:
            await self._hear()
        if self._window.failed:
            await self._end()
            self._window.result()
        self._held = message
        self._window.add(message)

    async def commit(self) -> PubAck:
        """Send the last message and wait until all messages are stored. In the result, ``batch_size`` is their number
        and ``seq`` is the sequence of the last one.

        Raises the same errors as :meth:`add`, and InvalidValue if there is no message or ``commit`` was called before.
        """
        if self._held is None:
            if self._window.added:
                raise InvalidValue("batch", self.id, "commit() was called before; open another batch")
            raise InvalidValue("messages", 0, "a batch needs at least one message; add one before the commit")
        held, self._held = self._held, None
        if not self._window.failed:
            await self._send(held, last=True)
        await self._end()
        return self._window.result()

    async def _send(self, message: OutgoingMessage, *, last: bool = False) -> None:
        reply = self._window.reply(last=last)
        try:
            await self._api.connection.publish(message.subject, message.data, reply, message.header)
        except JetStreamError as error:
            self._window.give_up(error)
            self._window.result()

    async def _end(self) -> None:
        while not self._window.ended:
            await self._hear(ask=self._window.broken)

    async def _hear(self, *, ask: bool = False) -> None:
        """Wait for an answer until the next ping is due, or until the batch counts as lost. With ``ask``, send a ping
        first."""
        if ask:
            await self.ping()
        self._news.clear()
        try:
            async with self._api.connection.timeout(PING_AFTER):
                await self._news.wait()
        except TimeoutError:
            if asyncio.get_running_loop().time() - self._heard > SILENT_FOR:
                self._api.connection.check_permitted(self._window.subject)
                self._window.give_up(RequestTimeout(f"the server did not answer for {SILENT_FOR:g} s"))

    async def ping(self) -> None:
        """Ask the server for the state of the batch, which also keeps the batch open."""
        if self._window.sent and not self._window.ended:
            try:
                await self._api.connection.publish(self._window.subject, b"", self._window.ping())
            except JetStreamError as error:
                self._window.give_up(error)

    async def keep_open(self) -> None:
        """Send pings until this is cancelled."""
        while not self._window.ended:
            await asyncio.sleep(PING_AFTER)
            await self.ping()

    def deliver(self, reply: Reply) -> None:
        self._heard = asyncio.get_running_loop().time()
        try:
            self._window.on_answer(reply.subject, reply.status, reply.data)
        except JetStreamError as error:
            self._window.give_up(error)
        self._news.set()

    def lost(self, error: ConnectionLost) -> None:
        self._window.give_up(error)
        self._news.set()
