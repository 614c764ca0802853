# SPDX-License-Identifier: Apache-2.0
"""Finish a release even if the asyncio task that performs it is cancelled."""

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
    """Await ``work`` until it ends, however many times the caller is cancelled.

    An orchestrator may repeat the cancellation until the task has ended (in Airflow, every second), and ``anyio``
    shields only against its own cancellations. If the caller was cancelled, the cancellation is raised after the work
    has ended, and an error of the work is only logged. Otherwise, an error of the work is raised.

    within:     seconds after which the work is abandoned with a warning.
    what:       a description of the work, for the warning.
    otherwise:  the consequence of a failure, for the warning.
    """

    async def bounded() -> None:
        try:
            async with asyncio.timeout(within) as bound:
                await work
        except TimeoutError:
            if not bound.expired():
                raise
            log.warning("%s did not finish within %g s; %s", what, within, otherwise)

    task = asyncio.create_task(bounded())
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                if cancelled is None or not cancelled.args:  # prefer a cancellation that has a message
                    cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failed := task.exception()) is not None:
        log.warning("%s failed: %s; %s", what, failed, otherwise)
    raise cancelled  # unchanged, because its message tells the orchestrator why it was cancelled
