# SPDX-License-Identifier: Apache-2.0
"""The actions of the page. Each first says in numbers what it will do, and is refused if the state has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_nats_jetstream.page.claims import one
from airflow_nats_jetstream.page.errors import BadInput, Changed, HolderAlive, NotOpen
from airflow_nats_jetstream.page.holders import LONGEST, heard
from jetstream_client.sequences import Sequences
from jetstream_handoff import inspection, reset
from jetstream_handoff.dead_letter_page import listed
from jetstream_handoff.dead_letters import DeadLetters
from jetstream_handoff.discard import discard
from jetstream_handoff.history import readable
from jetstream_handoff.ledger import Ledger
from jetstream_handoff.replay import replay
from jetstream_handoff.selection import Selection

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.consume.consumer import Consumer
    from jetstream_handoff.dead_letter_page import Stub
    from jetstream_handoff.inspection import Seen

PATIENCE = 20.0
"""Seconds for which a reset waits until acknowledgements are confirmed."""
_NAMED = 3
"""How many dead letters that were kept are named, with the reason."""
_PAGES = 5
"""How many pages of a thousand dead letters are read to find the chosen ones, at most."""


@dataclass(frozen=True)
class Preview:
    """What an action will do.

    revision:   a fingerprint of the state that the action depends on.
    text:       what it will do, in numbers.
    dangerous:  whether work or messages may be lost by it.
    silence:    seconds for which the action first listens for the holder of a claim, at most.
    """

    revision: str
    text: str
    dangerous: bool = False
    silence: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "text": self.text,
            "dangerous": self.dangerous,
            "silence": self.silence,
        }


class Action(Protocol):
    """An action with its parameters."""

    async def preview(self, line: Line) -> Preview:
        """Read the state that the action depends on, from the server, and say what the action will do."""

    async def perform(self, line: Line, expected: str) -> str:
        """Carry the action out, and say what was done.

        expected:  the revision of the state for which the user has confirmed it. It has just been compared.
        """


@dataclass(frozen=True)
class Release:
    """Release an open claim, so that its messages are redelivered at once.

    despite_alive:  whether to release it although the attempt that holds it is alive.
    """

    claim_id: str
    despite_alive: bool = False

    async def preview(self, line: Line) -> Preview:
        seen = await self._open(line)
        assert seen.entry is not None  # noqa: S101 - it is open
        text = (
            f"The {seen.sequences.count:,} messages of claim {seen.id} are redelivered to the next sensor that pulls."
        )
        if seen.holder is None:
            waiting = (
                f" No attempt holds it. {readable(seen.entry.owner)} took it for a task, which can hold it until then."
            )
            return Preview(inspection.revision(seen), text + waiting)
        text += (
            f" Attempt {seen.holder} holds it: if that attempt is alive, it is stopped, its output does not count, and "
            "the messages are processed from the beginning."
        )
        return Preview(inspection.revision(seen), text, dangerous=True, silence=min(seen.silence, LONGEST))

    async def perform(self, line: Line, expected: str) -> str:
        seen = await self._open(line)
        if inspection.revision(seen) != expected:
            raise Changed("claims")
        if seen.holder is not None and not self.despite_alive:
            seen = await heard(line, seen, seen.silence)
            if seen.alive or seen.silence > LONGEST:
                heartbeat = "has just sent a heartbeat" if seen.alive else f"may be silent for {seen.silence:.0f} s"
                raise HolderAlive(
                    f"claim {seen.id} was not released, because attempt {seen.holder} {heartbeat}; wait until its work "
                    "has ended, or confirm that the claim is to be released although the attempt may be alive"
                )
        await inspection.release(await line.js(), seen)
        return f"Claim {seen.id} was released: its {seen.sequences.count:,} messages are redelivered at once."

    async def _open(self, line: Line) -> Seen:
        known = await one(line, self.claim_id)
        ledger = Ledger(await line.js(), known.stream, known.consumer)
        for seen in await inspection.open_in(ledger):
            if seen.id == self.claim_id:
                return seen
        raise NotOpen(f"claim {self.claim_id} is not open, so there is nothing to release; look at its new state")


@dataclass(frozen=True)
class Pause:
    """Pause a consumer.

    until:  the end of the pause, RFC 3339.
    """

    stream: str
    consumer: str
    until: str

    async def preview(self, line: Line) -> Preview:
        info = await (await self._consumer(line)).info()
        end = self._end()
        text = (
            f"Consumer {self.consumer} delivers nothing until {end:%Y-%m-%d %H:%M:%S} UTC: {info.pending:,} messages "
            f"and all later ones wait. The {info.ack_pending:,} messages that it has delivered can still be processed."
        )
        return Preview(_fingerprint(info.created, info.config.get("pause_until")), text)

    async def perform(self, line: Line, expected: str) -> str:  # noqa: ARG002
        state = await (await self._consumer(line)).pause(self._end())
        return f"Consumer {self.consumer} is paused until {state.until}."

    async def _consumer(self, line: Line) -> Consumer:
        return (await line.js()).stream(self.stream).consumer(self.consumer)

    def _end(self) -> datetime:
        try:
            end = datetime.fromisoformat(self.until).astimezone(UTC)
            good = datetime.fromisoformat(self.until).tzinfo is not None and end > datetime.now(UTC)
        except (ValueError, OverflowError):
            good = False
        if not good:
            raise BadInput("the parameter 'until' is invalid; give a time in the future, such as 2030-01-31T12:00:00Z")
        return end


@dataclass(frozen=True)
class Resume:
    """End the pause of a consumer."""

    stream: str
    consumer: str

    async def preview(self, line: Line) -> Preview:
        info = await (await line.js()).stream(self.stream).consumer(self.consumer).info()
        text = f"Consumer {self.consumer} delivers again at once. {info.pending:,} messages wait."
        return Preview(_fingerprint(info.created, info.config.get("pause_until")), text)

    async def perform(self, line: Line, expected: str) -> str:  # noqa: ARG002
        await (await line.js()).stream(self.stream).consumer(self.consumer).resume()
        return f"Consumer {self.consumer} delivers again."


@dataclass(frozen=True)
class Reset:
    """Reset a consumer.

    sequence:  all messages from this stream sequence on are delivered again. Default None: from the first one that is
               not acknowledged.
    """

    stream: str
    consumer: str
    sequence: int | None = None

    async def preview(self, line: Line) -> Preview:
        ledger = Ledger(await line.js(), self.stream, self.consumer)
        record = await ledger.known()
        plan = await reset.plan(ledger, self.sequence, claims=record is not None)
        text = (
            f"All messages of stream {self.stream} from sequence {plan.sequence:,} on are delivered to consumer "
            f"{self.consumer} again. {len(plan.superseded):,} open claims are superseded: attempts that hold them can "
            f"no longer settle them. {plan.forgotten.count:,} settled messages may be processed again. "
            f"{plan.pending:,} messages were not delivered yet. This takes 5 s or more."
        )
        created = (await ledger.consumer.info()).created
        state = (created, record.life if record else None, plan.sequence, sorted(plan.superseded), self.sequence)
        return Preview(_fingerprint(*state, plan.forgotten.to_json()), text, dangerous=True)

    async def perform(self, line: Line, expected: str) -> str:  # noqa: ARG002
        ledger = Ledger(await line.js(), self.stream, self.consumer)
        if await ledger.known() is None:
            done = await reset.reset_unclaimed(ledger, self.sequence)
        else:
            done = await reset.reset(ledger, self.sequence, patience=PATIENCE)
        return (
            f"Consumer {self.consumer} was reset to sequence {done.sequence:,}: it has {done.pending:,} messages to "
            f"deliver, and {len(done.superseded):,} claims were superseded."
        )


@dataclass(frozen=True)
class OfLetters:
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

    async def chosen(self, line: Line) -> dict[int, Stub]:
        """Return the chosen dead letters that exist, by number."""
        letters = DeadLetters(await line.js(), self.stream)
        wanted, after = set(self.numbers), min(self.numbers) - 1
        found: dict[int, Stub] = {}
        for _ in range(_PAGES):
            part = await listed(letters, after=after, limit=1_000)
            found.update((stub.number, stub) for stub in part.stubs if stub.number in wanted)
            if part.next is None or part.next >= max(self.numbers):
                return found
            after = part.next
        raise BadInput("the chosen dead letters are too far apart; choose fewer at a time")

    def revision(self, found: dict[int, Stub]) -> str:
        state = [[each, stub.head is not None, stub.confirmed] for each, stub in sorted(found.items())]
        return _fingerprint(self.stream, state, sorted(self.numbers), self.unconfirmed)

    def counted(self, found: dict[int, Stub]) -> tuple[int, int, int, int]:
        """Return how many dead letters the action is about, their bytes, how many of them the ledger does not confirm,
        and how many of the chosen numbers have no dead letter."""
        heads = [stub for stub in found.values() if stub.head is not None]
        included = [stub for stub in heads if stub.confirmed or self.unconfirmed]
        size = sum(stub.head.size for stub in included if stub.head)
        doubtful = sum(not stub.confirmed for stub in heads)
        return len(included), size, doubtful, len(self.numbers) - len(heads)

    def left_out(self, doubtful: int, gone: int) -> str:
        """Say what the ledger does not confirm, and what no longer exists."""
        text = ""
        if doubtful:
            how = "are included" if self.unconfirmed else "are left out"
            text = f" {doubtful:,} that the ledger does not confirm {how}: an attempt that died usually left them."
        return text + (f" {gone:,} no longer exist." if gone else "")


class Replay(OfLetters):
    """Publish dead letters to their original subjects again."""

    async def preview(self, line: Line) -> Preview:
        found = await self.chosen(line)
        count, size, doubtful, gone = self.counted(found)
        text = (
            f"{count:,} dead letters ({size:,} bytes) are published to stream {self.stream} again, and every consumer "
            f"whose filter matches receives them.{self.left_out(doubtful, gone)}"
        )
        return Preview(self.revision(found), text, dangerous=self.unconfirmed and bool(doubtful))

    async def perform(self, line: Line, expected: str) -> str:  # noqa: ARG002
        done = await replay(DeadLetters(await line.js(), self.stream), self.selection)
        text = f"{done.published:,} dead letters were published again."
        if done.found:
            text += f" {done.found:,} more had already been published by a replay that was killed."
        return text + _kept(done.unconfirmed, done.refused)


class Discard(OfLetters):
    """Delete dead letters: the messages are then gone for good."""

    async def preview(self, line: Line) -> Preview:
        found = await self.chosen(line)
        count, size, doubtful, gone = self.counted(found)
        text = (
            f"{count:,} dead letters ({size:,} bytes) of stream {self.stream} are deleted. Nothing can bring their "
            f"messages back.{self.left_out(doubtful, gone)}"
        )
        return Preview(self.revision(found), text, dangerous=True)

    async def perform(self, line: Line, expected: str) -> str:  # noqa: ARG002
        done = await discard(DeadLetters(await line.js(), self.stream), self.selection)
        return f"{done.count:,} dead letters were deleted.{_kept(done.unconfirmed, done.refused)}"


def _kept(unconfirmed: int, refused: Mapping[int, str]) -> str:
    text = f" {unconfirmed:,} were kept, because the ledger does not confirm them." if unconfirmed else ""
    shown = list(refused.items())[:_NAMED]
    text += "".join(f" Dead letter {number} was kept: {reason}." for number, reason in shown)
    left = len(refused) - len(shown)
    return text + (f" {left:,} more were kept." if left else "")


def _fingerprint(*state: object) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
