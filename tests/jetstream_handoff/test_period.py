"""A take with ``until``: only messages that the stream stored before this time."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds, time_text
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.rules import period
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking

LONG: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=30)}}


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "SETTLED", 0)


async def time_of(stream: Stream, sequence: int) -> str:
    return (await stream.get_message(sequence)).time


async def now(stream: Stream) -> int:
    return time_nanoseconds((await stream.info()).now)


async def taken(stream: Stream, until: str, **changes: Any) -> tuple[str, bool]:
    """Take, and return the sequences of the claims, and whether the period is exhausted."""
    work = Take(stream.js, taking(stream, until=until, **{**LONG, **changes}))
    await work.prepare()
    claims = await work.take(20)
    work.handed_on()
    return " ".join(str(claim.sequences) for claim in claims), work.period.exhausted


async def settled(stream: Stream, claims: list[Claim]) -> None:
    for claim in claims:
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()


async def test_the_messages_of_a_period_are_claimed_and_later_ones_are_given_back(stream: Stream) -> None:
    await publish(stream, 50)
    await publish(stream, 50)
    until = await time_of(stream, 51)
    claims = await take(stream, until=until, **LONG)
    assert [str(claim.sequences) for claim in claims] == ["1-50"]
    await settled(stream, claims)
    assert await taken(stream, until) == ("", True)
    (rest,) = await take(stream, **LONG)  # without delay: the next run takes what this one has released
    assert str(rest.sequences) == "51-100"
    assert (await stream.consumer(CONSUMER).info()).floor == 50


async def test_each_run_takes_what_was_stored_in_its_interval(stream: Stream) -> None:
    ends = []
    for _ in range(3):
        await publish(stream, 20)
        ends.append(time_text(time_nanoseconds(await time_of(stream, (await stream.info()).state["last_seq"])) + 1))
    found = []
    for end in ends:
        claims = await take(stream, until=end, messages_per_claim=10, **LONG)
        found.append([str(claim.sequences) for claim in claims])
        await settled(stream, claims)
    assert found == [["1-10", "11-20"], ["21-30", "31-40"], ["41-50", "51-60"]]
    assert await taken(stream, ends[-1]) == ("", True)


async def test_an_open_claim_of_the_period_does_not_exhaust_it(stream: Stream) -> None:
    await publish(stream, 10)
    await publish(stream, 10)
    until = await time_of(stream, 11)
    (claim,) = await take(stream, until=until, **LONG)
    consumer = stream.consumer(CONSUMER)
    before = (await consumer.info()).counter
    other = Take(stream.js, taking(stream, "other", until=until, **LONG))
    await other.prepare()
    waits = asyncio.create_task(other.take(60))
    while (await consumer.info()).counter == before:  # noqa: ASYNC110 - until it has seen messages after the period
        await asyncio.sleep(0.05)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.fail("it broke")
    (again,) = await waits
    assert (str(again.sequences), other.period.exhausted) == ("1-10", False)


async def test_a_period_without_messages_is_exhausted(stream: Stream) -> None:
    assert await taken(stream, "2001-01-01T00:00:00Z") == ("", True)
    await publish(stream, 10)
    assert await taken(stream, "2001-01-01T00:00:00Z") == ("", True)
    assert await taken(stream, await time_of(stream, 1)) == ("", True)  # the end is exclusive


async def test_a_take_waits_until_its_period_has_ended(stream: Stream) -> None:
    await publish(stream, 10)
    end = await now(stream) + 2 * 10**9
    work = Take(stream.js, taking(stream, until=time_text(end), **LONG))
    await work.prepare()
    waits = asyncio.create_task(work.take(60))
    await publish(stream, 5)
    (claim,) = await waits
    assert claim.count == 15
    assert await now(stream) >= end


async def test_a_batch_that_is_too_small_for_the_period_is_told(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 30)
    until = time_text(await now(stream))
    config = {"consumer_config": {"ack_wait": timedelta(seconds=30), "max_ack_pending": 1_000}}
    assert await taken(stream, until, max_messages=10, **config) == ("1-10", False)
    assert "the batch ends before the period does" in caplog.text
    caplog.clear()
    assert await taken(stream, until, run="the next") == ("11-30", False)
    assert "the batch ends" not in caplog.text


def test_bad_ends_are_named() -> None:
    def made(**values: Any) -> Taking:
        return Taking(**{"stream": "S", "consumer": "c", "owner": ("dag",), "max_messages": 5, **values})

    with pytest.raises(InvalidValue, match=r"until='1763694000000': .* milliseconds, give 2025-11-21T03:00:00"):
        made(until="1763694000000")
    with pytest.raises(InvalidValue, match="until='yesterday': give a time with a time zone"):
        made(until="yesterday")
    with pytest.raises(InvalidValue, match=r"until=.*leave min_messages, min_bytes and max_wait out"):
        made(until="2026-11-21T03:00:00Z", min_messages=2)
    assert "until" not in made().to_json()  # an older release does not know it
    with_end = made(until="2026-11-21T03:00:00Z")
    assert Taking.from_json(with_end.to_json()) == with_end
