"""The JetStream context: the API's requests, and the way to streams and publishing."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client import config as configs
from jetstream_client import listing, requirements
from jetstream_client.account import AccountInfo
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    InvalidRequest,
    JetStreamNotEnabled,
    PermissionDenied,
    RequestTimeout,
    StreamNameInUse,
    StreamNotFound,
)
from jetstream_client.info import StreamInfo
from jetstream_client.names import check_filter
from jetstream_client.publishing import Publishing
from jetstream_client.quantities import check_seconds
from jetstream_client.stream import Stream
from jetstream_client.trace import RequestSent, ResponseReceived, Trace
from jetstream_client.wire.protocol import NO_RESPONDERS, decode_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.requirements import Requirement
    from jetstream_client.wire.control import Connection, Headers
    from jetstream_client.wire.protocol import Reply
    from jetstream_client.wire.settings import ConnectionSettings

DEFAULT_PREFIX = "$JS.API"

_PATIENCE_STEP = 0.1  # seconds between two attempts of a patient request


class JetStream(Publishing):
    """What :func:`jetstream_client.connect` gives. :meth:`with_options`: another on its connection."""

    def __init__(self, connection: Connection, *, trace: Trace | None = None) -> None:
        self.connection = connection
        self.trace = trace or Trace()
        self._settings: ConnectionSettings | None = None
        self._level = ("", 0)  # the server's version, and the API level as far as it had to be asked for

    def with_options(
        self,
        *,
        domain: str | None = None,
        api_prefix: str | None = None,
        request_timeout: float | None = None,
        trace: Trace | None = None,
    ) -> JetStream:
        """Another context on the same connection.

        domain, api_prefix:  one of them: another JetStream, see :class:`ConnectionSettings`.
        request_timeout:     seconds for one answer of the API.
        trace:               see :class:`Trace`.

        What is not given stays as it is here. Raises InvalidValue.
        """
        options: dict[str, Any] = {}
        if domain is not None or api_prefix is not None:
            options |= {"domain": domain, "api_prefix": api_prefix}
        if request_timeout is not None:
            options["request_timeout"] = request_timeout
        other = JetStream(self.connection, trace=trace or self.trace)
        other._settings = replace(self.settings, **options)
        return other

    @property
    def settings(self) -> ConnectionSettings:
        """The connection's, with this context's own options."""
        return self._settings or self.connection.settings

    async def request(self, subject: str, data: bytes = b"", *, headers: Headers | None = None) -> Reply:
        """One request and its answer, traced. Raises as :meth:`Connection.request`."""
        clock = asyncio.get_running_loop()
        start = clock.time()
        self.trace.sent(RequestSent(subject, data))
        timeout = self.settings.request_timeout
        reply = await self.connection.request(subject, data, timeout=timeout, headers=headers)
        self.trace.received(ResponseReceived.of(subject, reply, clock.time() - start))
        return reply

    async def api(
        self,
        request: str,
        payload: Mapping[str, Any] | None = None,
        *,
        patience: float = 0,
        headers: Headers | None = None,
    ) -> Any:
        """One request of the JetStream API, e.g. ``STREAM.INFO.ORDERS``; the decoded answer.

        patience: seconds during which a lost connection, a missing leader and an unanswered request are tried again.
                  Only for requests that may be repeated.
        headers:  for example ``{"Nats-Required-Api-Level": "2"}``: an older server from 2.12 on refuses it then.

        Raises:
            ApiError: or a subclass, the server's refusal.
            JetStreamNotEnabled: nobody answers the API.
            RequestTimeout, ConnectionLost: see :meth:`Connection.request`.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + check_seconds("patience", patience, zero=True)
        subject = f"{self.settings.prefix}.{request}"
        data = json.dumps(payload).encode() if payload is not None else b""
        while True:
            try:
                return self._decoded(request, subject, await self.request(subject, data, headers=headers))
            except (ConnectionLost, RequestTimeout, JetStreamNotEnabled, _Unavailable):
                if clock.time() + _PATIENCE_STEP > deadline:
                    raise
                await self.connection.pause(_PATIENCE_STEP)

    @staticmethod
    def _decoded(request: str, subject: str, reply: Any) -> Any:
        if reply.status == NO_RESPONDERS:
            raise JetStreamNotEnabled(
                503, 0, f"nobody answers {subject!r}: JetStream is off, or domain, API prefix or permissions are wrong"
            )
        answer = decode_object(reply.data, f"the answer to {subject!r}")
        if "error" in answer:
            error = ApiError.from_response(answer["error"], request)
            if type(error) is ApiError and error.code == 503:
                raise _Unavailable(error.code, error.err_code, error.description)
            raise error
        return answer

    async def configure(
        self, request: str, body: Mapping[str, Any], wanted: configs.Config, *, pedantic: bool = False
    ) -> Any:
        """A request that configures a stream or consumer; ``wanted`` are the fields that the caller asks for.

        Raises:
            ServerTooOld: a wanted field is known to need a newer server; nothing was sent.
            InvalidRequest: the server does not know a field; the error names the server's version.
            ApiError: as :meth:`api`.
        """
        await self.require(requirements.of_config(wanted))
        if pedantic:
            await self.require(requirements.PEDANTIC)
            body = {**body, "pedantic": True}
        try:
            return await self.api(request, body)
        except InvalidRequest as error:
            found = f"{error.description}; this is nats-server {self.connection.server_version}"
            raise InvalidRequest(error.code, error.err_code, found) from None

    async def require(self, needed: Requirement | None) -> None:
        """Raises ServerTooOld when the servers are known to lack this.

        What ``$JS.API.INFO`` says counts: the server that this is connected to may be another than the one that
        answers. Where nobody answers it, the one that this is connected to decides; or, through an import of some
        requests only, the one that gets the request.
        """
        if needed is None:
            return
        version, here = self.connection.server_version, self.settings.prefix == DEFAULT_PREFIX
        if self._level[0] != version or self._level[1] < needed.level:
            try:
                level = (await self.account_info()).level
            except (PermissionDenied, JetStreamNotEnabled, RequestTimeout):
                level = requirements.level_of(version) if here else sys.maxsize
            self._level = version, level
        if self._level[1] < needed.level:
            raise needed.error(version if here else f"a server of API level {self._level[1]}")

    async def account_info(self) -> AccountInfo:
        """Memory, storage, streams, consumers, their limits, and the API level."""
        return AccountInfo.parse(await self.api("INFO"))

    def stream(self, name: str) -> Stream:
        """A handle, without a round trip. Raises InvalidValue for a name that JetStream forbids."""
        return Stream(self, name)

    async def get_stream(self, name: str) -> Stream:
        """A handle to one that is there. Raises StreamNotFound."""
        stream = Stream(self, name)
        await stream.info()
        return stream

    async def create_stream(self, config: configs.Config, *, pedantic: bool = False) -> Stream:
        """Create; an equal one that exists is fine.

        config:   the server's own JSON (nats-server ``StreamConfig``); durations as ``timedelta`` or nanoseconds, times
                  as ``datetime`` with a zone or RFC 3339. A mirror's or source's ``domain`` is its ``external.api``.
        pedantic: values that the server would silently change to fit each other are an ApiError, 10157 (2.11).

        Raises:
            StreamNameInUse: one with another configuration exists.
            InvalidStreamConfig: the server does not allow the configuration.
            ServerTooOld, InvalidRequest: the server does not know a field.
            InvalidValue: what JetStream forbids in names and subjects; nothing was sent.
        """
        wanted = configs.check_stream_config(config)
        answer = await self.configure(f"STREAM.CREATE.{wanted['name']}", wanted, wanted, pedantic=pedantic)
        return Stream(self, wanted["name"], StreamInfo(answer))

    async def update_stream(self, config: configs.Config, *, remove: Iterable[str] = ()) -> Stream:
        """Change the given fields of the stream that ``config["name"]`` names and no other, see :meth:`Stream.update`.

        Raises:
            StreamNotFound: there is none; it is not created.
        """
        stream = Stream(self, configs.check_stream_config(config)["name"])
        await stream.update(config, remove=remove)
        return stream

    async def create_or_update_stream(self, config: configs.Config) -> tuple[Stream, configs.Difference | None]:
        """Make the stream as wanted: create it, or update what differs and leave every other field as it is.

        Returns the stream and the difference that was updated: ``{}`` when nothing differed, ``None`` when created.

        Raises: as :meth:`create_stream` and :meth:`update_stream`.
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
        """The stream as it is, or else created. What it is configured as is not looked at: see ``cached_info``.

        Raises: as :meth:`create_stream`, but never StreamNameInUse.
        """
        name = configs.check_stream_config(config)["name"]
        try:
            return await self.get_stream(name)
        except StreamNotFound:
            try:
                return await self.create_stream(config)
            except StreamNameInUse:  # somebody else was faster
                return await self.get_stream(name)

    async def delete_stream(self, name: str) -> None:
        """With all its messages and consumers. Raises StreamNotFound."""
        await self.stream(name).delete()

    async def stream_names(self, *, subject: str | None = None) -> AsyncIterator[str]:
        """The names of all streams, page by page (1,024 each); with ``subject`` of those whose subjects overlap it."""
        async for name in listing.items(self, "STREAM.NAMES", "streams", _listening(subject)):
            yield str(name)

    async def list_streams(self, *, subject: str | None = None) -> AsyncIterator[StreamInfo]:
        """The state of all streams, page by page (256 each); with ``subject`` of those whose subjects overlap it.

        Raises:
            ListingIncomplete: at the end, in a cluster: the leaders of some did not answer.
        """
        async for info in listing.items(self, "STREAM.LIST", "streams", _listening(subject)):
            yield StreamInfo(info)

    async def stream_name_by_subject(self, subject: str) -> str:
        """The stream that listens on the subject. Of a wildcard the first: :meth:`stream_names` has all of them.

        Raises:
            StreamNotFound: none listens on it.
        """
        listening = {"subject": check_filter(subject, "subject")}
        for name in (await self.api("STREAM.NAMES", listening)).get("streams") or ():
            return str(name)
        raise StreamNotFound(404, 10059, f"no stream listens on {subject!r}")

    def consumer(self, stream: str, name: str) -> Consumer:
        """A handle, without a round trip. Raises InvalidValue for a name that JetStream forbids."""
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


class _Unavailable(ApiError):
    """503 from the API itself: no leader at the moment, or insufficient resources."""
