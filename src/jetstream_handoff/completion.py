"""Giving something back while being cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)

LEASE_ENDS = "the messages are redelivered when their lease ends"


async def complete(work: Coroutine[Any, Any, None], within: float, what: str, otherwise: str) -> None:
    """Await ``work``. No cancellation cuts it off, however many arrive: Airflow's triggerer cancels a trigger again
    every second until it has ended, and ``anyio`` shields only against its own cancellations.

    A cancellation that arrives meanwhile is raised when the work has ended. An error of the work is raised, or logged
    where a cancellation is raised instead.

    within:           seconds after which the work is given up, with a warning.
    what, otherwise:  for the warning: what the work does, and what happens if it does not succeed.
    """

    async def bounded() -> None:
        try:
            async with asyncio.timeout(within) as bound:
                await work
        except TimeoutError:
            if not bound.expired():
                raise
            log.warning("%s was given up after %g s: %s", what, within, otherwise)

    task = asyncio.create_task(bounded())
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is None or not cancelled.args:  # the one with a message, if there is one
                    cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failed := task.exception()) is not None:
        log.warning("%s failed: %s; %s", what, failed, otherwise)
    raise cancelled  # as it was: the triggerer tells by its message whether to call on_kill
