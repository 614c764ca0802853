# SPDX-License-Identifier: Apache-2.0
"""Check values that Airflow renders: they are known only when the task runs, and are often strings by then."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_handoff import times


def templated(value: Any) -> bool:
    """Return whether a value is known only when the task runs: it contains a template, or is another task's output.

    value:  the value of a template field; mappings and lists are searched.
    """
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(templated(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(templated(each) for each in value)
    return hasattr(value, "resolve")


def check_mapping(name: str, value: object, what: str) -> None:
    """Check that a value is templated, or a mapping whose keys are strings.

    name:   the parameter's name, for the error.
    value:  the value to check.
    what:   the contents of the mapping, for the error, such as ``"variable names to strings"``.

    Raises:
        InvalidValue: the value is neither. The error shows only the type of the value or of the key, because a value of
            another type may be a secret that belongs inside the mapping.
    """
    odd = [key for key in value if not isinstance(key, str)] if isinstance(value, Mapping) else [value]
    if odd and not templated(value):
        wrong = "a key of this type is not allowed" if odd[0] is not value else "a value of this type is not a mapping"
        raise InvalidValue(name, type(odd[0]), f"{wrong}; give a mapping of {what}, with strings as keys")


def absent(value: object) -> bool:
    """Return whether a value counts as not given. A template renders None as the string ``None``.

    value:  the rendered value.
    """
    return value in (None, "", "None")


def whole_number(name: str, value: object, lowest: int = 1, why: str = "") -> int:
    """Return a whole number, which may also be a string because a template renders one.

    name:    the parameter's name, for the error.
    value:   the number.
    lowest:  the smallest number allowed. Default 1.
    why:     the reason for the limit, which is added to the error. Default: empty.

    Raises:
        InvalidValue: the value is not a whole number, or is smaller than ``lowest``.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) >= lowest):
        raise InvalidValue(name, value, f"give a whole number, {lowest} or more{why}")
    return int(text)


def optional_number(name: str, value: object, lowest: int = 1, why: str = "") -> int | None:
    """Return the result of :func:`whole_number`, which has the same parameters, or None if no value is given."""
    return None if absent(value) else whole_number(name, value, lowest, why)


def condition(name: str, value: object, given: object, lowest: int = 1, why: str = "") -> int | None:
    """Return the number of a condition, such as the revision that a write expects; None if the DAG gives none.

    name:    the parameter's name, for the error.
    value:   the rendered number.
    given:   what the DAG gives, before it was rendered.
    lowest:  the smallest number allowed. Default 1.
    why:     the reason for the limit, which is added to the error. Default: empty.

    Raises:
        InvalidValue: the value is not a whole number, or is smaller than ``lowest``; or the DAG gives a template whose
            value is missing, so that the task would go on without its condition.
    """
    if given is not None:
        check_rendered(name, value)
    return optional_number(name, value, lowest, why)


def check_rendered(name: str, value: object) -> None:
    """Check that a condition of the DAG has a value. Raises InvalidValue.

    name, value:  as for :func:`condition`.
    """
    if absent(value):
        remedy = (
            "the template or the other task's output has no value, and without it the task would go on without this "
            "condition; correct it, or leave the parameter out"
        )
        raise InvalidValue(name, value, remedy)


def yes_or_no(name: str, value: object) -> bool:
    """Return a truth value. Python would take every string for True, ``"no"`` and a template too.

    name:   the parameter's name, for the error.
    value:  True or False, or one of these words as a string, which templates and variables of the environment are.

    Raises:
        InvalidValue: the value is something else.
    """
    word = str(value).lower()
    if word not in ("true", "false"):
        unrendered = ", because Airflow does not render this parameter" if templated(value) else ""
        raise InvalidValue(name, value, f"give True or False{unrendered}")
    return word == "true"


def duration(name: str, value: object, *, zero: bool = False) -> timedelta:
    """Return a ``timedelta`` or ISO 8601 duration as a ``timedelta``.

    name:   the parameter's name, for the error.
    value:  the duration.
    zero:   whether 0 is allowed. Default False.

    Raises:
        InvalidValue: the value is not a duration, or is 0 although ``zero`` is False.
    """
    try:
        length = times.duration(value)
    except ValueError as error:
        number = isinstance(value, int | float) and value > 0
        remedy = f"{error}; for seconds, give timedelta(seconds={value:g})" if number else str(error)
        raise InvalidValue(name, value, remedy) from None
    if not length and not zero:
        raise InvalidValue(name, value, "give a duration longer than 0")
    return length


def known_duration(name: str, value: Any, *, zero: bool = False) -> Any:
    """Return the result of :func:`duration` for a value without a template, and a templated value unchanged.

    The parameters are the same as for :func:`duration`.
    """
    return value if templated(value) else duration(name, value, zero=zero)


def instant(name: str, value: object) -> str:
    """Return a point in time as RFC 3339 in UTC.

    name:   the parameter's name, for the error.
    value:  the time, in every form that :func:`times.instant` accepts.

    Raises:
        InvalidValue: the value is not such a time.
    """
    try:
        return times.instant(value)
    except ValueError as error:
        raise InvalidValue(name, value, str(error)) from None


def claimed(claim: Any, name: str) -> str | None:
    """Return a field of a claim, or None if the claim is not known yet or the field is not a string.

    claim:  the claim as the sensor returned it, or a template.
    name:   the name of the field.
    """
    value = claim.get(name) if isinstance(claim, Mapping) else None
    return value if isinstance(value, str) else None


def place_of(operator: Any) -> tuple[str, str, str]:
    """Return the stream, the consumer and the claim of a task; each is empty if the task has none, or does not know it
    yet.

    operator:  the task. If it works on a claim, the stream and the consumer are those of the claim, because an operator
               of another provider may have attributes with these names.
    """
    claim = getattr(operator, "claim", None)
    known = {name: claimed(claim, name) for name in ("stream", "consumer", "id")}
    if claim is None:
        known = {name: getattr(operator, name, None) for name in ("stream", "consumer")}
    found = [known.get(name) for name in ("stream", "consumer", "id")]
    stream, consumer, claim_id = (each if isinstance(each, str) else "" for each in found)
    return stream, consumer, claim_id


class OfClaim:
    """Mixin for a task that works on a claim: the task's stream and consumer are the claim's."""

    claim: Any

    @property
    def stream(self) -> str | None:
        """The claim's stream; None until the task knows its claim."""
        return claimed(self.claim, "stream")

    @property
    def consumer(self) -> str | None:
        """The claim's consumer; None until the task knows its claim."""
        return claimed(self.claim, "consumer")
