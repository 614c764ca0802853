"""One connection for everybody who works in the same event loop with the same settings: the triggers of a triggerer."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from jetstream_client.context import JetStream
from jetstream_client.wire.control import Connection

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ConnectionSettings, Shared]] = WeakKeyDictionary()
"""By the settings themselves, whose ``repr`` shows no secret."""


def share(settings: ConnectionSettings) -> Use:
    """The JetStream context of this event loop and these settings, for ``async with``. Its connection is made by the
    first user and closed with the last. One that has ended for good is replaced for whoever comes after; those who have
    it find :attr:`Connection.ended`.

    Entering raises:
        ConnectionFailed, AuthenticationFailed, TlsNotOffered, TlsFailed: to everybody who waited for the connection.
    """
    return Use(settings)


class Use:
    """One user of a shared connection, from entering to leaving.

    No generator: `airflow dags test` ends the loop of a trigger without cleaning up, and asyncio then closes all
    generators at once. One that waits inside another is told twice, and both complain
    (``BaseEventLoop.shutdown_asyncgens``).
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


class Shared:
    """A connection and how many use it. It lives in a task of its own: no user's cancellation strikes the others."""

    def __init__(self, settings: ConnectionSettings) -> None:
        loop = asyncio.get_running_loop()
        self.users = 0
        self._unused = asyncio.Event()
        self._opened: asyncio.Future[JetStream] = loop.create_future()
        # Without the first user's context variables: Airflow finds the log of a trigger by them.
        self._kept = loop.create_task(self._keep(settings), context=Context())

    @property
    def ended(self) -> bool:
        """Of no use to whoever comes now: it could not be made, or ended for good."""
        if self._kept.done():
            return True
        return self._opened.done() and (
            self._opened.cancelled() or self._opened.exception() is not None or self._opened.result().connection.ended
        )

    async def context(self) -> JetStream:
        """The connection's, when it is made. Raises what kept it from being made."""
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        self._unused.set()
        if not self._opened.done():
            self._kept.cancel()  # nobody waits for it any more
        await asyncio.wait([self._kept])

    async def _keep(self, settings: ConnectionSettings) -> None:
        try:
            async with Connection.open(settings) as connection:
                self._opened.set_result(JetStream(connection))
                await self._unused.wait()
        except Exception as error:
            if self._opened.done():
                log.exception("closing a shared connection to %s", ", ".join(settings.servers))
            else:
                self._opened.set_exception(error)
                self._opened.exception()  # its users may be gone
        finally:
            self._opened.cancel()
