"""A consumer: its state, and fetching from it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.client import config as configs
from airflow_nats_jetstream.client import pull as pulls
from airflow_nats_jetstream.client.errors import (
    ConsumerDeleted,
    ConsumerNotFound,
    InvalidValue,
    LeadershipChanged,
    PullError,
    StreamNotFound,
)
from airflow_nats_jetstream.client.message import Message
from airflow_nats_jetstream.client.names import check_consumer_name, check_stream_name
from airflow_nats_jetstream.client.protocol import NO_RESPONDERS, ProtocolError, inbox_number, time_nanoseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from airflow_nats_jetstream.client.connection import Inbox
    from airflow_nats_jetstream.client.context import JetStream
    from airflow_nats_jetstream.client.protocol import Reply


@dataclass(frozen=True)
class ConsumerInfo:
    """``CONSUMER.INFO`` as the server sent it. Raises ProtocolError for one that lacks what decisions rest on."""

    raw: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        try:
            counts = (self.counter, self.delivered, self.floor, self.pending, self.ack_pending)
            if not isinstance(self.raw["config"], dict) or min(counts) < 0:
                raise ValueError  # noqa: TRY301
            time_nanoseconds(self.now)
            time_nanoseconds(self.created)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ProtocolError("the answer to CONSUMER.INFO is not what the API promises") from None

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.raw["config"])

    @property
    def created(self) -> str:
        """RFC 3339. Another consumer of the same name has another; a reset leaves it as it is."""
        return str(self.raw["created"])

    @property
    def counter(self) -> int:
        """``delivered.consumer_seq``: how many deliveries this consumer has made."""
        return int(self.raw["delivered"]["consumer_seq"])

    @property
    def delivered(self) -> int:
        """``delivered.stream_seq``: the highest stream sequence delivered."""
        return int(self.raw["delivered"]["stream_seq"])

    @property
    def floor(self) -> int:
        """``ack_floor.stream_seq``: everything up to here is acknowledged."""
        return int(self.raw["ack_floor"]["stream_seq"])

    @property
    def pending(self) -> int:
        """Messages not delivered yet."""
        return int(self.raw["num_pending"])

    @property
    def ack_pending(self) -> int:
        """Messages delivered and not acknowledged."""
        return int(self.raw["num_ack_pending"])

    @property
    def now(self) -> str:
        """The server's clock at the answer, RFC 3339."""
        return str(self.raw["ts"])


class Consumer:
    """A handle: :meth:`Stream.consumer` makes one without a round trip, :meth:`Stream.get_consumer` with one."""

    def __init__(self, js: JetStream, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self.js = js
        self.stream = check_stream_name(stream)
        self.name = check_consumer_name(name)
        self._info = info

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.stream}>"

    async def info(self, *, patience: float = 0) -> ConsumerInfo:
        """Fresh. Raises ConsumerNotFound, StreamNotFound."""
        self._info = ConsumerInfo(await self.js.api(f"CONSUMER.INFO.{self.stream}.{self.name}", patience=patience))
        return self._info

    @property
    def cached_info(self) -> ConsumerInfo | None:
        """What the last :meth:`info`, :meth:`update` or creation through this handle answered, without a round trip."""
        return self._info

    async def update(self, config: configs.Config, *, remove: Iterable[str] = ()) -> ConsumerInfo:
        """Change the given fields and no other: the current configuration is read, merged and written.

        ``filter_subjects`` takes the place of ``filter_subject``, and the reverse. A field inside another one, such as
        a key of ``metadata``, leaves its neighbours as they are.

        remove:  fields that go back to the server's default.

        Raises:
            ConsumerNotFound: there is none; it is not created.
            ConsumerCreateFailed: the server does not allow the change.
            ServerTooOld, InvalidRequest: the server does not know a field.
        """
        wanted = configs.check_consumer_config(config)
        if wanted.get("name", self.name) != self.name:
            raise InvalidValue("config['name']", wanted["name"], f"the consumer's name is {self.name!r}, and stays")
        current = (await self.info()).config
        if "pause_until" in configs.difference(current, wanted):
            raise InvalidValue("config['pause_until']", wanted["pause_until"], "the server ignores it in an update")
        merged = configs.merge(current, wanted, remove)
        request, body = consumer_request(self.stream, merged, "update")
        self._info = ConsumerInfo(await self.js.configure(request, body, wanted))
        return self._info

    async def delete(self) -> None:
        """Raises ConsumerNotFound."""
        await self.js.api(f"CONSUMER.DELETE.{self.stream}.{self.name}")
        self._info = None

    async def fetch(self, batch: int, *, max_wait: float = pulls.EXPIRES) -> list[Message]:
        """Up to ``batch`` messages: ends when they are there or ``max_wait`` seconds are over.

        Raises:
            ConsumerDeleted, ConsumerIsPushBased, PullLimitExceeded, LeadershipChanged, HeartbeatMissed, PullError:
                the pull failed; messages that had come before it are delivered again after ``ack_wait``.
        """
        async with self.pull(batch, expires=max_wait) as pull:
            messages: list[Message] = []
            while not pull.ended:
                messages += await pull.receive()
            return messages

    @asynccontextmanager
    async def pull(
        self, batch: int, *, expires: float = pulls.EXPIRES, heartbeat: float | None = None
    ) -> AsyncIterator[Pull]:
        """A pull of at most ``batch`` messages to be read as they arrive. Leaving it early drops it on the server;
        what arrives after that comes again when ``ack_wait`` is over."""
        if batch < 1:
            raise InvalidValue("batch", batch, "ask for at least one message")
        pull = Pull(self, batch, expires, heartbeat)
        async with self.js.connection.inbox(pull._deliver) as inbox:
            pull.inbox = inbox
            await pull._ask()
            yield pull


def consumer_request(stream: str, config: dict[str, Any], action: str) -> tuple[str, dict[str, Any]]:
    """Request and body of ``CONSUMER.CREATE`` with the action ``create`` or ``update`` (``CreateConsumerRequest``).

    Name and filter stand in the subject, where permissions can be given for them.
    """
    name, subject = config.get("name"), config.get("filter_subject")
    tokens = [stream, *([name] if name else ()), *([subject] if name and subject else ())]
    return f"CONSUMER.CREATE.{'.'.join(tokens)}", {"stream_name": stream, "config": config, "action": action}


class Pull:
    """A running pull: drives a :class:`~airflow_nats_jetstream.client.pull.PullWindow` on an own inbox."""

    def __init__(self, consumer: Consumer, batch: int, expires: float, heartbeat: float | None) -> None:
        self._clock = asyncio.get_running_loop().time
        self._consumer = consumer
        self._window = pulls.PullWindow(batch, now=self._clock(), expires=expires, heartbeat=heartbeat)
        self._subject = f"{consumer.js.settings.prefix}.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"
        self.inbox: Inbox | None = None
        self._arrived: list[Reply] = []
        self._something = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self._window.idle and not self._arrived

    async def receive(self, wait: float = 1.0) -> list[Message]:
        """What has arrived; ``[]`` when nothing does within ``wait`` seconds or the pull has ended.

        Raises:
            PullError, PermissionDenied: the pull failed.
        """
        if not self._arrived and not self._window.idle:
            self._something.clear()
            try:
                await asyncio.wait_for(self._something.wait(), wait)
            except TimeoutError:
                self._consumer.js.connection.check_permitted(self._subject)
                self._window.check_heartbeat(self._clock())
        messages = await self._take_in()
        await self._ask()
        return messages

    async def stop(self) -> list[Message]:
        """End the pull on the server, and receive what it had sent before it knew: nothing stays on the way."""
        if self.inbox is not None:
            await self.inbox.drain()
        return await self._take_in()

    async def _take_in(self) -> list[Message]:
        arrived, self._arrived = self._arrived, []
        messages = []
        for reply in arrived:
            if reply.status:
                await self._status(reply)
            else:
                self._window.on_message(self._clock())
                messages.append(Message(self._consumer.js.connection, reply))
        return messages

    def _deliver(self, reply: Reply) -> None:
        self._arrived.append(reply)
        self._something.set()

    async def _status(self, reply: Reply) -> None:
        try:
            number = inbox_number(reply.subject)
            self._window.on_status(number, reply.status, reply.description, reply.headers, self._clock())
        except PullError:
            if reply.status != NO_RESPONDERS:
                raise
            # Nobody listens: the consumer is gone, or it has no leader at the moment.
            try:
                await self._consumer.info(patience=self._consumer.js.settings.request_timeout)
            except (ConsumerNotFound, StreamNotFound) as gone:
                raise ConsumerDeleted(reply.status, gone.description) from None
            raise LeadershipChanged(reply.status, "no responders: the consumer had no leader") from None

    async def _ask(self) -> None:
        while request := self._window.next_request(self._clock()):
            number, body = request
            reply = self.inbox.subject(number) if self.inbox else ""
            await self._consumer.js.connection.publish(self._subject, json.dumps(body).encode(), reply=reply)
