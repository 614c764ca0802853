# SPDX-License-Identifier: Apache-2.0
"""A run of a reader in a thread of the process with which Spark plans a query."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from anyio.from_thread import start_blocking_portal

from jetstream_client import connect
from jetstream_handoff.take.reader import ConsumerReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pyspark_jetstream.options import Options

Result = TypeVar("Result")


class ReaderThread:
    """A run of the reader in a thread that lives as long as this process, which Spark ends."""

    def __init__(self, options: Options, most: int) -> None:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            connected = self._portal.wrap_async_context_manager(connect(options.settings()))
            js = stack.enter_context(connected)

            async def created() -> ConsumerReader:
                return ConsumerReader(js, options.stream, str(options.consumer), most, options.replaces)

            self._reader = self._portal.call(created)
            stack.callback(self._portal.call, self._reader.release)
            self._kept = stack.pop_all()

    def take(self, step: Callable[[ConsumerReader], Awaitable[Result]]) -> Result:
        return self._portal.call(step, self._reader)

    def close(self) -> None:
        self._kept.close()
