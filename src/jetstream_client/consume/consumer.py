# SPDX-License-Identifier: Apache-2.0
"""A pull consumer: its state, and reading from it (ADR-13, ADR-37)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from jetstream_client import config as configs
from jetstream_client import requirements
from jetstream_client.consume import pull_window as pulls
from jetstream_client.consume.consuming import Consuming, PullMessages
from jetstream_client.consume.fetch import MetadataPull, Pull, Pulled
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
from jetstream_client.filters import is_filtered
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

AnyPull = TypeVar("AnyPull", bound=Pulled[Any])


class Consumer:
    """A handle for a pull consumer. :meth:`Stream.consumer` returns a handle without asking the server whether the
    consumer exists; :meth:`Stream.get_consumer` asks the server.

    There are three ways to read from it:

    * :meth:`next`, :meth:`fetch`, :meth:`fetch_bytes` and :meth:`fetch_no_wait` return one batch, as a list;
    * :meth:`pull` returns one batch, as its messages arrive;
    * :meth:`messages` and :meth:`consume` read without end.

    If a pull ends for another reason than "no messages", these methods raise one of these errors.

    Raises:
        ConsumerDeleted: the consumer or its stream does not exist, or was deleted.
        ConsumerIsPushBased: the consumer has a ``deliver_subject``.
        PullLimitExceeded: a request asks for more messages, seconds or bytes than the consumer allows. The subclasses
            are TooManyPulls and MaxBytesExceeded.
        InvalidValue: a priority is set and the consumer has no priority groups, so the server would ignore it.
        BadPullRequest, PinLost: the priority group is invalid, or another client is pinned.
        LeadershipChanged: the consumer has a new leader, or no leader.
        HeartbeatMissed: nothing arrived for two heartbeats (by default 10 s, and 30 s in :meth:`messages` and
            :meth:`consume`), so the server or the network has failed.
        ConnectionLost: there is no connection at this moment.
        PermissionDenied: the user lacks the permission to pull.
        PullError: any other status, with its code and description.
    """

    def __init__(self, js: JetStream, stream: str, name: str, info: ConsumerInfo | None = None) -> None:
        self.js = js
        self.stream = check_stream_name(stream)
        self.name = check_consumer_name(name)
        self.cached_info = info
        """The state that the last :meth:`info`, :meth:`update` or creation with this handle returned, or None."""
        self._pins: dict[str, str] = {}  # priority group → the id of this client's pin

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {self.stream}>"

    async def info(self, *, patience: float = 0) -> ConsumerInfo:
        """Request the current state. ``patience``: see :meth:`JetStream.api`.

        Raises ConsumerNotFound, StreamNotFound.
        """
        answer = await self.js.api(f"CONSUMER.INFO.{self.stream}.{self.name}", patience=patience)
        self.cached_info = ConsumerInfo(answer)
        return self.cached_info

    async def update(self, config: configs.Config, *, remove: Iterable[str] = ()) -> ConsumerInfo:
        """Change only the given fields, like :meth:`Stream.update`.

        ``filter_subjects`` replaces ``filter_subject``, and vice versa. The last filter cannot be removed, but replaced
        by ``>``: without one, nats-server 2.15.1 does not count what the removed filter did not select, and a stream
        with retention ``interest`` drops it (measured). The ``ack_policy`` is kept unless ``config`` contains it.

        config:  the fields to change, as for :meth:`Stream.create_consumer`.
        remove:  fields to reset to the server's default.

        Raises:
            ConsumerNotFound: the consumer does not exist; it is not created.
            ConsumerCreateFailed: the server does not allow the change.
            ServerTooOld, InvalidRequest: the server does not know a field.
            InvalidValue: the consumer would have no filter any more.
        """
        wanted = configs.check_consumer_config(config)
        if wanted.get("name", self.name) != self.name:
            raise InvalidValue("config['name']", wanted["name"], f"the consumer's name {self.name!r} cannot be changed")
        current = (await self.info()).config
        if "pause_until" in configs.difference(current, wanted):
            remedy = "the server ignores this field in an update; call pause() or resume()"
            raise InvalidValue("config['pause_until']", wanted["pause_until"], remedy)
        merged = configs.merge(current, wanted, remove) | {"name": self.name}
        if is_filtered(current) and not is_filtered(merged):
            remedy = (
                "a filter cannot be removed; set '>', which selects everything, because the server would go on to use "
            )
            raise InvalidValue("config['filter_subject']", None, f"{remedy}the removed filter in part")
        request, body = consumer_request(self.stream, merged, "update")
        self.cached_info = ConsumerInfo(await self.js.configure(request, body, wanted))
        return self.cached_info

    async def delete(self) -> None:
        """Delete the consumer. Raises ConsumerNotFound."""
        await self.js.api(f"CONSUMER.DELETE.{self.stream}.{self.name}")
        self.cached_info = None

    async def pause(self, until: datetime) -> PauseState:
        """Deliver nothing to any client until this time. Waiting pulls keep waiting. A time in the past ends a pause.

        Raises:
            InvalidValue: ``until`` has no time zone, or is not a time. Given such a value, the server would end a
                pause.
            ServerTooOld: the server is older than nats-server 2.11.
            ConsumerNotFound: the consumer does not exist.
        """
        if not isinstance(until, datetime | str):
            raise InvalidValue("until", until, "must be a datetime with a time zone")
        body = configs.normalise({"pause_until": until})
        await self.js.require(requirements.PAUSE)
        return PauseState(await self.js.api(f"CONSUMER.PAUSE.{self.stream}.{self.name}", body))

    async def resume(self) -> PauseState:
        """End a pause, if there is one. Raises ServerTooOld if the server is older than nats-server 2.11, and
        ConsumerNotFound."""
        await self.js.require(requirements.PAUSE)
        return PauseState(await self.js.api(f"CONSUMER.PAUSE.{self.stream}.{self.name}"))

    async def unpin(self, group: str) -> None:
        """End the pin of a ``pinned_client`` priority ``group``, so that the server picks another client (ADR-42).

        Raises:
            ServerTooOld: the server is older than nats-server 2.11.
            ConsumerNotFound: the consumer does not exist.
            ApiError: the consumer has no such group.
        """
        await self.js.require(requirements.UNPIN)
        await self.js.api(f"CONSUMER.UNPIN.{self.stream}.{self.name}", {"group": group})

    async def reset(self, sequence: int | None = None) -> int:
        """Reset the consumer on the server: deliver again from the acknowledgement floor, or from the stream sequence
        ``sequence`` on. Returns the sequence from which it delivers.

        Do not use this for a consumer from which claims are taken: acknowledgements that are still in transit would
        count for the new deliveries, and messages would be lost. Use :func:`jetstream_handoff.repair.reset.reset`,
        which waits for these acknowledgements and supersedes the claims.

        Raises:
            InvalidValue: the sequence is below 1.
            ServerTooOld: the server is older than nats-server 2.14.
            ApiError: the consumer's ``deliver_policy`` does not allow the sequence (10204).
            ConsumerNotFound: the consumer does not exist.
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
        """Fetch up to ``batch`` messages. Returns when they have arrived, or after ``max_wait`` seconds (default 30).

        heartbeat:  seconds between the server's idle heartbeats, at most half of ``max_wait``. Default: 5, or 0.4 times
                    ``max_wait`` if that is less.
        priority:   priority of the pull, for a consumer with priority groups.

        Raises:
            PullError: the pull failed; the subclass gives the reason, see :class:`Consumer`. The attribute ``messages``
                of this error, and of every other error of this package, contains the messages that arrived before the
                error. Unless they are answered, they are redelivered after ``ack_wait``.
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
        """Fetch messages of at most ``max_bytes`` in total. Returns when the next message would not fit, or when
        ``max_wait`` seconds (default 30) have passed. The size of a message includes its subject, reply subject (50 to
        150 bytes) and headers.

        Raises:
            MaxBytesExceeded: the first message is larger than ``max_bytes``.
            PullError: the pull failed, see :meth:`fetch`.
        """
        check_count("max_bytes", max_bytes)
        window = self._window(pulls.MANY, max_bytes=max_bytes, expires=max_wait, heartbeat=heartbeat, priority=priority)
        async with self._pull(window) as pull:
            return await pull._all()

    async def fetch_no_wait(self, batch: int, *, priority: Priority | None = None) -> list[Message]:
        """Fetch up to ``batch`` messages that can be delivered immediately, without waiting for others.

        Raises:
            PullError: the pull failed, see :meth:`fetch`. HeartbeatMissed is raised after ``request_timeout`` seconds
                without an answer.
        """
        silence = self.js.settings.request_timeout
        window = self._window(batch, expires=silence, heartbeat=silence / 2, no_wait=True, priority=priority)
        async with self._pull(window) as pull:
            try:
                return await pull._all()
            except HeartbeatMissed:
                # At max_ack_pending the server neither serves nor ends such a request (consumer.go: processWaiting).
                info = await self.info()
                if 0 < info.config.get("max_ack_pending", -1) <= info.ack_pending:
                    return pull.received
                raise

    async def next(
        self, *, max_wait: float = pulls.EXPIRES, heartbeat: float | None = None, priority: Priority | None = None
    ) -> Message:
        """Fetch the next message, within ``max_wait`` seconds (default 30).

        Raises:
            NoMessages: no message arrived.
            PullError: the pull failed, see :meth:`fetch`.
        """
        return await self._first(self._window(1, expires=max_wait, heartbeat=heartbeat, priority=priority))

    async def ack_next(self, message: Message, *, max_wait: float = 30.0) -> Message:
        """Acknowledge ``message``, which this consumer delivered, and pull the next one in the same request
        (``+NXT``), within ``max_wait`` seconds (default 30).

        Raises:
            InvalidValue: another consumer delivered the message.
            MessageAlreadyAnswered: the message was answered before.
            NoMessages: the message was acknowledged, and no other message arrived.
            PullError: the pull failed, see :meth:`fetch`.
        """
        delivered_by = message.metadata.stream, message.metadata.consumer
        if delivered_by != (self.stream, self.name):
            remedy = (
                f"consumer {'/'.join(delivered_by)} delivered this message; pass a message of consumer "
                f"{self.stream}/{self.name}"
            )
            raise InvalidValue("message", message.metadata.sequence, remedy)
        with message._answering(InvalidValue, ConnectionLost):  # errors that are raised before anything is sent
            window = self._window(1, expires=max_wait, heartbeat=None, priority=None)
            return await self._first(window, subject=message.reply, opening=NEXT)

    async def _first(self, window: pulls.PullWindow, *, subject: str = "", opening: bytes = b"") -> Message:
        async with self._pull(window, subject=subject, opening=opening) as pull:
            for message in await pull._all():
                return message
        raise NoMessages(408, f"no message arrived within {window.expires:g} s")

    def messages(self, pulling: pulls.Pulling | None = None, *, on_error: OnError | None = None) -> PullMessages:
        """Read messages without end. Returns an asynchronous iterator that is also a context manager, see
        :class:`PullMessages`.

        pulling:   how many messages are requested, and when. Default: 500 messages.
        on_error:  called with errors after which consuming continues, and with the error that ends it. The error that
                   ends it is always raised, too. Without ``on_error`` the iterator also raises the other errors, and
                   iterating can continue after them.
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
        """Call ``callback`` with one message after the other, without end. See :class:`Consuming`.

        pulling:   how many messages are requested, and when. Default: 500 messages.
        on_error:  called with errors after which consuming continues, with the error that ends it, and with exceptions
                   of the callback.
        ack:       if True, acknowledge a message when its callback returns, unless the callback has answered it.
                   Default False.
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
        """Pull at most ``batch`` messages, which can be read as they arrive. Leaving the block early ends the pull on
        the server. Messages that arrive later are redelivered after ``ack_wait``.

        ``expires`` has the meaning of ``max_wait`` in :meth:`fetch`; ``heartbeat`` and ``priority`` have the same
        meaning as in :meth:`fetch`.
        """
        return self._pull(self._window(batch, expires=expires, heartbeat=heartbeat, priority=priority))

    def _window(self, wanted: int, **how: Any) -> pulls.PullWindow:
        check_count("batch", wanted)
        pulls.check_request(how["expires"], how["heartbeat"], how["priority"])
        largest = self.js.connection.max_payload + pulls.BESIDE_PAYLOAD
        return pulls.PullWindow(wanted, now=asyncio.get_running_loop().time(), largest_message=largest, **how)

    def pull_metadata(
        self,
        batch: int,
        *,
        expires: float = pulls.EXPIRES,
        heartbeat: float | None = None,
        priority: Priority | None = None,
    ) -> AbstractAsyncContextManager[MetadataPull]:
        """Like :meth:`pull`, but it receives the metadata of the messages, as columns. Metadata arrives four times as
        fast as messages. The messages can be answered only by their sequences."""
        window = self._window(batch, expires=expires, heartbeat=heartbeat, priority=priority)
        return self._running(MetadataPull(self, window))

    def _pull(
        self, window: pulls.PullWindow, *, subject: str = "", opening: bytes = b""
    ) -> AbstractAsyncContextManager[Pull]:
        return self._running(Pull(self, window, subject=subject, opening=opening))

    @asynccontextmanager
    async def _running(self, pull: AnyPull) -> AsyncIterator[AnyPull]:
        await self._check_priority(pull._priority)
        self.js.connection.pulls += 1
        try:
            async with self.js.connection.inbox(pull._deliver, pull._accept) as inbox:
                pull.inbox = inbox
                await pull._request_more()
                yield pull
        finally:
            self.js.connection.pulls -= 1

    @property
    def _requests(self) -> str:
        """The subject for pull requests."""
        return f"{self.js.settings.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.name}"

    async def _unanswered(self, error: NoResponders) -> PullError:
        """The error that explains why nothing listens for pull requests: the consumer does not exist, or has no leader
        at this moment."""
        try:
            await self.info(patience=self.js.settings.request_timeout)
        except (ConsumerNotFound, StreamNotFound) as gone:
            return ConsumerDeleted(error.status, gone.description)
        return LeadershipChanged(error.status, "no responders: the consumer had no leader")

    async def _check_priority(self, priority: Priority | None) -> None:
        """Raises InvalidValue if the consumer has no groups. If INFO fails, the pull itself raises the error."""
        if priority is None or (self.cached_info is not None and self.cached_info.config.get("priority_groups")):
            return
        with suppress(ApiError, PermissionDenied, RequestTimeout, ConnectionLost):
            if not (await self.info()).config.get("priority_groups"):
                remedy = (
                    f"consumer {self.name!r} of stream {self.stream!r} has no priority_groups; leave 'priority' out"
                )
                raise InvalidValue("priority", priority, remedy)

    def _pinned(self, window: pulls.PullWindow, pin: str, priority: Priority) -> None:
        """Store the id of this client's pin, unless the id is empty."""
        if pin:
            self._pins[priority.group] = window.pin = pin

    def _unpinned(self, window: pulls.PullWindow, priority: Priority) -> None:
        self._pins.pop(priority.group, None)
        window.pin = ""


def consumer_request(stream: str, config: dict[str, Any], action: str) -> tuple[str, dict[str, Any]]:
    """Request and body of ``CONSUMER.CREATE`` with the action ``create`` or ``update`` (``CreateConsumerRequest``).

    Name and filter are part of the subject, so that permissions can be set for them.
    """
    tokens = ["CONSUMER.CREATE", stream, config["name"]]
    if config.get("filter_subject"):
        tokens.append(config["filter_subject"])
    return ".".join(tokens), {"stream_name": stream, "config": config, "action": action}
