"""Times and durations as a DAG writes them."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.times import time_nanoseconds
from jetstream_handoff.times import duration, instant

AT = "2026-11-21T03:00:00.000000000Z"
EARLIEST, LATEST = datetime(1971, 1, 1), datetime(2200, 1, 1)  # without a zone, which hypothesis requires  # noqa: DTZ001


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 21, 3, tzinfo=UTC),
        datetime(2026, 11, 21, 8, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        pendulum.datetime(2026, 11, 21, 4, tz="Europe/Berlin"),
        "2026-11-21T03:00:00Z",
        "2026-11-21T03:00:00+00:00",
        "2026-11-21 04:00:00+01:00",
        "2026-11-20T22:00:00-05",
        "20261121T030000Z",
        " 2026-11-21T03:00:00.0Z ",
    ],
    ids=str,
)
def test_a_time_in_any_zone(value: Any) -> None:
    assert instant(value) == AT


def test_a_template_of_the_data_interval_is_a_time() -> None:
    start = pendulum.datetime(2026, 11, 21, 3)
    assert instant(str(start)) == instant(start) == AT


def test_no_digit_of_the_server_s_times_is_lost() -> None:
    for digits in ("1", "1234567", "123456789", "000000001"):
        text = f"2026-11-21T03:00:00.{digits}Z"
        assert time_nanoseconds(instant(text)) == time_nanoseconds(text)


@given(st.datetimes(EARLIEST, LATEST, timezones=st.timezones()), st.integers(0, 999))
def test_any_time_keeps_its_nanoseconds(moment: datetime, rest: int) -> None:
    text = f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}{rest:03}Z"
    assert instant(text) == text


def test_a_year_has_four_digits() -> None:
    assert instant("0001-01-01T00:00:00Z") == "0001-01-01T00:00:00.000000000Z"


@pytest.mark.parametrize(
    "value",
    [
        "2026-11-21T03:00:00",  # the zone is unknown
        datetime(2026, 11, 21, 3),  # likewise  # noqa: DTZ001
        "2026-11-21",
        "10:00",
        "now",
        "2026-11-21T03:00:00Z/2026-11-22T03:00:00Z",
        "2026-11-21T03:00:00.1234567891Z",
        "2026-02-30T03:00:00Z",
        "2026-11-21T03:00:60Z",
        "2026-11-21T03:00:00 Europe/Berlin",
        "P1D",
        "None",
        "",
        1795230000,
        None,
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
    ],
    ids=str,
)
def test_what_is_no_time_of_a_zone(value: Any) -> None:
    with pytest.raises(ValueError, match="give a datetime with a time zone, or an ISO 8601 string"):
        instant(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(minutes=5), timedelta(minutes=5)),
        (pendulum.duration(minutes=5), timedelta(minutes=5)),
        ("PT5M", timedelta(minutes=5)),
        ("P1DT12H", timedelta(hours=36)),
        ("P2W", timedelta(weeks=2)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT0S", timedelta(0)),
        ("PT1.5H", timedelta(minutes=90)),
    ],
    ids=str,
)
def test_a_duration(value: Any, expected: timedelta) -> None:
    found = duration(value)
    assert (found, type(found)) == (expected, timedelta)


@pytest.mark.parametrize(
    "value",
    [
        5,
        5.0,
        True,
        "5",
        "P",
        "PT",
        "P1M",
        "P1Y",
        pendulum.duration(months=1),
        "P4294967297D",  # pendulum's parser would read it as a day
        "-PT5S",
        timedelta(seconds=-1),
        "PT5M5",
        "P1D T1H",
        "",
        "None",
        None,
    ],
    ids=str,
)
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ValueError, match="give a timedelta or an ISO 8601 duration"):
        duration(value)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (instant, duration):
        try:
            read(text)
        except ValueError as error:
            assert str(error).startswith("give ")  # noqa: PT017
