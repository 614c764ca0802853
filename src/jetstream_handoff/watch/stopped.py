# SPDX-License-Identifier: Apache-2.0
"""The keys of a consumer that have stopped (``on_poison="stop_key"``): how many, since which message, and what to do.

The page, the doctor, the commands and the metrics say what is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.quantities import number
from jetstream_handoff.errors import LedgerUnavailable
from jetstream_handoff.ledger.buckets import never_used
from jetstream_handoff.ledger.ledger import ledgers
from jetstream_handoff.watch.inspection import records_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetstream_client.context import JetStream
    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.words import Words


@dataclass(frozen=True, slots=True)
class StoppedKeys:
    """The stopped keys of a consumer, at least one.

    stream, consumer:  the names.
    count:             how many there are.
    first:             the lowest sequence at which one of them stopped.
    """

    stream: str
    consumer: str
    count: int
    first: int

    @classmethod
    def seen(cls, stream: str, consumer: str, record: Record | None) -> StoppedKeys | None:
        """Return the stopped keys of a consumer; None if none has stopped.

        record:  the consumer's record in the ledger; None if there is none, or if it could not be read.
        """
        stopped = record.order.stopped if record and record.order else None
        return cls(stream, consumer, len(stopped), min(stopped.values())) if stopped else None

    @property
    def cause(self) -> str:
        """One sentence: what has stopped, and where."""
        has = f"{number(self.count, 'key')} of consumer {self.consumer} of stream {self.stream}"
        return f"{has} {'has' if self.count == 1 else 'have'} stopped, the first one at message {self.first}."

    @property
    def effect(self) -> str:
        """One sentence: what this does to the messages of these keys."""
        return "With on_poison='stop_key', all their later messages become dead letters."

    def remedy(self, words: Words) -> str:
        """One sentence: what to do.

        words:  the words of the connection.
        """
        command = words.command(f"dead-letters resume {self.stream} {self.consumer}")
        return f"Fix the cause, and let them go on with {command}, which replays their dead letters in order."

    def text(self, words: Words) -> str:
        """All of it."""
        return f"{self.cause} {self.effect} {self.remedy(words)}"


async def stopped_keys(js: JetStream, stream: str | None, consumer: str | None) -> list[StoppedKeys]:
    """Return the stopped keys of all consumers in the ledger, or of one stream or consumer. A record that cannot be
    read is only logged.

    Raises:
        LedgerUnavailable: the ledger cannot be read. Nothing is raised if there is no ledger yet.
    """
    try:
        found = await ledgers(js, stream, consumer)
    except LedgerUnavailable as unavailable:
        if not never_used(unavailable):
            raise
        return []
    return stopped_in([each async for each in records_of(found)])


def stopped_in(records: Iterable[tuple[Ledger, Record | None]]) -> list[StoppedKeys]:
    """Return the stopped keys of these consumers, whose records were read."""
    seen = (StoppedKeys.seen(*ledger.names, record) for ledger, record in records)
    return [keys for keys in seen if keys]
