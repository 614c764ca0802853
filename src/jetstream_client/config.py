# SPDX-License-Identifier: Apache-2.0
"""Checking, comparing and merging configurations of streams and consumers.

A configuration is the server's JSON and never becomes a dataclass, so that fields that this client does not know are
kept when a configuration is read, merged and written. Durations are sent as integer nanoseconds (a ``timedelta`` is
accepted), times as RFC 3339 (a ``datetime`` with a time zone is accepted).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter, check_stream_name, check_subject
from jetstream_client.times import nanoseconds, time_nanoseconds

Config = Mapping[str, Any]
Difference = dict[str, tuple[Any, Any]]
"""Field → (the server's value, the wanted value)."""

_NO_STREAM_FIELDS = {
    "template_owner": "JetStream no longer has stream templates; remove the field",
    "max_messages_per_stream": "JetStream has no such field; use max_msgs to limit a stream",
}
_EITHER = ("filter_subject", "filter_subjects")  # setting one of these fields removes the other
_FOLLOWING = {
    "ack_policy": ("ack_wait", "max_ack_pending"),
    "backoff": ("ack_wait",),
    "deliver_policy": ("opt_start_seq", "opt_start_time"),
    "deliver_subject": ("max_waiting",),
    "priority_policy": ("priority_timeout",),
}
"""A consumer's field → the fields whose default or validity depends on it (``setConsumerConfigDefaults`` and
``checkConsumerCfg`` in nats-server's ``server/consumer.go``)."""
_DUPLICATE_WINDOW = 120 * 10**9
"""Default ``duplicate_window`` of a stream in nanoseconds, unless its ``max_age`` is shorter
(``StreamDefaultDuplicatesWindow``)."""


def normalise(config: Config) -> dict[str, Any]:
    """Copy a configuration, with durations and times in the server's format.

    Raises:
        InvalidValue: a value cannot be converted to JSON, or a time is not RFC 3339 with a time zone.
    """
    try:
        wanted = _normalise("config", config)
        json.dumps(wanted, allow_nan=False).encode()
    except InvalidValue:
        raise
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidValue("config", "…", f"this configuration cannot be converted to JSON ({error})") from None
    return dict(wanted)


def _fields(config: Config) -> dict[str, Any]:
    return {name: _normalise(name, value) for name, value in config.items() if value is not None}


def _normalise(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return nanoseconds(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidValue(name, value, "a time needs a time zone")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, str) and _is_time(name):
        try:
            time_nanoseconds(value)
        except ValueError:
            remedy = "must be a datetime, or an RFC 3339 string with a time zone, for example 2026-11-21T03:00:00Z"
            raise InvalidValue(name, value, remedy) from None
    if isinstance(value, Mapping):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_normalise(name, each) for each in value]
    return value


def _is_time(name: object) -> bool:
    return isinstance(name, str) and name.endswith(("_time", "_until"))


def _check_metadata(wanted: Config) -> None:
    metadata = wanted.get("metadata", {})
    if not isinstance(metadata, Mapping) or not all(
        isinstance(each, str) for pair in metadata.items() for each in pair
    ):
        raise InvalidValue("config['metadata']", metadata, "must be a mapping of strings to strings")


def check_stream_config(config: object, name: str | None = None) -> dict[str, Any]:
    """Check a stream configuration. Returns it normalised, with each source's ``domain`` converted to ``external``.

    name: name of the stream, if it exists already.

    Raises InvalidValue for a value of the wrong type, a name or subject that JetStream forbids, and a field of
    ``_NO_STREAM_FIELDS``. Other fields that this client does not know are left to the server.
    """
    if not isinstance(config, Mapping):
        raise InvalidValue("config", config, "a stream configuration must be a mapping with at least the field 'name'")
    wanted = normalise(config if name is None else {"name": name, **config})
    check_stream_name(wanted.get("name"), "config['name']")
    if name is not None and wanted["name"] != name:
        raise InvalidValue("config['name']", wanted["name"], f"the stream's name {name!r} cannot be changed")
    subjects = wanted.get("subjects", [])
    if not isinstance(subjects, list):
        raise InvalidValue("config['subjects']", subjects, "must be a list of subjects")
    for subject in subjects:
        check_filter(subject, "config['subjects']")
    for field, remedy in _NO_STREAM_FIELDS.items():
        if field in wanted:
            raise InvalidValue(f"config[{field!r}]", wanted[field], remedy)
    if "mirror" in wanted:
        wanted["mirror"] = _source("config['mirror']", wanted["mirror"])
    if "sources" in wanted:
        if not isinstance(wanted["sources"], list):
            raise InvalidValue(
                "config['sources']", wanted["sources"], "must be a list of mappings, each with the field 'name'"
            )
        wanted["sources"] = [_source("config['sources']", each) for each in wanted["sources"]]
    _check_metadata(wanted)
    return wanted


def _source(field: str, source: Any) -> dict[str, Any]:
    """A mirror or source in the server's format. As in nats.go, a ``domain`` becomes the API prefix in ``external``."""
    if not isinstance(source, Mapping):
        raise InvalidValue(field, source, "a source must be a mapping with at least the field 'name'")
    rest = dict(source)
    if "domain" not in rest:
        return rest
    domain = rest.pop("domain")
    if "external" in rest:
        raise InvalidValue(f"{field}['domain']", domain, "set either 'domain' or 'external', not both")
    check_subject(domain, f"{field}['domain']")
    return {**rest, "external": {"api": f"$JS.{domain}.API", "deliver": ""}}


def check_consumer_config(config: object) -> dict[str, Any]:
    """Check a consumer configuration. Returns it normalised, with ``name`` set from ``durable_name``. Raises
    InvalidValue."""
    if not isinstance(config, Mapping):
        raise InvalidValue("config", config, "a consumer configuration must be a mapping")
    wanted = normalise(config)
    if "durable_name" in wanted:
        wanted.setdefault("name", wanted["durable_name"])
    if "name" in wanted:
        check_consumer_name(wanted["name"], "config['name']")
    if "filter_subject" in wanted and wanted.get("filter_subjects"):
        remedy = "set either filter_subject or filter_subjects, not both"
        raise InvalidValue("config['filter_subjects']", wanted["filter_subjects"], remedy)
    if not isinstance(wanted.get("filter_subjects", []), list):
        raise InvalidValue("config['filter_subjects']", wanted["filter_subjects"], "must be a list of subjects")
    if "filter_subject" in wanted:
        check_filter(wanted["filter_subject"], "config['filter_subject']")
    for subject in wanted.get("filter_subjects", []):
        check_filter(subject, "config['filter_subjects']")
    _check_metadata(wanted)
    return wanted


def consumer_name(config: object) -> str:
    """The name in the configuration of a consumer that is to be updated. Raises InvalidValue if there is no name."""
    wanted = check_consumer_config(config)
    return check_consumer_name(wanted.get("name"), "config['name']")


def difference(current: Config, wanted: Config) -> Difference:
    """The wanted fields that differ from the server's configuration. Fields that are not in ``wanted`` are ignored."""
    return {
        name: (current.get(name), value) for name, value in wanted.items() if not _equal(name, current.get(name), value)
    }


def _equal(name: str, current: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return not difference(current if isinstance(current, Mapping) else {}, wanted)
    if not current and not wanted:
        return True  # the server omits false, 0, "" and []
    if current == wanted:
        return True
    if _is_time(name) and isinstance(current, str) and isinstance(wanted, str):
        with contextlib.suppress(ValueError):
            return time_nanoseconds(current) == time_nanoseconds(wanted)
    return False


def merge(current: Config, wanted: Config, remove: Iterable[str] = ()) -> dict[str, Any]:
    """Set the wanted fields in the server's configuration, including nested ones. Other fields keep their values.

    ``remove``: fields that are removed before the wanted fields are set, for example ``mirror``, or ``metadata`` to
    drop all its entries that are not wanted. A field whose validity depends on a changed field is removed too, because
    the server would refuse its old value.

    Raises InvalidValue if ``remove`` is a string instead of a list.
    """
    if isinstance(remove, str):
        raise InvalidValue("remove", remove, "must be a list of fields, not a string")
    gone = {*remove, *(other for one, other in (_EITHER, _EITHER[::-1]) if wanted.get(one))}
    for name in _FOLLOWING.keys() & {*difference(current, wanted), *remove}:
        gone.update(_FOLLOWING[name])
    if _window_is_too_long(current, wanted):
        gone.add("duplicate_window")
    return _merged({name: value for name, value in current.items() if name not in gone}, wanted)


def _window_is_too_long(current: Config, wanted: Config) -> bool:
    """Whether the stream has the default ``duplicate_window`` and the new ``max_age`` is shorter. The server would
    refuse this."""
    window, before, after = current.get("duplicate_window", 0), current.get("max_age", 0), wanted.get("max_age", 0)
    if not all(type(each) is int for each in (window, before, after)):
        return False
    return bool(window == min(_DUPLICATE_WINDOW, before or _DUPLICATE_WINDOW) and 0 < after < window)


def _merged(current: Config, wanted: Config) -> dict[str, Any]:
    merged = dict(current)
    for name, value in wanted.items():
        before = merged.get(name)
        inside = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before or {}, value) if inside else value
    return merged


def describe(changes: Difference) -> str:
    """The changes as one line for a log or an error: ``max_age: 0 → 3600000000000, …``."""
    return ", ".join(f"{name}: {before!r} → {after!r}" for name, (before, after) in changes.items())
