# SPDX-License-Identifier: Apache-2.0
"""Work that was started and is not done: a function has returned a generator, a coroutine or a future, or has left
threads behind. No I/O."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, TypeVar

from jetstream_handoff.errors import WorkNotDone

Result = TypeVar("Result")

TO_END = 5.0
"""Seconds for which threads that the work has left behind may go on: it may have told them to end."""
_SEARCHED = 1_000
"""How many values are looked at. A long list of plain values need not be searched to its end."""


def driven(work: Callable[[], Result]) -> Result:
    """Do the work, and return its value.

    work:  called without arguments, in this thread.

    Raises:
        WorkNotDone: the call has returned, but the work is not done. The value is or contains a generator, a coroutine
            or another awaitable, or a future that is not done; or a thread that the work has started still runs. Daemon
            threads and idle threads of a ``ThreadPoolExecutor`` do not count.
    """
    with threads_ended():
        value = work()
        check_driven(value)
    return value


@contextmanager
def threads_ended() -> Iterator[None]:
    """Check at the end of the block that no thread still works that was started in it. After an error, nothing is
    checked.

    Raises:
        WorkNotDone: as :func:`driven`.
    """
    before = set(threading.enumerate())
    yield
    if left := _left(before):
        names = ", ".join(sorted(each.name for each in left))
        raise WorkNotDone(
            f"threads that it has started still run after {TO_END:g} s ({names})",
            "wait for them with join(), or use a ThreadPoolExecutor in a 'with' block and read the result of each "
            "future, so that their errors are noticed; make a thread that does not belong to the work a daemon thread",
        )


def check_driven(value: object, *, iterators: bool = True) -> None:
    """Check that a value of the work does not stand for work that is still to be done.

    value:      the value. Its lists, tuples, sets and mappings are searched.
    iterators:  whether iterators count, such as generators. Default True.

    Raises:
        WorkNotDone: as :func:`driven`.
    """
    for each in itertools.islice(_within(value), _SEARCHED):
        _check(each, iterators)


def _within(value: object, depth: int = 3) -> Iterator[object]:
    """The value, and the values in its lists, tuples, sets and mappings."""
    yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if depth and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _within(each, depth - 1)


def _check(value: Any, iterators: bool) -> None:
    """Raise WorkNotDone if a value stands for work that nobody has done."""
    name = type(value).__name__
    if isinstance(value, futures.Future):
        if not value.done():
            raise WorkNotDone("it has returned a future that is not done", "return the future's result() instead")
        value.result()  # raises the error of the work
    elif iterators and (isinstance(value, GeneratorType | AsyncIterator | map | filter) or is_stream(value)):
        remedy = "iterate over it inside the function, and return the result, for example a list or a number"
        raise WorkNotDone(f"it has returned an iterator ({name}) whose code has not run to its end", remedy)
    elif inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        raise WorkNotDone(
            f"it has returned an awaitable ({name}) that nobody awaits",
            "await it inside asyncio.run(), and return the result",
        )


def is_stream(value: object) -> bool:
    """Whether a value is a reader of Arrow batches, such as that of ``claim.arrow()``."""
    return isinstance(value, Iterator) and hasattr(value, "__arrow_c_stream__")


def _left(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that were started since and still work, after some time in which they may end."""
    end = time.monotonic() + TO_END
    while True:
        frames = sys._current_frames()
        new = (each for each in threading.enumerate() if each not in before and not each.daemon)
        left = [each for each in new if not _is_idle(frames.get(each.ident or 0))]
        if not left or time.monotonic() > end:
            return left
        left[0].join(0.05)


def _is_idle(frame: Any) -> bool:
    """Whether a thread waits for work in a ThreadPoolExecutor, whose threads live as long as the process."""
    return frame is not None and frame.f_code is futures.thread._worker.__code__
