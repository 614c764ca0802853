"""The lag of consumers as numbers, on a real server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetstream_client import connect
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.watch.lag import NUMBERS, ConsumerLag, lags
from jetstream_handoff.watch.overview import Survey
from tests.jetstream_handoff.access import Access
from tests.jetstream_handoff.steps import CONSUMER, publish, take

LONG = {"ack_wait": timedelta(seconds=60)}


async def looked(survey: Survey) -> tuple[ConsumerLag, float]:
    """The lag of the only consumer, and the server's time of this look in seconds."""
    overview = await survey.look()
    (lag,) = lags(overview)
    return lag, time_nanoseconds(next(overview.consumers).now) / 1e9


async def test_every_number_of_a_consumer(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(stream, 20)
    rejected, held = await take(stream, messages_per_claim=10, consumer_config=LONG)
    async with Hold.begin(stream.js, rejected, try_number=1) as hold:
        await hold.reject(Sequences.of([1, 2]), "no date")
        await hold.settle()
    await publish(stream, 7)
    (_,) = await take(stream, "other", max_messages=3, consumer_config=LONG)
    async with Hold.begin(stream.js, held, try_number=1):
        survey = Survey(stream.js, ages=True)
        lag, now = await looked(survey)
        first = time_nanoseconds((await stream.get_message(24)).time) / 1e9
        assert lag.oldest_seconds == pytest.approx(now - first, abs=1e-3)
        assert lag.numbers == {
            "pending": 4,
            "unacknowledged": 13,
            "open_claims": 2,
            "held_claims": 1,
            "dead_letters": 2,
            "oldest_seconds": lag.oldest_seconds,
            "barrier_claims": 0,
            "barrier_seconds": 0,
            "stopped_keys": 0,
            "errors": 0,
            "warnings": 1,  # the dead letters
            "unknown": 0,
        }
        assert lag.names == (stream.name, CONSUMER)
        again, later = await looked(survey)
        assert again.oldest_seconds == pytest.approx(later - first, abs=1e-3)
    assert tuple(lag.numbers) == NUMBERS


async def test_messages_that_cannot_be_claimed_now_wait_too(stream: Stream) -> None:
    """The consumer is paused, or as many as max_ack_pending are unacknowledged."""
    await publish(stream, 4)
    await take(stream, max_messages=2, consumer_config={**LONG, "max_ack_pending": 2})
    lag, _ = await looked(Survey(stream.js, ages=True))
    assert (lag.pending, lag.unacknowledged) == (2, 2)
    assert lag.oldest_seconds
    await stream.consumer(CONSUMER).pause(datetime.now(UTC) + timedelta(hours=1))
    lag, _ = await looked(Survey(stream.js, ages=True))
    assert (lag.pending, lag.oldest_seconds is not None and lag.oldest_seconds > 0, lag.errors) == (2, True, 1)
    await stream.purge()
    assert (await looked(Survey(stream.js, ages=True)))[0].pending == 0


async def test_what_may_not_be_read_is_unknown_and_not_zero(tmp_path: Path) -> None:
    access = Access(tmp_path)
    access.server.start()
    try:
        async with connect(access.settings("admin")) as js:
            stream = await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
            await js.publish("flights.a", b"x")
            await take(stream, consumer="delays")
            await js.publish("flights.a", b"x")
        async with connect(access.settings("sensor")) as js:
            lag, _ = await looked(Survey(js, ages=True))
            assert lag.numbers == {
                "pending": 1,
                "unacknowledged": 1,
                "open_claims": 1,
                "held_claims": 0,
                "barrier_claims": 0,
                "barrier_seconds": 0,
                "stopped_keys": 0,
                "errors": 0,
                "warnings": 0,
                "unknown": 2,  # this user may read neither dead letters nor messages
            }
            assert (lag.dead_letters, lag.oldest_seconds) == (None, None)
    finally:
        access.server.stop()


async def test_a_consumer_that_is_gone_has_no_pending_messages_that_anyone_knows(stream: Stream) -> None:
    await publish(stream, 4)
    await take(stream)
    await stream.consumer(CONSUMER).delete()
    lag, _ = await looked(Survey(stream.js, ages=True))
    assert (lag.pending, lag.unacknowledged, lag.oldest_seconds, lag.open_claims) == (None, None, None, 1)
    assert (lag.errors, lag.unknown) == (1, 5)
