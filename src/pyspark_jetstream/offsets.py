# SPDX-License-Identifier: Apache-2.0
"""Where a read begins and ends: ``earliest``, ``latest``, a sequence, a time, or the end of a period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jetstream_client.errors import InvalidValue
from jetstream_client.times import time_nanoseconds, time_text, unix_time

EARLIEST, LATEST = "earliest", "latest"
_LARGEST_SEQUENCE = 2**63 - 1  # the column is a long


@dataclass(frozen=True, order=True)
class Time:
    """A point in time, in nanoseconds since 1970 UTC, as the server stamps messages."""

    nanoseconds: int

    @property
    def rfc3339(self) -> str:
        return time_text(self.nanoseconds)


@dataclass(frozen=True, order=True)
class Before(Time):
    """The end of a period: the messages that the server stamped before this time."""


Offset = str | int | Time


def parse(name: str, value: str) -> Offset:
    """Read the offset that an option gives. Raises InvalidValue."""
    if value in (EARLIEST, LATEST):
        return value
    if value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) <= _LARGEST_SEQUENCE:
        return int(value)
    try:
        return Time(_nanoseconds(value))
    except ValueError:
        remedy = "give 'earliest', 'latest', a sequence of 1 or more, or a time such as 2026-11-21T03:00:00Z"
        raise InvalidValue(name, value[:40], remedy) from None


def period(name: str, value: str, kind: type[Time]) -> Time:
    """Read the start or the end of a period. Raises InvalidValue."""
    try:
        return kind(_nanoseconds(value))
    except ValueError:
        remedy = unix_time(value) or "give a time with a time zone, such as 2026-11-21T03:00:00Z"
        raise InvalidValue(name, value[:40], remedy) from None


def _nanoseconds(value: str) -> int:
    """Read a time of RFC 3339, which permits a space for the ``T``: PySpark passes ``str(value)`` of a ``datetime``."""
    return time_nanoseconds(value.replace(" ", "T", 1))


def check_order(starting: Offset | None, ending: Offset | None, said: Mapping[str, str]) -> None:
    """Raise InvalidValue if the range is reversed, or a period is empty, as far as that is known without the server.

    said:  the options as they were given.
    """
    name = "endingTimestamp" if isinstance(ending, Before) else "endingOffsets"
    start = next((f"{each}={said[each]}" for each in ("startingOffsets", "startingTimestamp") if each in said), "")
    if isinstance(starting, Time) and isinstance(ending, Time):
        if isinstance(ending, Before) and ending.nanoseconds == starting.nanoseconds:
            raise InvalidValue(name, said[name], f"the period would be empty; it must be after {start}")
        reversed_ = ending.nanoseconds < starting.nanoseconds
    else:
        reversed_ = isinstance(starting, int) and isinstance(ending, int) and ending < starting
    if reversed_:
        raise InvalidValue(name, said[name], f"it must not be before {start}")
