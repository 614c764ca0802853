"""Which nats-server a configuration field or a request needs, where 2.10 does not have it.

From 2.12 on a server refuses a field that it does not know (10025), and names only that one; an older one drops it
without a word. So what is known to be too new is refused before it is sent.

Sources: server/jetstream_versioning.go (API levels, ADR-44), and the structs ``StreamConfig``, ``StreamSource`` and
``ConsumerConfig`` at the tags 2.10.0, 2.11.0, 2.12.0 and 2.14.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Requirement(NamedTuple):
    """``what`` needs this ``version`` of nats-server; ``level`` is its API level."""

    level: int
    version: tuple[int, int]
    what: str

    def met_by(self, version: str) -> bool:
        found = re.match(r"v?(\d+)\.(\d+)", version)
        return found is not None and (int(found[1]), int(found[2])) >= self.version


_2_11, _2_12, _2_14 = (1, (2, 11)), (2, (2, 12)), (4, (2, 14))

BATCHED_DIRECT_GET = Requirement(*_2_11, "batched direct get")
START_TIME = Requirement(*_2_11, "start_time")
PEDANTIC = Requirement(*_2_11, "pedantic")
DATA_ALONE = Requirement(*_2_12, "direct get of the data alone")
MIRROR_PROMOTION = Requirement(*_2_12, "an update that removes mirror")

PAUSE, UNPIN, RESET = (
    Requirement(*_2_11, "pausing a consumer"),
    Requirement(*_2_11, "ending a pin"),
    Requirement(*_2_14, "resetting a consumer"),
)

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


def newest(config: Mapping[str, Any]) -> Requirement | None:
    """What of a configuration needs the newest server; None for one that every server knows, as far as we do."""
    found = [Requirement(*_FIELDS[name], name) for name, value in config.items() if name in _FIELDS and value]
    for (name, value), since in _VALUES.items():
        if config.get(name) == value:
            found.append(Requirement(*since, f"{name}={value!r}"))
    sources = config.get("sources")
    for place, source in [("mirror", config.get("mirror")), *(("sources", each) for each in sources or ())]:
        if isinstance(source, Mapping) and source.get("consumer") is not None:
            found.append(Requirement(*_2_14, f"{place}.consumer"))
    return max(found, default=None)
