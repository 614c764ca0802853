# SPDX-License-Identifier: Apache-2.0
"""Times and durations in the server's formats: RFC 3339 and integer nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})")

_UNITS = (  # the number of digits until the year 5138, or 2262 for nanoseconds
    (11, "seconds", 10**9),
    (14, "milliseconds", 10**6),
    (17, "microseconds", 10**3),
    (19, "nanoseconds", 1),
)


def nanoseconds(duration: timedelta) -> int:
    """A duration in nanoseconds. The result is exact, unlike ``total_seconds() * 10**9``."""
    return ((duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds) * 1_000


def time_text(nanoseconds: int) -> str:
    """Return a time in nanoseconds since 1970 as an RFC 3339 time in UTC, without loss."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


@lru_cache(maxsize=4_096)  # each look at a thousand claims compares the same times several times
def time_nanoseconds(text: str) -> int:
    """Convert an RFC 3339 time to nanoseconds since 1970 without loss, because claims compare creation times exactly.

    Raises ValueError for anything else, including a time without a time zone.
    """
    if (time := _TIME.fullmatch(text)) is None:
        raise ValueError("not an RFC 3339 time")
    whole, fraction, zone = time.groups("")
    return int(datetime.fromisoformat(whole + zone).timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds from one RFC 3339 time to another; negative if the clock was set back. Raises ValueError as
    :func:`time_nanoseconds`."""
    return (time_nanoseconds(later) - time_nanoseconds(earlier)) / 1e9


def unix_time(value: object) -> str | None:
    """Return what to do about a number that was given in place of a time; None for anything else.

    A number has no unit, and seconds that are read as milliseconds, or the reverse, are another time without an error.
    So the remedy names the time for the unit that the number's size suggests.
    """
    text = str(value).strip()
    if isinstance(value, bool) or re.fullmatch(r"[0-9]{9,19}(\.[0-9]+)?", text) is None:
        return None
    digits = len(text.partition(".")[0])
    unit, each = next((unit, each) for most, unit, each in _UNITS if digits <= most)
    meant = time_text(int(text.partition(".")[0]) * each)
    return f"a number has no unit; if it is a Unix time in {unit}, give {meant}"
