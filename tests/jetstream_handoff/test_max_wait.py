"""A take that waits for many messages, or until the oldest has waited for ``max_wait``: "a thousand messages or ten
minutes"."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.take.threshold import Threshold
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking, unacknowledged

LONG = {"ack_wait": timedelta(seconds=30)}
WAITS: dict[str, Any] = {"min_messages": 1_000, "max_messages": 2_000, "consumer_config": LONG}
TWO = timedelta(seconds=2)
TEN = timedelta(seconds=10)  # to see whether the time began to count again, on a busy machine


async def stored(stream: Stream, sequence: int) -> float:
    """When the server stored a message, in seconds since 1970."""
    return time_nanoseconds((await stream.get_message(sequence)).time) / 1e9


async def looked(stream: Stream, run: str, **changes: Any) -> list[Claim]:
    """One look of a rescheduled sensor."""
    work = Take(stream.js, taking(stream, run, **{**WAITS, **changes}))
    await work.prepare()
    claims = await work.look()
    work.handed_on()
    return claims


async def test_fewer_than_min_messages_are_handed_on_after_max_wait(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(stream, 999)
    (claim,) = await take(stream, wait=60, max_wait=TWO, **WAITS)
    assert claim.count == 999
    assert datetime.now(UTC).timestamp() - await stored(stream, 1) >= TWO.total_seconds()
    assert "the wait ends: the oldest of 999 messages (" in caplog.text
    assert "max_wait (2 s) is over before min_messages=1000" in caplog.text


async def test_min_messages_end_the_wait_before_max_wait(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await publish(stream, 1_000, size=5)
    (claim,) = await take(stream, wait=60, max_wait=timedelta(hours=1), **WAITS)
    assert claim.count == 1_000
    assert "the wait ends: 1,000 messages (5,000 bytes) reach min_messages=1000" in caplog.text


async def test_the_wait_goes_on_while_nobody_pulls(stream: Stream) -> None:
    """A sensor that died or timed out, and one that is rescheduled, has released what it had pulled."""
    await publish(stream, 5)
    assert await looked(stream, "looks", max_wait=timedelta(hours=1)) == []
    assert await take(stream, "timed out", wait=1.5, max_wait=timedelta(hours=1), **WAITS) == []
    assert (await Ledger(stream.js, stream.name, CONSUMER).read())[0] is None
    since = await stored(stream, 1)
    await until(lambda: datetime.now(UTC).timestamp() - since > TEN.total_seconds())
    began = asyncio.get_running_loop().time()
    (claim,) = await take(stream, "retry", wait=60, max_wait=TEN, **WAITS)
    assert claim.count == 5
    assert asyncio.get_running_loop().time() - began < TEN.total_seconds()


async def test_a_look_hands_on_what_has_waited_for_max_wait(stream: Stream) -> None:
    await publish(stream, 5)
    since = await stored(stream, 1)
    await until(lambda: datetime.now(UTC).timestamp() - since > TWO.total_seconds())
    await publish(stream, 1)
    assert await looked(stream, "longer", max_wait=timedelta(hours=1)) == []
    (claim,) = await looked(stream, "looks", max_wait=TWO)
    assert claim.count == 6  # and the new one is not left behind


async def test_messages_that_are_redelivered_wait_no_second_time(stream: Stream) -> None:
    """Their work has failed long after they were stored: nobody waits for 999 others before it is tried again."""
    await publish(stream, 3)
    (first,) = await take(stream, "fails", consumer_config=LONG)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await hold.fail("it is an exercise")
    since = await stored(stream, 1)
    await until(lambda: datetime.now(UTC).timestamp() - since > TWO.total_seconds())
    await publish(stream, 1)
    (again,) = await take(stream, "next", wait=60, max_wait=TWO, **WAITS)
    assert (again.sequences.first, again.count) == (1, 4)


async def test_a_time_out_before_max_wait_releases_everything(stream: Stream) -> None:
    await publish(stream, 5)
    assert await take(stream, "first", wait=1.5, max_wait=timedelta(hours=1), **WAITS) == []
    (claim,) = await take(stream, "other", wait=5, consumer_config=None)  # at once: long before ack_wait
    assert claim.count == 5
    assert await unacknowledged(stream) == 5


async def test_min_bytes(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await publish(stream, 9, size=100)
    assert await take(stream, "too few", wait=1.5, min_bytes=1_000, consumer_config=LONG) == []
    await publish(stream, 1, size=100)
    (claim,) = await take(stream, "enough", wait=60, min_bytes=1_000, consumer_config=LONG)
    assert (claim.count, claim.bytes) == (10, 1_000)
    assert "10 messages (1,000 bytes) reach min_messages=1 and min_bytes=1000" in caplog.text


async def test_a_full_batch_and_max_wait_end_the_wait_for_min_bytes(stream: Stream) -> None:
    await publish(stream, 15, size=1)
    of: dict[str, Any] = {"wait": 60, "min_bytes": 1_000, "max_messages": 10, "consumer_config": LONG}
    (full,) = await take(stream, "full", **of)
    assert full.count == 10
    (rest,) = await take(stream, "rest", max_wait=TWO, **of)
    assert rest.count == 5


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_wait": TWO}, "max_wait=.*leave max_wait out, or give min_messages of 2 or more, or min_bytes"),
        ({"min_messages": 2, "max_wait": timedelta(seconds=-1)}, "max_wait=.*at least 0:00:01"),
        ({"min_messages": 2, "max_wait": timedelta(0)}, "max_wait=.*at least 0:00:01"),
        ({"min_messages": 2, "max_wait": 600}, "max_wait=600.*timedelta"),
        ({"min_bytes": 0}, "min_bytes=0"),
        ({"min_bytes": 1.5}, r"min_bytes=1\.5"),
        ({"min_messages": 0}, "min_messages=0"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        Threshold(**values)
    with pytest.raises(InvalidValue, match=says):
        Taking(**{"stream": "S", "consumer": "c", "owner": ("dag",), "max_messages": 5, **values})


def test_a_stored_taking_is_as_before_unless_they_are_used() -> None:
    plain = Taking(stream="S", consumer="c", owner=("dag",), max_messages=5)
    assert not {"min_bytes", "max_wait"} & plain.to_json().keys()
    used = Taking(stream="S", consumer="c", owner=("dag",), max_messages=5, min_messages=3, min_bytes=7, max_wait=TWO)
    assert used.to_json()["max_wait"] == 2.0
    assert Taking.from_json(used.to_json()) == used
