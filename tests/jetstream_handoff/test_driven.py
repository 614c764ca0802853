"""Work that was only started is not done, whatever its function returns or leaves behind."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from jetstream_handoff.errors import WorkNotDone
from jetstream_handoff.hold import driven as module
from jetstream_handoff.hold.driven import driven


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TO_END", 0.3)


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


async def stream() -> AsyncIterator[int]:
    yield 1


def unfinished() -> Future[int]:
    return Future()


def awaitable() -> asyncio.Future[int]:
    with asyncio.Runner() as runner:
        return asyncio.Future(loop=runner.get_loop())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (generator, r"iterator \(generator\).*iterate over it"),
        (stream, r"iterator \(async_generator\)"),
        (lambda: map(str, [1]), r"iterator \(map\)"),
        (coroutine, r"awaitable \(coroutine\).*asyncio.run"),
        (unfinished, r"a future that is not done.*result\(\)"),
        (lambda: [unfinished()], "a future that is not done"),
        (lambda: {"rows": [coroutine()]}, "awaitable"),
        (awaitable, r"awaitable \(Future\)"),
    ],
)
def test_what_nobody_has_driven_is_not_done(value: Callable[[], Any], says: str) -> None:
    with pytest.raises(WorkNotDone, match=says):
        driven(value)


@pytest.mark.parametrize("value", [None, 1, "text", b"bytes", [1, {"a": (2,)}], range(3), {1: 2}.items(), iter([])])
def test_values_are_done(value: Any) -> None:
    assert driven(lambda: value) is value


def test_a_future_that_is_done_counts_as_its_result() -> None:
    with ThreadPoolExecutor() as pool:
        good, bad = pool.submit(int, "1"), pool.submit(int, "one")
    assert driven(lambda: [good]) == [good]
    with pytest.raises(ValueError, match="one"):
        driven(lambda: [good, bad])


def test_a_thread_that_still_runs_is_named() -> None:
    end = threading.Event()
    try:
        with pytest.raises(WorkNotDone, match=r"threads .* \(loads table 7\); wait for them with join"):
            driven(threading.Thread(target=end.wait, name="loads table 7").start)
    finally:
        end.set()


def test_a_busy_thread_of_a_pool_is_named_and_an_idle_one_is_not() -> None:
    end, pool = threading.Event(), ThreadPoolExecutor(thread_name_prefix="loading")
    try:
        assert driven(lambda: pool.submit(int, "1").result()) == 1  # its thread lives on, and waits for work
        with pytest.raises(WorkNotDone, match="loading_"):
            driven(lambda: bool(ThreadPoolExecutor(thread_name_prefix="loading").submit(end.wait)))
    finally:
        end.set()
        pool.shutdown()


def test_a_thread_that_ends_soon_or_does_not_keep_python_alive_is_no_work() -> None:
    driven(threading.Thread(target=time.sleep, args=(0.1,)).start)
    driven(threading.Thread(target=time.sleep, args=(1,), daemon=True).start)


def test_threads_of_others_do_not_matter() -> None:
    end = threading.Event()
    threading.Thread(target=end.wait).start()
    try:
        driven(lambda: None)
    finally:
        end.set()
