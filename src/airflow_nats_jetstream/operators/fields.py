# SPDX-License-Identifier: Apache-2.0
"""The fields of JetStream's configurations, and the values that each of them accepts.

They are those of nats-server's ``StreamConfig`` and ``ConsumerConfig`` (server/stream.go and server/consumer.go, 2.15).
An unknown field is an error when the DAG is parsed, because a typing error is more likely than a server that is newer
than this package. To set a field of a newer server, use :meth:`JetStreamHook.run`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

from airflow_nats_jetstream import times
from airflow_nats_jetstream.template import templated
from jetstream_client.config import Difference
from jetstream_client.times import nanoseconds

Check = Callable[[Any], Any]
"""Return the value as the server accepts it. Raises Wrong."""
Path = tuple[str | int, ...]


class Wrong(Exception):
    """A value that its field does not accept.

    value:   the value.
    remedy:  what to do, for the error.
    path:    the names and positions that lead to the value. Default: the value itself.
    """

    def __init__(self, value: object, remedy: str, path: Path = ()) -> None:
        super().__init__(remedy)
        self.value = value
        self.remedy = remedy
        self.path = path


class Fields(NamedTuple):
    """The fields of one kind of configuration.

    what:      what is configured: ``"stream"`` or ``"consumer"``.
    table:     each field and the check of its value.
    for_life:  each field that the server never changes, and a regular expression that matches the server's refusal.
    remedy:    what to do when the server refuses to change such a field.
    zero:      the value that the server uses instead of 0, for each field where there is one.
    """

    what: str
    table: Mapping[str, Check]
    for_life: Mapping[str, str]
    remedy: str
    zero: Mapping[str, int]

    def check(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration as the server accepts it, with templated values unchanged.

        config:  the configuration as the DAG gives it.

        Raises:
            Wrong: an unknown field, or a value that its field does not accept.
        """
        checked = _mapping(f"{self.what}s have", **self.table)(config)
        for name, default in self.zero.items():
            if checked.get(name) == 0:
                checked[name] = default
        return dict(checked)

    def describe(self, changes: Difference) -> str:
        """Return one line for each changed field, with the old and the new value; durations as people write them.

        changes:  the fields, each with its old and its new value.
        """
        lines = ((name, self._shown(name, old), self._shown(name, new)) for name, (old, new) in changes.items())
        return "\n".join(f"  {name}: {old} → {new}" for name, old, new in lines)

    def _shown(self, name: str, value: Any) -> str:
        if self.table.get(name) is duration and isinstance(value, int):
            return duration_text(value)
        return "not set" if value is None else repr(value)

    def refused(self, description: str, changes: Difference) -> tuple[list[str], str]:
        """Return the fields that the server's refusal is about, and what to do.

        description:  the refusal, in the server's words.
        changes:      the changes that were requested.
        """
        named = [name for name in changes if (words := self.for_life.get(name)) and re.search(words, description)]
        if named:
            return named, self.remedy
        spoken = description.lower()
        likely = [name for name in changes if name in spoken or name.replace("_", " ") in spoken]
        return likely or list(changes), "correct the value, or leave the field out to keep its current value"


def text(value: Any) -> Any:
    """Return ``value`` if it is a string. Raises Wrong for any other value."""
    if not isinstance(value, str):
        raise Wrong(value, "give a string; in YAML, quote a value that looks like a number, true, false or null")
    return value


def flag(value: Any) -> Any:
    """Return a Boolean. Raises Wrong for any other ``value``."""
    if isinstance(value, str) and value.lower() in ("true", "false"):  # a template renders a string
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise Wrong(value, "give true or false")
    return value


def whole(lowest: int, highest: int = 2**63 - 1) -> Check:
    """Return a check for whole numbers from ``lowest`` to ``highest``."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):  # a template renders a string
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            allowed = f"from {lowest} to {highest}" if highest < 2**31 else f"that is {lowest} or more"
            raise Wrong(value, f"give a whole number {allowed}")
        return value

    return check


_S = 10**9
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": _S, "m": 60 * _S, "h": 3_600 * _S, "d": 86_400 * _S}
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(ns|us|µs|ms|s|m|h|d)")

DURATION = (
    "give a duration that is not negative, as a string such as 24h, 1h30m or 500ms, an ISO 8601 duration such as PT5M, "
    "a timedelta, or a whole number of nanoseconds"
)


def duration(value: Any) -> Any:
    """Return a duration in nanoseconds. Raises Wrong for any other ``value``."""
    given = value
    if isinstance(value, timedelta) or (isinstance(value, str) and value.strip().startswith("P")):
        value = _read(lambda: nanoseconds(times.duration(given)), given, DURATION)
    elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value):  # a template renders a string
        value = int(value)
    elif isinstance(value, str) and re.fullmatch(f"(?:{_PART.pattern})+", value):
        value = int(sum(Fraction(number) * _UNITS[unit] for number, unit in _PART.findall(value)))
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Wrong(given, DURATION)
    return value


def _read(read: Callable[[], Any], value: object, remedy: str = "") -> Any:
    try:
        return read()
    except ValueError as error:
        raise Wrong(value, remedy or str(error)) from None


def duration_text(value: int) -> str:
    """Return a number of nanoseconds, ``value``, as people write a duration, without rounding: ``1h30m``."""
    if value == 0:
        return "0"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, value = divmod(value, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def time(value: Any) -> Any:
    """Return a time as RFC 3339 in UTC. Raises Wrong for any other ``value``."""
    return _read(lambda: times.instant(value), value)


def one_of(*values: str) -> Check:
    """Return a check for one of these ``values``."""

    def check(value: Any) -> Any:
        if value not in values:
            raise Wrong(value, f"give one of {', '.join(values)}")
        return value

    return check


def many(check: Check) -> Check:
    """Return a check for a list whose items pass ``check``."""

    def each(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Wrong(value, "give a list")
        return [_checked(check, item, number) for number, item in enumerate(value)]

    return each


def names(value: Any) -> Any:
    """Return a mapping of strings to strings. Raises Wrong for any other ``value``."""
    if not isinstance(value, Mapping):
        raise Wrong(value, "give a mapping of strings to strings")
    return {_checked(text, name, str(name)): _checked(text, item, str(name)) for name, item in value.items()}


def _mapping(have: str = "it has", /, **table: Check) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Wrong(value, f"give a mapping with any of the fields {', '.join(table)}")
        checked = {}
        for name, item in value.items():
            if name not in table:
                near = get_close_matches(str(name), table, n=1, cutoff=0.5)
                meant = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(table)}"
                raise Wrong(item, f"{have} no such field; {meant}", (name,))
            if item is not None:
                checked[name] = _checked(table[name], item, name)
        return checked

    return check


def _checked(check: Check, value: Any, place: str | int) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if (isinstance(value, str) and templated(value)) or hasattr(value, "resolve"):
        return value
    try:
        return check(value)
    except Wrong as wrong:
        raise Wrong(wrong.value, wrong.remedy, (place, *wrong.path)) from None


_limit, _count = whole(-1), whole(0)
_transform = _mapping(src=text, dest=text)
_source = _mapping(
    name=text,
    opt_start_seq=_count,
    opt_start_time=time,
    filter_subject=text,
    subject_transforms=many(_transform),
    external=_mapping(api=text, deliver=text),
    domain=text,
    consumer=_mapping(name=text, deliver_subject=text),
)

STREAM = Fields(
    "stream",
    {
        "name": text,
        "description": text,
        "subjects": many(text),
        "retention": one_of("limits", "interest", "workqueue"),
        "max_consumers": _limit,
        "max_msgs": _limit,
        "max_bytes": _limit,
        "max_age": duration,
        "max_msgs_per_subject": _limit,
        "max_msg_size": whole(-1, 2**31 - 1),
        "discard": one_of("old", "new"),
        "discard_new_per_subject": flag,
        "storage": one_of("file", "memory"),
        "num_replicas": whole(0, 5),
        "no_ack": flag,
        "duplicate_window": duration,
        "placement": _mapping(cluster=text, tags=many(text), preferred=text),
        "mirror": _source,
        "sources": many(_source),
        "compression": one_of("none", "s2"),
        "first_seq": _count,
        "subject_transform": _transform,
        "republish": _mapping(src=text, dest=text, headers_only=flag),
        "allow_direct": flag,
        "mirror_direct": flag,
        "sealed": flag,
        "deny_delete": flag,
        "deny_purge": flag,
        "allow_rollup_hdrs": flag,
        "consumer_limits": _mapping(inactive_threshold=duration, max_ack_pending=_limit),
        "allow_msg_ttl": flag,
        "subject_delete_marker_ttl": duration,
        "allow_msg_counter": flag,
        "allow_atomic": flag,
        "allow_msg_schedules": flag,
        "allow_batched": flag,
        "persist_mode": one_of("default", "async"),
        "metadata": names,
    },
    for_life={  # configUpdateCheck in server/stream.go
        "storage": "storage type",
        "retention": "retention policy",
        "sealed": "unseal",
        "deny_delete": "deny message deletes",
        "deny_purge": "deny purge",
        "mirror": "mirror",
        "allow_msg_ttl": "message TTL",
        "allow_msg_counter": "message counter",
        "allow_msg_schedules": "message schedules",
        "persist_mode": "persist mode",
    },
    remedy=(
        "the server never allows this change; keep the current value, create a stream with another name, or first "
        "delete this one and its messages with JetStreamDeleteStreamOperator"
    ),
    zero=dict.fromkeys(("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"), -1)
    | {"num_replicas": 1},
)
CONSUMER = Fields(
    "consumer",
    {
        "durable_name": text,
        "name": text,
        "description": text,
        "deliver_policy": one_of("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
        "opt_start_seq": _count,
        "opt_start_time": time,
        "ack_policy": one_of("none", "all", "explicit", "flow_control"),
        "ack_wait": duration,
        "max_deliver": _limit,
        "backoff": many(duration),
        "filter_subject": text,
        "filter_subjects": many(text),
        "replay_policy": one_of("instant", "original"),
        "rate_limit_bps": _count,
        "sample_freq": text,
        "max_waiting": _count,
        "max_ack_pending": _limit,
        "flow_control": flag,
        "headers_only": flag,
        "max_batch": _count,
        "max_expires": duration,
        "max_bytes": _count,
        "deliver_subject": text,
        "deliver_group": text,
        "idle_heartbeat": duration,
        "inactive_threshold": duration,
        "num_replicas": whole(0, 5),
        "mem_storage": flag,
        "metadata": names,
        "pause_until": time,
        "priority_groups": many(text),
        "priority_policy": one_of("none", "overflow", "pinned_client", "prioritized"),
        "priority_timeout": duration,
    },
    for_life={  # checkNewConsumerConfig in server/consumer.go
        "deliver_policy": "deliver policy",
        "mem_storage": "storage type",
        "opt_start_seq": "start sequence",
        "opt_start_time": "start time",
        "ack_policy": "ack policy",
        "replay_policy": "replay policy",
        "idle_heartbeat": "heart beats",
        "flow_control": "flow control",
        "deliver_subject": "pull consumer|push consumer|push mode",
        "max_waiting": "max waiting",
    },
    remedy=(
        "the server never allows this change; keep the current value, create a consumer with another name, or first "
        "delete this one with JetStreamDeleteConsumerOperator. A new consumer begins where its deliver_policy says"
    ),
    zero={"max_deliver": -1},
)
