"""A claim that synchronous code holds without an orchestrator, on a real server."""

import asyncio
import threading
import time
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import AlreadyDone, HoldLost
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.ledger.ledger import Ledger
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, floor, publish, take


async def test_heartbeats_go_on_while_the_thread_works(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)

    ended: list[int] = []

    def fails() -> None:
        raise RuntimeError

    def work() -> int:
        with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
            held.on_end(fails)  # neither fails what is settled nor keeps the next from being called
            held.on_end(lambda: ended.append(threading.get_ident()))
            end = time.monotonic() + 2.5 * ACK_WAIT.total_seconds()
            while time.monotonic() < end:
                sum(range(10_000))
            held.reject(range(3, 5), "bad")
            count = sum(1 for _ in held.messages())
            held.settle("value")
            assert held.ended
            assert ended == []
        assert ended == [threading.get_ident()]
        return count

    assert await asyncio.to_thread(work) == 10
    assert await floor(stream) == 10
    info = await stream.consumer(CONSUMER).info()
    assert info.counter == 10  # nothing was redelivered
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.value, receipt.rejected) == ("value", Sequences.of([3, 4]))

    def again() -> None:
        with BlockingHold.begin(stream.js.settings, claim, try_number=2):
            pass  # pragma: no cover - it is settled

    with pytest.raises(AlreadyDone):
        await asyncio.to_thread(again)


class TimeOut(Exception):
    """The time-out of a task. Airflow raises it in the main thread, wherever that is."""


@pytest.mark.parametrize("begun", [False, True])
async def test_a_time_out_is_raised_when_settling_has_ended(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """It comes while settling is started, before or after that has taken effect."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    start = BlockingPortal.start_task_soon

    def interrupted(portal: BlockingPortal, *arguments: Any) -> None:
        monkeypatch.undo()
        if begun:
            start(portal, *arguments)
        raise TimeOut

    def work() -> None:
        with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
            monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
            with pytest.raises(TimeOut):
                held.settle("value")
            assert held.ended

    await asyncio.to_thread(work)
    assert await floor(stream) == 10
    assert len(await Ledger(stream.js, stream.name, CONSUMER).committed()) == 1


async def test_a_killed_claim_stops_its_work_and_is_released(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    stopped = threading.Event()

    def work() -> None:
        with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
            held.on_stop(stopped.set)
            held.kill()
            assert held.killed
            assert stopped.wait(10)
            with pytest.raises(HoldLost, match="killed"):
                held.on_stop(stopped.set)  # what would begin now would never be stopped
            held.settle()

    with pytest.raises(HoldLost, match="killed"):
        await asyncio.to_thread(work)
    (again,) = await take(stream, "another run")
    assert again.sequences == claim.sequences
