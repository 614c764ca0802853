# SPDX-License-Identifier: Apache-2.0
"""The actions on dead letters: replaying and discarding those that were chosen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_nats_jetstream.page.preview import Preview
from jetstream_client.quantities import number
from jetstream_client.sequences import Sequences
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.extent import Extent
from jetstream_handoff.letters.listing import chosen
from jetstream_handoff.letters.replay import replay
from jetstream_handoff.letters.selection import Selection
from jetstream_handoff.watch.seen import fingerprint

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line

_NAMED = 3
"""How many dead letters that were kept are named, with the reason."""


@dataclass(frozen=True)
class OfLetters(ABC):
    """An action on chosen dead letters of a stream.

    numbers:      their numbers. Any change of a dead letter gives it another number.
    unconfirmed:  whether to include those that the ledger does not confirm.
    """

    stream: str
    numbers: Sequence[int]
    unconfirmed: bool = False

    @property
    def selection(self) -> Selection:
        return Selection(numbers=Sequences.of(self.numbers), unconfirmed=self.unconfirmed)

    async def preview(self, line: Line) -> Preview:
        found = await chosen(DeadLetters(await line.js(), self.stream), Sequences.of(self.numbers))
        extent, gone = Extent(unconfirmed=self.unconfirmed), len(self.numbers)
        for stub in found:
            if stub.head is not None:
                extent, gone = extent.plus(stub.head.size, confirmed=stub.confirmed), gone - 1
        state = [[stub.number, stub.head is not None, stub.confirmed] for stub in found]
        revision = fingerprint(self.stream, state, sorted(self.numbers), self.unconfirmed)
        text = self._text(extent) + extent.doubt
        text += f" Nothing is left of {number(gone, 'other dead letter')} that you chose." if gone else ""
        return Preview(revision, text, lambda: self._perform(line), self._is_dangerous(extent.doubtful))

    @abstractmethod
    def _text(self, letters: Extent) -> str:
        """Say what will be done to these dead letters."""

    @abstractmethod
    def _is_dangerous(self, doubtful: int) -> bool:
        """Whether messages may be lost or processed twice, if the ledger does not confirm this many."""

    @abstractmethod
    async def _perform(self, line: Line) -> str:
        """Do it, and say what was done."""


class Replay(OfLetters):
    """Publish dead letters to their original subjects again."""

    def _text(self, letters: Extent) -> str:
        return (
            f"This publishes {letters} to stream {self.stream} again. Every consumer whose filter matches receives the "
            "messages."
        )

    def _is_dangerous(self, doubtful: int) -> bool:
        return self.unconfirmed and bool(doubtful)

    async def _perform(self, line: Line) -> str:
        done = await replay(DeadLetters(await line.js(), self.stream), self.selection)
        text = f"Published again: {number(done.published, 'dead letter')}."
        if done.found:
            text += f" A replay that was killed had already published {done.found:,} more."
        return text + _kept(done.unconfirmed, done.refused)


class Discard(OfLetters):
    """Delete dead letters: the messages are then gone for good."""

    def _text(self, letters: Extent) -> str:
        return f"This deletes {letters} of stream {self.stream}. Nothing can bring the messages back."

    def _is_dangerous(self, doubtful: int) -> bool:  # noqa: ARG002
        return True

    async def _perform(self, line: Line) -> str:
        done = await discard(DeadLetters(await line.js(), self.stream), self.selection)
        return f"Deleted: {number(done.count, 'dead letter')}.{_kept(done.unconfirmed, done.refused)}"


def _kept(unconfirmed: int, refused: Mapping[int, str]) -> str:
    text = f" Kept, because the ledger does not confirm them: {unconfirmed:,}." if unconfirmed else ""
    shown = list(refused.items())[:_NAMED]
    text += "".join(f" Dead letter {number} was kept: {reason}." for number, reason in shown)
    left = len(refused) - len(shown)
    return text + (f" Also kept: {left:,} more." if left else "")
