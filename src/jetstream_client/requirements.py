# SPDX-License-Identifier: Apache-2.0
"""The nats-server version that a configuration field, header or request needs, if it is newer than 2.10.

From 2.12 on, a server refuses a field that it does not know (10025), and names only the first one. An older server
drops the field silently. Every server ignores a header that it does not know, and stores the message: a message with a
TTL would stay forever, and a message with an expected last sequence would be stored whatever the last sequence is. So
the client refuses everything that is known to be too new for the server, and sends nothing.

Sources: server/jetstream_versioning.go (API levels, ADR-44), and the structs ``StreamConfig``, ``StreamSource`` and
``ConsumerConfig`` at the tags 2.10.0, 2.11.0, 2.12.0 and 2.14.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jetstream_client.errors import LONGEST_TEXT, ServerTooOld


class Requirement(NamedTuple):
    """``what`` needs nats-server ``version``, which has the API level ``level``."""

    level: int
    version: tuple[int, int]
    what: str

    def check(self, version: str) -> None:
        """Raises ServerTooOld if a nats-server of this version is too old."""
        if level_of(version) < self.level:
            raise self.error(version)

    def met_by(self, config: Mapping[str, Any]) -> bool:
        """Whether the server that answered with a configuration is new enough. The leader of a stream or consumer
        answers an INFO request, and since 2.11 the leader adds its version (ADR-44)."""
        return _level(_note(config, "_nats.level")) >= self.level

    def check_answer(self, config: Mapping[str, Any], instead: str = "") -> None:
        """Raises ServerTooOld if the server that answered with a configuration is too old.

        instead:  what to do without upgrading the server.
        """
        if not self.met_by(config):
            raise self.error(_note(config, "_nats.ver")[:LONGEST_TEXT] or "a server older than 2.11", instead)

    def error(self, found: str, instead: str = "") -> ServerTooOld:
        return ServerTooOld(self.what, "{}.{}".format(*self.version), found, instead)


_2_11, _2_12, _2_14 = _LEVELS = (1, (2, 11)), (2, (2, 12)), (4, (2, 14))

BATCHED_DIRECT_GET = Requirement(*_2_11, "batched direct get")
START_TIME = Requirement(*_2_11, "start_time")
PEDANTIC = Requirement(*_2_11, "pedantic")
DATA_ALONE = Requirement(*_2_12, "direct get of the data alone")
MIRROR_PROMOTION = Requirement(*_2_12, "an update that removes mirror")
PAUSE = Requirement(*_2_11, "pausing a consumer")
UNPIN = Requirement(*_2_11, "ending a pin")
RESET = Requirement(*_2_14, "resetting a consumer")
EXPECTED_LAST_SUBJECT = Requirement(*_2_11, "the expected last sequence of several subjects")
MESSAGE_TRACING = Requirement(*_2_11, "message tracing")
COUNTERS = Requirement(*_2_12, "counters")
ATOMIC_BATCHES = Requirement(*_2_12, "atomic batches")
SCHEDULED_AGAIN = Requirement(*_2_14, "schedules that repeat, sample, roll up or have a time zone")
FAST_BATCHES = Requirement(*_2_14, "fast-ingest batches")

_HEADERS = {
    "Nats-TTL": Requirement(*_2_11, "message TTL"),
    "Nats-Expected-Last-Subject-Sequence-Subject": EXPECTED_LAST_SUBJECT,
    "Nats-Trace-Dest": MESSAGE_TRACING,
    "Nats-Trace-Only": MESSAGE_TRACING,
    "Nats-Incr": COUNTERS,
    "Nats-Schedule": Requirement(*_2_12, "scheduled messages"),
    "Nats-Schedule-Source": SCHEDULED_AGAIN,
    "Nats-Schedule-Time-Zone": SCHEDULED_AGAIN,
    "Nats-Schedule-Rollup": SCHEDULED_AGAIN,
    "Nats-Batch-Id": ATOMIC_BATCHES,
}

_FIELDS = {
    "allow_msg_ttl": _2_11,
    "subject_delete_marker_ttl": _2_11,
    "pause_until": _2_11,
    "priority_groups": _2_11,
    "priority_policy": _2_11,
    "priority_timeout": _2_11,
    "allow_msg_counter": _2_12,
    "allow_atomic": _2_12,
    "allow_msg_schedules": _2_12,
    "persist_mode": _2_12,
    "allow_batched": _2_14,
}
_VALUES = {("priority_policy", "prioritized"): _2_12, ("ack_policy", "flow_control"): _2_14}


def level_of(version: str) -> int:
    """The lowest API level that a nats-server of this version can have."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return max((level for level, first in _LEVELS if numbers >= first), default=0)


def of_headers(headers: Mapping[str, str | Sequence[str]]) -> Requirement | None:
    """The requirement of the header that needs the newest server; None if every server knows all headers."""
    if _HEADERS.keys().isdisjoint(headers):
        return None
    found = [needed for name, needed in _HEADERS.items() if name in headers]
    when = headers.get("Nats-Schedule", "@at ")
    if any(not each.startswith("@at ") for each in ([when] if isinstance(when, str) else when)):
        found.append(SCHEDULED_AGAIN)
    return max(found, key=lambda needed: needed.level)


def of_config(config: Mapping[str, Any]) -> Requirement | None:
    """The requirement of the field that needs the newest server; None if no field is known to need one."""
    found = [Requirement(*_FIELDS[name], name) for name, value in config.items() if name in _FIELDS and value]
    for (name, value), since in _VALUES.items():
        if config.get(name) == value:
            found.append(Requirement(*since, f"{name}={value!r}"))
    sources = config.get("sources")
    for place, source in [("mirror", config.get("mirror")), *(("sources", each) for each in sources or ())]:
        if isinstance(source, Mapping) and source.get("consumer") is not None:
            found.append(Requirement(*_2_14, f"{place}.consumer"))
    return max(found, default=None)


def recorded(config: Mapping[str, Any]) -> int:
    """The API level that a stored configuration needs. The server that stored the configuration noted the level in the
    metadata; the result is 0 if this note is missing. A server that was downgraded keeps the note, although it ignores
    the fields that it no longer knows."""
    return _level(_note(config, "_nats.req.level"))


def _note(config: Mapping[str, Any], name: str) -> str:
    """A note that the server has added to a configuration's metadata; empty if there is none."""
    metadata = config.get("metadata")
    return str(metadata.get(name, "")) if isinstance(metadata, Mapping) else ""


def _level(note: str) -> int:
    return int(note) if re.fullmatch("[0-9]{1,9}", note) else 0


def beyond(level: int) -> list[Requirement]:
    """The named requirements of this module that a server of this API level does not meet."""
    named = {value for value in globals().values() if isinstance(value, Requirement)}
    return sorted(each for each in named if each.level > level)
