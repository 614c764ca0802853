# SPDX-License-Identifier: Apache-2.0
"""A push consumer, whose messages the server sends to its ``deliver_subject``.

Sources: ADR-15 (idle heartbeats and flow control), and ``sendIdleHeartbeat`` and ``sendFlowControl`` in nats-server's
``server/consumer.go``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.consuming import Consuming
from jetstream_client.consume.messages import Subscribed
from jetstream_client.errors import ConsumerIsBound, ConsumerIsPullBased, DeliveriesMissed, PullError, SlowConsumer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from jetstream_client.consume.consuming import Callback, OnFailure
    from jetstream_client.consume.message import Message
    from jetstream_client.consume.messages import OnError
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.wire.control import Inbox
    from jetstream_client.wire.protocol import Reply

MOST_UNREAD = 512 << 10
"""The largest number of messages that wait unread, as in nats.go (DefaultSubPendingMsgsLimit). When more arrive, they
are dropped (SlowConsumer)."""
MOST_UNREAD_BYTES = 256 << 20
HEARTBEATS_MISSED = 2
_FLOW_CONTROL = "$JS.FC."
"""Beginning of the subjects of flow control, on which a reader answers the server. No answer is sent on other subjects:
any client could send a message that looks like flow control, and so make this client publish on any subject."""


class PushConsumer:
    """A handle for a push consumer. :meth:`Stream.push_consumer` returns a handle without asking the server whether the
    consumer exists.

    With a ``deliver_group``, several clients share the messages. With ``idle_heartbeat``, a silent server is noticed.
    With ``flow_control``, the server waits for a slow reader. Setting both ``idle_heartbeat`` and ``flow_control`` is
    recommended.
    """

    def __init__(self, js: JetStream, stream: str, name: str) -> None:
        self._consumer = Consumer(js, stream, name)
        self.js = js
        self.stream = self._consumer.stream
        self.name = self._consumer.name

    def __repr__(self) -> str:
        return f"<PushConsumer {self.name} of {self.stream}>"

    async def info(self, *, patience: float = 0) -> ConsumerInfo:
        """Request the current state. See :meth:`Consumer.info`."""
        return await self._consumer.info(patience=patience)

    async def delete(self) -> None:
        """Delete the consumer. Raises ConsumerNotFound."""
        await self._consumer.delete()

    def messages(self, *, on_error: OnError | None = None) -> PushMessages:
        """Read messages without end, like :meth:`Consumer.messages`.

        The first use raises

            ConsumerNotFound, StreamNotFound: the consumer or the stream does not exist.
            ConsumerIsPullBased: the consumer has no ``deliver_subject``.
            ConsumerIsBound: another client listens, and the consumer has no ``deliver_group``.
            PermissionDenied: the user lacks the permission to subscribe to the ``deliver_subject``.

        In addition to the errors of :class:`~jetstream_client.consume.messages.Messages`, iterating raises

            DeliveriesMissed: deliveries did not arrive. This is not noticed with a ``deliver_group``.
            SlowConsumer: messages were dropped because 524,288 messages or 256 MiB waited unread.
        """
        return PushMessages(self.js, self._bound, on_error)

    def consume(self, callback: Callback, *, on_error: OnFailure | None = None, ack: bool = False) -> Consuming:
        """Call ``callback`` with one message after the other, like :meth:`Consumer.consume`."""
        return Consuming(lambda tell: PushMessages(self.js, self._bound, tell), callback, on_error, ack=ack)

    async def _bound(self) -> dict[str, Any]:
        info = await self.info()
        if not info.config.get("deliver_subject"):
            raise ConsumerIsPullBased(self.name)
        if info.raw.get("push_bound") and not info.config.get("deliver_group"):
            raise ConsumerIsBound(self.name)
        return info.config


class PushMessages(Subscribed):
    """:class:`~jetstream_client.consume.messages.Messages` of a push consumer.

    config:  the consumer's configuration, or a function that returns it.
    created: called after the subscription is made, and awaited. Default None.
    """

    def __init__(
        self,
        js: JetStream,
        config: dict[str, Any] | Callable[[], Awaitable[dict[str, Any]]],
        on_error: OnError | None,
        created: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(js, on_error)
        self._config = config
        self._created = created
        self._queue = ""
        self._heard = self._clock()
        self._last = 0  # consumer sequence of the delivery that arrived last
        self._unread = self._unread_bytes = 0
        self._dropped = 0

    async def _open(self) -> Inbox:
        config = self._config if isinstance(self._config, dict) else await self._config()
        self._subject, self._queue = config["deliver_subject"], config.get("deliver_group", "")
        self._silence_allowed = HEARTBEATS_MISSED * config.get("idle_heartbeat", 0) / 1e9 or math.inf
        listening = self._js.connection.listen(self._subject, self._deliver, queue=self._queue)
        inbox = await self._stack.enter_async_context(listening)
        if self._created is not None:
            await self._created()
        self._heard = self._clock()
        return inbox

    def _deliver(self, reply: Reply) -> None:
        self._heard = self._clock()
        if reply.status == 100:
            stalled = reply.headers.get("Nats-Consumer-Stalled", [""])[0]
            answer = reply.reply or stalled
            if answer.startswith(_FLOW_CONTROL):
                self._put(answer)  # answered after the messages before it have been read, so that the server waits
            last = reply.headers.get("Nats-Last-Consumer", ["0"])[0]
            self._arrived_up_to(int(last) if last.isdecimal() and len(last) < 20 else 0)
        elif reply.status:
            self._put(PullError.from_status(reply.status, reply.description))
        elif self._unread >= MOST_UNREAD or self._unread_bytes + reply.size > MOST_UNREAD_BYTES:
            self._dropped += 1
        elif message := self._put_message(reply):
            sequence = message.metadata.consumer_sequence
            self._arrived_up_to(sequence - 1)
            self._last = sequence
            self._unread += 1
            self._unread_bytes += reply.size

    def _arrived_up_to(self, last: int) -> None:
        """Check that all deliveries up to number ``last`` have arrived. Deliveries before the first arrived delivery
        may have been sent to another subscriber."""
        if 0 < self._last < last and not self._queue and not self._dropped:
            self._put(DeliveriesMissed(self._last, last))
            self._last = last

    async def _request_more(self) -> None:
        if self._dropped and not self._arrived:
            dropped, self._dropped, self._last = self._dropped, 0, 0
            raise SlowConsumer(dropped)

    def _on_read(self, message: Message) -> None:
        self._unread -= 1
        self._unread_bytes -= message.counted

    def _interrupted(self) -> None:
        self._heard = self._clock()

    def _remaining(self) -> float:
        return self._silence_allowed - (self._clock() - self._heard)
