"""Reading a period: from one time, inclusive, to another, exclusive, by the server's clock."""

from datetime import UTC, datetime
from itertools import pairwise

import pendulum
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.info import StreamInfo
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds, time_text
from jetstream_handoff.rules import period
from pyspark_jetstream.offsets import Before, Time
from pyspark_jetstream.options import Options
from pyspark_jetstream.reader import JetStreamReader
from pyspark_jetstream.stream_reader import JetStreamStreamReader
from tests.pyspark_jetstream.test_stream_reader import publish

SECOND = 10**9


async def read(stream: Stream, **options: str) -> list[int]:
    """Return the sequences that a batch would read."""
    given = Options.parse({"servers": ",".join(stream.js.settings.servers), "stream": stream.name, **options})
    given.check_batch()
    parts = JetStreamReader(given, StructType()).partitions()
    return [sequence for part in parts for sequence in part.value.sequences]


async def times_of(stream: Stream) -> list[int]:
    last = (await stream.info()).state["last_seq"]
    messages = [await stream.get_message(sequence) for sequence in range(1, last + 1)]
    return [time_nanoseconds(message.time) for message in messages]


async def test_periods_that_follow_each_other_have_each_message_once(
    settings: ConnectionSettings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(period, "SETTLED", 0)
    publish(settings, stream, 40)
    times = await times_of(stream)
    now = time_nanoseconds((await stream.info()).now)
    ends = [times[0], times[0] + 1, times[9] - 1, times[9], times[9] + 1, times[30], now]
    found: list[int] = []
    for start, end in pairwise(ends):
        some = await read(stream, startingTimestamp=time_text(start), endingTimestamp=time_text(end))
        assert some == [number for number, each in enumerate(times, 1) if start <= each < end]  # to the nanosecond
        found += some
    assert found == list(range(1, 41))


async def test_a_period_without_messages_is_empty(spark: SparkSession, stream: Stream) -> None:
    publish(stream.js.settings, stream, 3)
    options = {"connection": "nats_tests", "stream": stream.name, "startingTimestamp": "2001-01-01T00:00:00Z"}
    messages = spark.read.format("jetstream").options(**options, endingTimestamp="2001-01-02T01:00:00+01:00").load()
    assert messages.count() == 0


async def test_the_end_is_not_in_the_future(stream: Stream) -> None:
    publish(stream.js.settings, stream, 3)
    end = time_text(time_nanoseconds((await stream.info()).now) + 3_600 * SECOND)
    for option in ("endingTimestamp", "endingOffsets"):
        with pytest.raises(InvalidValue, match=f"{option}=.*{end}.*has not ended: the server's clock shows 20"):
            await read(stream, **{option: end})


async def test_the_start_of_a_streaming_query_is_not_in_the_future(stream: Stream) -> None:
    """It would begin with the messages that are stored before it. A batch has no such messages."""
    publish(stream.js.settings, stream, 3)
    start = time_text(time_nanoseconds((await stream.info()).now) + 3_600 * SECOND)
    for option in ("startingTimestamp", "startingOffsets"):
        given = {"servers": ",".join(stream.js.settings.servers), "stream": stream.name, option: start}
        reader = JetStreamStreamReader(Options.parse(given), StructType())
        with pytest.raises(InvalidValue, match=f"{option}.*{start}.*is in the future: the server's clock shows 20"):
            reader.initialOffset()
        assert await read(stream, **{option: start}) == []


async def test_just_after_the_end_a_read_waits_for_messages_on_their_way(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is that of the server, so it waits for 3 s."""
    publish(stream.js.settings, stream, 3)
    monkeypatch.setattr(period, "SETTLED", 3 * SECOND)
    last = (await times_of(stream))[-1]
    assert await read(stream, endingTimestamp=time_text(last + 1)) == [1, 2, 3]
    assert time_nanoseconds((await stream.info()).now) >= last + 3 * SECOND


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"endingTimestamp": "1763694000000"}, "in milliseconds, give 2025-11-21T03:00:00.000000000Z"),
        ({"startingTimestamp": "1763694000"}, "in seconds, give 2025-11-21T03:00:00.000000000Z"),
        ({"startingTimestamp": "17"}, "give a time with a time zone"),
        ({"startingTimestamp": "2026-11-21T03:00:00"}, "give a time with a time zone"),
        ({"startingTimestamp": "2026-11-21 03:00:00"}, "give a time with a time zone"),
        ({"endingTimestamp": "latest"}, "give a time with a time zone"),
        ({"startingTimestamp": "2026-11-21T03:00:00Z", "startingOffsets": "earliest"}, "startingOffsets=earliest, not"),
        (
            {"startingTimestamp": "2026-11-21T03:00:00Z", "endingTimestamp": "2026-11-21T04:00:00+01:00"},
            "the period would be empty; it must be after startingTimestamp=2026-11-21T03:00:00Z",
        ),
        (
            {"startingTimestamp": "2026-11-21T03:00:00Z", "endingTimestamp": "2026-11-21T02:00:00Z"},
            "it must not be before startingTimestamp=2026-11-21T03:00:00Z",
        ),
        ({"claim": "{}", "endingTimestamp": "2026-11-21T03:00:00Z"}, "claim"),
    ],
)
def test_bad_periods_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        Options.parse({"servers": "nats://127.0.0.1:4222", "stream": "S"} | options)


def test_a_time_may_be_a_datetime() -> None:
    """PySpark passes the ``str`` of an option's value, which has a space for the T."""
    start = datetime(2026, 11, 21, 3, tzinfo=UTC)
    end = pendulum.datetime(2026, 11, 22, tz="Europe/Berlin")
    given = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    found = Options.parse({"servers": "nats://127.0.0.1:4222", "stream": "S", **given})
    assert isinstance(found.starting, Time)
    assert isinstance(found.ending, Before)
    times = found.starting.rfc3339, found.ending.rfc3339
    assert times == ("2026-11-21T03:00:00.000000000Z", "2026-11-21T23:00:00.000000000Z")


async def test_a_sequence_that_is_a_time_is_named(stream: Stream) -> None:
    publish(stream.js.settings, stream, 3)
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidValue, match=r"ends at sequence 3; .* in milliseconds, give 2025-11-21T03"):
            await read(stream, **{option: "1763694000000"})
    assert await read(stream, startingOffsets="4") == []


def test_a_mirror_that_lags_behind_does_not_have_the_period() -> None:
    state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "last_ts": "0001-01-01T00:00:00Z"}
    info = {"config": {"name": "M"}, "state": state, "created": "2026-11-21T00:00:00Z", "ts": "2026-11-21T04:00:00Z"}
    end, said = time_nanoseconds("2026-11-21T03:00:00Z"), "2026-11-21T03:00:00Z"

    def left(mirror: dict[str, object] | None) -> float:
        of = StreamInfo({**info, "mirror": mirror})
        period.check("until", said, end, of)
        return period.left(end, of)

    assert left(None) == left({"name": "O", "lag": 0, "active": SECOND}) == 0
    for mirror in ({"lag": 7, "active": SECOND}, {"lag": 0, "active": -1}, {"lag": 0, "active": 60 * SECOND}):
        with pytest.raises(InvalidValue, match=r"'M' is a mirror, which is [07] messages behind or has lost"):
            left({"name": "O", **mirror})
