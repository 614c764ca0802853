"""Stream and consumer configurations as the server's own JSON: checked, compared and merged, never through a dataclass.

A field that is newer than this client survives a read, merge and write. Durations are integer nanoseconds on the wire
(a ``timedelta`` is accepted), times RFC 3339 (a ``datetime`` with a zone is accepted).
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
    "template_owner": "stream templates are gone from JetStream: leave it out",
    "max_messages_per_stream": "JetStream has no such field: max_msgs bounds a stream",
}
_EITHER = ("filter_subject", "filter_subjects")  # one takes the place of the other
_FOLLOWING = {
    "ack_policy": ("ack_wait", "max_ack_pending"),
    "backoff": ("ack_wait",),
    "deliver_policy": ("opt_start_seq", "opt_start_time"),
    "deliver_subject": ("max_waiting",),
    "priority_policy": ("priority_timeout",),
}
"""Consumer fields, and those that the server fills in or allows according to them (``setConsumerConfigDefaults`` and
``checkConsumerCfg`` in nats-server's ``server/consumer.go``)."""
_DUPLICATE_WINDOW = 120 * 10**9
"""A stream's default, or its ``max_age`` where that is shorter (``StreamDefaultDuplicatesWindow``)."""


def normalise(config: Config) -> dict[str, Any]:
    """A copy in the server's terms.

    Raises:
        InvalidValue: what JSON cannot hold, or a time that is not RFC 3339 with a zone.
    """
    try:
        wanted = _normalise("config", config)
        json.dumps(wanted, allow_nan=False).encode()
    except InvalidValue:
        raise
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidValue("config", type(config).__name__, f"the server takes JSON: {error}") from None
    return dict(wanted)


def _fields(config: Config) -> dict[str, Any]:
    return {name: _normalise(name, value) for name, value in config.items() if value is not None}


def _normalise(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return nanoseconds(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidValue(name, value, "a time needs a zone")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, str) and _is_time(name):
        try:
            time_nanoseconds(value)
        except ValueError:
            raise InvalidValue(name, value, "give a datetime, or RFC 3339 with a zone: 2026-11-21T03:00:00Z") from None
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
        raise InvalidValue("config['metadata']", metadata, "give a mapping of texts")


def check_stream_config(config: object, name: str | None = None) -> dict[str, Any]:
    """Normalised, a source's ``domain`` as its ``external``. ``name``: of the stream that it belongs to.

    Raises InvalidValue for what JetStream forbids in names and subjects, and for fields that it does not have.
    """
    if not isinstance(config, Mapping):
        raise InvalidValue("config", config, "a stream configuration is a mapping with at least a name")
    wanted = normalise(config if name is None else {"name": name, **config})
    check_stream_name(wanted.get("name"), "config['name']")
    if name is not None and wanted["name"] != name:
        raise InvalidValue("config['name']", wanted["name"], f"the stream's name is {name!r}, and stays")
    subjects = wanted.get("subjects", [])
    if not isinstance(subjects, list):
        raise InvalidValue("config['subjects']", subjects, "give a list of subjects")
    for subject in subjects:
        check_filter(subject, "config['subjects']")
    for field, remedy in _NO_STREAM_FIELDS.items():
        if field in wanted:
            raise InvalidValue(f"config[{field!r}]", wanted[field], remedy)
    if "mirror" in wanted:
        wanted["mirror"] = _source("config['mirror']", wanted["mirror"])
    if "sources" in wanted:
        if not isinstance(wanted["sources"], list):
            raise InvalidValue("config['sources']", wanted["sources"], "give a list of sources, each with a name")
        wanted["sources"] = [_source("config['sources']", each) for each in wanted["sources"]]
    _check_metadata(wanted)
    return wanted


def _source(field: str, source: Any) -> dict[str, Any]:
    """A mirror or source as the server knows it: a ``domain`` is the API that it is asked for by (nats.go)."""
    if not isinstance(source, Mapping):
        raise InvalidValue(field, source, "a source is a mapping with at least a name")
    rest = dict(source)
    if "domain" not in rest:
        return rest
    domain = rest.pop("domain")
    if "external" in rest:
        raise InvalidValue(f"{field}['domain']", domain, "give domain or external, not both")
    check_subject(domain, f"{field}['domain']")
    return {**rest, "external": {"api": f"$JS.{domain}.API", "deliver": ""}}


def check_consumer_config(config: object) -> dict[str, Any]:
    """Normalised, with ``name`` filled from ``durable_name``. Raises InvalidValue."""
    if not isinstance(config, Mapping):
        raise InvalidValue("config", config, "a consumer configuration is a mapping")
    wanted = normalise(config)
    if "durable_name" in wanted:
        wanted.setdefault("name", wanted["durable_name"])
    if "name" in wanted:
        check_consumer_name(wanted["name"], "config['name']")
    if "filter_subject" in wanted and wanted.get("filter_subjects"):
        raise InvalidValue("config['filter_subjects']", wanted["filter_subjects"], "not together with filter_subject")
    if not isinstance(wanted.get("filter_subjects", []), list):
        raise InvalidValue("config['filter_subjects']", wanted["filter_subjects"], "give a list of subjects")
    for subject in [wanted["filter_subject"]] if "filter_subject" in wanted else wanted.get("filter_subjects", []):
        check_filter(subject, "config['filter_subject']")
    _check_metadata(wanted)
    return wanted


def consumer_name(config: object) -> str:
    """The name that a consumer configuration must have to be updated. Raises InvalidValue."""
    wanted = check_consumer_config(config)
    return check_consumer_name(wanted.get("name"), "config['name']")


def difference(current: Config, wanted: Config) -> Difference:
    """The wanted fields that the server has otherwise. What is not wanted is not looked at."""
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
    """The server's configuration with the wanted fields in it, nested ones, too; everything else stays as it is.

    ``remove``: fields that go before the wanted ones come: a mirror's ``mirror``, or ``metadata`` to have no other.
    Fields whose value follows from one that changes go as well: sent back, they would be refused in its place.

    Raises InvalidValue for one text instead of a list of them.
    """
    if isinstance(remove, str):
        raise InvalidValue("remove", remove, "give a list of fields")
    gone = {*remove, *(other for one, other in (_EITHER, _EITHER[::-1]) if wanted.get(one))}
    for name in _FOLLOWING.keys() & {*difference(current, wanted), *remove}:
        gone.update(_FOLLOWING[name])
    if _window_is_too_long(current, wanted):
        gone.add("duplicate_window")
    return _merged({name: value for name, value in current.items() if name not in gone}, wanted)


def _window_is_too_long(current: Config, wanted: Config) -> bool:
    """A ``duplicate_window`` that nobody gave is longer than the new ``max_age``, which the server refuses."""
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
    """One line for a log or an error: ``max_age: 0 → 3600000000000, …``."""
    return ", ".join(f"{name}: {before!r} → {after!r}" for name, (before, after) in changes.items())
