"""Pausing a task at one of its awaits, so that something else can happen exactly there."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Self

_current: ContextVar["Paused | None"] = ContextVar("_current", default=None)


class Paused:
    """Runs a coroutine as a task, and pauses it when it, or a task that it has created, suspends for the ``at``-th
    time (1 for the first time).

    Use it as a context manager: after its end, tasks are made as before.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine = coroutine
        self._at = at
        self._suspended = 0
        self.reached = asyncio.Event()
        """Set while the task is paused."""
        self._resumed = asyncio.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_task_factory()
        self._loop.set_task_factory(_make)  # type: ignore[arg-type]
        token = _current.set(self)
        self.task = asyncio.create_task(self._coroutine)
        _current.reset(token)
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self._loop.set_task_factory(self._before)

    async def arrived(self) -> bool:
        """Wait until the task is paused, or has ended. Returns whether it is paused."""
        here = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait([here, self.task], return_when=asyncio.FIRST_COMPLETED)
        here.cancel()
        return self.reached.is_set()

    def resume(self) -> None:
        self._resumed.set()

    def suspends(self) -> bool:
        self._suspended += 1
        return self._suspended == self._at

    async def pause(self) -> None:
        self.reached.set()
        await self._resumed.wait()


class _Steps:
    """Awaits a coroutine like ``await``, and asks at each suspension whether to pause."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], paused: Paused) -> None:
        self._coroutine = coroutine
        self._paused = paused

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration as ended:
                return ended.value
            thrown = None
            try:
                if self._paused.suspends():
                    yield from self._paused.pause().__await__()
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine gets it
                thrown = error


def _make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **how: Any) -> asyncio.Task[Any]:
    context = how.get("context")
    paused = context.get(_current) if context else _current.get()
    if paused is not None:
        coroutine = _awaiting(_Steps(coroutine, paused))
    return asyncio.Task(coroutine, loop=loop, **how)


async def _awaiting(steps: _Steps) -> Any:
    return await steps
