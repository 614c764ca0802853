"""What is special about a database: locks, its memory of ranges, and tables that it could lose."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from demo.postgres import Postgres
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.hold.table import Appended
from jetstream_tables import SqlTable
from jetstream_tables.errors import RowsInvalid, TableFailed, TableUnsuitable
from jetstream_tables.postgres import Memory, Name, rows_of
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Sql
from tests.jetstream_tables.steps import Dying, begin, counted, once, rows


@pytest.fixture
def sql(postgres: Postgres, tmp_path: Path) -> Iterator[Sql]:
    Sql.server = postgres
    with Sql(tmp_path) as made:
        yield made


async def test_the_second_attempt_waits_for_the_first(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 20)
    (claim,) = await take(stream)
    first, second = begin(holds, stream, claim), begin(holds, stream, claim, 2)
    given, appended = rows(first), []
    other = threading.Thread(target=lambda: appended.append(second.append_to(sql.table(), given)))

    def meanwhile() -> None:
        other.start()
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        while not sql.execute(waits)[0][0]:
            pass

    first.append_to(sql.table(), given.slice(0, 1), every_message=False)  # creates the tables
    assert counted(first.append_to(Dying(sql.table(), before=meanwhile), given.slice(1))) == (19, 0)
    other.join()
    assert appended == [Appended(Sequences(), claim.sequences)]


async def test_the_memory_has_a_row_for_each_commit(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 30)
    claims = await take(stream, messages_per_claim=10)
    for held in [begin(holds, stream, each) for each in claims] + [begin(holds, stream, claims[1], 2)]:
        held.append_to(sql.table(), rows(held))
    assert sql.remembered() == [*range(1, 31)]
    commits = "select first, last, commit from {schema}.jetstream_messages order by 1"
    assert sql.execute(commits) == [(1, 10, 1), (11, 20, 2), (21, 30, 3)]
    assert sql.execute("select stream, commits from {schema}.jetstream_heads") == [(stream.name, 3)]


async def test_a_copy_of_a_table_is_read_once(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    """A copy, or a table of a dump, has rows that the two small tables do not know."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    first.append_to(sql.table(), rows(first, range(1, 6)), every_message=False)
    sql.execute("create table {schema}.copied as select * from {schema}.orders")
    second = begin(holds, stream, claim, 2)
    assert counted(second.append_to(sql.table("copied"), rows(second))) == (5, 5)
    assert sql.sequences("copied") == [*range(1, 11)]


async def test_a_dropped_table_is_forgotten(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    first.append_to(sql.table(), rows(first))
    sql.drop()
    second.append_to(sql.table(), rows(second))
    assert sql.remembered() == [*range(11, 21)]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            "create unlogged table {schema}.orders (amount bigint)",
            "is unlogged or temporary: its rows vanish",
        ),
        ("create view {schema}.orders as select 1 as amount", "is not a table"),
    ],
)
async def test_a_table_that_could_lose_rows(stream: Stream, sql: Sql, holds: ExitStack, made: str, told: str) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    sql.execute(made)
    with pytest.raises(TableUnsuitable, match=told):
        held.append_to(sql.table(), rows(held))


async def test_columns_of_a_table_that_exists(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    """Rows get the types of the table. A type whose form is unknown is refused by its name."""
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    identity = "_stream text, _sequence bigint, _timestamp timestamptz"
    sql.execute(f"create table {{schema}}.orders (amount integer, price numeric(10, 2), {identity}, note varchar(5))")
    more = rows(held).append_column("price", pa.array(range(5)))
    sql.execute("create table {schema}.other (extra jsonb)")
    with pytest.raises(RowsInvalid, match=r"column extra of table .*\.other has the type jsonb, which append"):
        held.append_to(sql.table("other"), more)
    with pytest.raises(TableFailed, match="value too long for type character varying"):
        held.append_to(sql.table(), more.append_column("note", pa.array(["longer"] * 5)))
    assert sql.sequences() == []
    large = more.set_column(more.schema.get_field_index("amount"), "amount", pa.array([2**40] * 5))
    with pytest.raises(RowsInvalid, match="column amount cannot be converted from int64 to int32"):
        held.append_to(sql.table(), large.append_column("note", pa.array(["short"] * 5)))
    notes = ["short", None, "", "x", "ä"]
    assert counted(held.append_to(sql.table(), more.append_column("note", pa.array(notes)))) == (5, 0)
    found = sql.query("amount, price::int, note")
    assert found == [(10 * each, each - 1, note) for each, note in enumerate(notes, 1)]


async def test_the_isolation_of_a_role_does_not_matter(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    first, second = begin(holds, stream, claim), begin(holds, stream, claim, 2)
    sql.execute("alter role postgres set default_transaction_isolation = 'serializable'")
    try:
        assert counted(first.append_to(sql.table(), rows(first))) == (10, 0)
        assert counted(second.append_to(sql.table(), rows(second))) == (0, 10)
    finally:
        sql.execute("alter role postgres reset default_transaction_isolation")


@pytest.mark.parametrize(("default", "used"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_commits_are_synchronous(sql: Sql, default: str, used: str) -> None:
    sql.execute("create table {schema}.orders (amount bigint)")
    with closing(sql.connect()) as database, database.cursor() as cursor:
        cursor.execute(f"set synchronous_commit = {default}")
        assert Memory(partial(rows_of, cursor), Name("orders", sql.schema), "S").lock()
        assert rows_of(cursor, "select current_setting('synchronous_commit')") == [(used,)]
        assert rows_of(cursor, "select current_setting('idle_in_transaction_session_timeout')") == [("1min",)]
        database.commit()
        assert rows_of(cursor, "select current_setting('synchronous_commit')") == [(default,)]


async def test_a_connection_that_the_server_ends(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    ends = "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'"
    table = Dying(sql.table(), before=once(lambda: sql.execute(ends)))
    assert counted(held.append_to(table, rows(held))) == (10, 0)
    assert sql.sequences() == [*range(1, 11)]


async def test_names_are_quoted(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    held.append_to(sql.table('Or"ders'), rows(held).rename_columns(["sequence", "timestamp", "the 'amount\""]))
    assert sql.sequences('"Or""ders"') == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["", "a.b.c", ".a", "a."])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidValue, match="give the name of a table"):
        SqlTable("postgresql://localhost/postgres", name)


@pytest.mark.parametrize("url", ["mysql://me:geheim@localhost/db", "postgres//me:geheim@localhost/db", "geheim"])
async def test_another_database_is_refused(stream: Stream, holds: ExitStack, url: str) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with pytest.raises(InvalidValue, match="only Postgres is supported") as refused:
        held.append_to(SqlTable(url, "orders"), rows(held))
    assert "geheim" not in str(refused.value)
