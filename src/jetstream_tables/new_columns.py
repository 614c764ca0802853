# SPDX-License-Identifier: Apache-2.0
"""Add columns to a table that rows have and the table does not, by the table's own rules. Rows that are in the table
have nulls in them."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from jetstream_tables.append import CONFLICTS
from jetstream_tables.columns import check_fit, check_held, created, is_scalar, kept
from jetstream_tables.delta import DeltaTarget
from jetstream_tables.errors import Conflict, RowsInvalid, TableBusy, TableFailed
from jetstream_tables.iceberg import IcebergTarget
from jetstream_tables.postgres import Name, quoted
from jetstream_tables.secrets import in_address, masked
from jetstream_tables.sql import SqlTarget

if TYPE_CHECKING:
    from jetstream_tables.append import Target
    from jetstream_tables.table import ExactTable

log = logging.getLogger(__name__)

_SQL = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint",
    pa.float32(): "real", pa.float64(): "double precision", pa.string(): "text", pa.binary(): "bytea",
    pa.date32(): "date", pa.timestamp("us", "UTC"): "timestamptz", pa.timestamp("us"): "timestamp",
}  # fmt: skip


def add_new_columns(table: ExactTable, rows: pa.Schema, stream: str) -> list[str]:
    """Add the columns of rows that a table does not have. Returns their names; none if there is no table.

    rows:    the schema of rows as ``append_to`` gets them.
    stream:  the value of their column ``_stream``.

    Raises:
        RowsInvalid: the other columns do not fit, or the table has no type for a new one. Nothing was changed.
        TableFailed: the table cannot be read or changed.
    """
    with table.needed():
        return _added(table, created(kept(rows)), stream)


def _added(table: ExactTable, wanted: pa.Schema, stream: str) -> list[str]:
    target = table.target()
    for _ in range(CONFLICTS):
        try:
            with target.look(stream, 0, 0) as look:
                there = look.schema
        except Conflict:
            continue
        if there is None:
            return []
        new = [field.with_nullable(True) for field in wanted if field.name not in there.names]
        check_fit(wanted, pa.schema([*there, *new]), table.name)
        if not new:
            return []
        names = [field.name for field in new]
        try:
            _add(target, pa.schema(new))
        except Conflict as conflict:  # perhaps another task has added them
            log.info("table %s: columns %s were not added (%s); looking again", table.name, names, conflict)
            continue
        log.info("table %s: added columns %s", table.name, ", ".join(f"{each.name} {each.type}" for each in new))
        return names
    raise TableBusy(f"table {table.name}: other writers have changed it first {CONFLICTS} times; try again")


def _add(target: Target, new: pa.Schema) -> None:
    if isinstance(target, DeltaTarget):
        _to_delta(target, new)
    elif isinstance(target, IcebergTarget):
        _to_iceberg(target, new)
    elif isinstance(target, SqlTarget):
        _to_sql(target, new)
    else:
        raise RowsInvalid(f"table {target.name} has no columns {', '.join(new.names)}; add them to the table")


def _to_delta(target: DeltaTarget, new: pa.Schema) -> None:
    from deltalake import Schema
    from deltalake.exceptions import CommitFailedError

    table = target.load()
    if table is None:
        raise Conflict("it was dropped")
    try:
        table.alter.add_columns(Schema.from_arrow(new).fields)
    except CommitFailedError as error:
        raise Conflict(str(error)) from None
    except Exception as error:  # noqa: BLE001 - delta-rs raises several that have no common class
        raise target.failed("could not be changed", error) from None


def _to_iceberg(target: IcebergTarget, new: pa.Schema) -> None:
    with (
        target.errors("could not be changed"),
        target.opened() as catalog,
        catalog.load_table(target.name).update_schema() as update,
    ):
        update.union_by_name(new)


def _to_sql(target: SqlTarget, new: pa.Schema) -> None:
    import adbc_driver_postgresql.dbapi
    from adbc_driver_manager import Error

    name = Name.parse(target.name)
    columns = ", ".join(f"add column if not exists {quoted(each.name)} {_sql(each, target.name)}" for each in new)
    try:
        with closing(adbc_driver_postgresql.dbapi.connect(target.url)) as connection:
            with closing(connection.cursor()) as cursor:
                cursor.execute(f"alter table {name} {columns}")
            connection.commit()
    except Error as error:
        raise TableFailed(f"table {target.name}: {masked(str(error), in_address(target.url))}") from None


def _sql(field: pa.Field, table: str) -> str:
    if pa.types.is_decimal(field.type):
        return f"numeric({field.type.precision},{field.type.scale})"
    check_held(pa.schema([field]), is_scalar, table)
    return _SQL.get(field.type) or ("text" if pa.types.is_large_string(field.type) else "bytea")
