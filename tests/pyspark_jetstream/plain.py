"""A second decoder of JSON payloads: json, datetime, decimal and zoneinfo, without Spark."""

import base64
import binascii
import json
import math
import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import types as T  # noqa: N812 - short for the many types

_INTEGERS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_EPOCH = {"s": Fraction(1_000_000), "ms": Fraction(1_000), "us": Fraction(1), "ns": Fraction(1, 1000)}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)([.][0-9]+)?")
_CLOCK = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?([.][0-9]+)?(.*)")
_OFFSET = re.compile(r"Z|[+-][0-9]{2}(:?[0-9]{2})?")


class Malformed(Exception):
    """The column cannot represent the value exactly."""


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    text: str

    @property
    def integer(self) -> bool:
        return self.text.lstrip("-").isdigit()

    @property
    def exact(self) -> Fraction:
        try:
            return Fraction(Decimal(self.text))
        except (ValueError, OverflowError) as error:
            raise Malformed(self.text) from error


@dataclass(frozen=True)
class AsJson:
    """A value that is not a string, in a STRING column."""

    value: Any


class Plain:
    def __init__(self, zone: str = "UTC", epoch_unit: str | None = None) -> None:
        self._zone, self._unit = ZoneInfo(zone), epoch_unit

    def decode(self, schema: T.StructType, payload: str) -> dict[str, Any]:
        """Raises Malformed."""
        try:
            value = json.loads(payload, parse_int=Number, parse_float=Number, parse_constant=Number)
        except ValueError as error:
            raise Malformed(payload) from error
        if isinstance(value, dict) and not set(value) & set(schema.names):
            raise Malformed("shares no field")
        return self._struct(schema, value)

    def _struct(self, schema: T.StructType, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed("no object")
        if value and not set(value) & set(schema.names):
            raise Malformed("shares no field")
        lowered = {name.lower() for name in value}
        for name in schema.names:
            if name not in value and name.lower() in lowered:
                raise Malformed("differs in case")
        return {each.name: self._of(each.dataType, value.get(each.name), each.nullable) for each in schema.fields}

    def _of(self, kind: T.DataType, value: Any, nullable: bool) -> Any:
        if value is None:
            if not nullable:
                raise Malformed("null")
            return None
        if isinstance(kind, T.StructType):
            return self._struct(kind, value)
        if isinstance(kind, T.ArrayType):
            if not isinstance(value, list):
                raise Malformed("no array")
            return [self._of(kind.elementType, each, kind.containsNull) for each in value]
        if isinstance(kind, T.MapType):
            if not isinstance(value, dict):
                raise Malformed("no object")
            return {key: self._of(kind.valueType, each, kind.valueContainsNull) for key, each in value.items()}
        return self._scalar(kind, value)

    def _scalar(self, kind: T.DataType, value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - one for each type
        if isinstance(kind, T.BooleanType):
            if isinstance(value, bool):
                return value
            raise Malformed(value)
        if bits := _INTEGERS.get(type(kind)):
            if isinstance(value, Number) and value.integer and -(1 << bits - 1) <= int(value.text) < 1 << bits - 1:
                return int(value.text)
            raise Malformed(value)
        if isinstance(kind, (T.FloatType, T.DoubleType)):
            return _floating(value, single=isinstance(kind, T.FloatType))
        if isinstance(kind, T.DecimalType):
            return _decimal(value, kind)
        if isinstance(kind, T.StringType):
            return value if isinstance(value, str) else AsJson(value)
        if isinstance(kind, T.TimestampType) and self._unit and isinstance(value, Number):
            return _epoch(value.exact * _EPOCH[self._unit])
        if not isinstance(value, str):
            raise Malformed(value)
        try:
            if isinstance(kind, T.BinaryType):
                found = base64.b64decode(value, validate=True)
                if base64.b64encode(found).decode() != value:
                    raise Malformed(value)
                return found
            if isinstance(kind, T.DateType):
                if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
                    raise Malformed(value)
                return date.fromisoformat(value)
            return self._clock(value, with_zone=isinstance(kind, T.TimestampType))
        except (ValueError, OverflowError, binascii.Error) as error:
            raise Malformed(value) from error

    def _clock(self, value: str, *, with_zone: bool) -> datetime:
        found = _CLOCK.fullmatch(value)
        if not found:
            raise Malformed(value)
        day, minutes, seconds, fraction, offset = found.groups()
        digits = (fraction or ".")[1:].rstrip("0")
        if len(digits) > 6 or (fraction and not seconds):
            raise Malformed(value)
        local = datetime.fromisoformat(f"{day}T{minutes}{seconds or ':00'}.{digits:0<6}")
        if not offset:
            return self._instant(local) if with_zone else local
        if not with_zone or not _OFFSET.fullmatch(offset):
            raise Malformed(value)
        return datetime.fromisoformat(f"{local.isoformat()}{offset}").astimezone(UTC)

    def _instant(self, local: datetime) -> datetime:
        first, second = (local.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first != second:
            raise Malformed("never, or twice")
        return first


def _floating(value: Any, *, single: bool) -> float:
    if not isinstance(value, Number):
        raise Malformed(value)
    exact, number = value.exact, float(value.text)
    if single:
        try:
            (number,) = struct.unpack("f", struct.pack("f", number))
        except OverflowError as error:
            raise Malformed(value) from error
    if not math.isfinite(number) or (exact and not number) or (value.integer and Fraction(number) != exact):
        raise Malformed(value)
    return number


def _decimal(value: Any, kind: T.DecimalType) -> Decimal:
    text = value.text if isinstance(value, Number) else value
    if not isinstance(text, str) or (isinstance(value, str) and not _NUMBER.fullmatch(text)):
        raise Malformed(value)
    exact = Number(text).exact
    scaled = exact * 10**kind.scale
    if scaled.denominator != 1 or abs(scaled) >= 10**kind.precision:
        raise Malformed(value)
    return Decimal(scaled.numerator).scaleb(-kind.scale) if kind.precision <= 28 else Decimal(text)


def _epoch(micros: Fraction) -> datetime:
    if micros.denominator != 1:
        raise Malformed(micros)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros.numerator)
    except OverflowError as error:
        raise Malformed(micros) from error


def same(found: Any, expected: Any) -> bool:
    """Whether a value of a row is the expected one."""
    if isinstance(expected, AsJson):
        return bool(_loose(json.loads(found, parse_int=Number, parse_float=Number)) == _loose(expected.value))
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(same(found[name], each) for name, each in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, datetime) and expected.tzinfo:
        return bool(found.astimezone(UTC) == expected)
    if isinstance(found, bytearray):  # Spark 4.0 has no other type for BINARY
        found = bytes(found)
    return type(found) is type(expected) and bool(found == expected)


def _loose(value: Any) -> Any:
    """A JSON value with exact numbers, however they are written."""
    if isinstance(value, Number):
        return value.exact
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Fraction(Decimal(repr(value)))
    if isinstance(value, dict):
        return {name: _loose(each) for name, each in value.items()}
    return [_loose(each) for each in value] if isinstance(value, list) else value
