# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON value is exactly what its column contains.

Spark's ``from_json`` rounds decimals, reads numbers as seconds or days, moves local times, and ignores NOT NULL and the
case of names. So it reads such types in a form that keeps the value as it was written, and SQL expressions convert it
and find what the column cannot represent. What the values do not show (an integer that a DOUBLE has rounded, or a field
whose name differs only in case) is *doubtful*: only then the payload is parsed a second time, to a VARIANT. Most
payloads need neither: all values are there, and little work shows that each is *sure* to be exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import types as T  # noqa: N812 - short for the many types

from jetstream_client.errors import InvalidValue

EpochUnit = Literal["s", "ms", "us", "ns"]

PAYLOAD = "CAST(`data` AS STRING)"
_ESCAPES = r"\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F])"
"""Every escape of JSON except half of a surrogate pair."""
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
        # Most values are numbers with few enough decimals, which need no regular expression.
        few = f"(locate('.', {json}) = 0 OR length({json}) - locate('.', {json}) <= {scale})"
        usual = f"CASE WHEN schema_of_variant({wire}) <> 'DOUBLE' AND {few} THEN try_cast({json} AS {named}) END"
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


class _Item:
    """A value inside a struct, an array or a map, which may be NOT NULL."""

    def __init__(self, reading: Reading, nullable: bool) -> None:
        self.reading, self._nullable = reading, nullable

    def problem(self, wire: str) -> str | None:
        found = self.reading.problem(wire)
        if self._nullable:
            return found
        null = literal(f"{self.reading.path}: null or missing, but the schema says NOT NULL")
        return f"CASE WHEN {self.reading.null(wire)} THEN {null} ELSE {found or 'NULL'} END"


class _Struct(Reading):
    column: T.StructType
    type: T.StructType

    def __init__(self, path: str, column: T.StructType, fields: Mapping[str, _Item], terms: Terms) -> None:
        self.fields = fields
        self._refuse = terms.refuse_unknown
        wire = T.StructType([T.StructField(name, item.reading.type) for name, item in fields.items()])
        super().__init__(path, column, wire)

    def value(self, wire: str) -> str:
        if self.type == nullable(self.column):
            return wire
        fields = ", ".join(f"{literal(name)}, {value}" for name, value in self.values(wire).items())
        return f"CASE WHEN {wire} IS NOT NULL THEN named_struct({fields}) END"

    def values(self, wire: str) -> dict[str, str]:
        return {name: item.reading.value(f"{wire}.{quoted(name)}") for name, item in self.fields.items()}

    def sure(self, wire: str) -> str:
        fields = [item.reading.sure(f"{wire}.{quoted(name)}") for name, item in self.fields.items()]
        return " AND ".join([f"{wire} IS NOT NULL", *(f"({each})" for each in fields)])

    def problem(self, wire: str) -> str | None:
        found = [item.problem(f"{wire}.{quoted(name)}") for name, item in self.fields.items()]
        given = [each for each in found if each]
        return f"CASE WHEN {wire} IS NOT NULL THEN coalesce({', '.join(given)}, NULL) END" if given else None

    def _nulls(self, wire: str) -> list[str]:
        return [item.reading.null(f"{wire}.{quoted(name)}") for name, item in self.fields.items()]

    def _any(self, wire: str, what: str) -> list[str]:
        found = (getattr(item.reading, what)(f"{wire}.{quoted(name)}") for name, item in self.fields.items())
        return [each for each in found if each]

    def missing(self, wire: str) -> str:
        return either([f"{wire} IS NULL"], "false", [*self._nulls(wire), *self._any(wire, "missing")])

    def doubtful(self, wire: str) -> str:
        without = f"({' AND '.join(self._nulls(wire))})"
        return either([f"{wire} IS NULL"], "false", [without, *self._any(wire, "doubtful")])

    def second(self, wire: str, variant: str) -> str:
        fields = f"try_cast({variant} AS MAP<STRING, VARIANT>)"
        names = f"array({', '.join(literal(name) for name in self.fields)})"
        keys = f"map_keys({fields})"
        lowered = ", ".join(f"{literal(name.lower())}, {literal(name)}" for name in self.fields)
        meant = f"try_element_at(map({lowered}), lower(k))"
        unlike = f"NOT array_contains({names}, k) AND {meant} IS NOT NULL AND NOT map_contains_key({fields}, {meant})"
        key = f"get(filter({keys}, k -> {unlike}), 0)"
        inside = f"{self.path}." if self.path else ""
        case = f"concat({literal(inside)}, {key}, ': the name differs from a field of the schema only in case')"
        shares = f"arrays_overlap({keys}, {names})"
        nothing = f"{self.path}: shares no field with the schema" if self.path else "shares no field with the schema"
        # An empty object inside the payload has lost nothing.
        bare = f"NOT {shares}" if not self.path else f"NOT {shares} AND size({fields}) > 0"
        found = [case, f"CASE WHEN {bare} THEN {literal(nothing)} END"]
        if self._refuse:
            other = f"get(filter({keys}, k -> NOT array_contains({names}, k)), 0)"
            found.append(f"concat({literal(inside)}, {other}, ': the schema does not contain this field')")
        for name, item in self.fields.items():
            found.append(item.reading.second(f"{wire}.{quoted(name)}", f"try_element_at({fields}, {literal(name)})"))
        absent = f"{variant} IS NULL OR is_variant_null({variant})"
        other_type = f"{fields} IS NULL THEN {self.inexact(shown(variant))}"
        return f"CASE WHEN {absent} THEN NULL WHEN {other_type} ELSE coalesce({', '.join(found)}) END"

    def inexact(self, written: str) -> str:
        return said(self.path, written, "is not a JSON object, which its STRUCT needs")


class _Items(Reading):
    """The values of an array or a map, each of which is read as ``item``."""

    def __init__(self, path: str, column: T.DataType, wire: T.DataType, item: _Item, each: str) -> None:
        super().__init__(path, column, wire)
        self.item, self._each = item, each

    def _items(self, wire: str) -> str:
        """The array of the values."""
        return wire

    def sure(self, wire: str) -> str:
        other = f"NOT coalesce({self.item.reading.sure(self._each)}, false)"
        return f"NOT exists({self._items(wire)}, {self._each} -> {other})"

    def _exists(self, wire: str, condition: str | None) -> str | None:
        return condition and f"coalesce(exists({self._items(wire)}, {self._each} -> {condition}), false)"

    def missing(self, wire: str) -> str | None:
        return self._exists(wire, self.item.reading.missing(self._each))

    def doubtful(self, wire: str) -> str | None:
        return self._exists(wire, self.item.reading.doubtful(self._each))

    def _compared(self, wire: str, variant: str, typed: str, inside: str) -> str:
        """SQL of :meth:`second`.

        typed:   the VARIANT as an array or a map; null if it is another value.
        inside:  why one of its values is malformed.
        """
        return (
            f"CASE WHEN {variant} IS NULL OR is_variant_null({variant}) THEN NULL"
            f" WHEN {typed} IS NULL THEN {self.inexact(shown(variant))}"
            f" WHEN {wire} IS NULL THEN coalesce({inside}, {self.inexact(shown(variant))}) ELSE {inside} END"
        )


class _Array(_Items):
    def __init__(self, path: str, column: T.ArrayType, item: _Item, depth: int) -> None:
        super().__init__(path, column, T.ArrayType(item.reading.type), item, f"x{depth}")

    def value(self, wire: str) -> str:
        value = self.item.reading.value(self._each)
        return wire if value == self._each else f"transform({wire}, {self._each} -> {value})"

    def problem(self, wire: str) -> str | None:
        found = self.item.problem(self._each)
        return found and first(f"transform({wire}, {self._each} -> {found})")

    def second(self, wire: str, variant: str) -> str:
        items, number = f"try_cast({variant} AS ARRAY<VARIANT>)", f"i{self._each}"
        found = self.item.reading.second(f"get({wire}, {number})", self._each)
        inside = first(f"transform({items}, ({self._each}, {number}) -> {found})")
        return self._compared(wire, variant, items, inside)


class _Map(_Items):
    def __init__(self, path: str, column: T.MapType, item: _Item, depth: int) -> None:
        super().__init__(path, column, T.MapType(T.StringType(), item.reading.type), item, f"x{depth}")
        self._key = f"k{depth}"

    def _items(self, wire: str) -> str:
        return f"map_values({wire})"

    def value(self, wire: str) -> str:
        value = self.item.reading.value(self._each)
        return wire if value == self._each else f"transform_values({wire}, ({self._key}, {self._each}) -> {value})"

    def sure(self, wire: str) -> str:
        return f"NOT {self._twice(wire)} AND {super().sure(wire)}"

    def _twice(self, wire: str) -> str:
        return f"size(array_distinct(map_keys({wire}))) < size({wire})"

    def problem(self, wire: str) -> str | None:
        repeated = f"CASE WHEN {self._twice(wire)} THEN {literal(f'{self.path}: a key is repeated')} END"
        found = self.item.problem(self._each)
        inside = first(f"transform({self._items(wire)}, {self._each} -> {found})") if found else "NULL"
        return f"coalesce({repeated}, {inside})"

    def second(self, wire: str, variant: str) -> str:
        entries = f"try_cast({variant} AS MAP<STRING, VARIANT>)"
        found = self.item.reading.second(
            f"try_element_at({wire}, {self._key})", f"try_element_at({entries}, {self._key})"
        )
        inside = first(f"transform(map_keys({entries}), {self._key} -> {found})")
        return self._compared(wire, variant, entries, inside)


class Exactness:
    """The reading of a whole payload.

    wire:   the type that from_json reads.
    names:  the names of the columns.
    """

    def __init__(self, schema: T.StructType, terms: Terms) -> None:
        """Raises InvalidValue if a type cannot be checked."""
        self._terms, self._names = terms, set[str]()
        self._row = self._struct("", schema, 0)
        self.names = list(self._row.fields)
        self.wire = self._row.type

    def values(self, wire: str) -> dict[str, str]:
        """Each column's value as SQL."""
        return self._row.values(wire)

    def sure(self, wire: str, mismatch: str) -> str:
        """SQL: whether the payload is valid, as far as this can be found with little work; else null or false.

        Spark evaluates what stands in the operands of AND, unlike what stands in a CASE, only once together with the
        same expression in a column.
        """
        if self._terms.refuse_unknown:
            return "false"
        return f"NOT {mismatch} AND NOT {self._escapes()} AND {self._row.sure(wire)}"

    def _escapes(self) -> str:
        return f"contains({PAYLOAD}, {literal(chr(92) + 'u')})"

    def reason(self, wire: str, mismatch: str) -> str:
        """SQL: why the payload is malformed, or null if it is valid.

        mismatch:  SQL, whether from_json found a value of another type.
        """
        doubt = [f"({self._row.missing(wire)} AND {self._other_names()})", self._row.doubtful(wire)]
        if self._terms.refuse_unknown:
            doubt = ["true"]
        surrogate = f"({self._escapes()} AND contains(lower({PAYLOAD}), {literal(chr(92) + 'ud')}))"
        repeated = "a JSON object with a repeated field, or in a form that cannot be checked"
        unchecked = f"CASE WHEN v IS NULL AND NOT {mismatch} THEN {literal(repeated)} END"
        general = f"CASE WHEN {mismatch} THEN {literal('a JSON object that does not match the schema')} END"
        # Spark interprets zip_with. As generated code, what few payloads need would make the code of all of them so
        # large that Java does not compile it. Next to such an expression, Spark also splits the code that it generates.
        second = f"coalesce({unchecked}, {self._row.second(wire, 'v')})"
        # Spark 4.0 and 4.1 would replace half of a surrogate pair by a question mark.
        rest = f"regexp_replace({PAYLOAD}, {literal(_ESCAPES)}, '')"
        whole = f"CASE WHEN NOT contains({rest}, {literal(chr(92))}) THEN {PAYLOAD} END"
        again = f"zip_with(array(try_parse_json({whole})), array(0), (v, _) -> {second})"
        doubted = either([], "", [mismatch, surrogate, *doubt])
        found = f"CASE WHEN {doubted} THEN coalesce(get({again}, 0), {general}) END"
        problem = self._row.problem(wire)
        return f"coalesce(CASE WHEN NOT {mismatch} THEN {problem} END, {found})" if problem else found

    def _other_names(self) -> str:
        """SQL: whether the name of a field in the payload may differ from one of the schema only in case."""
        if len({name.lower() for name in self._names}) < len(self._names):
            return "true"  # one struct may have a field whose name is that of another struct's field in another case
        names = "|".join("\\Q" + name.replace("\\E", "\\E\\\\E\\Q") + "\\E" for name in sorted(self._names))
        given = any(self._terms.format(name) for name in ("allowSingleQuotes", "allowUnquotedFieldNames"))
        quote = "[\"']?" if given else '"'
        unlike = f"{quote}(?!(?:{names}){quote}\\s*:)(?iu:{names}){quote}\\s*:"
        # JSON may write any character of a name as \u…, and writes these ones with a backslash.
        escaped = any(re.search(r'["\\/\x00-\x1f]', name) for name in self._names)
        backslash = literal(chr(92) + "u" * (not escaped))
        return f"({PAYLOAD} RLIKE {literal(unlike)} OR contains({PAYLOAD}, {backslash}))"

    def _struct(self, path: str, schema: T.StructType, depth: int) -> _Struct:
        lowered = [name.lower() for name in schema.names]
        for name in schema.names:
            check_name("schema", name)
            if lowered.count(name.lower()) > 1:
                raise InvalidValue("schema", name, "two fields have this name or one that differs only in case")
        self._names.update(schema.names)
        inside = f"{path}." if path else ""
        fields = {
            field.name: _Item(self._reading(f"{inside}{field.name}", field.dataType, depth), field.nullable)
            for field in schema.fields
        }
        return _Struct(path, schema, fields, self._terms)

    def _reading(self, path: str, column: T.DataType, depth: int) -> Reading:
        if isinstance(column, T.StructType) and column.fields:
            return self._struct(path, column, depth)
        if isinstance(column, T.ArrayType):
            item = _Item(self._reading(f"{path}[]", column.elementType, depth + 1), column.containsNull)
            return _Array(path, column, item, depth)
        if isinstance(column, T.MapType) and isinstance(column.keyType, T.StringType):
            item = _Item(self._reading(f"{path}{{}}", column.valueType, depth + 1), column.valueContainsNull)
            return _Map(path, column, item, depth)
        return self._scalar(path, column)

    def _scalar(self, path: str, column: T.DataType) -> Reading:  # noqa: PLR0911 - one for each type
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
            return _Timestamp(path, column, self._terms)
        if isinstance(column, T.DateType):
            return _Formatted(path, column) if self._terms.format("dateFormat") else _Text(path, column, _DATE)
        if isinstance(column, T.TimestampNTZType):
            stated = self._terms.format("timestampNTZFormat")
            return _Formatted(path, column) if stated else _Text(path, column, _DATE + _TIME)
        if isinstance(column, T.StringType) and type(column) is T.StringType:
            return _String(path, column)
        remedy = f"the field {path!r} has a type that cannot be decoded exactly; give STRING, and convert the column"
        raise InvalidValue("schema", column.simpleString().upper(), remedy)


def literal(value: str) -> str:
    """A string in SQL. The session decides how Spark reads a backslash in quotes (escapedStringLiterals), so a string
    that has one, or a quote, is written as bytes."""
    if "\\" in value or "'" in value:
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    return f"'{value}'"


def check_name(field: str, name: str) -> None:
    """Raise InvalidValue for a name that Spark would change in SQL."""
    if "${" in name:
        raise InvalidValue(field, name, "Spark would replace ${…} by the value of a property; use another name")


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def text(variant: str) -> str:
    return f"try_variant_get({variant}, '$', 'string')"


def either(before: list[str], result: str, conditions: list[str]) -> str:
    """Whether one of the conditions is true, unless one of those before is. Spark splits the code of CASE, but not of
    OR, into parts that Java compiles."""
    clauses = [*(f"WHEN {each} THEN {result}" for each in before), *(f"WHEN {each} THEN true" for each in conditions)]
    return f"CASE {' '.join(clauses)} ELSE false END"


def within(value: str, lowest: object, highest: object) -> str:
    """Whether a value lies within bounds. Spark would evaluate the value of BETWEEN for each row, even if a condition
    before it decides."""
    return f"({value} >= {lowest} AND {value} <= {highest})"


def shown(variant: str) -> str:
    """A VARIANT as JSON, in which strings have quotes."""
    return f"to_json({variant})"


def said(path: str, written: str, why: str) -> str:
    """A reason with field, value and why."""
    return f"concat({literal(path + ': ' if path else '')}, coalesce(left({written}, 100), '?'), {literal(' ' + why)})"


def first(reasons: str) -> str:
    return f"get(filter({reasons}, r -> r IS NOT NULL), 0)"


def zoned(pattern: str) -> bool:
    """Whether a format of a timestamp contains a time zone or an offset."""
    return bool(re.search("[VzOXxZ]", re.sub("'[^']*'", "", pattern)))


def fixed(zone: str) -> bool:
    """Whether the clocks of a time zone never change."""
    return zone in ("UTC", "Etc/UTC", "GMT", "Z") or zone[0] in "+-"


def nullable(column: T.DataType) -> T.DataType:
    """The type as from_json returns it: everything may be null."""
    if isinstance(column, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in column.fields])
    if isinstance(column, T.ArrayType):
        return T.ArrayType(nullable(column.elementType))
    if isinstance(column, T.MapType):
        return T.MapType(column.keyType, nullable(column.valueType))
    return column
