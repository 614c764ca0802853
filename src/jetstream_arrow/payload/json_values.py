# SPDX-License-Identifier: Apache-2.0
"""What a JSON value is in a column of each type: the value, or the reason why the column cannot have it exactly."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any, Literal
from zoneinfo import ZoneInfo

from jetstream_arrow.payload.ddl import BITS, Column, Type

EpochUnit = Literal["s", "ms", "us", "ns"]
Convert = Callable[[Any], Any]
"""Converts a value that is not null. Raises Malformed."""

_EXPECTED = {
    "BINARY": "; expected base64 with padding",
    "DATE": "; expected a string like 2026-11-21, of the years 0001 to 9999",
    "TIMESTAMP": "; expected a string like 2026-11-21T03:00:00Z, of the years 0001 to 9999, with at most microseconds; "
    "a number needs epoch_unit",
    "TIMESTAMP_NTZ": "; expected a string like 2026-11-21T03:00:00 without an offset, of the years 0001 to 9999",
}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}"
    r"(?::[0-9]{2}(?:[.][0-9]{1,6}0*)?(Z|[+-](?:0[0-9]|1[0-8])(?::?[0-5][0-9])?)?)?"
)
"""A date with a time. An offset needs seconds before it, as in Spark."""
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?")
_EPOCH = {"s": (6, 6), "ms": (3, 3), "us": (0, 0), "ns": (-3, 0)}
"""For each unit, the power of ten that makes it microseconds, and the decimals that a number of it may have."""
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 100
"""The largest number of characters of a value in a reason."""


class Malformed(Exception):
    """A payload that cannot be decoded exactly, and why."""


class Number(str):
    """A number with a fraction or an exponent, as it was written."""

    __slots__ = ()


@dataclass(frozen=True)
class Terms:
    """What the caller has stated about the payloads.

    zone:            the time zone of times without an offset; None: such a TIMESTAMP is malformed.
    epoch_unit:      the unit of numbers in TIMESTAMP columns; None: such numbers are malformed.
    refuse_unknown:  whether a field that the schema does not contain makes the payload malformed.
    """

    zone: ZoneInfo | None = None
    epoch_unit: EpochUnit | None = None
    refuse_unknown: bool = False


@dataclass(frozen=True)
class Place:
    """A place in the payload, with the type that a value there must have.

    path:  the names of the fields around it, ``[]`` for an element of an array and ``{}`` for a value of a map.
    """

    path: str
    kind: Type
    terms: Terms

    def inexact(self, value: Any) -> Malformed:
        return self.said(value, f"cannot be represented exactly as {self.kind}{_EXPECTED.get(self.kind.name, '')}")

    def said(self, value: Any, why: str) -> Malformed:
        return Malformed(f"{self.path}: {as_json(value)[:_SHOWN]} {why}")


def record(columns: tuple[Column, ...], terms: Terms, path: str = "") -> Convert:
    """Return the conversion of a JSON object to a dict.

    path:  that of the object; empty for the whole payload.
    """
    inside = f"{path}." if path else ""
    items = [(column.name, _item(column, terms, inside + column.name)) for column in columns]
    names = frozenset(name for name, _ in items)
    lowered = {name.lower(): name for name in names}

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Malformed(f"{path}: {as_json(value)[:_SHOWN]} is not a JSON object, which its STRUCT needs")
        get = value.get
        found = {name: item(get(name)) for name, item in items}
        if value.keys() != names:
            check_names(value)
        return found

    def check_names(value: dict[str, Any]) -> None:
        others = [name for name in value if name not in names]
        for name in others:
            meant = lowered.get(name.lower())
            if meant is not None and meant not in value:
                raise Malformed(f"{inside}{name}: the name differs from a field of the schema only in case")
        if len(others) == len(value) and (value or not path):
            raise Malformed(f"{path}: shares no field with the schema" if path else "shares no field with the schema")
        if terms.refuse_unknown and others:
            raise Malformed(f"{inside}{others[0]}: the schema does not contain this field")

    return convert


def _item(column: Column, terms: Terms, path: str) -> Convert:
    convert, nullable = _conversion(column.type, terms, path), column.nullable

    def item(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if nullable:
            return None
        raise Malformed(f"{path}: null or missing, but the schema says NOT NULL")

    return item


def _conversion(kind: Type, terms: Terms, path: str) -> Convert:
    place = Place(path, kind, terms)
    if kind.name == "STRUCT":
        return record(kind.fields, terms, path)
    if kind.item is not None:
        array = kind.name == "ARRAY"
        return partial(_array if array else _map, place, _item(kind.item, terms, f"{path}{'[]' if array else '{}'}"))
    if bits := BITS.get(kind.name):
        return partial(_integer, place, -(1 << bits - 1), (1 << bits - 1) - 1)
    return partial(_SIMPLE[kind.name], place)


def _array(place: Place, item: Convert, value: Any) -> list[Any]:
    if type(value) is list:
        return [item(each) for each in value]
    raise place.inexact(value)


def _map(place: Place, item: Convert, value: Any) -> list[tuple[str, Any]]:
    if type(value) is dict:
        return [(key, item(each)) for key, each in value.items()]
    raise place.inexact(value)


def _boolean(place: Place, value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise place.inexact(value)


def _integer(place: Place, lowest: int, highest: int, value: Any) -> int:
    if type(value) is int and lowest <= value <= highest:
        return value
    raise place.inexact(value)


def _floating(place: Place, value: Any) -> float:
    """A fraction becomes the nearest number, as in every JSON reader. An integer must be exact."""
    if type(value) is not int and type(value) is not Number:
        raise place.inexact(value)
    try:
        number = float(value)
        if place.kind.name == "FLOAT":
            (number,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        raise place.inexact(value) from None
    if not math.isfinite(number) or (type(value) is int and int(number) != value):
        raise place.inexact(value)
    if not number and type(value) is Number and re.search("[1-9]", re.split("[eE]", value)[0]):
        raise place.said(value, "stands for another number, which is too small")
    return number


def _decimal(place: Place, value: Any) -> Decimal:
    """A number, or a string that contains one."""
    precision, scale = place.kind.digits or (0, 0)
    if type(value) not in (int, Number) and not (type(value) is str and _DECIMAL.fullmatch(value)):
        raise place.inexact(value)
    try:
        found = Decimal(value)
    except ArithmeticError:  # its exponent is out of all bounds
        raise place.inexact(value) from None
    if not found:
        return Decimal(0)
    if found.adjusted() < precision - scale:
        found = found.normalize(Context(prec=len(str(value)) + 1))
        if int(found.as_tuple().exponent) >= -scale:
            return found
    raise place.inexact(value)


def _string(_: Place, value: Any) -> str:
    """Any other value becomes its JSON, with numbers as they were written."""
    return value if type(value) is str else as_json(value)


def _binary(place: Place, value: Any) -> bytes:
    """Base64. Other forms would decode, too, and lose bits."""
    if type(value) is str:
        with suppress(ValueError):
            found = base64.b64decode(value, validate=True)
            if base64.b64encode(found).decode() == value:
                return found
    raise place.inexact(value)


def _date(place: Place, value: Any) -> date:
    if type(value) is str and _DATE.fullmatch(value):
        with suppress(ValueError):
            return date.fromisoformat(value)
    raise place.inexact(value)


def _clock(place: Place, value: Any) -> datetime:
    """A date with a time, and perhaps with an offset."""
    if type(value) is str and _CLOCK.fullmatch(value):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    raise place.inexact(value)


def _local(place: Place, value: Any) -> datetime:
    found = _clock(place, value)
    if found.tzinfo is None:
        return found
    raise place.inexact(value)


def _instant(place: Place, value: Any) -> datetime:
    if type(value) is not str:
        return _epoch(place, value)
    found, zone = _clock(place, value), place.terms.zone
    try:
        if found.tzinfo is not None:
            return found.astimezone(UTC)
        if zone is None:
            remedy = "has no offset, such as Z; if all times are of one time zone, give options={'timeZone': '…'}"
            raise place.said(value, remedy)
        first, second = (found.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise place.inexact(value) from None
    if first < second:
        raise place.said(value, f"exists twice in {zone}, because the clocks go back")
    if first > second:
        raise place.said(value, f"does not exist in {zone}, because the clocks go forward")
    return first


def _epoch(place: Place, value: Any) -> datetime:
    unit = place.terms.epoch_unit
    if unit is not None and type(value) in (int, Number):
        power, decimals = _EPOCH[unit]
        whole, _, fraction = str(value).partition(".")
        if len(fraction) <= decimals and not set(whole + fraction) & {*"eE"}:
            micros, rest = divmod(int(f"{whole}{fraction:0<{decimals}}"), 10 ** (decimals - power))
            with suppress(OverflowError):
                if not rest:
                    return _FIRST + timedelta(microseconds=micros)
    raise place.inexact(value)


_SIMPLE: dict[str, Callable[[Place, Any], Any]] = {
    "BOOLEAN": _boolean, "FLOAT": _floating, "DOUBLE": _floating, "DECIMAL": _decimal, "STRING": _string,
    "BINARY": _binary, "DATE": _date, "TIMESTAMP": _instant, "TIMESTAMP_NTZ": _local,
}  # fmt: skip


def as_json(value: Any) -> str:
    """The JSON of a value that was parsed, with numbers as they were written."""
    if type(value) is Number:
        return str(value)
    if isinstance(value, dict):
        return f"{{{','.join(f'{as_json(name)}:{as_json(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(as_json, value))}]"
    return json.dumps(value, ensure_ascii=False)
