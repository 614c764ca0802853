# SPDX-License-Identifier: Apache-2.0
"""How a value of each type is read that contains no others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as T  # noqa: N812 - short for the many types

from jetstream_client.errors import InvalidValue
from pyspark_jetstream.exact_json.sql import PAYLOAD, literal, said, shown, text, within

EpochUnit = Literal["s", "ms", "us", "ns"]

_DATE = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]{1,6}0*)?)?"
_OFFSET = "(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_END = "(?!(?s:.))"  # $ would also match before a line break at the end, which a cast ignores
_FIRST, _LAST = -62135596800000000, 253402300799999999  # microseconds of the years 0001 to 9999
_EPOCH = {  # unit → microseconds in it, and the decimals that a number of it may have
    "s": ("1000000", "([.][0-9]{1,6})?"),
    "ms": ("1000", "([.][0-9]{1,3})?"),
    "us": ("1", ""),
    "ns": ("0.001", ""),
}
_NATIVE = (T.BooleanType, T.ShortType, T.IntegerType, T.LongType)
_INEXACT = "cannot be represented exactly as"
_EXPECTED: dict[type[T.DataType], str] = {
    T.BinaryType: "; expected base64 with padding",
    T.DateType: "; expected a string like 2026-11-21, of the years 0001 to 9999",
    T.TimestampType: "; expected a string like 2026-11-21T03:00:00Z, of the years 0001 to 9999, with at most"
    " microseconds; a number needs epoch_unit",
    T.TimestampNTZType: "; expected a string like 2026-11-21T03:00:00 without an offset, of the years 0001 to 9999",
}


@dataclass(frozen=True)
class Terms:
    """What the caller has stated about the payloads.

    zone:            the time zone of local times.
    options:         the options of from_json.
    epoch_unit:      the unit of numbers in TIMESTAMP columns; None: such numbers are malformed.
    refuse_unknown:  whether a field that the schema does not contain makes the payload malformed.
    """

    zone: str
    options: Mapping[str, str]
    epoch_unit: EpochUnit | None
    refuse_unknown: bool

    def format(self, name: str) -> str | None:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)


class Reading:
    """How a value of one type is read. Each method takes and returns SQL; ``wire`` is the value that from_json read.

    type:  the type that from_json reads.
    """

    def __init__(self, path: str, column: T.DataType, wire: T.DataType | None = None) -> None:
        self.path, self.column, self.type = path, column, wire or column

    def value(self, wire: str) -> str:
        """The column's value."""
        return wire

    def null(self, wire: str) -> str:
        return f"({wire} IS NULL)"

    def sure(self, wire: str) -> str:
        """Whether the value is neither null nor malformed, as far as this can be found with little work."""
        return f"{wire} IS NOT NULL"

    def problem(self, wire: str) -> str | None:  # noqa: ARG002
        """The reason why the value is malformed, as far as the value shows it, or null."""
        return None

    def missing(self, wire: str) -> str | None:  # noqa: ARG002
        """Whether a field of a struct is null here."""
        return None

    def doubtful(self, wire: str) -> str | None:  # noqa: ARG002
        """Whether the value may differ from the payload's, although it does not show it."""
        return None

    def second(self, wire: str, variant: str) -> str:
        """The reason why the value is malformed, found by comparing it with the payload's VARIANT."""
        absent = f"{variant} IS NULL OR is_variant_null({variant})"
        inexact = self.inexact(shown(variant))
        return f"CASE WHEN {absent} THEN NULL WHEN {self.null(wire)} THEN {inexact} {self.changed(wire, variant)} END"

    def changed(self, wire: str, variant: str) -> str:  # noqa: ARG002
        """Further WHEN clauses of :meth:`second`."""
        return ""

    def inexact(self, written: str) -> str:
        named = self.column.simpleString().upper()
        return said(self.path, written, f"{_INEXACT} {named}{_EXPECTED.get(type(self.column), '')}")


class _String(Reading):
    """from_json replaces an object, an array or a number by JSON that it writes itself, with numbers as DOUBLE."""

    def sure(self, wire: str) -> str:
        return f"NOT {self._written(wire)}"

    def doubtful(self, wire: str) -> str:
        return f"({self._written(wire)} AND {PAYLOAD} RLIKE '[0-9.]{{17}}|[0-9][eE][-+0-9]|NaN|Infinity|INF')"

    def _written(self, wire: str) -> str:
        """Whether from_json may have written the value."""
        number = f"(contains({wire}, '.') AND {wire} RLIKE '^-?[0-9]+[.][0-9]+(?:E-?[0-9]+)?$')"
        json = " OR ".join(f"startswith({wire}, '{first}')" for first in '{["')
        return f"({json} OR {number})"

    def changed(self, wire: str, variant: str) -> str:  # noqa: ARG002
        kind = f"schema_of_variant({variant}) RLIKE '^(DECIMAL|DOUBLE|OBJECT|ARRAY)'"
        return (
            f"WHEN {kind} THEN {said(self.path, text(variant), 'is not a string, and STRING may change its numbers')}"
        )


class _Byte(Reading):
    """from_json reads 128 to 255 as negative numbers, so it is read as SMALLINT."""

    def __init__(self, path: str, column: T.DataType) -> None:
        super().__init__(path, column, T.ShortType())

    def value(self, wire: str) -> str:
        return f"try_cast({wire} AS TINYINT)"

    def sure(self, wire: str) -> str:
        return within(wire, -128, 127)

    def problem(self, wire: str) -> str:
        return f"CASE WHEN NOT ({self.sure(wire)}) THEN {self.inexact(f'CAST({wire} AS STRING)')} END"


class _Floating(Reading):
    """A fraction becomes the nearest number, as in every JSON reader. An integer must be exact."""

    def __init__(self, path: str, column: T.DataType) -> None:
        super().__init__(path, column)
        self._integers = 1 << (24 if isinstance(column, T.FloatType) else 53)

    def sure(self, wire: str) -> str:
        return f"{wire} <> 0 AND abs({wire}) < {self._integers}"

    def problem(self, wire: str) -> str:
        infinite = f"isnan({wire}) OR abs({wire}) = double('Infinity')"
        return f"CASE WHEN {infinite} THEN {self.inexact(f'CAST({wire} AS STRING)')} END"

    def doubtful(self, wire: str) -> str:
        zero = f"({wire} = 0 AND {PAYLOAD} RLIKE '[eE]-[0-9]|0{{30}}')"
        return f"({zero} OR abs({wire}) >= {self._integers})"

    def changed(self, wire: str, variant: str) -> str:
        kind, inexact = f"schema_of_variant({variant})", self.inexact(shown(variant))
        same = f"coalesce(try_variant_get({variant}, '$', 'bigint') = try_cast({wire} AS BIGINT), false)"
        large = f"abs({wire}) >= {self._integers}"
        other = said(self.path, f"CAST({wire} AS STRING)", "stands for another number, which is too small")
        return (
            f"WHEN {wire} = 0 AND {kind} = 'DOUBLE' THEN {other}"
            f" WHEN {large} AND {kind} RLIKE '^BIGINT$|^DECIMAL[(][0-9]+,0[)]$' AND NOT {same} THEN {inexact}"
            f" WHEN {large} AND {kind} = 'DOUBLE' AND {PAYLOAD} RLIKE '[0-9]{{39}}' THEN {inexact}"
        )


class _Variant(Reading):
    """A value that is read as VARIANT, because its token matters."""

    def __init__(self, path: str, column: T.DataType) -> None:
        super().__init__(path, column, T.VariantType())

    def null(self, wire: str) -> str:
        return f"({wire} IS NULL OR is_variant_null({wire}))"

    def sure(self, wire: str) -> str:
        return f"{self.value(wire)} IS NOT NULL"


class _Decimal(_Variant):
    """A number, or a string that contains one. A VARIANT keeps up to 38 digits; others, and exponents, are DOUBLE."""

    column: T.DecimalType

    def value(self, wire: str) -> str:
        # The shortest string of a DOUBLE is the number that was written, if this had less than 17 digits.
        double = f"try_cast(try_variant_get({wire}, '$', 'double') AS DECIMAL(38, 18))"
        # A DOUBLE of 0 may stand for a number that is too small for it.
        same = f"CAST({double} AS DOUBLE) = try_variant_get({wire}, '$', 'double') AND {double} <> 0"
        written = f"NOT {PAYLOAD} RLIKE '[0-9.]{{17}}' AND {same}"
        exponent = f"CASE WHEN {written} THEN CAST({double} AS STRING) END"
        scale = self.column.scale
        fraction = f"(?:[.][0-9]{{1,{scale}}}0*)?" if scale else "(?:[.]0+)?"
        number = f"-?(?:0|[1-9][0-9]*){fraction}"
        json, named = shown(wire), self.column.simpleString()
        plain = f"CASE WHEN schema_of_variant({wire}) = 'DOUBLE' THEN {exponent} ELSE {json} END"
        general = f"try_cast(regexp_extract({plain}, '^\"?({number})\"?$', 1) AS {named})"
        # Most values are numbers with few enough decimals, which their kind shows: they need no regular expression.
        few = " OR ".join(f"endswith(schema_of_variant({wire}), ',{each})')" for each in range(scale, -1, -1))
        usual = f"CASE WHEN {few} OR schema_of_variant({wire}) = 'BIGINT' THEN try_cast({json} AS {named}) END"
        return f"coalesce({usual}, {general})"

    def problem(self, wire: str) -> str:
        found = f"{self.value(wire)} IS NOT NULL OR {self.null(wire)}"
        return f"CASE WHEN {found} THEN NULL ELSE {self.inexact(text(wire))} END"


class _Binary(_Variant):
    """Base64, with padding. Other forms would decode, too, and lose bits."""

    def _canonical(self, wire: str) -> str:
        written = text(wire)
        pattern = "'^[A-Za-z0-9+/]*([AQgw]==|[AEIMQUYcgkosw048]=)?$'"
        return f"schema_of_variant({wire}) = 'STRING' AND length({written}) % 4 = 0 AND {written} RLIKE {pattern}"

    def value(self, wire: str) -> str:
        return f"CASE WHEN {self._canonical(wire)} THEN unbase64({text(wire)}) END"

    def problem(self, wire: str) -> str:
        return (
            f"CASE WHEN {self.null(wire)} OR ({self._canonical(wire)}) THEN NULL ELSE {self.inexact(shown(wire))} END"
        )


class _Text(Reading):
    """A date or time in ISO 8601, which is read as a string."""

    def __init__(self, path: str, column: T.DataType, pattern: str) -> None:
        super().__init__(path, column, T.StringType())
        self._pattern = f"'^{pattern}{_END}'"

    def value(self, wire: str) -> str:
        return f"try_cast({wire} AS {self.column.simpleString()})"

    def sure(self, wire: str) -> str:
        return f"{self.value(wire)} IS NOT NULL AND {wire} RLIKE {self._pattern}"

    def problem(self, wire: str) -> str:
        exact = f"{wire} IS NULL OR ({self.sure(wire)})"
        return f"CASE WHEN {exact} THEN NULL ELSE {self.inexact(wire)} END"


class _Formatted(Reading):
    """A date, or a time without a zone, in a format that the caller has stated."""

    def sure(self, wire: str) -> str:
        return within(f"year({wire})", 1, 9999)

    def problem(self, wire: str) -> str:
        return f"CASE WHEN NOT ({self.sure(wire)}) THEN {self.inexact(f'CAST({wire} AS STRING)')} END"


class _Timestamp(Reading):
    """An instant. A local time must exist once in its time zone."""

    def __init__(self, path: str, column: T.DataType, terms: Terms) -> None:
        super().__init__(path, column, T.VariantType() if terms.epoch_unit else T.StringType())
        self._zone, self._unit, self._format = terms.zone, terms.epoch_unit, terms.format("timestampFormat")

    def null(self, wire: str) -> str:
        return f"({wire} IS NULL OR is_variant_null({wire}))" if self._unit else super().null(wire)

    def _text(self, wire: str) -> str:
        return text(wire) if self._unit else wire

    def _in(self, written: str, zone: str) -> str:
        if self._format:
            joined = f"concat({written}, {literal(' ' + zone)}), {literal(self._format + ' VV')}"
            return f"try_to_timestamp({joined})"
        seconds = f"CASE WHEN length({written}) = 16 THEN ':00' ELSE '' END"  # of 2026-11-21T03:00
        return f"try_cast(concat({written}, {seconds}, {literal(zone)}) AS TIMESTAMP_LTZ)"

    def _local(self, written: str) -> str:
        if self._format:
            return "false" if zoned(self._format) else "true"
        return f"NOT (endswith({written}, 'Z') OR substring({written}, 17) RLIKE '[+-]')"

    def _instant(self, written: str) -> str:
        own = f"try_to_timestamp({written}, {literal(self._format)})" if self._format else None
        if self._format:
            return str(own) if zoned(self._format) else self._in(written, self._zone)
        absolute = f"try_cast({written} AS TIMESTAMP_LTZ)"
        return f"CASE WHEN {self._local(written)} THEN {self._in(written, self._zone)} ELSE {absolute} END"

    def _number(self, wire: str) -> str:
        """The microseconds of a number, as a decimal, or null."""
        factor, decimals = _EPOCH[self._unit or "s"]
        digits = f"regexp_extract({text(wire)}, '^-?[0-9]+{decimals}$', 0)"
        micros = f"try_cast(nullif({digits}, '') AS DECIMAL(26, 6)) * {factor}"
        return f"CASE WHEN schema_of_variant({wire}) RLIKE '^(BIGINT|DECIMAL)' THEN {micros} END"

    def value(self, wire: str) -> str:
        instant = self._instant(self._text(wire))
        if self._unit is None:
            return instant
        micros = self._number(wire)
        whole = f"{micros} = floor({micros}) AND {within(micros, _FIRST, _LAST)}"
        number = f"CASE WHEN {whole} THEN timestamp_micros(try_cast({micros} AS BIGINT)) END"
        return f"CASE WHEN schema_of_variant({wire}) = 'STRING' THEN {instant} ELSE {number} END"

    def sure(self, wire: str) -> str:
        if self._unit:
            return "false"
        return self._exact(wire) if fixed(self._zone) else f"NOT {self._local(wire)} AND {self._exact(wire)}"

    def _exact(self, wire: str) -> str:
        """Whether the value is an instant of the years 0001 to 9999, in a form that is accepted."""
        written, value = self._text(wire), self.value(wire)
        exact = f"coalesce({within(value, f'timestamp_micros({_FIRST})', f'timestamp_micros({_LAST})')}, false)"
        if self._unit is None and not self._format:
            # Only an offset can lead from these years to a year that does not exist.
            edge = f"startswith({wire}, '0001') OR startswith({wire}, '9999')"
            exact = f"{value} IS NOT NULL AND (NOT ({edge}) OR {exact})"
        if not self._format:
            pattern = f"{written} RLIKE '^{_DATE}{_TIME}{_OFFSET}?{_END}'"
            number = f"schema_of_variant({wire}) <> 'STRING' OR " if self._unit else ""
            exact = f"{exact} AND ({number}{pattern})"
        return exact

    def problem(self, wire: str) -> str:
        written = self._text(wire)
        clauses = [f"WHEN {self.null(wire)} THEN NULL", f"WHEN NOT ({self._exact(wire)}) THEN {self.inexact(written)}"]
        if not fixed(self._zone):
            string = f"schema_of_variant({wire}) = 'STRING' AND " if self._unit else ""
            local = f"{string}{self._local(written)}"
            clauses += [f"WHEN {local} THEN {self._twice_or_never(written)}"]
        return f"CASE {' '.join(clauses)} END"

    def _twice_or_never(self, written: str) -> str:
        zone = literal(self._zone)
        instant, clock = self._in(written, self._zone), self._in(written, "UTC")
        # The instant with the offset of the next day, which differs if the clocks change in between.
        later = f"({instant} + INTERVAL '24' HOUR)"
        other = f"({clock} - (from_utc_timestamp({later}, {zone}) - {later}))"
        never = said(self.path, written, f"does not exist in {self._zone}, because the clocks go forward")
        twice = said(self.path, written, f"exists twice in {self._zone}, because the clocks go back")
        return (
            f"CASE WHEN from_utc_timestamp({instant}, {zone}) <> {clock} THEN {never}"
            f" WHEN {other} <> {instant} AND from_utc_timestamp({other}, {zone}) = {clock} THEN {twice} END"
        )


def scalar(path: str, column: T.DataType, terms: Terms) -> Reading:  # noqa: PLR0911 - one for each type
    """How the values of a type that contains no others are read. Raises InvalidValue for one that cannot be checked."""
    if isinstance(column, _NATIVE):
        return Reading(path, column)
    if isinstance(column, T.ByteType):
        return _Byte(path, column)
    if isinstance(column, (T.FloatType, T.DoubleType)):
        return _Floating(path, column)
    if isinstance(column, T.DecimalType):
        return _Decimal(path, column)
    if isinstance(column, T.BinaryType):
        return _Binary(path, column)
    if isinstance(column, T.TimestampType):
        return _Timestamp(path, column, terms)
    if isinstance(column, T.DateType):
        return _Formatted(path, column) if terms.format("dateFormat") else _Text(path, column, _DATE)
    if isinstance(column, T.TimestampNTZType):
        stated = terms.format("timestampNTZFormat")
        return _Formatted(path, column) if stated else _Text(path, column, _DATE + _TIME)
    if isinstance(column, T.StringType) and type(column) is T.StringType:
        return _String(path, column)
    remedy = f"the field {path!r} has a type that cannot be decoded exactly; give STRING, and convert the column"
    raise InvalidValue("schema", column.simpleString().upper(), remedy)


def zoned(pattern: str) -> bool:
    """Whether a format of a timestamp contains a time zone or an offset."""
    return bool(re.search("[VzOXxZ]", re.sub("'[^']*'", "", pattern)))


def fixed(zone: str) -> bool:
    """Whether the clocks of a time zone never change."""
    return zone in ("UTC", "Etc/UTC", "GMT", "Z") or zone[0] in "+-"
