# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that a configuration's fields can have, such as a duration or a list of strings.

Each check returns a value in the form that the server accepts, whether the value comes from a DAG, a file or a
template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from typing import Any

from airflow_nats_jetstream.template import templated
from jetstream_client.times import nanoseconds
from jetstream_handoff import times

Check = Callable[[Any], Any]
"""Return the value as the server accepts it. Raises Wrong."""
Path = tuple[str | int, ...]


class Wrong(Exception):
    """A value that its field does not accept.

    value:   the value.
    remedy:  the remedy, for the error.
    path:    the names and positions that lead to the value. Default: the value itself.
    """

    def __init__(self, value: object, remedy: str, path: Path = ()) -> None:
        super().__init__(remedy)
        self.value = value
        self.remedy = remedy
        self.path = path


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
    "give a duration that is not negative, as a string such as 24h, 1h30m or 500ms, an ISO 8601 duration such as PT5M "
    "(without months or years), a timedelta, or a whole number of nanoseconds"
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
    """Return ``value``, a number of nanoseconds, as a duration in the usual notation, without rounding: ``1h30m``."""
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
            raise Wrong(value, f"give one of {', '.join(map(repr, values))}")
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


def mapping(have: str = "this mapping has", /, **table: Check) -> Check:
    """Return a check for a mapping whose fields are in ``table`` and pass its checks.

    have:  the beginning of the error for another field. Default ``this mapping has``.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Wrong(value, f"give a mapping with one or more of the fields {', '.join(table)}")
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
