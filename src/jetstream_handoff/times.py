# SPDX-License-Identifier: Apache-2.0
"""Read times and durations as people write them: as objects of Python or pendulum, or as ISO 8601 strings.

The client accepts only RFC 3339 and integer nanoseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pendulum

from jetstream_client.times import unix_time

TIME = "a datetime with a time zone, or an ISO 8601 string with one, such as 2026-11-21T03:00:00Z"
DURATION = "a timedelta or an ISO 8601 duration such as PT5M or P1DT12H, not negative and without months or years"

# pendulum drops all digits after the microseconds, but JetStream's times have nine digits after the point.
_FRACTION = re.compile(r"(?P<before>.*\.[0-9]{6})(?P<nanoseconds>[0-9]{1,3})(?P<after>(?![0-9]).*)")
_LONG_FRACTION = re.compile(r"\.[0-9]{10}")
# Only weeks to seconds, because months and years have no fixed length. At most nine digits, because pendulum's parser
# wraps around at 2³².
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_DURATION = re.compile(
    rf"P(?=.*[0-9])(?:{_NUMBER}W|(?:{_NUMBER}D)?(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?)"
)


def instant(value: object) -> str:
    """Return a point in time as RFC 3339 in UTC, with every digit of the fraction.

    value:  a ``datetime`` with a time zone (pendulum's datetimes have one), or an ISO 8601 string with a time zone.

    Raises:
        ValueError: the value is anything else. The error message names the allowed values. A string without a time zone
            is refused because its meaning would depend on the machine.
    """
    if number := unix_time(value):
        raise ValueError(f"give {TIME}; {number}")
    nanoseconds = ""
    moment = value
    if isinstance(value, str):
        text = value.strip()
        if fraction := _FRACTION.fullmatch(text):
            text, nanoseconds = fraction["before"] + fraction["after"], fraction["nanoseconds"]
        moment = None if _LONG_FRACTION.search(text) or not text[:1].isdigit() else _parsed(text)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"give {TIME}")
    try:
        in_utc = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"give {TIME}") from None
    return f"{in_utc.replace(tzinfo=None).isoformat(timespec='microseconds')}{nanoseconds:0<3}Z"


def duration(value: object) -> timedelta:
    """Return a duration as a ``timedelta``.

    value:  a ``timedelta`` (pendulum's ``Duration`` is one), or an ISO 8601 duration in weeks, days, hours, minutes
            and seconds, with up to six digits after the point.

    Raises:
        ValueError: the value is anything else, such as a number without a unit, a negative duration, or a duration with
            months or years, which have no fixed length. The error message names the allowed values.
    """
    length = value
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        length = _parsed(value.strip())
    if isinstance(length, pendulum.Duration) and not length.years and not length.months:
        length = length.as_timedelta()
    if type(length) is not timedelta or length < timedelta(0):
        raise ValueError(f"give {DURATION}")
    return length


def _parsed(text: str) -> object:
    try:
        # tz=None: a string without a time zone gets none. ``exact``: a date stays a date instead of becoming midnight.
        return pendulum.parse(text, exact=True, tz=None)
    except (ValueError, OverflowError):
        return None
