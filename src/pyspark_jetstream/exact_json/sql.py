# SPDX-License-Identifier: Apache-2.0
"""Parts of SQL expressions."""

from __future__ import annotations

from jetstream_client.errors import InvalidValue

PAYLOAD = "CAST(`data` AS STRING)"


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
