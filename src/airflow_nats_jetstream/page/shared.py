# SPDX-License-Identifier: Apache-2.0
"""Results that several requests share: concurrent callers wait for one computation, and later callers get its result
for a short time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")

REFUSED = 3.0
"""Seconds for which an error is repeated. Without it, everyone who waits would ask a server that does not answer."""
MOST = 200
"""The largest number of results that are kept."""


@dataclass
class _Entry:
    task: asyncio.Task[Any]
    until: float = math.inf


class SharedResults:
    """Results by key. An error is a result too. Each call drops the results that have expired."""

    def __init__(self, *, refused: float = REFUSED, most: int = MOST) -> None:
        self._refused = refused
        self._most = most
        self._entries: dict[Hashable, _Entry] = {}

    async def get(
        self,
        key: Hashable,
        make: Callable[[], Awaitable[Result]],
        *,
        within: float,
        keep: Callable[[], float],
    ) -> Result:
        """Return the result of ``make()``, or the kept result for the same key.

        Cancelling one caller does not cancel the others.

        key:     what the result is about.
        make:    called if there is no result.
        within:  seconds that ``make()`` may take.
        keep:    called when ``make()`` has returned; the number of seconds for which its result is kept.

        Raises:
            TimeoutError: ``make()`` took longer than ``within``.
        """
        loop = asyncio.get_running_loop()
        self._drop_expired(loop.time())
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = self._entries[key] = _Entry(loop.create_task(_limited(make, within)))
            entry.task.add_done_callback(lambda task: self._ended(entry, task, keep))
        result: Result = await asyncio.shield(entry.task)
        return result

    def forget(self) -> None:
        """Forget all results, because an action has changed what they describe."""
        self._entries = {}

    def _ended(self, entry: _Entry, task: asyncio.Task[Any], keep: Callable[[], float]) -> None:
        failed = task.cancelled() or task.exception() is not None
        entry.until = asyncio.get_running_loop().time() + (self._refused if failed else keep())

    def _drop_expired(self, now: float) -> None:
        for key in [each for each, entry in self._entries.items() if entry.until <= now]:
            del self._entries[key]

    def _make_room(self) -> None:
        """Drop the oldest results. Callers that wait for one of them still get it."""
        while len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]


async def _limited(make: Callable[[], Awaitable[Result]], within: float) -> Result:
    async with asyncio.timeout(within):
        return await make()
