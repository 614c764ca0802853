# SPDX-License-Identifier: Apache-2.0
"""The reading of a whole payload."""

from __future__ import annotations

import re

from pyspark.sql import types as T  # noqa: N812 - short for the many types

from jetstream_client.errors import InvalidValue
from pyspark_jetstream.exact_json.nested import Array, Item, Map, Struct
from pyspark_jetstream.exact_json.scalars import Reading, Terms, scalar
from pyspark_jetstream.exact_json.sql import PAYLOAD, check_name, either, literal

_ESCAPES = r"\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]..\\u[dD][c-fC-F])"
"""Every escape of JSON except half of a surrogate pair."""


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

    def _struct(self, path: str, schema: T.StructType, depth: int) -> Struct:
        lowered = [name.lower() for name in schema.names]
        for name in schema.names:
            check_name("schema", name)
            if lowered.count(name.lower()) > 1:
                raise InvalidValue("schema", name, "two fields have this name or one that differs only in case")
        self._names.update(schema.names)
        inside = f"{path}." if path else ""
        fields = {
            field.name: Item(self._reading(f"{inside}{field.name}", field.dataType, depth), field.nullable)
            for field in schema.fields
        }
        return Struct(path, schema, fields, self._terms)

    def _reading(self, path: str, column: T.DataType, depth: int) -> Reading:
        if isinstance(column, T.StructType) and column.fields:
            return self._struct(path, column, depth)
        if isinstance(column, T.ArrayType):
            item = Item(self._reading(f"{path}[]", column.elementType, depth + 1), column.containsNull)
            return Array(path, column, item, depth)
        if isinstance(column, T.MapType) and isinstance(column.keyType, T.StringType):
            item = Item(self._reading(f"{path}{{}}", column.valueType, depth + 1), column.valueContainsNull)
            return Map(path, column, item, depth)
        return scalar(path, column, self._terms)
