# SPDX-License-Identifier: Apache-2.0
"""Combine changes of one record that wait on the same connection at the same time into a single write.

When several writers try a compare-and-set at the same time, only one succeeds, and the others must repeat their work.
Writers that share a connection, as all sensors of a process can, avoid this: the writer whose turn it is applies all
waiting changes and writes once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from jetstream_client.errors import ConnectionLost, RequestTimeout
from jetstream_handoff.ledger.record import Record

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo

Result = TypeVar("Result")


class Changed(NamedTuple, Generic[Result]):
    """What a change makes of a record.

    record:  the record after the change; the same one if there is nothing to change. None: there is no record.
    result:  what else the caller of the change wants to know.
    """

    record: Record | None
    result: Result


Change = Callable[["Record | None", "ConsumerInfo"], Changed[Result]]
"""A function that takes a record and the consumer's INFO, and returns what it makes of them, or raises. It has no other
effect, because it is called again if another client has written the record in the meantime. Only the last call counts.
"""

Outcome = Changed[Any] | Exception
"""The outcome of a change: what its function returned, with the record after all changes up to it, or its error."""

_queues: WeakKeyDictionary[JetStream, dict[str, Queue]] = WeakKeyDictionary()


@dataclass(eq=False, slots=True)
class Waiting:
    """A requested change, and its outcome.

    claim_id:  the claim whose receipt the caller writes if the change ends it; empty if there is none.
    confirm:   whether the record is written although nothing has changed.
    """

    function: Change[Any]
    claim_id: str = ""
    confirm: bool = False
    outcome: Outcome | None = None


class Queue:
    """The changes of one record that wait on one connection."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: list[Waiting] = []
        self.read = b""
        self.record: Record | None = None
        """The value that was read or written last, and the record that it contains."""
        self.written = 0
        """The revision that this connection wrote last. Any other revision shows that another client writes the same
        record."""
        self.sent: dict[str, Applied] = {}
        """The writes that were not answered, by their ids. A later record shows which of them the server has stored."""
        self.idle_until = 0.0
        """A time on the event loop's clock. Until then, this connection writes nothing, so that other clients can write
        first."""

    @classmethod
    def of(cls, js: JetStream, subject: str) -> Queue:
        return _queues.setdefault(js, {}).setdefault(subject, cls())

    @asynccontextmanager
    async def turn(self, function: Change[Any], claim_id: str = "", *, confirm: bool = False) -> AsyncIterator[Waiting]:
        """Wait until it is the turn of this change. By then, another writer on this connection may have applied it.

        claim_id, confirm:  as in :class:`Waiting`.
        """
        mine = Waiting(function, claim_id, confirm)
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
        applied, confirm = Applied([old], [], [], info), False
        for each in together:
            if each not in self._waiting:
                continue
            try:
                new, result = each.function(applied.record, info)
            except Exception as error:  # noqa: BLE001 - raised to the caller that waits for this change
                applied.outcomes.append((each, error))
                continue
            if new is not None:
                applied.steps.append(new)
                applied.claim_ids.append(each.claim_id)
            applied.outcomes.append((each, Changed(applied.record, result)))
            confirm |= each.confirm
        return applied._replace(confirm=confirm)

    def stored(self, record: Record | None) -> Applied | None:
        """Return the changes of an unanswered write if the record shows that the server has stored it."""
        found = next((self.sent[each] for each in record.writes if each in self.sent), None) if record else None
        if found is not None:
            self.sent.clear()
        return found

    @contextmanager
    def write(self, applied: Applied) -> Iterator[str]:
        """Remember the changes of a write, under the id that is given, until it is known whether the server has stored
        it."""
        write = secrets.token_hex(4)
        self.sent[write] = applied
        try:
            yield write
        except (RequestTimeout, ConnectionLost, asyncio.CancelledError):
            raise
        except BaseException:
            del self.sent[write]
            raise
        self.sent.clear()

    def done(self, outcomes: Iterable[tuple[Waiting, Outcome]]) -> None:
        """Store the outcomes that the callers of these changes wait for."""
        for each, outcome in outcomes:
            each.outcome = outcome
            self._leave(each)

    def _leave(self, change: Waiting) -> None:
        if change in self._waiting:
            self._waiting.remove(change)


class Applied(NamedTuple):
    """Changes applied to a record.

    steps:      the record before the first step, and after each step.
    claim_ids:  for each step, the claim whose receipt the caller writes, or an empty string.
    outcomes:   the outcome of each change.
    info:       the consumer's INFO that the changes saw.
    confirm:    whether the record is written although nothing has changed.
    """

    steps: list[Record | None]
    claim_ids: list[str]
    outcomes: list[tuple[Waiting, Outcome]]
    info: ConsumerInfo
    confirm: bool = False

    @property
    def record(self) -> Record | None:
        return self.steps[-1]
