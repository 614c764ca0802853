"""Waiting for what happens soon, on however slow a machine."""

import asyncio
from collections.abc import Awaitable, Callable

SOON = 15.0
"""Seconds in which what happens at once has surely happened."""


async def until(condition: Callable[[], bool | Awaitable[bool]], within: float = SOON) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(within):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)
