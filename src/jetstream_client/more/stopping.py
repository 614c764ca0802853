# SPDX-License-Identifier: Apache-2.0
"""Waiting for asyncio tasks that must end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel the task, and wait until it has ended. Its result or error is ignored."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def finished(task: asyncio.Task[Any], within: float) -> None:
    """Wait until the task has ended, at most ``within`` seconds, and then cancel it. Its result or error is ignored.
    Cancelling the caller does not shorten the wait."""
    clock = asyncio.get_running_loop().time
    limit = clock() + within
    while not task.done() and (rest := limit - clock()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=rest)
    await cancelled(task)
