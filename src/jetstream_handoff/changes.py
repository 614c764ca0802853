"""Changes of one record that wait at the same time on one connection go in one write.

Of rivals in a compare-and-set one succeeds, and the others have worked for nothing. Those who share a connection, as
the sensors of a triggerer do, need not race: whoever's turn it is applies what all of them wait for, and writes once.
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
"""The new record, which may be the old one: then nothing is written. Or it raises. It may be applied several times, and
must recognise its own effect: a write whose answer got lost is tried again."""

Outcome = tuple["Record | None", "ConsumerInfo"] | Exception
"""Of a change: the record as it left it with the INFO that it saw, or its error."""

_queues: WeakKeyDictionary[JetStream, dict[str, Queue]] = WeakKeyDictionary()


@dataclass(eq=False, slots=True)
class Waiting:
    """A change that was asked for, and what became of it."""

    function: Change
    outcome: Outcome | None = None


class Queue:
    """The changes of one record that wait on one connection."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: list[Waiting] = []
        self.read = ""
        self.record: Record | None = None
        """What was read last, and what it means."""
        self.written = 0
        """The revision that this connection wrote last: another one shows that there are rivals."""
        self.idle_until = 0.0
        """On the loop's clock: who has written lets its rivals go first."""

    @classmethod
    def of(cls, js: JetStream, subject: str) -> Queue:
        return _queues.setdefault(js, {}).setdefault(subject, cls())

    @asynccontextmanager
    async def turn(self, function: Change) -> AsyncIterator[Waiting]:
        """Wait until it is this change's turn; somebody else may have done it by then."""
        mine = Waiting(function)
        self._waiting.append(mine)
        try:
            async with self._turn:
                yield mine
        finally:
            self._leave(mine)

    def waiting(self) -> list[Waiting]:
        """To be asked before the record is read: then each of them sees a record and an INFO of after its beginning."""
        return list(self._waiting)

    def apply(self, together: Iterable[Waiting], old: Record | None, info: ConsumerInfo) -> Applied:
        """Apply one after another what is still waited for."""
        applied = Applied([old], [])
        for each in together:
            if each not in self._waiting:
                continue
            try:
                new = each.function(applied.record, info)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                applied.outcomes.append((each, error))
                continue
            if new is not None:
                applied.steps.append(new)
            applied.outcomes.append((each, (applied.record, info)))
        return applied

    def done(self, outcomes: Iterable[tuple[Waiting, Outcome]]) -> None:
        """These are waited for no longer."""
        for each, outcome in outcomes:
            each.outcome = outcome
            self._leave(each)

    def _leave(self, change: Waiting) -> None:
        if change in self._waiting:
            self._waiting.remove(change)


class Applied(NamedTuple):
    """What changes make of a record: each step of it, and what each of them is told."""

    steps: list[Record | None]
    outcomes: list[tuple[Waiting, Outcome]]

    @property
    def record(self) -> Record | None:
        return self.steps[-1]
