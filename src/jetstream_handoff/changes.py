# SPDX-License-Identifier: Apache-2.0
"""Join changes of one record into a single write if they wait on one connection at the same time.

When several writers race for a compare-and-set, one succeeds and the others have worked for nothing. Writers that share
a connection, as the sensors of a triggerer do, need not race: the writer whose turn it is applies all waiting changes
and writes once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from jetstream_handoff.record import Record

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo

Change = Callable[["Record | None", "ConsumerInfo"], "Record | None"]
"""A function that returns the new record, or raises. If the record is unchanged, nothing is written. The function may
be called several times and must recognise its own effect, because a write whose answer got lost is tried again."""

Outcome = tuple["Record | None", "ConsumerInfo"] | Exception
"""The outcome of a change: the record after it and the INFO that it saw, or its error."""

_queues: WeakKeyDictionary[JetStream, dict[str, Queue]] = WeakKeyDictionary()


@dataclass(eq=False, slots=True)
class Waiting:
    """A requested change, and its outcome."""

    function: Change
    outcome: Outcome | None = None


class Queue:
    """The changes of one record that wait on one connection."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: list[Waiting] = []
        self.read = b""
        self.record: Record | None = None
        """The value that was read last, and the record that it contains."""
        self.written = 0
        """The revision that this connection wrote last. Any other revision shows that there are rivals."""
        self.idle_until = 0.0
        """A time on the event loop's clock. This connection writes nothing before it, so that rivals may go first."""

    @classmethod
    def of(cls, js: JetStream, subject: str) -> Queue:
        return _queues.setdefault(js, {}).setdefault(subject, cls())

    @asynccontextmanager
    async def turn(self, function: Change) -> AsyncIterator[Waiting]:
        """Wait until it is the turn of this change. By then, another writer on this connection may have applied it."""
        mine = Waiting(function)
        self._waiting.append(mine)
        try:
            async with self._turn:
                yield mine
        finally:
            self._leave(mine)

    def waiting(self) -> list[Waiting]:
        """Return the waiting changes. Call this before reading the record, so that each change sees a record and an
        INFO that are newer than the request for the change."""
        return list(self._waiting)

    def apply(self, together: Iterable[Waiting], old: Record | None, info: ConsumerInfo) -> Applied:
        """Apply the changes that are still waiting, one after another."""
        applied = Applied([old], [])
        for each in together:
            if each not in self._waiting:
                continue
            try:
                new = each.function(applied.record, info)
            except Exception as error:  # noqa: BLE001 - raised to the caller that waits for this change
                applied.outcomes.append((each, error))
                continue
            if new is not None:
                applied.steps.append(new)
            applied.outcomes.append((each, (applied.record, info)))
        return applied

    def done(self, outcomes: Iterable[tuple[Waiting, Outcome]]) -> None:
        """Store the outcomes that the callers of these changes wait for."""
        for each, outcome in outcomes:
            each.outcome = outcome
            self._leave(each)

    def _leave(self, change: Waiting) -> None:
        if change in self._waiting:
            self._waiting.remove(change)


class Applied(NamedTuple):
    """Changes applied to a record: the record after each step, and the outcome of each change."""

    steps: list[Record | None]
    outcomes: list[tuple[Waiting, Outcome]]

    @property
    def record(self) -> Record | None:
        return self.steps[-1]
