# SPDX-License-Identifier: Apache-2.0
"""Finishing a release although the task that does it is cancelled."""

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

    Airflow's triggerer cancels a trigger again every second until it has ended, and ``anyio`` shields only against its
    own cancellations. A cancellation that arrives meanwhile is raised when the work has ended. An error of the work is
    then logged; without a cancellation it is raised.

    within:     seconds after which the work is abandoned with a warning.
    what:       what the work does, for the warning.
    otherwise:  what happens if the work does not succeed, for the warning.
    """

    async def bounded() -> None:
        try:
            async with asyncio.timeout(within) as bound:
                await work
        except TimeoutError:
            if not bound.expired():
                raise
            log.warning("%s did not finish within %g s: %s", what, within, otherwise)

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
    raise cancelled  # unchanged, because its message tells the triggerer whether to call on_kill
