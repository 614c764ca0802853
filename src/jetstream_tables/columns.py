# SPDX-License-Identifier: Apache-2.0
"""Columns of rows and of a table: which names and types fit. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from jetstream_tables.errors import RowsInvalid
from jetstream_tables.identity import IDENTITY, OF_ROWS, SEQUENCE, STREAM, TIMESTAMP
from jetstream_tables.messages import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PLAIN = {
    pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(), pa.float16(): pa.float32(),
}  # fmt: skip
IDENTIFIES = "keep it in the select: it identifies each message in the table"


def plain(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is kept until it is written: without encodings, and such as every table has."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if types.is_unsigned_integer(kind):  # tables have signed integers only
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if types.is_timestamp(kind):  # the same instant, with the one zone that every table has
        return pa.timestamp("us", kind.tz and "UTC")
    if types.is_nested(kind):
        return _plain_inside(kind)
    return _PLAIN.get(kind, kind)


def _plain_inside(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    return kind


def kept(rows: pa.Schema) -> pa.Schema:
    """The columns that rows are kept with: the identity without ``_stream``, which a claim has once, then the others.

    Raises:
        RowsInvalid: a column is missing, has a name that is taken, or is there twice.
    """
    names = list(rows.names)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RowsInvalid(f"rows have several columns {_listed(twice)}; give each column another name")
    for name in OF_ROWS:
        if name not in names:
            raise RowsInvalid(f"rows have no column {name}; {IDENTIFIES}")
    if taken := [name for name in names if name.lower() in IDENTITY]:
        raise RowsInvalid(
            f"rows have columns {_listed(taken)}, which append_to writes itself; leave them out or rename them"
        )
    if not types.is_integer(rows.field("sequence").type):
        raise RowsInvalid(f"column sequence has the type {rows.field('sequence').type}; it must be a whole number")
    if not types.is_timestamp(time := rows.field("timestamp").type) or time.tz is None:
        raise RowsInvalid(
            f"column timestamp has the type {time}; it must be the message's timestamp, a time with a time zone"
        )
    for name in names:
        if types.is_null(rows.field(name).type):
            raise RowsInvalid(f"column {name} has no type, because it contains only nulls; cast it to a type")
    rest = [rows.field(name).with_type(plain(rows.field(name).type)) for name in names if name not in OF_ROWS]
    return pa.schema([pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(TIMESTAMP, TIME, nullable=False), *rest])


def created(kept_columns: pa.Schema) -> pa.Schema:
    """The columns of a table that is made for rows."""
    return pa.schema([pa.field(STREAM, pa.string(), nullable=False), *kept_columns])


def is_scalar(kind: pa.DataType) -> bool:
    """Whether a table of every kind has a type for a column of :func:`plain`, such as a number, a text or a time."""
    return bool(
        any(each(kind) for each in (types.is_boolean, types.is_integer, types.is_floating, _is_text, _is_bytes))
        or (types.is_date(kind) or types.is_timestamp(kind))
        or (types.is_decimal128(kind) and kind.scale >= 0)
    )


def holds(kind: pa.DataType, scalar: Callable[[pa.DataType], bool]) -> bool:
    """Whether a table has a type for a column that may be nested.

    scalar:  whether it has one for a column that is not.
    """
    if not types.is_nested(kind):
        return scalar(kind)
    if types.is_map(kind):
        return holds(kind.key_type, scalar) and holds(kind.item_type, scalar)
    if types.is_struct(kind):
        return all(holds(field.type, scalar) for field in kind)
    is_list = types.is_list(kind) or types.is_fixed_size_list(kind)
    return is_list and holds(kind.value_type, scalar)


def check_held(rows: pa.Schema, held: Callable[[pa.DataType], bool], name: str) -> None:
    """Check that a table that is made for rows can hold them.

    rows:  the schema of :func:`created`.
    held:  whether such a table has a type for a column.

    Raises:
        RowsInvalid: names the columns for which it has none, and what they hold.
    """
    if odd := [field for field in rows if not held(field.type)]:
        raise RowsInvalid(
            f"table {name} cannot hold {_listed(f'column {each.name} ({each.type})' for each in odd)}; leave it out, "
            "or write what you need of it in separate columns, such as the value of one header, or as a text"
        )


def check_fit(rows: pa.Schema, table: pa.Schema, name: str) -> None:
    """Check that rows can be written to a table without a guess and without a loss.

    rows:   the schema of :func:`created`.
    table:  the table's.

    Raises:
        RowsInvalid: names the columns that do not fit.
    """
    if missing := [column for column in IDENTITY if column not in table.names]:
        raise RowsInvalid(
            f"table {name} has no columns {_listed(missing)}, which identify each message; add them, or let append_to "
            "create the table"
        )
    if unknown := [column for column in rows.names if column not in table.names]:
        raise RowsInvalid(f"table {name} has no columns {_listed(unknown)}; add them to the table, or leave them out")
    if absent := [column for column in table.names if column not in rows.names]:
        raise RowsInvalid(f"rows have no columns {_listed(absent)}, which table {name} has; add them, perhaps as nulls")
    for field in rows:
        into = table.field(field.name).type
        if not _fits(field.type, into):
            remedy = "write what you need of it" if types.is_nested(field.type) else "cast it"
            raise RowsInvalid(f"column {field.name} of the rows is {field.type}, but {into} in table {name}; {remedy}")


def cast(column: Any, into: pa.DataType, name: str) -> Any:
    """Convert a column, or raise RowsInvalid with its name if a value would change."""
    try:
        if column.type == into:
            return column
        if types.is_integer(column.type) and types.is_decimal128(into):
            column = pc.cast(column, pa.decimal128(38, into.scale))  # Arrow asks for room for the largest integer
        return pc.cast(column, into, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RowsInvalid(f"column {name} cannot be converted from {column.type} to {into}: {error}") from None


def _fits(given: pa.DataType, into: pa.DataType) -> bool:
    """Whether a value of one type has the same value in the other. Whether each value has room there, the conversion
    finds out."""
    given, into = plain(given), plain(into)
    if given == into:
        return True
    if types.is_integer(given):
        return bool(types.is_integer(into) or types.is_decimal(into))
    if types.is_nested(given):
        return _fits_inside(given, into)
    return any(
        one(given) and other(into)
        for one, other in (
            (_is_text, _is_text),
            (_is_bytes, _is_bytes),
            (types.is_float16, types.is_floating),
            (types.is_float32, types.is_float64),
            (types.is_decimal, types.is_decimal),
            (_has_zone, _has_zone),
            (types.is_date, types.is_date),
        )
    )


def _fits_inside(given: pa.DataType, into: pa.DataType) -> bool:
    if types.is_list(given) and types.is_list(into):
        return _fits(given.value_type, into.value_type)
    if types.is_map(given) and types.is_map(into):
        return _fits(given.key_type, into.key_type) and _fits(given.item_type, into.item_type)
    # Arrow converts structs by position, so their fields must have the same names in the same order.
    same = types.is_struct(given) and types.is_struct(into) and [each.name for each in given] == [i.name for i in into]
    return same and all(_fits(mine.type, theirs.type) for mine, theirs in zip(given, into, strict=True))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _has_zone(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
