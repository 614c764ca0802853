"""Counts and seconds that a caller gives: refused at once where a server or a timer could do nothing with them."""

from __future__ import annotations

from datetime import timedelta

from jetstream_client.errors import InvalidValue

_MOST = (1 << 63) - 1
"""The server reads counts and nanoseconds as signed 64-bit integers."""
_LONGEST = 10**9
"""Seconds, about 31 years: as nanoseconds they still fit."""
_LONGEST_DURATION = timedelta(seconds=_LONGEST)


def check_count(field: str, value: object, least: int = 1) -> int:
    """The count itself, a whole number that is not a bool. Raises InvalidValue."""
    if type(value) is not int or not least <= value <= _MOST:
        raise InvalidValue(field, value, f"give a whole number, {least} or more")
    return value


def check_seconds(field: str, value: object, *, zero: bool = False) -> float:
    """The seconds themselves, an int or float above 0; ``zero``: or 0. Raises InvalidValue, for NaN as well."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST and (value or zero):
        return value
    raise InvalidValue(field, value, f"give seconds {'from 0' if zero else 'above 0'}, at most {_LONGEST:,}")


def check_duration(field: str, value: object, least: timedelta = timedelta()) -> timedelta:
    """The duration itself. Raises InvalidValue."""
    if isinstance(value, timedelta) and least <= value <= _LONGEST_DURATION:
        return value
    raise InvalidValue(field, value, f"give a timedelta, at least {least} and at most {_LONGEST_DURATION.days:,} days")
