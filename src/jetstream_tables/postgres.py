# SPDX-License-Identifier: Apache-2.0
"""What a Postgres database remembers of the messages in a table, in two small tables next to it.

``jetstream_heads`` has a row for each table and name of a stream: a transaction that writes such messages locks it
first. ``jetstream_messages`` has the messages, sequences with times, written in the transaction that writes the rows.
Both know a table by its object id, so that nothing is remembered of a table that was dropped and created again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetstream_tables.errors import TableUnsuitable
from jetstream_tables.identity import IDENTITY, SEQUENCE, STREAM, TIMESTAMP

if TYPE_CHECKING:
    from jetstream_tables.messages import Messages

Execute = Callable[[str], list[tuple[Any, ...]]]
"""Runs one statement in the transaction and returns its rows."""

_CREATE = (
    """create table if not exists {schema}.jetstream_heads (
        table_id oid not null, stream text not null, commits bigint not null, primary key (table_id, stream))""",
    # One row for each commit; messages is Messages.packed. The index finds the commits that overlap with a claim.
    """create table if not exists {schema}.jetstream_messages (
        table_id oid not null, stream text not null, commit bigint not null,
        first bigint not null, last bigint not null, messages bytea not null,
        primary key (table_id, stream, commit))""",
    """create index if not exists jetstream_messages_of on {schema}.jetstream_messages
        using gist (int8range(first, last, '[]'))""",
)
_MICROSECONDS = f'(extract(epoch from "{TIMESTAMP}"::timestamptz) * 1000000)::bigint'
LONGEST_PAUSE = 60
"""Seconds for which a transaction may do nothing, before the server ends it."""
_LOCK_OF_CREATION = 6_174_883_190_277_345_101  # a random number that no other program uses


@dataclass(frozen=True)
class Name:
    """The name of a table, perhaps with its schema: ``orders`` or ``sales.orders``."""

    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, name: str) -> Name:
        schema, _, table = name.rpartition(".")
        return cls(table, schema or None)

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}" if self.schema else quoted(self.table)


def rows_of(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    """Execute one statement with a cursor of DB-API, and return its rows."""
    cursor.execute(statement)
    return list(cursor.fetchall()) if cursor.description else []


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string in a statement."""
    return "'" + text.replace("'", "''") + "'"


class Memory:
    """The memory of one table for one stream, in one transaction."""

    def __init__(self, execute: Execute, name: Name, stream: str) -> None:
        self._execute = execute
        self.name = name
        self.stream = stream
        self.schema = name.schema or ""
        self.table_id: int | None = None
        self._remembers = False
        self._commits = 0

    def lock(self) -> bool:
        """Wait until no other transaction writes messages of this stream to the table. Returns whether the table
        exists.

        Raises:
            TableUnsuitable: the table could lose rows that are remembered.
        """
        self._execute("set transaction isolation level read committed")  # a look sees what the lock has waited for
        # A process that stands still must not keep others from the lock. Without synchronous commits, a crash would
        # lose rows of settled claims.
        self._execute(
            f"select set_config('idle_in_transaction_session_timeout', '{LONGEST_PAUSE}s', true), case "
            "current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end"
        )
        if not self._find() or not self._remembers:
            # Held until the commit: only one transaction creates.
            self._execute(f"select pg_advisory_xact_lock({_LOCK_OF_CREATION})::text")
            self._find()
            for statement in _CREATE:
                self._execute(statement.format(schema=quoted(self.schema)))
        if self.table_id is None:
            return False
        self._execute(f"lock table {self.name} in row exclusive mode")  # so that it is not dropped before the commit
        if not self._find():
            return False
        self._lock_head()
        return True

    def created(self) -> None:
        """Remember from now on what is written to the table that this transaction has created."""
        self._find()
        self._forget(f"table_id = {self.table_id}")
        self._lock_head()

    def found(self, first: int, last: int) -> Messages:
        """The messages of the stream, at least those in a range of sequences, that were written to the table."""
        from jetstream_tables.messages import Messages

        if self.table_id is None:
            return Messages.of([])
        rows = self._execute(
            f"select encode(messages, 'base64') from {self._of('messages')} where table_id = {self.table_id} "  # noqa: S608
            f"and stream = {literal(self.stream)} and int8range(first, last, '[]') && int8range({first}, {last}, '[]')"
        )
        return Messages.of(Messages.unpacked(b64decode(packed)).table for (packed,) in rows)

    def add(self, new: Messages) -> None:
        """Remember messages that this transaction writes."""
        self._add(self._commits, new)

    def _add(self, commit: int, new: Messages) -> None:
        first, last, packed = new.sequences.first, new.sequences.last, b64encode(new.packed()).decode()
        self._execute(
            f"insert into {self._of('messages')} values ({self.table_id}, {literal(self.stream)}, {commit}, "  # noqa: S608
            f"{first}, {last}, decode('{packed}', 'base64'))"
        )

    def delete_rows(self, old: Messages) -> None:
        """Delete the rows of messages, which stay remembered."""
        sequences, times = (",".join(map(str, each.to_pylist())) for each in old.table.columns)
        first, last = old.sequences.first, old.sequences.last
        self._execute(
            f"delete from {self.name} using unnest('{{{sequences}}}'::bigint[], '{{{times}}}'::bigint[]) as old (s, t) "  # noqa: S608
            f"where {quoted(STREAM)} = {literal(self.stream)} and {quoted(SEQUENCE)} between {first} and {last} "
            f"and {quoted(SEQUENCE)} = old.s and {_MICROSECONDS} = old.t"
        )

    def columns(self) -> dict[str, str]:
        """The columns of the table, with their types as Postgres calls them."""
        return dict(
            self._execute(
                "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "  # noqa: S608
                f"where attrelid = {self.table_id} and attnum > 0 and not attisdropped order by attnum"
            )
        )

    def _find(self) -> bool:
        memory = " and ".join(
            f"to_regclass(quote_ident(n.nspname) || '.jetstream_{which}') is not null"
            for which in ("heads", "messages")
        )
        found = self._execute(
            f"select c.oid::bigint, n.nspname::text, c.relkind::text, c.relpersistence::text, {memory} from pg_class c "  # noqa: S608
            f"join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass({literal(str(self.name))})"
        )
        if not found:
            self.table_id = None
            self.schema = self.schema or self._execute("select current_schema()::text")[0][0] or "public"
            return False
        (self.table_id, self.schema, kind, persistence, self._remembers) = found[0]
        if kind not in {"r", "p"}:
            raise TableUnsuitable(f"{self.name} is not a table; give the name of a table")
        if persistence != "p":
            remedy = "its rows vanish in a crash, or with their session; alter table … set logged, or use another table"
            raise TableUnsuitable(f"table {self.name} is unlogged or temporary: {remedy}")
        return True

    def _lock_head(self) -> None:
        ((self._commits,),) = self._execute(
            f"insert into {self._of('heads')} as head values ({self.table_id}, {literal(self.stream)}, 1) "  # noqa: S608
            "on conflict (table_id, stream) do update set commits = head.commits + 1 returning commits"
        )
        if self._commits == 1:  # the table may be a copy of one with rows of this stream
            self._forget("not exists (select from pg_class where pg_class.oid = table_id)")
            self._learn()

    def _learn(self) -> None:
        if not set(IDENTITY) <= self.columns().keys():
            return
        rows = self._execute(
            f"select distinct {quoted(SEQUENCE)}::bigint, {_MICROSECONDS} from {self.name} "  # noqa: S608
            f"where {quoted(STREAM)} = {literal(self.stream)}"
        )
        if rows:
            from jetstream_tables.messages import Messages

            self._add(0, Messages.of_pairs(rows))

    def _forget(self, which: str) -> None:
        for table in ("heads", "messages"):
            self._execute(f"delete from {self._of(table)} where {which}")  # noqa: S608

    def _of(self, which: str) -> str:
        return f"{quoted(self.schema)}.jetstream_{which}"
