# SPDX-License-Identifier: Apache-2.0
"""Calling the asynchronous client from synchronous code: anyio's portal runs an event loop in another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jetstream_client.context import JetStream
    from jetstream_client.wire.settings import ConnectionSettings

Result = TypeVar("Result")


def run(settings: ConnectionSettings, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
    """Return the result of ``await function(js)`` on a separate connection. Raises ConnectionFailed."""
    from anyio.from_thread import start_blocking_portal

    from jetstream_client import connect

    async def connected() -> Result:
        async with connect(settings) as js:
            return await function(js)

    with start_blocking_portal() as portal:
        return portal.call(connected)
