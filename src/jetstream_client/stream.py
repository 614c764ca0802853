"""A stream: its state and configuration, purging, stored messages, its consumers."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from jetstream_client import config as configs
from jetstream_client import listing, requirements
from jetstream_client.consume.consumer import Consumer, consumer_request
from jetstream_client.errors import ConsumerAlreadyExists, ConsumerNotFound, InvalidValue, promised
from jetstream_client.info import ConsumerInfo, StreamInfo
from jetstream_client.more.ordered import OrderedConsumer
from jetstream_client.more.push import PushConsumer
from jetstream_client.names import check_filter, check_stream_name
from jetstream_client.quantities import check_count
from jetstream_client.read import stored
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import check_sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import datetime

    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage


class Stream:
    """A handle: :meth:`JetStream.stream` makes one without a round trip, :meth:`JetStream.get_stream` with one."""

    def __init__(self, js: JetStream, name: str, info: StreamInfo | None = None) -> None:
        self.js = js
        self.name = check_stream_name(name)
        self.cached_info = info
        """What the last :meth:`info`, :meth:`update` or creation through this handle answered, without a round trip."""

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def info(
        self, *, deleted: bool = False, subjects_filter: str | None = None, patience: float = 0
    ) -> StreamInfo:
        """Fresh.

        deleted:          ``state["deleted"]`` lists the sequences that are missing between first and last, if any are.
        subjects_filter:  ``state["subjects"]`` holds the number of messages of each subject that matches, of all pages
                          (the server gives 100,000 subjects at a time). ``>`` for all of them.
        patience:         see :meth:`JetStream.api`.

        Raises:
            StreamNotFound: there is none.
        """
        body: dict[str, Any] = {}
        if deleted:
            body["deleted_details"] = True
        if subjects_filter is not None:
            body["subjects_filter"] = check_filter(subjects_filter, "subjects_filter")
        request = f"STREAM.INFO.{self.name}"
        info = StreamInfo(await self.js.api(request, body or None, patience=patience))
        if subjects_filter is not None:
            pager = listing.Pager(request, {"subjects_filter": subjects_filter})
            subjects: dict[str, int] = {}
            page = info
            while True:
                more = page.state.get("subjects") or {}
                pager.take(page.raw, more)
                subjects |= more
                if pager.done:
                    break
                page = StreamInfo(await self.js.api(request, pager.body(), patience=patience))
            info.raw["state"]["subjects"] = subjects
        self.cached_info = info
        return info

    async def update(self, config: configs.Config, *, remove: Iterable[str] = ()) -> StreamInfo:
        """Change the given fields and no other: the current configuration is read, merged and written.

        A field inside another one, such as ``placement.cluster``, leaves its neighbours as they are; a list is new.
        Two updates at the same moment can undo each other: JetStream has no revision of a configuration.

        remove:  fields that go back to the server's default. ``remove=["mirror"]`` makes a mirror a stream of its own
                 (nats-server 2.12); ``remove=["metadata"]`` with a new ``metadata`` leaves nothing of the old one.

        Raises:
            StreamNotFound: there is none.
            InvalidStreamConfig: the server does not allow the change.
            ServerTooOld, InvalidRequest: the server does not know a field.
        """
        wanted = configs.check_stream_config(config, self.name)
        current = (await self.info()).config
        merged = configs.merge(current, wanted, remove)
        if "mirror" in current and "mirror" not in merged:
            await self.js.require(requirements.MIRROR_PROMOTION)
        self.cached_info = StreamInfo(await self.js.configure(f"STREAM.UPDATE.{self.name}", merged, wanted))
        return self.cached_info

    async def delete(self) -> None:
        """With all its messages and consumers. Raises StreamNotFound."""
        await self.js.api(f"STREAM.DELETE.{self.name}")
        self.cached_info = None

    async def purge(self, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None) -> int:
        """Remove messages; returns how many.

        subject:  only those that match this filter.
        sequence: only those below it (not including it).
        keep:     all but the last so many. Not together with ``sequence``.

        0 is refused for both: the server takes it for "not given" and purges everything.

        Raises:
            PurgeFailed: for example because of ``deny_purge``.
        """
        if sequence is not None and keep is not None:
            raise InvalidValue("keep", keep, "give sequence or keep, not both")
        for name, number in (("sequence", sequence), ("keep", keep)):
            if number is not None and (type(number) is not int or number < 1):
                raise InvalidValue(name, number, "the server takes 0 for everything; give 1 or more, or leave it out")
        if subject is not None:
            check_filter(subject, "subject")
        given = {"filter": subject, "seq": sequence, "keep": keep}
        body = {name: value for name, value in given.items() if value is not None}
        answer = await self.js.api(f"STREAM.PURGE.{self.name}", body or None)
        return int(answer["purged"])

    async def get_message(
        self,
        sequence: int | None = None,
        *,
        next_by_subject: str | None = None,
        last_by_subject: str | None = None,
        start_time: datetime | str | None = None,
        direct: bool = False,
    ) -> StoredMessage:
        """One stored message.

        sequence:         the one with this sequence; with ``next_by_subject`` the first from there on.
        next_by_subject:  the first whose subject matches this filter, from the stream's beginning if nothing else says.
        last_by_subject:  the last whose subject matches this filter.
        start_time:       the first that was stored then or later (nats-server 2.11).
        direct:           by direct get (the stream needs ``allow_direct``): any replica answers, and it may be behind
                          its leader. Without it the leader answers.

        Raises:
            MessageNotFound: there is none.
            DirectGetDisabled: ``direct``, and the stream does not allow it.
            ServerTooOld: ``start_time`` before nats-server 2.11.
            InvalidValue: a choice that contradicts itself.
        """
        body = stored.selection(sequence, next_by_subject, last_by_subject, start_time)
        if start_time is not None:
            await self.js.require(requirements.START_TIME)
        if direct:
            return stored.direct_message(await stored.request_direct(self, body))[0]
        return RawMessage.parse(await self.js.api(f"STREAM.MSG.GET.{self.name}", body)).decoded()

    async def get_data(
        self, sequence: int | None = None, *, next_by_subject: str | None = None, last_by_subject: str | None = None
    ) -> bytes:
        """The data of one stored message by direct get, without its headers and place: less to send (nats-server 2.12).

        The choices are those of :meth:`get_message`.

        Raises:
            ServerTooOld: before nats-server 2.12.
            MessageNotFound, DirectGetDisabled, InvalidValue: as :meth:`get_message`.
        """
        body = stored.selection(sequence, next_by_subject, last_by_subject)
        await self.js.require(requirements.DATA_ALONE)
        return (await stored.request_direct(self, {**body, "no_hdr": True})).data

    def get_messages(
        self,
        sequence: int | None = None,
        *,
        count: int | None = None,
        next_by_subject: str | None = None,
        start_time: datetime | str | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """Stored messages in order, by batched direct get (ADR-31, nats-server 2.11): no consumer is created.

        From ``sequence`` or ``start_time`` on, those that match ``next_by_subject``; ``count`` at most, by default all
        there are. With none of them the whole stream. What is stored while the pages are read may come, too.

        Raises:
            ServerTooOld: before nats-server 2.11.
            DirectGetDisabled: the stream does not allow direct get.
            RequestTimeout, ConnectionLost: not everything arrived. :func:`jetstream_client.read.direct.read`
                resumes by itself.
        """
        if sequence is None and start_time is None:
            sequence = 1
        if count is not None:
            check_count("count", count)
        return stored.batch(self, stored.selection(sequence, next_by_subject, None, start_time), count)

    def get_last_messages(
        self,
        subjects: Iterable[str],
        *,
        up_to_sequence: int | None = None,
        up_to_time: datetime | str | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """The last message of each subject that matches one of these filters, by sequence (ADR-31, nats-server 2.11).

        ``up_to_sequence`` or ``up_to_time``: as it was then. All of it is the state of one moment.

        Raises:
            TooManyResults: more than 1,024 subjects match.
            ServerTooOld, DirectGetDisabled, RequestTimeout, ConnectionLost: as for :meth:`get_messages`.
        """
        return stored.batch(self, stored.last_selection(subjects, up_to_sequence, up_to_time), None)

    async def delete_message(self, sequence: int) -> None:
        """Remove one message; its bytes stay on the disk until their block is rewritten.

        Raises:
            SequenceNotFound: it was deleted before.
            MessageDeleteFailed: the stream begins after it or ends before it, or because of ``deny_delete``.
        """
        await self._delete(sequence, {"no_erase": True})

    async def secure_delete_message(self, sequence: int) -> None:
        """Remove one message and overwrite its bytes on the disk, which is slow. Raises as :meth:`delete_message`."""
        await self._delete(sequence, {})

    async def _delete(self, sequence: int, how: dict[str, Any]) -> None:
        body = {"seq": check_sequence(sequence), **how}
        answer = await self.js.api(f"STREAM.MSG.DELETE.{self.name}", body)
        with promised("the answer to STREAM.MSG.DELETE"):
            if not answer["success"]:
                raise ValueError

    def consumer(self, name: str) -> Consumer:
        """A handle, without a round trip."""
        return Consumer(self.js, self.name, name)

    async def get_consumer(self, name: str) -> Consumer:
        """A handle to one that is there. Raises ConsumerNotFound, StreamNotFound."""
        consumer = self.consumer(name)
        await consumer.info()
        return consumer

    def push_consumer(self, name: str) -> PushConsumer:
        """A push consumer's handle, without a round trip. Create it with a ``deliver_subject``."""
        return PushConsumer(self.js, self.name, name)

    def ordered_consumer(
        self,
        config: configs.Config | None = None,
        *,
        max_resets: int | None = None,
        push: bool = False,
        name_prefix: str | None = None,
    ) -> OrderedConsumer:
        """Every message of the stream once and in order, without acknowledgements; no round trip before it is used.

        config:     where to begin and what to leave out: ``deliver_policy``, ``opt_start_seq``, ``opt_start_time``,
                    ``filter_subject``, ``filter_subjects``, ``headers_only``, ``replay_policy``, ``inactive_threshold``
                    (5 minutes), ``metadata``.
        max_resets: how often in a row it is created again without a message between; None: without end.
        push:       let the server push, with flow control and heartbeats, instead of pulling.
        name_prefix: the consumers behind it are named ``<prefix>_1``, ``<prefix>_2`` and so on, each a new one. A
                    number that is taken is skipped. Random by default.

        Raises:
            InvalidValue: another field of a consumer's configuration, or a prefix that JetStream forbids in names.
        """
        return OrderedConsumer(self, config, max_resets, push, name_prefix)

    async def create_consumer(self, config: configs.Config, *, pedantic: bool = False) -> Consumer:
        """Create a consumer. It is no error if an identical one exists.

        config:   the server's own JSON (nats-server ``ConsumerConfig``), with two defaults of the NATS clients:
                  ``ack_policy`` is ``explicit``, where the server's own default ``none`` would take each message for
                  processed when it is sent; and without ``name`` or ``durable_name`` the consumer gets a random name.
        pedantic: see :meth:`JetStream.create_stream`.

        Raises:
            ConsumerAlreadyExists: one with another configuration exists.
            ConsumerCreateFailed, ApiError: the server does not allow the configuration.
            ServerTooOld, InvalidRequest: the server does not know a field.
            StreamNotFound: there is no such stream.
        """
        # Always with a name: permissions are given for the request's subject, where the filter comes behind the name.
        defaults = {"ack_policy": "explicit", "name": secrets.token_hex(8)}
        wanted = defaults | configs.check_consumer_config(config)
        request, body = consumer_request(self.name, wanted, "create")
        answer = await self.js.configure(request, body, wanted, pedantic=pedantic)
        return Consumer(self.js, self.name, str(answer["name"]), ConsumerInfo(answer))

    async def update_consumer(self, config: configs.Config, *, remove: Iterable[str] = ()) -> Consumer:
        """Change the given fields of the consumer that ``name`` or ``durable_name`` names, see :meth:`Consumer.update`.

        Raises:
            ConsumerNotFound: there is none; it is not created.
        """
        consumer = self.consumer(configs.consumer_name(config))
        await consumer.update(config, remove=remove)
        return consumer

    async def create_or_update_consumer(self, config: configs.Config) -> tuple[Consumer, configs.Difference | None]:
        """Make the consumer as wanted: create it, or update what differs and leave every other field as it is.

        As :meth:`JetStream.create_or_update_stream`. Without ``name`` or ``durable_name`` it is always created. An
        existing consumer keeps its ``ack_policy``, unless the configuration names another, which the server refuses.
        """
        wanted = configs.check_consumer_config(config)
        if "name" not in wanted:
            return await self.create_consumer(wanted), None
        consumer = self.consumer(wanted["name"])
        try:
            changes = configs.difference((await consumer.info()).config, wanted)
        except ConsumerNotFound:
            return await self.create_consumer(wanted), None
        if changes:
            await consumer.update(wanted)
        return consumer, changes

    async def get_or_create_consumer(self, config: configs.Config) -> Consumer:
        """The consumer as it is, or else created: as :meth:`JetStream.get_or_create_stream`.

        Without ``name`` or ``durable_name`` it is always created.
        """
        wanted = configs.check_consumer_config(config)
        if "name" not in wanted:
            return await self.create_consumer(wanted)
        name = wanted["name"]
        try:
            return await self.get_consumer(name)
        except ConsumerNotFound:
            try:
                return await self.create_consumer(wanted)
            except ConsumerAlreadyExists:  # somebody else was faster
                return await self.get_consumer(name)

    async def delete_consumer(self, name: str) -> None:
        """Raises ConsumerNotFound."""
        await self.consumer(name).delete()

    async def consumer_names(self) -> AsyncIterator[str]:
        """The names of all consumers, page by page (1,024 each). Raises StreamNotFound."""
        async for name in listing.items(self.js, f"CONSUMER.NAMES.{self.name}", "consumers"):
            yield str(name)

    async def list_consumers(self) -> AsyncIterator[ConsumerInfo]:
        """The state of all consumers, page by page (256 each).

        Raises:
            StreamNotFound.
            ListingIncomplete: at the end, in a cluster: the leaders of some did not answer.
        """
        async for info in listing.items(self.js, f"CONSUMER.LIST.{self.name}", "consumers"):
            yield ConsumerInfo(info)
