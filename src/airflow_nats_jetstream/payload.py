# SPDX-License-Identifier: Apache-2.0
"""The payload of a message that is published from a Python value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from jetstream_client.errors import InvalidValue

_CONVERSIONS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Decimal,), "str(value), which keeps all digits"),
    ((date, time), "value.isoformat()"),
    ((timedelta,), "value.total_seconds()"),
    ((UUID,), "str(value)"),
    ((bytes, bytearray), "base64.b64encode(value).decode()"),
    ((set, frozenset), "sorted(value)"),
    ((float,), "None, because JSON has no infinite numbers and no NaN"),
)
"""What JSON cannot represent, with a conversion."""


def encoded(field: str, value: Any) -> bytes:
    """Return a message's payload: bytes unchanged, a string as UTF-8, any other value as JSON.

    Nothing is converted implicitly: how a Decimal or a date is written is the publisher's decision, and ``NaN`` is no
    JSON. ``field`` is the name of the value in an error. Raises InvalidValue, which names the first part of the value
    that has no JSON form.
    """
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else json.dumps(value, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidValue(field, value[:40], "the string contains surrogates; give valid Unicode, or bytes") from None
    except (TypeError, ValueError, RecursionError) as error:
        found = None
        with suppress(RecursionError):  # it is nested too deeply, so that only the error says what is wrong
            found = next(_unfit(field, value, frozenset()), None)
        if found is None:
            remedy = f"it cannot be converted to JSON ({error}); give a string, bytes or a JSON value"
            raise InvalidValue(field, type(value), remedy) from None
        raise InvalidValue(*found) from None


def _unfit(field: str, value: Any, within: frozenset[int]) -> Iterator[tuple[str, Any, str]]:
    """Yield field, value and remedy for each part of a value that has no JSON form."""
    if id(value) in within:
        yield field, type(value), "it contains itself; give a value without a cycle"
    elif isinstance(value, Mapping | list | tuple):
        if isinstance(value, Mapping) and not isinstance(value, dict):
            yield field, type(value), "JSON has no form for this type of mapping; give dict(value)"
            return
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            if not (key is None or isinstance(key, str | int | float)):
                yield f"{field}[{key!r}]", type(key), "a key of JSON is a string; convert it to a string"
            name = f"{field}.{key}" if isinstance(key, str) and key.isidentifier() else f"{field}[{key!r}]"
            yield from _unfit(name, each, within | {id(value)})
    elif not (value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))):
        name = type(value).__name__
        into = next((how for types, how in _CONVERSIONS if isinstance(value, types)), "a string, for example")
        yield field, value, f"JSON has no form for this value of type {name}; convert it first, to {into}"
