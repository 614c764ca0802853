"""Releasing something while being cancelled many times."""

import asyncio
import logging

import pytest

from jetstream_handoff.hold.completion import complete


async def test_work_is_completed_and_then_the_cancellation_is_raised() -> None:
    done = asyncio.Event()

    async def work() -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)
        done.set()

    task = asyncio.create_task(complete(work(), 10, "working", "nothing is done"))
    while not task.done():
        await asyncio.sleep(0.01)
        task.cancel("user-action")
    assert done.is_set()
    with pytest.raises(asyncio.CancelledError, match="user-action"):
        await task


async def test_work_that_does_not_end_is_given_up_and_said(caplog: pytest.LogCaptureFixture) -> None:
    waiting = asyncio.create_task(complete(asyncio.sleep(60), 0.3, "working", "nothing is done"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await complete(asyncio.sleep(60), 0.1, "sleeping", "nobody rests")
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "working did not finish within 0.3 s; nothing is done",
        "sleeping did not finish within 0.1 s; nobody rests",
    ]


async def test_an_error_is_raised_or_said(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        await complete(fail(), 10, "asking", "nobody knows")
    asking = asyncio.create_task(complete(fail(), 10, "asking", "nobody knows"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert caplog.messages == ["asking failed: no answer; nobody knows"]
