# SPDX-License-Identifier: Apache-2.0
"""Where a read begins and ends: ``earliest``, ``latest``, a sequence, or a time."""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_client.errors import InvalidValue
from jetstream_client.times import time_nanoseconds, time_text

EARLIEST, LATEST = "earliest", "latest"
_LARGEST_SEQUENCE = 2**63 - 1  # the column is a long


@dataclass(frozen=True, order=True)
class Time:
    """A point in time, in nanoseconds since 1970 UTC, as the server stamps messages."""

    nanoseconds: int

    @property
    def rfc3339(self) -> str:
        return time_text(self.nanoseconds)


Offset = str | int | Time


def parse(name: str, value: str) -> Offset:
    """Read the offset that an option gives. Raises InvalidValue."""
    if value in (EARLIEST, LATEST):
        return value
    if value.isascii() and value.isdigit() and len(value) < 20 and 1 <= int(value) <= _LARGEST_SEQUENCE:
        return int(value)
    try:
        return Time(time_nanoseconds(value))
    except ValueError:
        remedy = "give 'earliest', 'latest', a sequence of 1 or more, or a time such as 2026-11-21T03:00:00Z"
        raise InvalidValue(name, value[:40], remedy) from None


def reversed_(starting: Offset | None, ending: Offset | None) -> bool:
    """Return whether the range is empty, as far as that is known without asking the server."""
    if isinstance(starting, Time) and isinstance(ending, Time):
        return ending < starting
    return isinstance(starting, int) and isinstance(ending, int) and ending < starting
