# SPDX-License-Identifier: Apache-2.0
"""Checks of counts and durations before they are passed to a server or a timer, and how both are written."""

from __future__ import annotations

from datetime import timedelta

from jetstream_client.errors import InvalidValue

_MOST = (1 << 63) - 1
"""Counts and nanoseconds are signed 64-bit integers on the server."""
_LONGEST = 10**9
"""Seconds, about 31 years. As nanoseconds they still fit into 64 bits."""
_LONGEST_DURATION = timedelta(seconds=_LONGEST)


def check_count(field: str, value: object, least: int = 1) -> int:
    """Check and return a count: a whole number of at least ``least``, and not a bool. Raises InvalidValue."""
    if type(value) is not int or not least <= value <= _MOST:
        raise InvalidValue(field, value, f"must be a whole number, {least} or more")
    return value


def check_seconds(field: str, value: object, *, zero: bool = False) -> float:
    """Check and return a number of seconds: an int or float above 0, or also 0 if ``zero`` is set. Raises InvalidValue
    for anything else, including NaN."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST and (value or zero):
        return value
    least = "0 or more" if zero else "above 0"
    raise InvalidValue(field, value, f"must be a number of seconds, {least} and at most {_LONGEST:,}")


def check_duration(field: str, value: object, least: timedelta = timedelta()) -> timedelta:
    """Check and return a duration. Raises InvalidValue."""
    if isinstance(value, timedelta) and least <= value <= _LONGEST_DURATION:
        return value
    remedy = f"must be a timedelta of at least {least} and at most {_LONGEST_DURATION.days:,} days"
    raise InvalidValue(field, value, remedy)


def number(count: int, what: str) -> str:
    """Return a number of things, such as ``1 message`` or ``2,000 messages``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def lasting(seconds: float) -> str:
    """Return a duration in whole units, such as ``90 minutes``."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * size:
            return number(int(seconds // size), unit)
    return number(max(0, int(seconds)), "second")
