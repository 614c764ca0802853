# SPDX-License-Identifier: Apache-2.0
"""A stream: its state, configuration, stored messages and consumers."""

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
    """A handle for a stream. :meth:`JetStream.stream` returns a handle without asking the server whether the stream
    exists; :meth:`JetStream.get_stream` asks the server."""

    def __init__(self, js: JetStream, name: str, info: StreamInfo | None = None) -> None:
        self.js = js
        self.name = check_stream_name(name)
        self.cached_info = info
        """The state that the last :meth:`info`, :meth:`update` or creation with this handle returned, or None."""

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def info(
        self, *, deleted: bool = False, subjects_filter: str | None = None, patience: float = 0
    ) -> StreamInfo:
        """Request the current state.

        deleted:          if True, ``state["deleted"]`` lists the sequences that are missing between the first and the
                          last one, if there are any. Default False.
        subjects_filter:  ``state["subjects"]`` contains the number of messages for each subject that matches this
                          filter; ``>`` matches all subjects. All matching subjects are requested, in pages of 100,000.
        patience:         see :meth:`JetStream.api`.

        Raises:
            StreamNotFound: the stream does not exist.
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
        """Change only the given fields: read the current configuration, merge the fields into it, and write it.

        Changing a nested field, such as ``placement.cluster``, leaves the other fields of ``placement`` unchanged; a
        list is replaced as a whole. Two concurrent updates can undo each other, because JetStream has no revision of a
        configuration.

        config:  the fields to change, as for :meth:`JetStream.create_stream`.
        remove:  fields to reset to the server's default. ``remove=["mirror"]`` turns a mirror into an independent
                 stream (nats-server 2.12); ``remove=["metadata"]`` with a new ``metadata`` drops all old entries.

        Raises:
            StreamNotFound: the stream does not exist.
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
        """Delete the stream with all its messages and consumers. Raises StreamNotFound."""
        await self.js.api(f"STREAM.DELETE.{self.name}")
        self.cached_info = None

    async def purge(self, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None) -> int:
        """Remove messages. Returns how many were removed.

        subject:  remove only messages that match this filter.
        sequence: remove only messages below this sequence.
        keep:     how many of the last messages to keep. It cannot be combined with ``sequence``.

        A ``sequence`` or ``keep`` of 0 is refused, because the server would purge everything.

        Raises:
            PurgeFailed: the stream cannot be purged, for example because of ``deny_purge``.
        """
        if sequence is not None and keep is not None:
            raise InvalidValue("keep", keep, "set either 'sequence' or 'keep', not both")
        for name, number in (("sequence", sequence), ("keep", keep)):
            if number is not None and (type(number) is not int or number < 1):
                remedy = f"must be a whole number, 1 or more; to purge without this limit, leave {name!r} out"
                raise InvalidValue(name, number, remedy)
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
        """Get one stored message.

        sequence:         the message with this sequence; with ``next_by_subject``, the first match at this sequence or
                          after it.
        next_by_subject:  the first message whose subject matches this filter, from the beginning of the stream unless
                          ``sequence`` or ``start_time`` is set.
        last_by_subject:  the last message whose subject matches this filter.
        start_time:       the first message that was stored at this time or later (nats-server 2.11).
        direct:           if True, use direct get (the stream needs ``allow_direct``): any replica can answer, even one
                          that lags behind the leader. Default False: the leader answers.

        Raises:
            MessageNotFound: there is no such message.
            DirectGetDisabled: ``direct`` is set, and the stream does not allow it.
            ServerTooOld: ``start_time`` is set, and the server is older than nats-server 2.11.
            InvalidValue: the parameters contradict each other.
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
        """Get the data of one stored message by direct get, without headers and metadata (nats-server 2.12).

        The parameters are the same as for :meth:`get_message`.

        Raises:
            ServerTooOld: the server is older than nats-server 2.12.
            MessageNotFound, DirectGetDisabled, InvalidValue: as for :meth:`get_message`.
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
        """Get stored messages in order, by batched direct get (ADR-31, nats-server 2.11), without a consumer.

        Without parameters, get the whole stream. Messages that are stored while the pages are read may be included.

        sequence, start_time:  where to begin: at this sequence or time. Default: the beginning of the stream.
        count:                 the largest number of messages. Default: all.
        next_by_subject:       only messages whose subject matches this filter.

        Raises:
            ServerTooOld: the server is older than nats-server 2.11.
            DirectGetDisabled: the stream does not allow direct get.
            RequestTimeout, ConnectionLost: some messages did not arrive. Unlike this method,
                :func:`jetstream_client.read.direct.read` resumes automatically.
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
        """Get the last message of each subject that matches one of these filters, ordered by sequence (ADR-31,
        nats-server 2.11). Together, the messages show the state of the stream at one moment.

        subjects:                    filters, with or without wildcards.
        up_to_sequence, up_to_time:  ignore messages that were stored after this sequence or time.

        Raises:
            TooManyResults: more than 1,024 subjects match.
            ServerTooOld, DirectGetDisabled, RequestTimeout, ConnectionLost: as for :meth:`get_messages`.
        """
        return stored.batch(self, stored.last_selection(subjects, up_to_sequence, up_to_time), None)

    async def delete_message(self, sequence: int) -> None:
        """Delete the message with this ``sequence``. Its bytes stay on the disk until their block is rewritten.

        Raises:
            SequenceNotFound: the message was deleted before.
            MessageDeleteFailed: the sequence is outside the stream, or the stream has ``deny_delete``.
        """
        await self._delete(sequence, {"no_erase": True})

    async def secure_delete_message(self, sequence: int) -> None:
        """Delete one message, and overwrite its bytes on the disk. Overwriting is slow. Raises the same errors as
        :meth:`delete_message`."""
        await self._delete(sequence, {})

    async def _delete(self, sequence: int, how: dict[str, Any]) -> None:
        body = {"seq": check_sequence(sequence), **how}
        answer = await self.js.api(f"STREAM.MSG.DELETE.{self.name}", body)
        with promised("the answer to STREAM.MSG.DELETE"):
            if not answer["success"]:
                raise ValueError

    def consumer(self, name: str) -> Consumer:
        """Return a handle for the pull consumer ``name``. Nothing is requested from the server, so the consumer need
        not exist."""
        return Consumer(self.js, self.name, name)

    async def get_consumer(self, name: str) -> Consumer:
        """Return a handle for the pull consumer ``name``, which must exist. Raises ConsumerNotFound, StreamNotFound."""
        consumer = self.consumer(name)
        await consumer.info()
        return consumer

    def push_consumer(self, name: str) -> PushConsumer:
        """Return a handle for the push consumer ``name``. A push consumer has a ``deliver_subject``. Nothing is
        requested from the server, so the consumer need not exist."""
        return PushConsumer(self.js, self.name, name)

    def ordered_consumer(
        self,
        config: configs.Config | None = None,
        *,
        max_resets: int | None = None,
        push: bool = False,
        name_prefix: str | None = None,
    ) -> OrderedConsumer:
        """Return an ordered consumer, which gets every message once and in order, without acknowledgements. It is
        created on the server when it is first used.

        config:     the fields that may be set: ``deliver_policy``, ``opt_start_seq``, ``opt_start_time``,
                    ``filter_subject``, ``filter_subjects``, ``headers_only``, ``replay_policy``, ``inactive_threshold``
                    (default 5 minutes), ``metadata``.
        max_resets: how many times in a row it may be recreated without receiving a message. Default None: no limit.
        push:       if True, the server pushes messages, with flow control and heartbeats. Default False: the client
                    pulls them.
        name_prefix: prefix of the names on the server. They are ``<prefix>_1``, ``<prefix>_2`` and so on, a new name
                    each time that the consumer is recreated. Numbers in use are skipped. Default: a random prefix.

        Raises:
            InvalidValue: ``config`` contains another field, or JetStream forbids the prefix in names.
        """
        return OrderedConsumer(self, config, max_resets, push, name_prefix)

    async def create_consumer(self, config: configs.Config, *, pedantic: bool = False) -> Consumer:
        """Create a consumer. This also succeeds if the consumer exists with the same configuration.

        config:   the server's JSON (nats-server ``ConsumerConfig``), with two defaults of the NATS clients. The
                  ``ack_policy`` is ``explicit``, because with the server's default ``none`` each message counts as
                  processed when it is sent. Without ``name`` or ``durable_name`` the consumer gets a random name.
        pedantic: see :meth:`JetStream.create_stream`.

        Raises:
            ConsumerAlreadyExists: the consumer exists with another configuration.
            ConsumerCreateFailed, ApiError: the server does not allow the configuration.
            ServerTooOld, InvalidRequest: the server does not know a field.
            StreamNotFound: the stream does not exist.
        """
        # Always with a name, because permissions apply to the request's subject, where the filter follows the name.
        defaults = {"ack_policy": "explicit", "name": secrets.token_hex(8)}
        wanted = defaults | configs.check_consumer_config(config)
        request, body = consumer_request(self.name, wanted, "create")
        answer = await self.js.configure(request, body, wanted, pedantic=pedantic)
        return Consumer(self.js, self.name, str(answer["name"]), ConsumerInfo(answer))

    async def update_consumer(self, config: configs.Config, *, remove: Iterable[str] = ()) -> Consumer:
        """Change only the given fields of a consumer, see :meth:`Consumer.update`. ``config`` names the consumer in
        ``name`` or ``durable_name``.

        Raises:
            ConsumerNotFound: the consumer does not exist; it is not created.
        """
        consumer = self.consumer(configs.consumer_name(config))
        await consumer.update(config, remove=remove)
        return consumer

    async def create_or_update_consumer(self, config: configs.Config) -> tuple[Consumer, configs.Difference | None]:
        """Create the consumer. If it exists, update only the fields that differ from ``config``.

        Returns the consumer and the changes, like :meth:`JetStream.create_or_update_stream`, and raises the same errors
        as :meth:`create_consumer` and :meth:`update_consumer`. Without ``name`` or ``durable_name`` a consumer is
        always created. The default ``ack_policy`` is used only for a new consumer, because the server refuses to change
        the ``ack_policy`` of an existing one.

        config:  as for :meth:`create_consumer`.
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
        """Return the consumer that ``config`` names, and create it if it does not exist, like
        :meth:`JetStream.get_or_create_stream`.

        Without ``name`` or ``durable_name`` a consumer is always created.

        config:  as for :meth:`create_consumer`.
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
            except ConsumerAlreadyExists:  # another client was faster
                return await self.get_consumer(name)

    async def delete_consumer(self, name: str) -> None:
        """Delete the consumer ``name``. Raises ConsumerNotFound."""
        await self.consumer(name).delete()

    async def consumer_names(self) -> AsyncIterator[str]:
        """Iterate over the names of all consumers, requested in pages of 1,024. Raises StreamNotFound."""
        async for name in listing.items(self.js, f"CONSUMER.NAMES.{self.name}", "consumers"):
            yield str(name)

    async def list_consumers(self) -> AsyncIterator[ConsumerInfo]:
        """Iterate over the state of all consumers, requested in pages of 256.

        Raises:
            StreamNotFound: the stream does not exist.
            ListingIncomplete: raised after the last consumer, if some consumers are offline or their leaders did not
                answer.
        """
        async for info in listing.items(self.js, f"CONSUMER.LIST.{self.name}", "consumers"):
            yield ConsumerInfo(info)
