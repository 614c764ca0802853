# SPDX-License-Identifier: Apache-2.0
"""A single pull: one batch of messages or of their metadata, read as they arrive (ADR-13)."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from jetstream_client.consume.message import Message
from jetstream_client.consume.metadata import Metadata
from jetstream_client.consume.priority import pin_of
from jetstream_client.errors import JetStreamError, NoResponders, PinLost, ProtocolError, PullError
from jetstream_client.quantities import check_seconds
from jetstream_client.wire.protocol import Reply, inbox_number

if TYPE_CHECKING:
    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.consume.pull_window import PullWindow
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.run import Columns

Received = TypeVar("Received")


class Pulled(ABC, Generic[Received]):
    """Drives a :class:`~jetstream_client.consume.pull_window.PullWindow` on a separate inbox."""

    def __init__(self, consumer: Consumer, window: PullWindow, *, subject: str = "", opening: bytes = b"") -> None:
        """``subject``: subject of the requests, by default the consumer's. ``opening``: bytes at the beginning of each
        request's body."""
        self._clock = asyncio.get_running_loop().time
        self._consumer = consumer
        self._window = window
        self._priority = window.priority
        if self._priority:
            window.pin = consumer._pins.get(self._priority.group, "")
        self._subject = subject or consumer._requests
        self._opening = opening
        self.inbox: Inbox | None = None
        self._arrived: deque[Reply | Received] = deque()
        self._failed: JetStreamError | None = None
        self._something = asyncio.Event()
        self.received: list[Received] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive."""
        return self._window.idle and not self._arrived and self._failed is None

    @property
    def silence(self) -> float:
        """The longest time so far, in seconds, without a message or heartbeat. No message that has arrived was in
        transit for longer, unless the network is so slow that messages arrive without a pause."""
        return self._window.longest_silence

    async def receive(self, wait: float = 1.0) -> list[Received]:
        """As :meth:`Pull.receive`."""
        check_seconds("wait", wait, zero=True)
        if not self._arrived and self._failed is None and not self._window.idle:
            await self._arrival(wait)
        messages = self._take_in()
        if self._failed is None:
            try:
                await self._request_more()
            except JetStreamError as error:
                self._failed = error
        if self._failed is not None and not messages:
            await self._fail()
        return messages

    async def _arrival(self, wait: float) -> None:
        """Wait until something arrives or the time is over. Heartbeats do not end the wait, because a thousand pulls
        may wait in one loop."""
        self._something.clear()
        now = self._clock()
        end = now + wait
        connection = self._consumer.js.connection
        while now < end and not self._something.is_set():
            try:
                async with connection.timeout(min(end - now, self._window.remaining(now))):
                    await self._something.wait()
            except TimeoutError:
                connection.check_permitted(self._subject)
                self._window.check_heartbeat(self._clock())
            now = self._clock()

    async def stop(self) -> list[Received]:
        """As :meth:`Pull.stop`."""
        if self.inbox is not None:
            await self.inbox.drain()
        messages = self._take_in()
        while self._arrived:
            self._failed = None  # more has arrived after this error
            messages += self._take_in()
        if self._failed is not None and not messages:
            await self._fail()
        return messages

    def _take_in(self) -> list[Received]:
        received: list[Received] = []
        now = self._clock()
        try:
            while self._arrived and self._failed is None:
                arrived = self._arrived.popleft()
                if isinstance(arrived, Reply) and arrived.status:
                    number = inbox_number(arrived.subject)
                    self._window.on_status(number, arrived.status, arrived.description, arrived.headers, now)
                    continue
                found, count, pin = self._received(arrived)
                self._window.on_messages(count, now, arrived.size if isinstance(arrived, Reply) else 0)
                if self._priority:
                    self._consumer._pinned(self._window, pin, self._priority)
                received.append(found)
        except (PullError, ProtocolError) as error:
            self._failed = error
        return received

    @abstractmethod
    def _received(self, arrived: Reply | Received) -> tuple[Received, int, str]:
        """The arrived item, the number of its messages, and the id of this client's pin if the item contains one.

        Raises NotJetStreamMessage.
        """

    def _deliver(self, reply: Reply) -> None:
        if reply.status == 100:
            self._window.on_heartbeat(self._clock())
        elif reply.status or reply.reply:
            self._put(reply)
        else:
            self._consumer.js.connection.ignored()

    def _accept(self, columns: Columns) -> bool:  # noqa: ARG002
        """Take messages that arrived together. Returns False to get them one by one (:meth:`_deliver`)."""
        return False

    def _put(self, arrived: Reply | Received) -> None:
        self._arrived.append(arrived)
        self._something.set()

    async def _fail(self) -> None:
        failed, self._failed = self._failed, None
        if isinstance(failed, NoResponders):
            failed = await self._consumer._unanswered(failed)
        if isinstance(failed, PinLost) and self._priority:
            self._consumer._unpinned(self._window, self._priority)
        if failed is not None:
            raise failed

    async def _request_more(self) -> None:
        while request := self._window.next_request(self._clock(), self._consumer.js.connection.pulls):
            number, body = request
            reply = self.inbox.subject(number) if self.inbox else ""
            data = self._opening + json.dumps(body).encode()
            await self._consumer.js.connection.publish(self._subject, data, reply=reply)


class Pull(Pulled[Message]):
    """A running pull, which drives a :class:`~jetstream_client.consume.pull_window.PullWindow` on a separate inbox."""

    async def receive(self, wait: float = 1.0) -> list[Message]:
        """Messages that have arrived; ``[]`` if none arrives within ``wait`` seconds, or if the pull has ended.

        Raises:
            PullError, PermissionDenied: the pull failed. Messages that arrived before the failure were returned first.
            ConnectionEnded: the pull failed, and so will every other pull on this connection.
        """
        return await super().receive(wait)

    async def stop(self) -> list[Message]:
        """End the pull on the server. Returns the messages that the server had sent before. After this call, no message
        of the pull is on its way."""
        return await super().stop()

    async def _all(self) -> list[Message]:
        try:
            while not self.ended:
                self.received += await self.receive()
        except JetStreamError as error:
            error.messages = self.received = self.received + self._take_in()
            raise
        return self.received

    def _received(self, arrived: Reply | Message) -> tuple[Message, int, str]:
        message = Message(self._consumer.js.connection, arrived) if isinstance(arrived, Reply) else arrived
        return message, 1, pin_of(message.headers) if self._priority else ""


class MetadataPull(Pulled[Metadata]):
    """A running pull that receives the metadata of messages, as columns."""

    def _accept(self, columns: Columns) -> bool:
        metadata = Metadata.cut(columns)
        if metadata is not None:
            self._put(metadata)
        return metadata is not None

    def _received(self, arrived: Reply | Metadata) -> tuple[Metadata, int, str]:
        found = Metadata.of(Message(self._consumer.js.connection, arrived)) if isinstance(arrived, Reply) else arrived
        return found, len(found), found.pin
