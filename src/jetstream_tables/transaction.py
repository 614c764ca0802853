# SPDX-License-Identifier: Apache-2.0
"""Statements of the user for a claim, in a transaction that remembers its messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_tables.append import times_of
from jetstream_tables.decision import check_later
from jetstream_tables.errors import TableUnsuitable
from jetstream_tables.postgres import Execute, Memory, Name, rows_of

if TYPE_CHECKING:
    from jetstream_handoff.hold.blocking import BlockingHold

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transaction:
    """A transaction for a claim.

    new:      the sequences of the messages to process: those that no earlier transaction has processed, and that are
              not rejected.
    already:  the sequences of the other messages of the claim.
    cursor:   a cursor of the connection.
    """

    new: Sequences
    already: Sequences
    cursor: Any

    def execute(self, statement: str, *parameters: Any) -> Any:
        """Execute a statement, and return the cursor.

        statement:   SQL for the driver of the connection.
        parameters:  the parameters of the cursor's method ``execute``.
        """
        self.cursor.execute(statement, *parameters)
        return self.cursor


@contextmanager
def transaction(claim: BlockingHold, connection: Any, table: str) -> Iterator[Transaction]:
    """See :meth:`pyspark_jetstream.held_claim.HeldClaim.transaction`."""
    stored, times = claim.stored.get(table, Sequences()), times_of(claim, claim.sequences)
    try:
        with closing(connection.cursor()) as cursor:
            execute = partial(rows_of, cursor)
            identity = execute("select pg_current_xact_id()::text")
            _check(execute, identity, "each statement of it is a transaction; turn its autocommit off")
            memory = Memory(execute, Name.parse(table), claim.stream)
            _lock(memory)
            seen = memory.found(claim.sequences.first, claim.sequences.last).compared(times)
            check_later(seen, claim.id, table)
            found = seen.same
            yield Transaction(claim.sequences - claim.rejected - found, found, cursor)
            remedy = "the block has ended its transaction itself, so that it may be processed twice; leave that out"
            _check(execute, identity, remedy)
            new = claim.sequences - claim.rejected - found
            if written := new & times.sequences:
                memory.add(times.within(written))
        connection.commit()
    except BaseException:
        _rollback(connection)
        raise
    claim.stored[table] = stored | found | new
    text = "claim %s: %d messages were processed in a transaction with table %s; %d messages had been before"
    log.info(text, claim.id, new.count, table, found.count)


def _check(execute: Execute, identity: list[tuple[Any, ...]], remedy: str) -> None:
    """Check that the transaction has not ended."""
    if execute("select pg_current_xact_id_if_assigned()::text") != identity:
        raise InvalidValue("connection", "…", remedy)


def _lock(memory: Memory) -> None:
    if not memory.lock():
        raise TableUnsuitable(
            f"table {memory.name} does not exist; create it first, because the messages are remembered with it"
        )


def _rollback(connection: Any) -> None:
    try:
        connection.rollback()
    except Exception:
        log.debug("the transaction could not be rolled back", exc_info=True)
