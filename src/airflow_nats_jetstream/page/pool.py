# SPDX-License-Identifier: Apache-2.0
"""The page's connections to NATS: one for each connection id and process, opened on demand and closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from airflow_nats_jetstream.page.errors import Busy
from airflow_nats_jetstream.page.shared import REFUSED, SharedResults
from jetstream_client import Trace
from jetstream_client.shared import KeptConnection

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jetstream_client.context import JetStream
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.watch.overview import Survey

Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """How much the page may cost. Times are in seconds.

    most:      the largest number of connections.
    idle:      after this time without use, a connection is closed.
    settings:  for this time, the settings of a connection are not looked up again.
    shared:    for this time, an answer is shared by everybody who asks for it.
    rate:      requests a second for one shared answer, at most on average: an answer that took many requests is shared
               for longer.
    longest:   the longest time for which an answer is shared.
    refused:   for this time, an error is repeated.
    answer:    the longest time for an answer.
    at_once:   how many questions are asked at the same time, on one connection. Others wait.
    listeners: how many may listen for the holders of claims at the same time, on one connection.
    """

    most: int = 20
    idle: float = 60.0
    settings: float = 30.0
    shared: float = 2.0
    rate: float = 8.0
    longest: float = 30.0
    refused: float = REFUSED
    answer: float = 6.5
    at_once: int = 8
    listeners: int = 5


class Line:
    """The NATS connection of one Airflow connection, and the answers that requests share."""

    def __init__(self, settings: ConnectionSettings, limits: Limits) -> None:
        self.settings = settings
        self.checked = self._used = asyncio.get_running_loop().time()
        self.requests = 0
        """How many requests were sent to the JetStream API."""
        self.survey: Survey | None = None
        """What the overviews on this connection remember."""
        self.looking = asyncio.Lock()
        """Held by a look of the survey. After an action, a look may begin while an earlier one has not ended."""
        self.limits = limits
        self._answers = SharedResults(refused=limits.refused)
        self._asking = asyncio.Semaphore(limits.at_once)
        self._listening = 0
        self._users = 0
        self._retired = False
        self._timer: asyncio.TimerHandle | None = None
        self._connection = KeptConnection(settings, Trace(request_sent=self._count))

    @property
    def over(self) -> bool:
        """Whether new requests need another connection."""
        if self._retired:
            return True
        if (failed_at := self._connection.failed_at) is not None:
            return asyncio.get_running_loop().time() >= failed_at + self.limits.refused
        return self._connection.ended

    @property
    def idle_since(self) -> float | None:
        """When the last user left, on the clock of the event loop; None while the line is in use."""
        return None if self._users else self._used

    async def js(self) -> JetStream:
        """Wait for the connection, and return its context. Raises the error that opening it raised."""
        return await self._connection.context()

    async def ask(self, key: Hashable, question: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """Return the answer to a question that changes nothing. Everybody who asks it within two seconds gets the same
        answer; if it took many requests, it is shared for longer. A few questions are asked at the same time, and the
        others wait.

        key:       names the question.
        question:  called with the JetStream context.

        Raises:
            TimeoutError: the answer took too long, including the time for which the question waited.
            JetStreamError: the server refused, or cannot be reached.
        """
        before = self.requests

        async def answer() -> Result:
            async with self._asking:
                return await question(await self.js())

        def keep() -> float:
            limits = self.limits
            return min(max(limits.shared, (self.requests - before) / limits.rate), limits.longest)

        return await self._answers.get(key, answer, within=self.limits.answer, keep=keep)

    async def listen(
        self, key: Hashable, listening: Callable[[JetStream], Awaitable[Result]], *, within: float
    ) -> Result:
        """Return the result of listening to the server. As :meth:`ask`, but at most a few may listen at the same time.

        within:  seconds that it may take.

        Raises:
            Busy: too many listen at this moment.
        """

        async def listen() -> Result:
            if self._listening >= self.limits.listeners:
                raise Busy(
                    f"the page already listens for {self.limits.listeners} holders on this connection; try again in "
                    "half a minute"
                )
            self._listening += 1
            try:
                return await listening(await self.js())
            finally:
                self._listening -= 1

        return await self._answers.get(key, listen, within=within, keep=lambda: self.limits.shared)

    def changed(self) -> None:
        """Forget the shared answers after an action."""
        self._answers.forget()

    def enter(self) -> None:
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()

    def leave(self) -> None:
        loop = asyncio.get_running_loop()
        self._users -= 1
        self._used = loop.time()
        if self._users:
            return
        if self._retired:
            self._connection.leave()
        else:
            self._timer = loop.call_later(self.limits.idle, self.retire)

    def retire(self) -> None:
        """Close the connection as soon as nobody uses it."""
        self._retired = True
        if not self._users:
            self._connection.leave()

    async def close(self) -> None:
        """Close the connection now."""
        if self._timer is not None:
            self._timer.cancel()
        self._retired = True
        await self._connection.close()

    def _count(self, _: object) -> None:
        self.requests += 1


class Pool:
    """The lines by connection id. They belong to one event loop.

    look_up:  called with the id of a connection; returns its settings.
    """

    def __init__(self, look_up: Callable[[str], Awaitable[ConnectionSettings]], limits: Limits | None = None) -> None:
        self._look_up = look_up
        self._limits = limits or Limits()
        self._lines: dict[str, Line] = {}
        self._found = SharedResults(refused=self._limits.refused)

    @asynccontextmanager
    async def use(self, connection_id: str) -> AsyncIterator[Line]:
        """Yield the line of a connection, which stays open at least until the end of the block.

        Raises:
            Busy: the page uses too many connections at this moment.
            Exception: whatever ``look_up`` raised.
        """
        line = await self._line(connection_id)
        line.enter()
        try:
            yield line
        finally:
            line.leave()

    async def close(self) -> None:
        """Close all connections."""
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            with suppress(asyncio.CancelledError):
                await line.close()

    async def _line(self, connection_id: str) -> Line:
        clock = asyncio.get_running_loop().time
        known = self._lines.get(connection_id)
        if known is not None and not known.over and clock() < known.checked + self._limits.settings:
            return known
        settings = await self._found.get(
            connection_id,
            lambda: self._look_up(connection_id),
            within=self._limits.answer,
            keep=lambda: 0.0,
        )
        known = self._lines.get(connection_id)  # another request may have been faster
        if known is not None and not known.over and known.settings == settings:
            known.checked = clock()
            return known
        if known is not None:
            known.retire()
        else:
            self._make_room()
        line = self._lines[connection_id] = Line(settings, self._limits)
        return line

    def _make_room(self) -> None:
        """Forget lines that have ended, and close the line that was idle for longest if there are too many."""
        for connection_id in [each for each, line in self._lines.items() if line.over]:
            self._lines.pop(connection_id).retire()
        if len(self._lines) < self._limits.most:
            return
        idle = {each: line.idle_since for each, line in self._lines.items() if line.idle_since is not None}
        if not idle:
            raise Busy(
                f"the page already uses {self._limits.most} connections to NATS in this api-server; try again when "
                "others have left it"
            )
        self._lines.pop(min(idle, key=lambda each: idle[each] or 0.0)).retire()
