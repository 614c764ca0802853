"""Waiting for something that happens soon, even on a slow machine."""

import asyncio
from collections.abc import Awaitable, Callable

SOON = 15.0
"""Seconds within which something immediate happens, even on a slow machine."""


async def until(condition: Callable[[], bool | Awaitable[bool]], within: float = SOON) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)
