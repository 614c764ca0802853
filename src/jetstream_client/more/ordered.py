# SPDX-License-Identifier: Apache-2.0
"""An ordered consumer gets every message of a stream once and in order, without acknowledgements (ADR-17).

It is an ephemeral consumer. It is recreated, beginning after the last message, whenever a delivery is missing, the
consumer no longer exists, the leader has changed or the server was restarted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client import config as configs
from jetstream_client.callbacks import check_handler
from jetstream_client.consume import pull_window as pulls
from jetstream_client.consume.consumer import Consumer, consumer_request
from jetstream_client.consume.consuming import Consuming, PullMessages
from jetstream_client.consume.messages import INTERRUPTIONS, TO_STOP, Messages, Subscribed
from jetstream_client.errors import (
    ApiError,
    ConnectionEnded,
    ConnectionLost,
    ConsumerDeleted,
    ConsumerNameInUse,
    ConsumerNotFound,
    DeliveriesMissed,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    NoMessages,
    OrderedConsumerFailed,
    OrderedConsumerMisused,
    ProtocolError,
    RequestTimeout,
    StreamRecreated,
)
from jetstream_client.info import ConsumerInfo
from jetstream_client.more.push import PushMessages
from jetstream_client.more.stopping import cancelled, finished
from jetstream_client.names import check_consumer_name
from jetstream_client.quantities import check_count, check_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from jetstream_client.consume.consuming import Callback, OnFailure
    from jetstream_client.consume.message import Message
    from jetstream_client.consume.messages import OnError
    from jetstream_client.stream import Stream

log = logging.getLogger(__name__)

CHOICES = frozenset(
    {
        "deliver_policy",
        "filter_subject",
        "filter_subjects",
        "headers_only",
        "inactive_threshold",
        "metadata",
        "opt_start_seq",
        "opt_start_time",
        "replay_policy",
    }
)
"""Fields of the configuration that the caller may set. The other fields make the consumer ordered."""
INACTIVE = 300 * 10**9
"""Nanoseconds after which the server removes a consumer without a reader: 5 minutes, as in nats.go."""
HEARTBEAT = 5.0
"""Seconds between idle heartbeats, for pulling and pushing, as in nats.go. Without heartbeats a loss would not be
noticed."""
LONGEST_WAIT = 5.0
"""Longest time in seconds between two attempts to recreate the consumer. The first attempt follows at once."""

_CHECK_EVERY = 0.2  # seconds between two checks of a lost connection

_INTERRUPTIONS = (*INTERRUPTIONS, ConsumerDeleted, ConsumerNameInUse, ConsumerNotFound, JetStreamNotEnabled)


class OrderedConsumer:
    """Gets every message of a stream once and in order. Get one from :meth:`Stream.ordered_consumer`. The first use
    creates the consumer on the server.

    Use the consumer in one task at a time, and either fetch or consume. Its messages need no answer.
    """

    def __init__(
        self, stream: Stream, config: configs.Config | None, max_resets: int | None, push: bool, name_prefix: str | None
    ) -> None:
        """See :meth:`Stream.ordered_consumer`."""
        self._stream = stream
        self._prefix = f"ordered-{secrets.token_hex(8)}"
        if name_prefix is not None:
            self._prefix = check_consumer_name(name_prefix, "name_prefix")
        self._number = 0  # number of the last consumer
        self._config = check_ordered_config({} if config is None else config)
        self._max_resets = None if max_resets is None else check_count("max_resets", max_resets, 0)
        self._push = push
        self._resets = 0  # resets since the last message
        self._use = ""
        self._busy = False
        self._stream_created = ""
        self._start = 0  # the first expected sequence, as soon as it is known
        self._consumer: Consumer | None = None
        self._delivered = 0  # consumer sequence of the last message
        self.last_sequence = 0
        """Stream sequence of the last message that was returned; 0 before the first."""

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self._stream.name} after sequence {self.last_sequence}>"

    async def info(self) -> ConsumerInfo:
        """Request the state of the current consumer on the server. After the consumer was recreated, this is the state
        of the new one.

        Raises:
            OrderedConsumerMisused: this client has not created the consumer yet, or has deleted it after the reading;
                reading creates it.
            ConsumerNotFound: the server no longer has the consumer; reading creates another one.
        """
        if self._consumer is None:
            raise OrderedConsumerMisused(
                "an ordered consumer has no info while it does not exist on the server; reading a message creates it"
            )
        return await self._consumer.info()

    def messages(self, pulling: pulls.Pulling | None = None, *, on_error: OnError | None = None) -> OrderedMessages:
        """Read messages without end, like :meth:`Consumer.messages`. ``on_error`` is called with the errors after which
        the consumer is recreated, and with OrderedConsumerFailed. Any other error that ends the reading is only raised.

        Iterating raises

            StreamNotFound, StreamRecreated: the stream does not exist, or another stream now has its name.
            OrderedConsumerFailed: the consumer was recreated ``max_resets`` times in a row without receiving a message.
            OrderedConsumerMisused: the consumer is already being read, or a fetch method was used before.
            PermissionDenied, PullError: the server refused a request.
        """
        return OrderedMessages(self, pulling or pulls.Pulling(), on_error)

    def consume(
        self, callback: Callback, pulling: pulls.Pulling | None = None, *, on_error: OnFailure | None = None
    ) -> Consuming:
        """Call ``callback`` with one message after the other, like :meth:`Consumer.consume`. ``on_error`` is called as
        in :meth:`messages`, and with exceptions of the callback. Raises the same errors as :meth:`messages`.
        """
        how = pulling or pulls.Pulling()
        return Consuming(lambda tell: OrderedMessages(self, how, tell), callback, on_error, ack=False)

    async def fetch(self, batch: int, *, max_wait: float = pulls.EXPIRES) -> list[Message]:
        """Fetch up to ``batch`` messages. Returns when they have arrived, or after ``max_wait`` seconds (default 30).

        Raises:
            OrderedConsumerMisused: the consumer is already being read, or :meth:`messages` or :meth:`consume` was used
                before.
            JetStreamError: the errors of :meth:`messages`. Messages that arrived before the error are in its attribute
                ``messages``, and count as returned.
        """
        check_count("batch", batch)
        return await self._fetch(batch, max_wait, lambda consumer, left, rest: consumer.fetch(left, max_wait=rest))

    async def fetch_no_wait(self, batch: int) -> list[Message]:
        """Fetch up to ``batch`` messages that can be delivered immediately. Raises the same errors as :meth:`fetch`."""
        check_count("batch", batch)
        patience = self._stream.js.settings.request_timeout
        return await self._fetch(batch, patience, lambda consumer, left, _: consumer.fetch_no_wait(left))

    async def fetch_bytes(self, max_bytes: int, *, max_wait: float = pulls.EXPIRES) -> list[Message]:
        """Fetch like :meth:`Consumer.fetch_bytes`. Raises the same errors as :meth:`fetch`."""
        check_count("max_bytes", max_bytes)
        return await self._fetch(0, max_wait, lambda consumer, _, rest: consumer.fetch_bytes(max_bytes, max_wait=rest))

    async def next(self, *, max_wait: float = pulls.EXPIRES) -> Message:
        """Fetch the next message, within ``max_wait`` seconds (default 30). Raises the same errors as :meth:`fetch`,
        and NoMessages."""
        for message in await self.fetch(1, max_wait=max_wait):
            return message
        raise NoMessages(408, f"no message arrived within {max_wait:g} s")

    async def _fetch(
        self, batch: int, max_wait: float, fetch: Callable[[Consumer, int, float], Awaitable[list[Message]]]
    ) -> list[Message]:
        if self._push:
            raise OrderedConsumerMisused("an ordered push consumer cannot fetch messages; use messages() or consume()")
        clock = asyncio.get_running_loop().time
        deadline = clock() + check_seconds("max_wait", max_wait)
        messages: list[Message] = []
        self._begin("fetch")
        try:
            while True:
                try:
                    consumer = self._consumer or await self._create()
                    rest = max(0.1, deadline - clock())
                    await self._receive(fetch(consumer, batch - len(messages), rest), messages)
                except JetStreamError as error:
                    if not interrupts(error):
                        raise
                    await self._reset(error)
                    if messages and (len(messages) >= batch or clock() >= deadline):
                        return messages
                    if clock() >= deadline:
                        raise
                else:
                    return messages
        except JetStreamError as error:
            error.messages = messages
            raise
        finally:
            self._busy = False

    async def _receive(self, fetching: Awaitable[list[Message]], messages: list[Message]) -> None:
        """Append the messages that arrive, including messages that arrive before the fetch fails."""
        arrived: Iterable[Message] = ()
        try:
            arrived = await fetching
        except JetStreamError as error:
            arrived = error.messages
            raise
        finally:
            for message in arrived:
                self._follow(message)
                messages.append(message)

    def _begin(self, use: str) -> None:
        if self._busy:
            raise OrderedConsumerMisused("this ordered consumer is already being read; create another one")
        if self._use not in ("", use):
            raise OrderedConsumerMisused(
                f"this ordered consumer has already been used to {self._use} messages, and cannot {use} them as well; "
                "create another ordered consumer"
            )
        self._busy, self._use = True, use

    async def _create(self, deliver: Mapping[str, Any] | None = None) -> Consumer:
        """Create a consumer that begins after the last message. Raises StreamNotFound, StreamRecreated, ApiError."""
        js = self._stream.js
        created = (await self._stream.info()).created
        if self._stream_created and created != self._stream_created:
            problem = f"stream {self._stream.name!r} was recreated; create another ordered consumer to read it"
            raise StreamRecreated(problem)
        config = dict(self._config)
        if self._start and (self.last_sequence or config.get("deliver_policy") != "last_per_subject"):
            # Begin after the last message; "new" and "last" still refer to the moment of the first creation.
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._start, self.last_sequence + 1)}
            config.pop("opt_start_time", None)
        config |= deliver or {}
        info = await self._new(config)
        self._stream_created = created
        self._start = self._start or info.delivered + 1
        self._delivered = 0
        self._consumer = Consumer(js, self._stream.name, str(info.raw["name"]))
        return self._consumer

    async def _new(self, config: dict[str, Any]) -> ConsumerInfo:
        """Create a consumer that has not been read. A consumer of an earlier reader with the same prefix may still
        exist, and creating one with the same configuration would return the existing one."""
        while True:
            self._number += 1
            config["name"] = f"{self._prefix}_{self._number}"
            with suppress(ConsumerNameInUse):
                info = ConsumerInfo(await self._created(config))
                if self._push or not (info.counter or info.raw.get("num_waiting")):  # a deliver_subject is unique
                    return info

    async def _created(self, config: dict[str, Any]) -> dict[str, Any]:
        """Request the creation. Returns its answer. A consumer that nobody will read is deleted, as soon as the
        creation is answered: a server with several processors serves the requests of one connection side by side
        (``apiDispatch`` in nats-server's ``server/jetstream_api.go``), so that a deletion can overtake the creation."""
        creation = asyncio.create_task(self._stream.js.api(*consumer_request(self._stream.name, config, "create")))
        try:
            return await asyncio.shield(creation)
        except RequestTimeout:
            await self._delete(config["name"])  # the server may have created it
            raise
        except asyncio.CancelledError:
            await finished(creation, TO_STOP)
            await self._delete(config["name"])
            raise

    def _follow(self, message: Message) -> None:
        """Check that this is the next message. Raises DeliveriesMissed if messages are missing before it."""
        meta = message.metadata
        if (
            self._consumer is None
            or meta.consumer != self._consumer.name
            or meta.consumer_sequence != self._delivered + 1
        ):
            raise DeliveriesMissed(self._delivered, meta.consumer_sequence - 1)
        self._delivered = meta.consumer_sequence
        self.last_sequence = meta.sequence
        self._resets = 0

    async def _reset(self, error: JetStreamError) -> None:
        """Delete the consumer, so that the caller creates it again. From the second reset in a row without a message,
        also wait, longer each time. Raises ``error`` if there was no consumer yet, and OrderedConsumerFailed after too
        many resets without a message."""
        if not self._stream_created:
            raise error  # the consumer never existed
        where = f"stream {self._stream.name} after sequence {self.last_sequence}"
        log.info("recreating the ordered consumer of %s: %s", where, error)
        await self._drop()
        if not self._stream.js.connection.is_connected:
            await asyncio.sleep(_CHECK_EVERY)  # without a connection, no attempt can be made
            return
        self._resets += 1
        if self._max_resets is not None and self._resets > self._max_resets:
            raise OrderedConsumerFailed(
                f"the ordered consumer of stream {self._stream.name!r} was recreated {self._max_resets} times without "
                f"receiving a message: {error}"
            ) from error
        if self._resets > 1:
            await asyncio.sleep(min(LONGEST_WAIT, 0.1 * 2 ** min(self._resets, 10)))

    async def _drop(self) -> None:
        """Delete the current consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._delete(consumer.name)

    async def _delete(self, name: str) -> None:
        # No answer is waited for, because it does not matter if the consumer is already deleted.
        js = self._stream.js
        with suppress(ConnectionLost):
            await js.connection.publish(f"{js.settings.prefix}.CONSUMER.DELETE.{self._stream.name}.{name}")


def interrupts(error: JetStreamError) -> bool:
    """Whether an ordered consumer is recreated after this error."""
    if isinstance(error, ConnectionEnded):
        return False
    return isinstance(error, _INTERRUPTIONS) or (isinstance(error, ApiError) and error.code in (429, 500, 503))


def check_ordered_config(config: object) -> dict[str, Any]:
    """Check the caller's fields, and add those that make a consumer ordered. Raises InvalidValue."""
    wanted = configs.check_consumer_config(config)
    for name in wanted:
        if name not in CHOICES:
            remedy = f"an ordered consumer accepts only {', '.join(sorted(CHOICES))}; leave this field out"
            raise InvalidValue(f"config[{name!r}]", wanted[name], remedy)
    filtered = "filter_subject" in wanted or wanted.get("filter_subjects")
    if wanted.get("deliver_policy") == "last_per_subject" and not filtered:
        wanted["filter_subject"] = ">"  # the server refuses this policy without a filter
    return {
        "inactive_threshold": INACTIVE,
        **wanted,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
    }


class OrderedMessages(Messages):
    """:class:`~jetstream_client.consume.messages.Messages` of an ordered consumer, however often it is recreated."""

    def __init__(self, ordered: OrderedConsumer, pulling: pulls.Pulling, on_error: OnError | None) -> None:
        self._ordered = ordered
        self._pulling = pulling
        self._left = pulling.stop_after
        check_handler("on_error", on_error)
        self._on_error = on_error
        self._begun = False
        self._present: Subscribed | None = None
        self._change: asyncio.Task[None] | None = None
        """What opens or leaves :attr:`_present`. Stopping cancels it: otherwise it would open a consumer that nothing
        stops."""
        self._ending = False
        self._closed = False

    async def __anext__(self) -> Message:
        await self._start()
        while not self._closed and self._left != 0:
            present = self._present
            try:
                if present is None:
                    await self._changed(self._open)
                    continue
                message = await anext(present)
                self._ordered._follow(message)
            except StopAsyncIteration:
                if present is self._present:
                    break
            except ProtocolError as error:
                log.warning("ordered consumer of stream %s: %s", self._ordered._stream.name, error)
            except JetStreamError as error:
                if present is self._present and not self._closed:
                    await self._interrupted(error)
            else:
                if self._left is not None:
                    self._left -= 1
                return message
        await self.stop()
        raise StopAsyncIteration

    async def stop(self) -> list[Message]:
        self._closed = True
        if self._change is not None:
            await cancelled(self._change)
        left = await self._leave()
        if self._begun:
            self._begun = False
            try:
                await self._ordered._drop()
            finally:
                self._ordered._busy = False
        return left

    async def drain(self) -> None:
        self._ending = True
        if self._present is not None:
            await self._present.drain()
        else:
            await self.stop()  # nothing was delivered that could still be read

    async def _start(self) -> None:
        if not (self._begun or self._closed):
            self._ordered._begin("consume")
            self._begun = True

    async def _changed(self, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await a change, or the one that another task has begun. Returns early if consuming is stopped."""
        running = self._change
        if running is None:
            running = self._change = asyncio.create_task(change())
            running.add_done_callback(self._has_changed)
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            await cancelled(running)
            raise
        if not running.cancelled():
            running.result()

    def _has_changed(self, _: asyncio.Task[None]) -> None:
        self._change = None

    async def _open(self) -> None:
        ordered, js = self._ordered, self._ordered._stream.js
        heartbeat = self._pulling.heartbeat or min(HEARTBEAT, self._pulling.expires / 2)
        present: Subscribed
        if ordered._push:
            deliver = js.connection.new_inbox()
            config = {"deliver_subject": deliver, "flow_control": True, "idle_heartbeat": round(heartbeat * 1e9)}
            present = PushMessages(js, config, None, lambda: ordered._create(config))
        else:
            pulling = replace(self._pulling, heartbeat=heartbeat, stop_after=self._left)
            present = PullMessages(ordered._consumer or await ordered._create(), pulling, None)
        self._present = await present.__aenter__()

    async def _leave(self) -> list[Message]:
        present, self._present = self._present, None
        return await present.stop() if present is not None else []

    async def _interrupted(self, error: JetStreamError) -> None:
        async def reset() -> None:
            await self._leave()
            await self._ordered._reset(error)

        try:
            if not interrupts(error):
                raise error
            if self._on_error is not None:
                self._on_error(error)
            if self._ending:
                self._closed = True
            else:
                await self._changed(reset)
        except JetStreamError as final:
            if self._on_error is not None and final is not error:
                self._on_error(final)
            await self.stop()
            raise
