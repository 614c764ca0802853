"""Statements of a user, in a transaction that remembers the messages: sums stay exact."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import pytest

from demo.postgres import Postgres
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_tables.errors import TableUnsuitable
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_handoff.steps import publish, reset_by_a_stranger, take
from tests.jetstream_tables.formats import Sql
from tests.jetstream_tables.steps import Killed, counted, rows

UPSERT = "insert into {table} values ('all', {amount}) on conflict (shop) do update set total = totals.total + {amount}"


@pytest.fixture
def sql(postgres: Postgres, tmp_path: Path) -> Iterator[Sql]:
    Sql.server = postgres
    with Sql(tmp_path) as made:
        made.execute("create table {schema}.totals (shop text primary key, total bigint)")
        yield made


@pytest.fixture
def connection(sql: Sql) -> Iterator[Any]:
    with closing(sql.connect()) as made:
        yield made


def begin(holds: ExitStack, stream: Stream, claim: Claim, try_number: int = 1) -> HeldClaim:
    return holds.enter_context(HeldClaim.begin(stream.js.settings, claim, try_number=try_number))


def add(held: HeldClaim, connection: Any, sql: Sql, dies: bool = False) -> Sequences:
    """Add the sequences of the messages to the total."""
    with held.transaction(connection, f"{sql.schema}.totals") as tx:
        for message in held.messages():
            if message.sequence in tx.new:
                tx.execute(UPSERT.format(table=f"{sql.schema}.totals", amount=message.sequence))
        if dies:
            raise Killed
    return tx.new


def total(sql: Sql) -> int:
    return int(sql.query("sum(total)", "totals")[0][0] or 0)


async def test_a_total_is_exact(stream: Stream, sql: Sql, connection: Any, holds: ExitStack) -> None:
    """A kill before the commit, one after it, and a reset with claims of other sizes."""
    await publish(stream, 30)
    first, second, third = await take(stream, messages_per_claim=10)
    with pytest.raises(Killed):
        add(begin(holds, stream, first), connection, sql, dies=True)
    assert total(sql) == 0
    assert add(begin(holds, stream, first, 2), connection, sql).count == 10
    assert add(begin(holds, stream, second), connection, sql).count == 10
    assert not add(begin(holds, stream, second, 2), connection, sql)
    held = begin(holds, stream, third)
    assert add(held, connection, sql).count == 10
    held.settle()
    await reset_by_a_stranger(stream)
    await publish(stream, 5)
    new = Sequences()
    for claim in await take(stream, "again", messages_per_claim=7):
        held = begin(holds, stream, claim)
        new |= add(held, connection, sql)
        held.settle()
    assert new == Sequences.from_ranges([(31, 35)])
    assert total(sql) == sum(range(36))


async def test_rejected_messages_are_not_remembered(
    stream: Stream, sql: Sql, connection: Any, holds: ExitStack
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    held.reject([1], "before")
    with held.transaction(connection, f"{sql.schema}.totals") as tx:
        assert tx.new == Sequences.from_ranges([(2, 10)])
        held.reject([2], "in the block")
    assert sql.remembered() == [*range(3, 11)]
    with pytest.raises(InvalidValue, match="these messages are already in table"):
        held.reject([3], "late")


async def test_rows_and_statements_share_a_memory(stream: Stream, sql: Sql, connection: Any, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    first.append_to(sql.table(), rows(first, range(1, 4)), every_message=False)
    second = begin(holds, stream, claim, 2)
    with second.transaction(connection, f"{sql.schema}.orders") as tx:
        assert (tx.new, tx.already) == (Sequences.from_ranges([(4, 10)]), Sequences.from_ranges([(1, 3)]))
        tx.execute(f"update {sql.schema}.orders set amount = amount + %s", (1,))
    third = begin(holds, stream, claim, 3)
    assert counted(third.append_to(sql.table(), rows(third))) == (0, 10)
    assert sorted(sql.query("amount")) == [(11,), (21,), (31,)]


async def test_a_connection_of_adbc(stream: Stream, sql: Sql, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    with adbc_driver_postgresql.dbapi.connect(sql.url.replace("+psycopg2", "")) as connection:
        assert add(begin(holds, stream, claim), connection, sql).count == 10
        assert not add(begin(holds, stream, claim, 2), connection, sql)
    assert total(sql) == sum(range(11))


async def test_what_is_refused(stream: Stream, sql: Sql, connection: Any, holds: ExitStack) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with (
        pytest.raises(TableUnsuitable, match='table "nowhere" does not exist; create it first'),
        held.transaction(connection, "nowhere"),
    ):
        pass  # pragma: no cover - it is refused
    with (
        pytest.raises(InvalidValue, match="the block has ended its transaction itself"),
        held.transaction(connection, f"{sql.schema}.totals"),
    ):
        connection.commit()
    connection.autocommit = True
    with pytest.raises(InvalidValue, match="turn its autocommit off"):
        add(held, connection, sql)
    assert sql.remembered() == []
