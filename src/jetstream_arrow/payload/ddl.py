# SPDX-License-Identifier: Apache-2.0
"""Columns as Spark's DDL writes them: ``id INT NOT NULL, customer STRUCT<name: STRING>``. No I/O, and no Arrow, so that
an orchestrator can check a schema when it parses a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from jetstream_client.errors import InvalidValue

_TOKEN = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>\S)")
_ALIASES = {
    "BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT", "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL", "TIMESTAMP_LTZ": "TIMESTAMP",
}  # fmt: skip
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_SIMPLE = {*BITS, "BOOLEAN", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}
MOST_DIGITS = 38
_DEEPEST = 50


@dataclass(frozen=True)
class Type:
    """The type of a column.

    name:     its name in upper case, without parameters.
    digits:   of a DECIMAL: the number of all digits, and of those after the decimal point.
    fields:   of a STRUCT.
    item:     of an ARRAY its element, of a MAP its value. The keys of a MAP are strings.
    """

    name: str
    digits: tuple[int, int] | None = None
    fields: tuple[Column, ...] = ()
    item: Column | None = None

    def __str__(self) -> str:
        if self.digits:
            return f"{self.name}({self.digits[0]},{self.digits[1]})"
        if self.item:
            return f"{self.name}<{'STRING, ' if self.name == 'MAP' else ''}{self.item.type}>"
        return f"{self.name}<{', '.join(map(str, self.fields))}>" if self.fields else self.name


@dataclass(frozen=True)
class Column:
    """A column, or a value inside one."""

    name: str
    type: Type
    nullable: bool = True

    def __str__(self) -> str:
        name = self.name if re.fullmatch(r"\w+", self.name) else f"`{self.name.replace('`', '``')}`"
        return f"{name}: {self.type}{'' if self.nullable else ' NOT NULL'}"


def columns_of(schema: object) -> tuple[Column, ...]:
    """Return the columns of a schema.

    schema:  Spark's DDL; or a mapping of names to types, each as in DDL, perhaps with NOT NULL.

    Raises:
        InvalidValue: the schema cannot be used, and why.
    """
    if isinstance(schema, Mapping):
        found = [_Parser(text, str(name)).typed(str(name)) for name, text in schema.items()]
    elif isinstance(schema, str):
        found = _Parser(schema, schema).columns()
    else:
        remedy = "give the columns and their types, for example 'shop STRING, amount INT NOT NULL'"
        raise InvalidValue("schema", type(schema), remedy)
    if not found:
        raise InvalidValue("schema", schema, "there is no column; give for example 'shop STRING, amount INT'")
    return unique(found)


def unique(columns: list[Column]) -> tuple[Column, ...]:
    """Return columns. Raises InvalidValue if the names of two of them differ at most in case."""
    lowered = [column.name.lower() for column in columns]
    for column in columns:
        if lowered.count(column.name.lower()) > 1:
            raise InvalidValue("schema", column.name, "two fields have this name or one that differs only in case")
    return tuple(columns)


class _Parser:
    def __init__(self, text: object, shown: str) -> None:
        if not isinstance(text, str):
            raise InvalidValue("schema", shown, f"its type is given as {type(text).__name__}; give a string like 'INT'")
        self._shown, self._depth, self._at = shown[:200], 0, 0
        self._tokens = [(each["quoted"], each["word"], each["mark"]) for each in _TOKEN.finditer(text)]

    def columns(self) -> list[Column]:
        return self._list(end=None) if self._tokens else []

    def typed(self, name: str) -> Column:
        """The column whose type the whole text is."""
        column = Column(name, self._type(), not self._not_null())
        self._end()
        return column

    def _list(self, end: str | None) -> list[Column]:
        found = [self._column()]
        while self._take(","):
            found.append(self._column())
        if end is None:
            self._end()
        elif not self._take(end):
            self._refuse(f"{end} is missing", self._next())
        return found

    def _column(self) -> Column:
        quoted, word, _ = self._token()
        name = quoted.replace("``", "`") if quoted else word
        if not name:
            self._refuse("the name of a column is missing", self._next(-1))
        self._take(":")
        return Column(name, self._type(), not self._not_null())

    def _type(self) -> Type:
        _, word, _ = self._token()
        name = (word or "").upper()
        name = _ALIASES.get(name, name)
        if name in _SIMPLE:
            return Type(name)
        if name == "DECIMAL":
            return Type(name, self._digits())
        if name in {"ARRAY", "MAP", "STRUCT"}:
            return self._nested(name)
        known = ", ".join(sorted({*_SIMPLE, "DECIMAL(p,s)", "ARRAY<…>", "MAP<STRING, …>", "STRUCT<…>"}))
        return self._refuse(f"this is not a type that can be decoded exactly; the types are {known}", self._next(-1))

    def _nested(self, name: str) -> Type:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"its types are nested deeper than {_DEEPEST} levels", name)
        if not self._take("<"):
            self._refuse(f"{name} needs < after it", self._next())
        if name == "STRUCT":
            found = Type(name, fields=unique(self._list(end=">")))
        else:
            if name == "MAP" and not (self._type().name == "STRING" and self._take(",")):
                self._refuse("the keys of a MAP are strings; give MAP<STRING, …>", self._next(-1))
            found = Type(name, item=Column("value", self._type()))
            if not self._take(">"):
                self._refuse("> is missing", self._next())
        self._depth -= 1
        return found

    def _digits(self) -> tuple[int, int]:
        if not self._take("("):
            return 10, 0  # as in Spark
        numbers = [self._number()]
        if self._take(","):
            numbers.append(self._number())
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not (self._take(")") and 0 < precision <= MOST_DIGITS and scale <= precision):
            self._refuse(f"a DECIMAL has 1 to {MOST_DIGITS} digits; give for example DECIMAL(10, 2)", self._next(-1))
        return precision, scale

    def _number(self) -> int:
        _, word, _ = self._token()
        if not (word and word.isascii() and word.isdigit()):
            self._refuse("a number is missing in DECIMAL(p, s)", self._next(-1))
        return int(word[:9])

    def _not_null(self) -> bool:
        if (self._peek()[1] or "").upper() != "NOT":
            return False
        self._at += 1
        _, word, _ = self._token()
        if (word or "").upper() != "NULL":
            self._refuse("after NOT follows NULL", self._next(-1))
        return True

    def _end(self) -> None:
        if self._at < len(self._tokens):
            self._refuse("a comma, or the end, is missing before this", self._next())

    def _peek(self) -> tuple[str | None, ...]:
        return self._tokens[self._at] if self._at < len(self._tokens) else (None, None, None)

    def _token(self) -> tuple[str | None, ...]:
        found = self._peek()
        self._at += 1
        return found

    def _take(self, mark: str) -> bool:
        if self._peek()[2] != mark:
            return False
        self._at += 1
        return True

    def _next(self, back: int = 0) -> str:
        """The token that was read last, or that is next, for an error."""
        place = self._at + back
        return next(filter(None, self._tokens[place]), "") if 0 <= place < len(self._tokens) else "the end"

    def _refuse(self, why: str, found: str) -> NoReturn:
        raise InvalidValue("schema", self._shown, f"at {found!r}: {why}")
