"""What Airflow renders: values that are not known before the task runs, and are texts then."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_nats_jetstream import times
from jetstream_client.errors import InvalidValue


def templated(value: Any) -> bool:
    """Whether a value is only known when the task runs: it has a template in it, or comes from another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(templated(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(templated(each) for each in value)
    return hasattr(value, "resolve")


def check_mapping(name: str, value: object, what: str) -> None:
    """Raises InvalidValue for what is not a mapping whose keys are texts, and is not templated.

    It shows a type only: what stands in the place of a mapping may be a secret that belongs into it.
    """
    odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else [value]
    if odd and not templated(value):
        raise InvalidValue(name, type(odd[0]).__name__, f"give a mapping of {what}")


def absent(value: object) -> bool:
    """Whether nothing is given: a template makes the text ``None`` of None."""
    return value in (None, "", "None")


def whole_number(name: str, value: object, lowest: int = 1, why: str = "") -> int:
    """A number, of which a template makes a text. Raises InvalidValue for another one than from ``lowest`` on."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) >= lowest):
        raise InvalidValue(name, value, f"give a whole number, {lowest} or more{why}")
    return int(text)


def optional_number(name: str, value: object, lowest: int = 1, why: str = "") -> int | None:
    """:func:`whole_number`, or None where nothing is given."""
    return None if absent(value) else whole_number(name, value, lowest, why)


def duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    """Return a ``timedelta`` or ISO 8601 duration as a ``timedelta``.

    Raises InvalidValue for anything else, and for 0 unless it is allowed.
    """
    try:
        length = times.duration(value)
    except ValueError as error:
        number = isinstance(value, int | float) and value > 0
        remedy = f"{error}: seconds are timedelta(seconds={value:g})" if number else str(error)
        raise InvalidValue(name, value, remedy) from None
    if not length and not zero:
        raise InvalidValue(name, value, "give a duration above 0")
    return length


def known_duration(name: str, value: Any, *, zero: bool = False) -> Any:
    """:func:`duration` of what is known when the DAG is parsed; a template stays as it is until the task runs."""
    return value if templated(value) else duration(name, value, zero=zero)


def instant(name: str, value: object) -> str:
    """Return a point in time as RFC 3339 in UTC: :func:`times.instant`. Raises InvalidValue."""
    try:
        return times.instant(value)
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from None


def claimed(claim: Any, name: str) -> str | None:
    """A field of a claim, once the task knows its claim."""
    value = claim.get(name) if isinstance(claim, Mapping) else None
    return value if isinstance(value, str) else None


class OfClaim:
    """A task that works on a claim, whose stream and consumer are its own."""

    claim: Any

    @property
    def stream(self) -> str | None:
        """None until the task knows its claim."""
        return claimed(self.claim, "stream")

    @property
    def consumer(self) -> str | None:
        """None until the task knows its claim."""
        return claimed(self.claim, "consumer")
