# SPDX-License-Identifier: Apache-2.0
"""Look, leave out what is in the table, append the rest in one commit; after a conflict or an unknown outcome, look
again. docs/handoff.md has the rules."""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from jetstream_client.sequences import Sequences
from jetstream_handoff.hold.table import Appended
from jetstream_tables.columns import check_fit, check_held
from jetstream_tables.decision import Claimed
from jetstream_tables.errors import Conflict, TableBusy, TableFailed
from jetstream_tables.messages import Messages, stored
from jetstream_tables.rows import kept_rows
from jetstream_tables.spread import Spread, SpreadRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from jetstream_handoff.hold.table import Origin, Rejected
    from jetstream_tables.decision import Decision, Old
    from jetstream_tables.rows import Rows, RowsReader

log = logging.getLogger(__name__)
T = TypeVar("T")

CONFLICTS = 100
"""Each conflict is a commit of somebody else, so this many claims can be appended to one table at the same time."""
FAILURES = 3
"""Tries that may end with an error of the table in one call."""
_SHORTEST, _LONGEST = 0.01, 1.0  # seconds between two tries


class Look(Protocol):
    """A table as it was at one moment.

    present:  its messages of streams of one name, at least those of a range of sequences.
    schema:   its columns; None if it does not exist.
    version:  its version, if it has one.
    """

    present: Messages
    schema: pa.Schema | None
    version: int | None

    def holds(self, kind: pa.DataType) -> bool:
        """Whether a table of this kind has a type for a column of rows."""

    def commit(self, rows: RowsReader, new: Messages, old: Old | None) -> int | None:
        """Append rows, and remove others, in one commit, if since the look nobody has committed messages of a stream of
        this name. Returns the new version when the rows are in the table.

        new:  the messages of the rows.
        old:  the rows to remove; None if there are none.

        Raises:
            Conflict: look again.
            TableFailed: the same, a few times.
        """


class Target(Protocol):
    """A table of one kind."""

    @property
    def name(self) -> str: ...

    def look(self, stream: str, first: int, last: int) -> AbstractContextManager[Look]:
        """Look at the messages of a stream in a range of sequences."""


def append(
    target: Target,
    claim: Origin,
    rows: object,
    *,
    rejected: Rejected,
    every_message: bool,
    replace: bool = False,
) -> Appended:
    """Append the rows of a claim. See :meth:`~jetstream_handoff.hold.blocking.BlockingHold.append_to`.

    replace:  whether to replace those that are in the table, as ``replace_in`` does.
    """
    stream, first, last = claim.stream, claim.sequences.first, claim.sequences.last
    patience, times = _Patience(target.name, claim), _Times(claim)
    with _kept(target, claim, rows, patience) as kept, ThreadPoolExecutor(1) as meanwhile:
        reject = dict(rejected())
        now_rejected = Sequences.from_ranges(each for some in reject.values() for each in some.ranges)
        claimed = Claimed(
            claim=claim.id,
            sequences=claim.sequences,
            table=target.name,
            rejected=claim.rejected | now_rejected,
            earlier=claim.appended.get(target.name, Sequences()),
            replaces=replace,
        )

        def once() -> tuple[Decision, int | None]:
            claimed.check(kept.messages)  # in each try: executors that write files again may have other rows
            samples = meanwhile.submit(times.of, claimed.samples(kept.messages))
            with target.look(stream, first, last) as look:
                samples.result()
                asked = times.of(claimed.to_ask(kept.messages, look.present))
                decision = claimed.decide(kept.messages, look.present, asked)
                if look.schema is None:
                    check_held(kept.schema, look.holds, target.name)
                else:
                    check_fit(kept.schema, look.schema, target.name)
                if every_message and decision.lost and (lost := decision.lost - claim.skipped()):
                    raise claimed.unaccounted(lost)
                for reason, sequences in reject.items():
                    claim.reject(sequences, reason)
                reject.clear()
                return decision, _committed(claim, look, kept, decision, replace=replace)

        decision, version = patience.until(once)
    _remember(claim, claimed, decision, kept.messages.sequences)
    return Appended(decision.new, decision.already, version)


def _committed(claim: Origin, look: Look, rows: Rows | SpreadRows, decision: Decision, *, replace: bool) -> int | None:
    """Commit what was decided after a look. Returns the version of the table."""
    if replace:  # after the look: from now on, a commit of a newer attempt is a conflict
        claim.fence()
    elif not decision.new:
        return look.version
    # Replacing by nothing is a commit, too, with which older attempts conflict.
    return rows.commit(look, decision)


def _remember(claim: Origin, claimed: Claimed, decision: Decision, given: Sequences) -> None:
    """Keep for later calls what is in the table, and log it."""
    table = claimed.table
    there = decision.new | decision.found
    if not claimed.replaces:
        there |= claim.stored.get(table, Sequences())
    claim.stored[table], claim.appended[table] = there, claimed.earlier | given
    text = "claim %s: the rows of %d messages were appended to table %s; %d messages were in it already"
    if claimed.replaces:
        text = (
            "claim %s: the rows of %d messages were written to table %s; the earlier rows of %d messages were removed"
        )
    log.info(text, claim.id, decision.new.count, table, decision.already.count)
    if decision.again:
        text = "claim %s: %d of its sequences are also those of earlier messages in table %s, whose rows stay"
        log.info(text, claim.id, decision.again.count, table)


@contextmanager
def _kept(target: Target, claim: Origin, rows: object, patience: _Patience) -> Iterator[Rows | SpreadRows]:
    """The rows of a call, in this process, or in files that other processes have written."""
    stream, first, last = claim.stream, claim.sequences.first, claim.sequences.last
    if isinstance(rows, Spread):
        spread = rows

        def once() -> SpreadRows | None:
            with target.look(stream, first, last) as look:
                return SpreadRows.of(spread, look, stream, target.name)

        if (written := patience.until(once)) is not None:
            yield written
            return
        rows = rows.collected()
    with kept_rows(rows, stream) as kept:
        yield kept


@dataclass
class _Times:
    """When the server stored messages of a claim. Each is asked for once."""

    claim: Origin
    asked: Sequences = field(default_factory=Sequences, init=False)
    known: Messages = field(default_factory=lambda: Messages.of([]), init=False)

    def of(self, sequences: Sequences) -> Messages:
        if unknown := sequences - self.asked:
            self.known = Messages.of([self.known.table, times_of(self.claim, unknown).table])
            self.asked |= unknown
        return self.known


def times_of(claim: Origin, sequences: Sequences) -> Messages:
    """Read from the stream when it stored messages of a claim. Those that no longer exist are left out."""
    return Messages.of(stored(each.sequences, each.times) for each in claim.stored_messages(sequences))


@dataclass
class _Patience:
    """How often and when to look again."""

    table: str
    claim: Origin
    conflicts: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)

    def until(self, once: Callable[[], T]) -> T:
        """Return what the first call returns that ends without a conflict and without an error of the table."""
        while True:
            try:
                return once()
            except (Conflict, TableFailed) as error:
                self._wait(error)

    def _wait(self, error: Exception) -> None:
        """Wait before the next look. Raises the error if there were enough, or HoldLost."""
        if isinstance(error, Conflict):
            self.conflicts += 1
            if self.conflicts >= CONFLICTS:
                raise TableBusy(
                    f"table {self.table}: other writers have committed first {CONFLICTS} times; append to it from "
                    "fewer claims at the same time"
                ) from error
        else:
            self.failures += 1
            if self.failures >= FAILURES:
                raise error
            log.warning("claim %s: %s; looking again", self.claim.id, error)
        self.claim.check_held()
        time.sleep(random.uniform(_SHORTEST, min(_LONGEST, _SHORTEST * 2 ** (self.conflicts + self.failures))))  # noqa: S311
