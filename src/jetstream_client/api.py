# SPDX-License-Identifier: Apache-2.0
"""Requests to the JetStream API, and the check that its servers support a request."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from jetstream_client import requirements
from jetstream_client.account import AccountInfo
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    InvalidRequest,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    RequestTimeout,
)
from jetstream_client.quantities import check_seconds
from jetstream_client.trace import RequestSent, ResponseReceived, Trace
from jetstream_client.wire.answers import decode_api_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.config import Config
    from jetstream_client.requirements import Requirement
    from jetstream_client.wire.control import Connection, Headers
    from jetstream_client.wire.protocol import Reply
    from jetstream_client.wire.settings import ConnectionSettings

DEFAULT_PREFIX = "$JS.API"

_PATIENCE_STEP = 0.1  # seconds between two attempts of a request with patience


class Api:
    """The JetStream API on a connection. ``settings`` are the connection's settings, except for options
    that :meth:`JetStream.with_options` has replaced."""

    def __init__(
        self, connection: Connection, *, settings: ConnectionSettings | None = None, trace: Trace | None = None
    ) -> None:
        self.connection = connection
        self.settings = settings or connection.settings
        self.trace = trace or Trace()
        self._level = ("", 0)  # the connected server's version, and the API level that was last determined for it

    async def request(self, subject: str, data: bytes = b"", *, headers: Headers | None = None) -> Reply:
        """Send one request, trace it, and return its answer. Raises the errors of :meth:`Connection.request`.

        subject:  subject of the request.
        data:     body of the request. Default: empty.
        headers:  headers of the request. Default None.
        """
        clock = asyncio.get_running_loop()
        start = clock.time()
        self.trace.tell(RequestSent(subject, data))
        timeout = self.settings.request_timeout
        reply = await self.connection.request(subject, data, timeout=timeout, headers=headers)
        self.trace.tell(ResponseReceived.of(subject, reply, clock.time() - start))
        return reply

    async def api(
        self,
        request: str,
        payload: Mapping[str, Any] | None = None,
        *,
        patience: float = 0,
        headers: Headers | None = None,
    ) -> Any:
        """Send a request of the JetStream API. Returns the decoded answer.

        request:  subject of the request without the prefix, for example ``STREAM.INFO.ORDERS``.
        payload:  body of the request, sent as JSON. Default None: an empty body.
        patience: seconds during which the request is repeated if the connection is lost, a leader is missing or no
                  answer arrives. Default 0. Set it only for requests that may be repeated.
        headers:  headers of the request. For example, with ``{"Nats-Required-Api-Level": "4"}`` a server whose API
                  level is below 4 refuses the request. Servers older than nats-server 2.12 ignore this header.

        Raises:
            ApiError: the server refused the request (usually a subclass).
            JetStreamNotEnabled: no server answers the API.
            RequestTimeout, ConnectionLost: see :meth:`Connection.request`.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + check_seconds("patience", patience, zero=True)
        subject = f"{self.settings.prefix}.{request}"
        data = json.dumps(payload).encode() if payload is not None else b""
        while True:
            try:
                reply = await self.request(subject, data, headers=headers)
                return decode_api_answer(reply.data, reply.status, subject, request, self.settings.words)
            except (ConnectionLost, RequestTimeout, ApiError) as error:
                if not _is_passing(error) or clock.time() + _PATIENCE_STEP > deadline:
                    raise
                await self.connection.pause(_PATIENCE_STEP)

    async def configure(self, request: str, body: Mapping[str, Any], wanted: Config, *, pedantic: bool = False) -> Any:
        """Send a request that configures a stream or consumer.

        wanted: the fields that the caller sets.

        Raises:
            ServerTooOld: a wanted field is known to need a newer server. Nothing was sent, unless the server's level
                was unknown, and its answer shows that it has dropped the field.
            InvalidRequest: the server does not know a field, or a value has the wrong type; the error names the version
                of the connected server.
            ApiError: see :meth:`api`.
        """
        needed = requirements.of_config(wanted)
        await self.require(needed)
        if pedantic:
            await self.require(requirements.PEDANTIC)
            body = {**body, "pedantic": True}
        try:
            answer = await self.api(request, body)
        except InvalidRequest as error:
            found = f"{error.description}; the connected server is nats-server {self.connection.server_version}"
            raise InvalidRequest(error.code, error.err_code, found) from None
        if needed and self._level[1] == sys.maxsize:
            needed.check_answer(answer.get("config") or {})
        return answer

    async def require(self, needed: Requirement | None) -> None:
        """Raises ServerTooOld if the servers are known not to meet the requirement ``needed``.

        The API level in the answer to ``$JS.API.INFO`` decides, because the request may reach another server than the
        connected one. If INFO is not answered, the version of the connected server decides. With another API prefix or
        domain, the account may have imported only some requests, and INFO may not be one of them. If INFO is not
        answered in this case, the request is sent, and the server that gets it decides.
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
            raise needed.error(version if here else f"a server with API level {self._level[1]}")

    async def account_info(self) -> AccountInfo:
        """Request the account's use of memory, storage, streams and consumers, the limits of these four, and the
        server's API level."""
        return AccountInfo.parse(await self.api("INFO"))


def _is_passing(error: JetStreamError) -> bool:
    if not isinstance(error, ApiError) or isinstance(error, JetStreamNotEnabled):
        return True
    return type(error) is ApiError and error.code == 503  # no leader at the moment, or insufficient resources
