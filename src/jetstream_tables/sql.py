# SPDX-License-Identifier: Apache-2.0
"""Tables in a Postgres database, with its driver of ADBC (extra ``sql``), which copies Arrow batches in binary form.

The compare-and-set is a lock of a row that belongs to the table and the stream. The look, the rows and the memory are
in one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_tables.errors import Conflict, RowsInvalid, TableFailed
from jetstream_tables.identity import SEQUENCE
from jetstream_tables.postgres import Memory, Name, quoted, rows_of
from jetstream_tables.secrets import in_address, masked
from jetstream_tables.table import ExactTable

if TYPE_CHECKING:
    import pyarrow as pa

    from jetstream_tables.decision import Old
    from jetstream_tables.messages import Messages
    from jetstream_tables.rows import RowsReader

_DIALECT = re.compile(r"^(postgres|postgresql)(\+\w+)?://")
_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: the server has chosen another transaction
_DECIMAL = re.compile(r"numeric\((\d+),(\d+)\)")
_DIGITS = re.compile(r"decimal\d+\((\d+, \d+)\)")


class SqlTable(ExactTable):
    """A table in a Postgres database that contains each message once. Pass it to ``claim.append_to``.

    In its schema, the tables ``jetstream_heads`` and ``jetstream_messages`` remember which messages it contains, also
    those whose rows were deleted. The first append creates all three if they do not exist, the table with an index on
    ``_sequence``.

    url:   the address of the database, such as ``postgresql://user:password@host/database``, or a function that returns
           it, which is called when the table is used. Its password is in no message.
    name:  the name of the table, perhaps with a schema: ``sales.orders``. Lower and upper case differ.
    """

    extra = "sql"
    libraries = ("adbc_driver_postgresql", "adbc_driver_manager", "pyarrow")

    def __init__(self, url: str | Callable[[], str], name: str) -> None:
        if not name or name.count(".") > 1 or name.startswith(".") or name.endswith("."):
            raise InvalidValue("name", name, "give the name of a table, such as 'orders' or 'sales.orders'")
        self.url = url
        self.name = name

    def target(self) -> SqlTarget:
        """The table as :func:`jetstream_tables.append.append` uses it."""
        url = self.url() if callable(self.url) else self.url
        if not _DIALECT.match(url):
            scheme = url.partition("://")[0] if "://" in url else "…"
            raise InvalidValue(
                "url", f"{scheme}://…", "only Postgres is supported; give postgresql://user:password@host/database"
            )
        return SqlTarget(self.name, _DIALECT.sub("postgresql://", url))


@dataclass(frozen=True)
class SqlTarget:
    """The table's address, and what is read of it."""

    name: str
    url: str = field(repr=False)

    @contextmanager
    def look(self, stream: str, first: int, last: int) -> Iterator[_Look]:
        """Lock the stream's head, and read the messages of the stream in a range of sequences."""
        with self._errors(), closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            memory = Memory(partial(rows_of, cursor), Name.parse(self.name), stream)
            schema = self._columns(memory) if memory.lock() else None
            yield _Look(self, connection, cursor, memory, schema, memory.found(first, last))

    def _connect(self) -> Any:
        import adbc_driver_postgresql.dbapi

        return adbc_driver_postgresql.dbapi.connect(self.url)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from adbc_driver_manager import Error

        try:
            yield
        except Error as error:
            text = masked(str(error).partition("\n\nQuery was:")[0], in_address(self.url))
            if error.sqlstate in _AGAIN:
                raise Conflict(text) from None
            raise TableFailed(f"table {self.name}: {text}") from None

    def _columns(self, memory: Memory) -> pa.Schema:
        """The table's columns, with the types in which they are written."""
        import pyarrow as pa

        return pa.schema([(name, _arrow(kind, name, self.name)) for name, kind in memory.columns().items()])


@dataclass
class _Look:
    target: SqlTarget
    connection: Any
    cursor: Any
    memory: Memory
    schema: pa.Schema | None
    present: Messages
    version: int | None = None

    def holds(self, kind: pa.DataType) -> bool:
        from jetstream_tables.columns import is_scalar

        return is_scalar(kind)

    def commit(self, rows: RowsReader, new: Messages, old: Old | None) -> int | None:
        where = {"db_schema_name": self.memory.schema}
        name = self.memory.name.table
        try:
            if self.schema is None:
                self.cursor.adbc_ingest(name, rows.stream.schema.empty_table(), mode="create", **where)
                for each in rows.stream.schema:
                    if digits := _DIGITS.fullmatch(str(each.type)):  # the driver creates a numeric without them
                        column = f"alter column {quoted(each.name)} type numeric({digits[1]})"
                        self.cursor.execute(f"alter table {quoted(self.memory.schema)}.{quoted(name)} {column}")
                index = f"using brin ({quoted(SEQUENCE)}) with (autosummarize = on)"
                self.cursor.execute(f"create index on {quoted(self.memory.schema)}.{quoted(name)} {index}")
                self.memory.created()
            if old is not None:
                self.memory.delete_rows(old.messages)
            self.cursor.adbc_ingest(name, rows.stream, mode="append", **where)
        except Exception:
            if rows.error is not None:
                raise rows.error from None
            raise
        if unknown := new.sequences - self.present.compared(new).same:
            self.memory.add(new.within(unknown))
        self.connection.commit()
        return None


def _arrow(kind: str, column: str, table: str) -> pa.DataType:
    """The type of Arrow whose binary form is that of a type of Postgres."""
    import pyarrow as pa

    types = {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "text": pa.string(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "timestamp with time zone": pa.timestamp("us", "UTC"),
        "timestamp without time zone": pa.timestamp("us"),
    }
    if kind.startswith("character varying"):
        return pa.string()
    if decimal := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if int(decimal[1]) <= 38 else pa.string()
    if kind not in types:
        raise RowsInvalid(
            f"column {column} of table {table} has the type {kind}, which append_to cannot write; use one of "
            f"{', '.join(types)}, numeric(p,s), or let a statement write it"
        )
    return types[kind]
