# SPDX-License-Identifier: Apache-2.0
"""Times and durations in the server's formats: RFC 3339 and integer nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})")


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
