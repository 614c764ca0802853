# SPDX-License-Identifier: Apache-2.0
"""The fields of JetStream's configurations, each with the check of its value (:mod:`.values`).

The fields are defined by nats-server's ``StreamConfig`` and ``ConsumerConfig`` (server/stream.go and
server/consumer.go, 2.15). An unknown field is an error when the DAG is parsed, because the name is more likely to be
misspelled than to belong to a server that is newer than this package. To set a field of a newer server, use
:meth:`JetStreamHook.run`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_nats_jetstream.operators.values import (
    Check,
    Wrong,
    duration,
    duration_text,
    flag,
    many,
    mapping,
    names,
    one_of,
    text,
    time,
    whole,
)
from airflow_nats_jetstream.template import absent
from jetstream_client.config import Difference, normalise
from jetstream_client.errors import InvalidValue


class Fields(NamedTuple):
    """The fields of one kind of configuration.

    what:      the kind of object: ``"stream"`` or ``"consumer"``.
    table:     each field and the check of its value.
    for_life:  each field that the server never changes, and a regular expression that matches the server's refusal.
    remedy:    what to do when the server refuses to change such a field.
    zero:      the value that the server uses instead of 0, for each field that has such a value.
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
        checked = mapping(f"{self.what}s have", **self.table)(config)
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
        """Return the fields that caused the server's refusal, and a remedy.

        description:  the refusal, in the server's words.
        changes:      the changes that were requested.
        """
        named = [name for name in changes if (words := self.for_life.get(name)) and re.search(words, description)]
        if named:
            return named, self.remedy
        spoken = description.lower()
        likely = [name for name in changes if name in spoken or name.replace("_", " ") in spoken]
        return likely or list(changes), "correct the value, or leave the field out to keep its current value"


_limit, _count = whole(-1), whole(0)
_transform = mapping(src=text, dest=text)
_source = mapping(
    name=text,
    opt_start_seq=_count,
    opt_start_time=time,
    filter_subject=text,
    subject_transforms=many(_transform),
    external=mapping(api=text, deliver=text),
    domain=text,
    consumer=mapping(name=text, deliver_subject=text),
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
        "placement": mapping(cluster=text, tags=many(text), preferred=text),
        "mirror": _source,
        "sources": many(_source),
        "compression": one_of("none", "s2"),
        "first_seq": _count,
        "subject_transform": _transform,
        "republish": mapping(src=text, dest=text, headers_only=flag),
        "allow_direct": flag,
        "mirror_direct": flag,
        "sealed": flag,
        "deny_delete": flag,
        "deny_purge": flag,
        "allow_rollup_hdrs": flag,
        "consumer_limits": mapping(inactive_threshold=duration, max_ack_pending=_limit),
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
        "delete this one with JetStreamDeleteConsumerOperator. A new consumer begins at the message that its "
        "deliver_policy selects"
    ),
    zero={"max_deliver": -1},
)


def consumer_config(config: Any) -> dict[str, Any] | None:
    """Return the parameter ``consumer_config`` with its fields as the server accepts them; None if it is not given.

    config:  the fields as the DAG gives them.

    Raises:
        InvalidValue: a field that JetStream does not have, or a value that it does not accept.
    """
    if absent(config):
        return None
    try:
        return normalise(CONSUMER.check(config)) or None
    except Wrong as wrong:
        place = "consumer_config" + "".join(f"[{each!r}]" for each in wrong.path)
        raise InvalidValue(place, wrong.value, wrong.remedy) from None
