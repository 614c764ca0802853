"""What newer servers can do, and how it is known whether a server can: its API level (ADR-44).

An older server does not refuse the header of a feature that it does not know: it stores the message and ignores it. A
message with a TTL would stay for ever, one that expects a sequence would be stored whatever the sequence is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Feature(NamedTuple):
    """``level`` is what ``$JS.API.INFO`` says as ``api.level``, ``version`` the first nats-server that has it."""

    words: str
    level: int
    version: str


MESSAGE_TTL = Feature("message TTL", 1, "2.11")
EXPECTED_LAST_SUBJECT = Feature("the expected last sequence of several subjects", 1, "2.11")
MESSAGE_TRACING = Feature("message tracing", 1, "2.11")
COUNTERS = Feature("counters", 2, "2.12")
SCHEDULED_ONCE = Feature("scheduled messages", 2, "2.12")
ATOMIC_BATCHES = Feature("atomic batches", 2, "2.12")
SCHEDULED_AGAIN = Feature("schedules that repeat, sample, roll up or have a time zone", 4, "2.14")
FAST_BATCHES = Feature("fast-ingest batches", 4, "2.14")
COMMIT_ALONE = Feature("committing an atomic batch without a last message", 4, "2.14")

_LEVELS = {(2, 11): 1, (2, 12): 2, (2, 14): 4}

_BY_HEADER = {
    "Nats-TTL": MESSAGE_TTL,
    "Nats-Expected-Last-Subject-Sequence-Subject": EXPECTED_LAST_SUBJECT,
    "Nats-Trace-Dest": MESSAGE_TRACING,
    "Nats-Trace-Only": MESSAGE_TRACING,
    "Nats-Incr": COUNTERS,
    "Nats-Schedule": SCHEDULED_ONCE,
    "Nats-Schedule-Source": SCHEDULED_AGAIN,
    "Nats-Schedule-Time-Zone": SCHEDULED_AGAIN,
    "Nats-Schedule-Rollup": SCHEDULED_AGAIN,
    "Nats-Batch-Id": ATOMIC_BATCHES,
}


def needed(headers: Mapping[str, str | Sequence[str]]) -> Feature | None:
    """The newest of the features that the headers ask for."""
    if _BY_HEADER.keys().isdisjoint(headers):
        return None
    features = [feature for name, feature in _BY_HEADER.items() if name in headers]
    when = headers.get("Nats-Schedule", "@at ")
    if any(not each.startswith("@at ") for each in ([when] if isinstance(when, str) else when)):
        features.append(SCHEDULED_AGAIN)
    return max(features, key=lambda feature: feature.level)


def level_of(version: str) -> int:
    """The API level that a nats-server of this version has at least."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return max((level for first, level in _LEVELS.items() if numbers >= first), default=0)
