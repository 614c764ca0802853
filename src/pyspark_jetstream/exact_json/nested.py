# SPDX-License-Identifier: Apache-2.0
"""How structs, arrays and maps are read."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T  # noqa: N812 - short for the many types

from pyspark_jetstream.exact_json.scalars import Reading, Terms
from pyspark_jetstream.exact_json.sql import either, first, literal, quoted, said, shown


class Item:
    """A value inside a struct, an array or a map, which may be NOT NULL."""

    def __init__(self, reading: Reading, nullable: bool) -> None:
        self.reading, self._nullable = reading, nullable

    def problem(self, wire: str) -> str | None:
        found = self.reading.problem(wire)
        if self._nullable:
            return found
        null = literal(f"{self.reading.path}: null or missing, but the schema says NOT NULL")
        return f"CASE WHEN {self.reading.null(wire)} THEN {null} ELSE {found or 'NULL'} END"


class Struct(Reading):
    column: T.StructType
    type: T.StructType

    def __init__(self, path: str, column: T.StructType, fields: Mapping[str, Item], terms: Terms) -> None:
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

    def __init__(self, path: str, column: T.DataType, wire: T.DataType, item: Item, each: str) -> None:
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


class Array(_Items):
    def __init__(self, path: str, column: T.ArrayType, item: Item, depth: int) -> None:
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


class Map(_Items):
    def __init__(self, path: str, column: T.MapType, item: Item, depth: int) -> None:
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


def nullable(column: T.DataType) -> T.DataType:
    """The type as from_json returns it: everything may be null."""
    if isinstance(column, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in column.fields])
    if isinstance(column, T.ArrayType):
        return T.ArrayType(nullable(column.elementType))
    if isinstance(column, T.MapType):
        return T.MapType(column.keyType, nullable(column.valueType))
    return column
