"""JetStream for Python: streams, consumers, messages, acknowledgements, publishing. Knows neither Airflow nor Spark."""

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
    """A JetStream context on a connection of its own, closed at the end. ``trace`` sees its requests.

    nats-py is imported here and not before, so that a Spark executor can use the bulk connection without it.

    Raises:
        ConnectionFailed: unreachable within ``settings.connect_timeout``.
        AuthenticationFailed, TlsNotOffered: at once, without a second attempt.
    """
    from jetstream_client.context import JetStream
    from jetstream_client.wire.control import Connection

    async with Connection.open(settings) as connection:
        yield JetStream(connection, trace=trace)
