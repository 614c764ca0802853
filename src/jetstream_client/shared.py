# SPDX-License-Identifier: Apache-2.0
"""Connections that are shared by all users of one event loop with the same settings, such as sensors that wait."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from jetstream_client.context import JetStream
from jetstream_client.wire.control import Connection

if TYPE_CHECKING:
    from jetstream_client import Trace
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ConnectionSettings, Shared]] = WeakKeyDictionary()
"""For each event loop, the connection that belongs to the settings. The ``repr`` of the settings shows no secret."""


def share(settings: ConnectionSettings) -> Use:
    """The shared JetStream context of this event loop and these settings, for ``async with``.

    The first user opens its connection, and the last one closes it. A connection that has ended for good is replaced
    for new users; existing users see :attr:`Connection.ended`.

    Entering raises:
        ConnectionFailed, AuthenticationFailed, TlsNotOffered, TlsFailed: the connection could not be opened. Every user
            that waited for it gets the error.
    """
    return Use(settings)


class Use:
    """One user of a shared connection, from entering to leaving.

    This is not a generator: an orchestrator may end the loop without cleaning up (in Airflow, ``airflow dags test``
    does), and asyncio then closes all generators at the same time. A generator that waits inside another would be
    closed twice, and both would log an error (``BaseEventLoop.shutdown_asyncgens``).
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> JetStream:
        there = _shared.setdefault(asyncio.get_running_loop(), {})
        ours = there.get(self._settings)
        if ours is None or ours.ended:
            ours = there[self._settings] = Shared(self._settings)
        self._ours = ours
        ours.users += 1
        try:
            return await ours.context()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        there, ours = _shared[asyncio.get_running_loop()], self._ours
        ours.users -= 1
        if not ours.users:
            if there.get(self._settings) is ours:
                del there[self._settings]
            await ours.close()


class KeptConnection:
    """A connection that a separate task opens, keeps and closes, so that cancelling one user does not affect the
    others.

    trace:  what is told about the connection; default: nothing.
    """

    def __init__(self, settings: ConnectionSettings, trace: Trace | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.failed_at: float | None = None
        """When opening the connection failed, on the clock of the event loop."""
        self._unused = asyncio.Event()
        self._opened: asyncio.Future[JetStream] = loop.create_future()
        # The first user's context variables are left out: in Airflow, they decide to which log a line goes.
        self._kept = loop.create_task(self._keep(settings, trace), context=Context())

    @property
    def ended(self) -> bool:
        """Whether new users need another connection, because this connection could not be opened, was closed, or has
        ended for good."""
        if self._kept.done() or self.failed_at is not None:
            return True
        return self._opened.done() and (self._opened.cancelled() or self._opened.result().connection.ended)

    async def context(self) -> JetStream:
        """Wait for the connection, and return its context. If opening the connection failed, raises that error."""
        return await asyncio.shield(self._opened)

    def leave(self) -> None:
        """Have the connection closed, without waiting for it."""
        self._unused.set()

    async def close(self) -> None:
        self._unused.set()
        if not self._opened.done():
            self._kept.cancel()  # no user waits for the connection
        await asyncio.wait([self._kept])

    async def _keep(self, settings: ConnectionSettings, trace: Trace | None) -> None:
        try:
            async with Connection.open(settings) as connection:
                self._opened.set_result(JetStream(connection, trace=trace))
                await self._unused.wait()
        except Exception as error:
            if self._opened.done():
                log.exception("closing the connection to %s failed", ", ".join(settings.servers))
            else:
                self.failed_at = asyncio.get_running_loop().time()
                self._opened.set_exception(error)
                self._opened.exception()  # marks the error as retrieved, because no user may be left
        finally:
            self._opened.cancel()


class Shared(KeptConnection):
    """A connection and the number of its users."""

    users = 0
