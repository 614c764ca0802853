# SPDX-License-Identifier: Apache-2.0
"""JetStream for Python: streams, consumers, messages, acknowledgements and publishing. It needs neither an
orchestrator nor Spark."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from jetstream_client.trace import RequestSent, ResponseReceived, Trace
from jetstream_client.wire.settings import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jetstream_client.context import JetStream

__all__ = ["ConnectionSettings", "RequestSent", "ResponseReceived", "Trace", "connect"]


@asynccontextmanager
async def connect(settings: ConnectionSettings, *, trace: Trace | None = None) -> AsyncIterator[JetStream]:
    """Open a connection, and yield a JetStream context on it. The end of the block closes the connection.

    settings:  the servers, and how to connect to them.
    trace:     callbacks for every request, see :class:`Trace`. Default None.

    Raises:
        ConnectionFailed: no server was reachable within ``settings.connect_timeout`` seconds.
        AuthenticationFailed, TlsFailed: the credentials or TLS failed. There is no second attempt.
    """
    from jetstream_client.context import JetStream
    from jetstream_client.wire.control import Connection

    async with Connection.open(settings) as connection:
        yield JetStream(connection, trace=trace)
