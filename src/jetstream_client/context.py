# SPDX-License-Identifier: Apache-2.0
"""The JetStream context, which gives access to streams, consumers and publishing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client import config as configs
from jetstream_client import listing
from jetstream_client.errors import StreamNameInUse, StreamNotFound
from jetstream_client.info import StreamInfo
from jetstream_client.names import check_filter
from jetstream_client.publishing import Publishing
from jetstream_client.stream import Stream
from jetstream_client.trace import Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.info import ConsumerInfo


class JetStream(Publishing):
    """A JetStream context. :func:`jetstream_client.connect` opens one, and :meth:`with_options` derives another.

    The methods for consumers are also methods of a :class:`Stream`. In this class their first parameter is ``stream``,
    the name of the stream that the consumer belongs to.
    """

    def with_options(
        self,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        request_timeout: float | None = None,
        trace: Trace | None = None,
    ) -> JetStream:
        """Another context on the same connection. Options that are not set keep their values.

        domain, api_prefix:  set one of them to use another JetStream, see :class:`ConnectionSettings`.
        request_timeout:     seconds to wait for one answer of the API.
        trace:               callbacks for every request, see :class:`Trace`.

        Raises InvalidValue.
        """
        options: dict[str, Any] = {}
        if domain is not None or api_prefix is not None:
            options |= {"domain": domain, "api_prefix": api_prefix}
        if request_timeout is not None:
            options["request_timeout"] = request_timeout
        return JetStream(self.connection, settings=replace(self.settings, **options), trace=trace or self.trace)

    def stream(self, name: str) -> Stream:
        """Return a handle for the stream ``name``. Nothing is requested from the server, so the stream need not exist.
        Raises InvalidValue if JetStream forbids the name."""
        return Stream(self, name)

    async def get_stream(self, name: str) -> Stream:
        """Return a handle for the stream ``name``, which must exist. Raises StreamNotFound."""
        stream = Stream(self, name)
        await stream.info()
        return stream

    async def create_stream(self, config: configs.Config, *, pedantic: bool = False) -> Stream:
        """Create a stream. This also succeeds if the stream exists with the same configuration.

        config:   the server's JSON (nats-server ``StreamConfig``). Durations are ``timedelta`` or nanoseconds, times
                  are ``datetime`` with a time zone or RFC 3339. The ``domain`` of a mirror or source is sent as its
                  ``external.api``.
        pedantic: if True, the server refuses values that it would otherwise adjust silently (ApiError 10157,
                  nats-server 2.11). Default False.

        Raises:
            StreamNameInUse: the stream exists with another configuration.
            InvalidStreamConfig: the server does not allow the configuration.
            ServerTooOld, InvalidRequest: the server does not know a field.
            InvalidValue: JetStream forbids a name or subject; nothing was sent.
        """
        wanted = configs.check_stream_config(config)
        answer = await self.configure(f"STREAM.CREATE.{wanted['name']}", wanted, wanted, pedantic=pedantic)
        return Stream(self, wanted["name"], StreamInfo(answer))

    async def update_stream(self, config: configs.Config, *, remove: Iterable[str] = ()) -> Stream:
        """Change only the given fields of the stream ``config["name"]``, see :meth:`Stream.update`.

        Raises:
            StreamNotFound: the stream does not exist; it is not created.
        """
        stream = Stream(self, configs.check_stream_config(config)["name"])
        await stream.update(config, remove=remove)
        return stream

    async def create_or_update_stream(self, config: configs.Config) -> tuple[Stream, configs.Difference | None]:
        """Create the stream. If it exists, update only the fields that differ from ``config``.

        Returns the stream and the changes: ``{}`` if nothing differed, ``None`` if the stream was created. Raises the
        same errors as :meth:`create_stream` and :meth:`update_stream`.
        """
        wanted = configs.check_stream_config(config)
        stream = Stream(self, wanted["name"])
        try:
            changes = configs.difference((await stream.info()).config, wanted)
        except StreamNotFound:
            return await self.create_stream(wanted), None
        if changes:
            await stream.update(wanted)
        return stream, changes

    async def get_or_create_stream(self, config: configs.Config) -> Stream:
        """Return the stream that ``config`` names, and create it if it does not exist. The configuration of an existing
        stream is not compared with ``config``; ``cached_info`` of the returned stream contains its configuration.

        Raises the same errors as :meth:`create_stream`, except StreamNameInUse.
        """
        name = configs.check_stream_config(config)["name"]
        try:
            return await self.get_stream(name)
        except StreamNotFound:
            try:
                return await self.create_stream(config)
            except StreamNameInUse:  # another client was faster
                return await self.get_stream(name)

    async def delete_stream(self, name: str) -> None:
        """Delete the stream ``name`` with all its messages and consumers. Raises StreamNotFound."""
        await self.stream(name).delete()

    async def stream_names(self, *, subject: str | None = None) -> AsyncIterator[str]:
        """Iterate over the names of all streams, or of those whose subjects overlap ``subject``. They are requested in
        pages of 1,024."""
        async for name in listing.items(self, "STREAM.NAMES", "streams", _listening(subject)):
            yield str(name)

    async def list_streams(self, *, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """Iterate over the state of all streams, or of those whose subjects overlap ``subject``. They are requested in
        pages of 256.

        Raises:
            ListingIncomplete: raised after the last stream, if some streams are offline or their leaders did not
                answer.
        """
        async for info in listing.items(self, "STREAM.LIST", "streams", _listening(subject)):
            yield StreamInfo(info)

    async def stream_name_by_subject(self, subject: str) -> str:
        """Return the name of the stream that listens on ``subject``. If ``subject`` has wildcards and several streams
        match, this is the first of them; :meth:`stream_names` lists all.

        Raises:
            StreamNotFound: no stream listens on the subject.
        """
        listening = {"subject": check_filter(subject, "subject")}
        for name in (await self.api("STREAM.NAMES", listening)).get("streams") or ():
            return str(name)
        raise StreamNotFound(404, 10059, f"no stream listens on {subject!r}")

    def consumer(self, stream: str, name: str) -> Consumer:
        """Return a handle for the pull consumer ``name``. Nothing is requested from the server, so the consumer need
        not exist. Raises InvalidValue if JetStream forbids a name."""
        return self.stream(stream).consumer(name)

    async def get_consumer(self, stream: str, name: str) -> Consumer:
        """See :meth:`Stream.get_consumer`."""
        return await self.stream(stream).get_consumer(name)

    async def create_consumer(self, stream: str, config: configs.Config, *, pedantic: bool = False) -> Consumer:
        """See :meth:`Stream.create_consumer`."""
        return await self.stream(stream).create_consumer(config, pedantic=pedantic)

    async def update_consumer(self, stream: str, config: configs.Config, *, remove: Iterable[str] = ()) -> Consumer:
        """See :meth:`Stream.update_consumer`."""
        return await self.stream(stream).update_consumer(config, remove=remove)

    async def create_or_update_consumer(
        self, stream: str, config: configs.Config
    ) -> tuple[Consumer, configs.Difference | None]:
        """See :meth:`Stream.create_or_update_consumer`."""
        return await self.stream(stream).create_or_update_consumer(config)

    async def get_or_create_consumer(self, stream: str, config: configs.Config) -> Consumer:
        """See :meth:`Stream.get_or_create_consumer`."""
        return await self.stream(stream).get_or_create_consumer(config)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """See :meth:`Stream.delete_consumer`."""
        await self.stream(stream).delete_consumer(name)

    def consumer_names(self, stream: str) -> AsyncIterator[str]:
        """See :meth:`Stream.consumer_names`."""
        return self.stream(stream).consumer_names()

    def list_consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        """See :meth:`Stream.list_consumers`."""
        return self.stream(stream).list_consumers()


def _listening(subject: str | None) -> dict[str, Any] | None:
    return None if subject is None else {"subject": check_filter(subject, "subject")}
