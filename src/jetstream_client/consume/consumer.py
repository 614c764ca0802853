"""A consumer: its state, and fetching from it (ADR-13, ADR-37). Consuming without end: ``consume``."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jetstream_client import config as configs
from jetstream_client import requirements
from jetstream_client.consume import pull_window as pulls
from jetstream_client.consume.consuming import Consuming, PullMessages
from jetstream_client.consume.fetch import Pull
from jetstream_client.consume.message import NEXT
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    ConsumerDeleted,
    ConsumerNotFound,
    HeartbeatMissed,
    InvalidValue,
    LeadershipChanged,
    NoMessages,
    NoResponders,
    PermissionDenied,
    PullError,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.info import ConsumerInfo, PauseState
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.quantities import check_count
from jetstream_client.sequences import check_sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from jetstream_client.consume.consuming import Callback, OnFailure
    from jetstream_client.consume.message import Message
    from jetstream_client.consume.messages import OnError
    from jetstream_client.consume.priority import Priority
    from jetstream_client.context import JetStream
    from jetstream_client.wire.protocol import Reply


class Consumer:
    """A pull consumer's handle; :meth:`Stream.consumer` makes one without a round trip, ``get_consumer`` with one.

    Reading from it, by how much is wanted at once:

    * :meth:`next`, :meth:`fetch`, :meth:`fetch_bytes`, :meth:`fetch_no_wait`: one batch, as a list;
    * :meth:`pull`: one batch, as it arrives;
    * :meth:`messages`, :meth:`consume`: without end.

    They raise, each as its own class, what ends a pull otherwise than by "nothing there":

        ConsumerDeleted: the consumer or its stream was deleted, or is not there.
        ConsumerIsPushBased: it has a ``deliver_subject``.
        PullLimitExceeded: more messages, seconds or bytes than the consumer allows to one request; TooManyPulls,
            MaxBytesExceeded are kinds of it.
        InvalidValue: a priority for a consumer without priority groups, which the server would ignore.
        BadPullRequest, PinLost: priority groups.
        LeadershipChanged: the leader is another one now, or there is none.
        HeartbeatMissed: nothing was heard for two heartbeats (10 s by default): the server or the way to it is gone.
        ConnectionLost: not connected at this moment.
        PermissionDenied: the account may not pull.
        PullError: any other status, with its code and description.
    """

    def __init__(self, js: JetStream, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self.js = js
        self.stream = check_stream_name(stream)
        self.name = check_consumer_name(name)
        self.cached_info = info
        """What the last :meth:`info`, :meth:`update` or creation through this handle answered, without a round trip."""
        self._pins: dict[str, str] = {}  # priority group → the id with which this client is pinned

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.stream}>"

    async def info(self, *, patience: float = 0) -> ConsumerInfo:
        """Fresh. Raises ConsumerNotFound, StreamNotFound."""
        answer = await self.js.api(f"CONSUMER.INFO.{self.stream}.{self.name}", patience=patience)
        self.cached_info = ConsumerInfo(answer)
        return self.cached_info

    async def update(self, config: configs.Config, *, remove: Iterable[str] = ()) -> ConsumerInfo:
        """Change the given fields and no other, as :meth:`Stream.update`.

        ``filter_subjects`` takes the place of ``filter_subject``, and the reverse. The ``ack_policy`` stays as it is
        unless it is given.

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
        merged = configs.merge(current, wanted, remove) | {"name": self.name}
        request, body = consumer_request(self.stream, merged, "update")
        self.cached_info = ConsumerInfo(await self.js.configure(request, body, wanted))
        return self.cached_info

    async def delete(self) -> None:
        """Raises ConsumerNotFound."""
        await self.js.api(f"CONSUMER.DELETE.{self.stream}.{self.name}")
        self.cached_info = None

    async def pause(self, until: datetime) -> PauseState:
        """Deliver nothing until then, whoever asks; waiting pulls keep waiting. A time that is past resumes.

        Raises:
            InvalidValue: no time, which the server would take for a resume, or one without a zone.
            ServerTooOld: before nats-server 2.11.
            ConsumerNotFound: there is no such consumer.
        """
        if not isinstance(until, datetime | str):
            raise InvalidValue("until", until, "give a datetime with a zone")
        body = configs.normalise({"pause_until": until})
        await self.js.require(requirements.PAUSE)
        return PauseState(await self.js.api(f"CONSUMER.PAUSE.{self.stream}.{self.name}", body))

    async def resume(self) -> PauseState:
        """End a pause; nothing happens without one. Raises ServerTooOld before 2.11, ConsumerNotFound."""
        await self.js.require(requirements.PAUSE)
        return PauseState(await self.js.api(f"CONSUMER.PAUSE.{self.stream}.{self.name}"))

    async def unpin(self, group: str) -> None:
        """End the pin of a ``pinned_client`` priority group: the server picks another client (ADR-42).

        Raises:
            ServerTooOld: before nats-server 2.11.
            ConsumerNotFound: there is no such consumer.
            ApiError: it has no such group.
        """
        await self.js.require(requirements.UNPIN)
        await self.js.api(f"CONSUMER.UNPIN.{self.stream}.{self.name}", {"group": group})

    async def reset(self, sequence: int | None = None) -> int:
        """The server's own reset: deliver again from the acknowledgement floor, or from a stream sequence on; the
        sequence from which it does.

        Not for a consumer that claims are taken from: acknowledgements on their way would be taken for those of the
        new deliveries, and messages swallowed. For those use
        :func:`jetstream_handoff.reset.reset`, which waits for them and fences the claims.

        Raises:
            InvalidValue: a sequence below 1.
            ServerTooOld: before nats-server 2.14.
            ApiError: 10204, a sequence that the consumer's ``deliver_policy`` does not reach.
            ConsumerNotFound: there is no such consumer.
        """
        body = None if sequence is None else {"seq": check_sequence(sequence)}
        await self.js.require(requirements.RESET)
        answer = await self.js.api(f"CONSUMER.RESET.{self.stream}.{self.name}", body)
        return int(answer["reset_seq"])

    async def fetch(
        self,
        batch: int,
        *,
        max_wait: float = pulls.EXPIRES,
        heartbeat: float | None = None,
        priority: Priority | None = None,
    ) -> list[Message]:
        """Up to ``batch`` messages: ends when they are there or ``max_wait`` seconds (30) are over.

        ``heartbeat``: seconds between the server's idle heartbeats, at most half of ``max_wait``; 5 or less.

        Raises:
            PullError: its class says why the pull failed, see :class:`Consumer`. The messages that had arrived before
                are in its attribute ``messages``: unless they are answered, they are delivered again after
                ``ack_wait``. So they are in every other error of this package that a fetch raises.
        """
        async with self.pull(batch, expires=max_wait, heartbeat=heartbeat, priority=priority) as pull:
            return await pull._all()

    async def fetch_bytes(
        self,
        max_bytes: int,
        *,
        max_wait: float = pulls.EXPIRES,
        heartbeat: float | None = None,
        priority: Priority | None = None,
    ) -> list[Message]:
        """Messages of at most ``max_bytes`` in all: ends when the next one would not fit or ``max_wait`` seconds (30)
        are over. A message counts with its subject, reply subject (50 to 150 bytes) and headers.

        Raises:
            MaxBytesExceeded: the first message alone is larger.
            PullError: as :meth:`fetch`.
        """
        check_count("max_bytes", max_bytes)
        window = self._window(pulls.MANY, max_bytes=max_bytes, expires=max_wait, heartbeat=heartbeat, priority=priority)
        async with self._pull(window) as pull:
            return await pull._all()

    async def fetch_no_wait(self, batch: int, *, priority: Priority | None = None) -> list[Message]:
        """Up to ``batch`` messages of those that can be delivered now.

        Raises:
            PullError: as :meth:`fetch`. HeartbeatMissed after ``request_timeout``.
        """
        silence = self.js.settings.request_timeout
        window = self._window(batch, expires=silence, heartbeat=silence / 2, no_wait=True, priority=priority)
        async with self._pull(window) as pull:
            try:
                return await pull._all()
            except HeartbeatMissed:
                # Past max_ack_pending the server neither serves nor ends such a request (consumer.go: processWaiting).
                info = await self.info()
                if 0 < info.config.get("max_ack_pending", -1) <= info.ack_pending:
                    return pull.received
                raise

    async def next(
        self, *, max_wait: float = pulls.EXPIRES, heartbeat: float | None = None, priority: Priority | None = None
    ) -> Message:
        """The next message, within ``max_wait`` seconds (30).

        Raises:
            NoMessages: none came.
            PullError: as :meth:`fetch`.
        """
        return await self._first(self._window(1, expires=max_wait, heartbeat=heartbeat, priority=priority))

    async def ack_next(self, message: Message, *, max_wait: float = 30.0) -> Message:
        """Acknowledge a message of this consumer, and pull the next one in the same request (``+NXT``).

        Waits ``max_wait`` seconds at most.

        Raises:
            InvalidValue: another consumer delivered the message.
            MessageAlreadyAnswered: it was answered before.
            NoMessages: it was acknowledged, and nothing came.
            PullError: or another subclass, as :meth:`fetch`.
        """
        delivered_by = message.metadata.stream, message.metadata.consumer
        if delivered_by != (self.stream, self.name):
            of = "/".join(delivered_by)
            raise InvalidValue(
                "message", message.metadata.sequence, f"{self.stream}/{self.name} did not deliver it: {of} did"
            )
        with message._answering(InvalidValue, ConnectionLost):  # nothing was sent then
            window = self._window(1, expires=max_wait, heartbeat=None, priority=None)
            return await self._first(window, subject=message.reply, opening=NEXT)

    async def _first(self, window: pulls.PullWindow, *, subject: str = "", opening: bytes = b"") -> Message:
        async with self._pull(window, subject=subject, opening=opening) as pull:
            for message in await pull._all():
                return message
        raise NoMessages(408, f"no message within {window.expires:g} s")

    def messages(self, pulling: pulls.Pulling | None = None, *, on_error: OnError | None = None) -> PullMessages:
        """Messages without end: an asynchronous iterator and context manager, see :class:`PullMessages`.

        ``pulling``: how much is asked for and when, 500 messages by default.
        ``on_error``: is told what the consuming survives; without it the iterator raises that, and can be iterated on.
        """
        return PullMessages(self, pulling or pulls.Pulling(), on_error)

    def consume(
        self,
        callback: Callback,
        pulling: pulls.Pulling | None = None,
        *,
        on_error: OnFailure | None = None,
        ack: bool = False,
    ) -> Consuming:
        """Call ``callback`` with each message, one after the other, without end; see :class:`Consuming`.

        ``ack``: acknowledge a message after its callback has returned, unless the callback has answered it.
        """
        return Consuming(lambda tell: PullMessages(self, pulling or pulls.Pulling(), tell), callback, on_error, ack=ack)

    def pull(
        self,
        batch: int,
        *,
        expires: float = pulls.EXPIRES,
        heartbeat: float | None = None,
        priority: Priority | None = None,
    ) -> AbstractAsyncContextManager[Pull]:
        """A pull of at most ``batch`` messages to be read as they arrive. Leaving it early drops it on the server;
        what arrives after that comes again when ``ack_wait`` is over."""
        return self._pull(self._window(batch, expires=expires, heartbeat=heartbeat, priority=priority))

    def _window(self, wanted: int, **how: Any) -> pulls.PullWindow:
        check_count("batch", wanted)
        pulls.check_request(how["expires"], how["heartbeat"], how["priority"])
        largest = self.js.connection.max_payload + pulls.BESIDE_PAYLOAD
        return pulls.PullWindow(wanted, now=asyncio.get_running_loop().time(), largest_message=largest, **how)

    @asynccontextmanager
    async def _pull(self, window: pulls.PullWindow, *, subject: str = "", opening: bytes = b"") -> AsyncIterator[Pull]:
        await self._check_priority(window.priority)
        pull = Pull(self, window, subject=subject, opening=opening)
        self.js.connection.pulls += 1
        try:
            async with self.js.connection.inbox(pull._deliver) as inbox:
                pull.inbox = inbox
                await pull._request_more()
                yield pull
        finally:
            self.js.connection.pulls -= 1

    @property
    def _requests(self) -> str:
        """The subject that takes pulls."""
        return f"{self.js.settings.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"

    async def _unanswered(self, error: NoResponders) -> PullError:
        """Nobody listens: the consumer is gone, or it has no leader at the moment."""
        try:
            await self.info(patience=self.js.settings.request_timeout)
        except (ConsumerNotFound, StreamNotFound) as gone:
            return ConsumerDeleted(error.status, gone.description)
        return LeadershipChanged(error.status, "no responders: the consumer had no leader")

    async def _check_priority(self, priority: Priority | None) -> None:
        """Raises InvalidValue for a consumer without groups. Where it cannot be asked, the pull itself says why."""
        if priority is None or (self.cached_info is not None and self.cached_info.config.get("priority_groups")):
            return
        with suppress(ApiError, PermissionDenied, RequestTimeout, ConnectionLost):
            if not (await self.info()).config.get("priority_groups"):
                remedy = f"consumer {self.name!r} of {self.stream!r} has no priority_groups: leave it out, or update it"
                raise InvalidValue("priority", priority, remedy)

    def _pinned(self, window: pulls.PullWindow, reply: Reply, priority: Priority) -> None:
        """A message of a ``pinned_client`` group says with which id its client is pinned."""
        for pin in reply.headers.get("Nats-Pin-Id", ())[-1:]:
            self._pins[priority.group] = window.pin = pin

    def _unpinned(self, window: pulls.PullWindow, priority: Priority) -> None:
        self._pins.pop(priority.group, None)
        window.pin = ""


def consumer_request(stream: str, config: dict[str, Any], action: str) -> tuple[str, dict[str, Any]]:
    """Request and body of ``CONSUMER.CREATE`` with the action ``create`` or ``update`` (``CreateConsumerRequest``).

    Name and filter stand in the subject, where permissions can be given for them.
    """
    tokens = ["CONSUMER.CREATE", stream, config["name"]]
    if config.get("filter_subject"):
        tokens.append(config["filter_subject"])
    return ".".join(tokens), {"stream_name": stream, "config": config, "action": action}
