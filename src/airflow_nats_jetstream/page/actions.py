# SPDX-License-Identifier: Apache-2.0
"""The actions on claims and on consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_nats_jetstream.page.claims import Filter, one
from airflow_nats_jetstream.page.errors import BadInput, Changed, NotOpen
from airflow_nats_jetstream.page.holders import LONGEST, can_tell, heard_all
from airflow_nats_jetstream.page.preview import Preview
from jetstream_client.quantities import number
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import ResetRefused, Superseded
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair import release, reset
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.seen import fingerprint, revision

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.watch.seen import Seen

PATIENCE = 20.0
"""Seconds for which a reset waits until acknowledgements are confirmed."""


@dataclass(frozen=True, kw_only=True)
class _Releasing:
    """The parameters of each release.

    despite_alive:    whether to release a claim although the attempt that holds it is alive.
    despite_unknown:  whether to release it although the page cannot know whether that attempt is alive.
    """

    despite_alive: bool = False
    despite_unknown: bool = False

    async def _spare(self, line: Line, claims: list[Seen]) -> None:
        """Raise HolderAlive or HolderUnknown rather than stop an attempt, unless that is confirmed."""
        if self.despite_alive:
            return
        silence = max((seen.silence for seen in claims if seen.holder), default=0.0)
        heard = await heard_all(line, claims, silence)
        remedy = "confirm that the messages are to be redelivered nevertheless"
        release.check_holders(heard, remedy, despite_unknown=self.despite_unknown)


@dataclass(frozen=True)
class Release(_Releasing):
    """Release an open claim, so that its messages are redelivered at once."""

    claim_id: str

    async def preview(self, line: Line) -> Preview:
        seen = await self._open(line)
        assert seen.entry is not None  # noqa: S101 - it is open
        messages = number(seen.sequences.count, "message")
        text = f"The next sensor that pulls receives the {messages} of claim {seen.id} again."
        if seen.entry.is_released:
            again = f" It was already released at {seen.entry.history.released}, and no sensor has taken them since."
            return Preview(revision(seen), text + again, lambda: self._perform(line, seen))
        if seen.holder is None:
            waiting = " No attempt holds it. The task for which it was taken can hold it until then."
            return Preview(revision(seen), text + waiting, lambda: self._perform(line, seen))
        text += f" Attempt {seen.holder} holds it: {release.STOPPED}."
        if not can_tell(seen):
            text += (
                f" The page listens for it for {LONGEST:.0f} s only, but an attempt of this consumer may be silent for "
                f"{seen.silence:.0f} s."
            )
        return Preview(
            revision(seen),
            text,
            lambda: self._perform(line, seen),
            dangerous=True,
            silence=min(seen.silence, LONGEST),
        )

    async def _perform(self, line: Line, seen: Seen) -> str:
        await self._spare(line, [seen])
        try:
            await release.release(await line.js(), seen)
        except Superseded:
            raise Changed("claims") from None
        return release.told(seen)

    async def _open(self, line: Line) -> Seen:
        known = await one(line, self.claim_id)
        ledger = Ledger(await line.js(), known.stream, known.consumer)
        for seen in (await inspection.look(ledger)).claims:
            if seen.id == self.claim_id:
                return seen
        raise NotOpen(f"claim {self.claim_id} is not open, so there is nothing to release; look at its new state")


@dataclass(frozen=True)
class ReleaseAll(_Releasing):
    """Release all open claims that a filter selects."""

    wanted: Filter

    async def preview(self, line: Line) -> Preview:
        found = await self._open(line)
        text = f"This releases {release.described(found)} The next sensors that pull receive the messages again."
        held = [seen.silence for seen in found if seen.holder]
        return Preview(
            fingerprint(sorted(map(revision, found))),
            text,
            lambda: self._perform(line, found),
            dangerous=bool(held),
            silence=min(max(held, default=0.0), LONGEST),
        )

    async def _perform(self, line: Line, found: list[Seen]) -> str:
        await self._spare(line, found)
        done = await release.release_all(await line.js(), found)
        if not done.claims:
            raise Changed("claims")
        messages = number(sum(seen.sequences.count for seen in done.claims), "message")
        text = (
            f"Released: {number(len(done.claims), 'claim')}. The next sensors that pull receive the {messages} again."
        )
        kept = f" Not released, because they changed in the meantime: {number(len(done.changed), 'claim')}."
        return text + (kept if done.changed else "")

    async def _open(self, line: Line) -> list[Seen]:
        of = (self.wanted.stream or None, self.wanted.consumer or None)
        found = await inspection.look_at(await line.js(), *of, whatever_can_be_read=True)
        if wanted := [seen for seen in inspection.oldest_first(found) if self.wanted.fits(seen)]:
            return wanted
        raise NotOpen("no open claim matches, so there is nothing to release; look at the list of open claims")


@dataclass(frozen=True)
class _OfConsumer:
    """An action on the pause of a consumer."""

    stream: str
    consumer: str

    async def _consumer(self, line: Line) -> Consumer:
        return (await line.js()).stream(self.stream).consumer(self.consumer)

    async def _read(self, line: Line) -> tuple[ConsumerInfo, str]:
        """Return the consumer's INFO and the revision of its pause."""
        info = await (await self._consumer(line)).info()
        return info, fingerprint(info.created, info.config.get("pause_until"))


@dataclass(frozen=True)
class Pause(_OfConsumer):
    """Pause a consumer.

    until:  the end of the pause, RFC 3339.
    """

    until: str

    async def preview(self, line: Line) -> Preview:
        info, revision = await self._read(line)
        end = self._end()
        text = (
            f"Consumer {self.consumer} delivers nothing until {end:%Y-%m-%d %H:%M:%S} UTC, neither its "
            f"{number(info.pending, 'waiting message')} nor later ones. Tasks can still settle the "
            f"{number(info.ack_pending, 'message')} that it has delivered."
        )
        return Preview(revision, text, lambda: self._perform(line, end))

    async def _perform(self, line: Line, end: datetime) -> str:
        state = await (await self._consumer(line)).pause(end)
        return f"Consumer {self.consumer} is paused until {state.until}."

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
class Resume(_OfConsumer):
    """End the pause of a consumer."""

    async def preview(self, line: Line) -> Preview:
        info, revision = await self._read(line)
        text = f"Consumer {self.consumer} delivers again at once. It has {number(info.pending, 'waiting message')}."
        return Preview(revision, text, lambda: self._perform(line))

    async def _perform(self, line: Line) -> str:
        await (await self._consumer(line)).resume()
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
        again = plan.forgotten & Sequences.from_ranges([(plan.sequence, 1 << 63)])
        text = (
            f"Consumer {self.consumer} delivers all messages of stream {self.stream} from sequence {plan.sequence:,} "
            f"on again. This supersedes {number(len(plan.superseded), 'open claim')}: attempts that hold them can no "
            f"longer settle them. Sensors may receive {number(again.count, 'settled message')} again. The "
            f"consumer also has {number(plan.pending, 'message')} that it has not delivered yet. This takes 5 s or "
            "more."
        )
        created = (await ledger.consumer.info()).created
        state = (created, record.life if record else None, plan.sequence, sorted(plan.superseded), self.sequence)
        revision = fingerprint(*state, plan.forgotten.to_json())
        way = self._unclaimed if record is None else self._claimed
        return Preview(revision, text, lambda: way(ledger), dangerous=True)

    async def _claimed(self, ledger: Ledger) -> str:
        if await ledger.known() is None:
            raise Changed("consumers")
        return self._said(await reset.reset(ledger, self.sequence, patience=PATIENCE))

    async def _unclaimed(self, ledger: Ledger) -> str:
        try:
            done = await reset.reset_unclaimed(ledger, self.sequence)
        except ResetRefused:  # a sensor has taken its first claim since the preview
            raise Changed("consumers") from None
        return self._said(done)

    def _said(self, done: reset.Reset) -> str:
        return (
            f"Consumer {self.consumer} was reset to sequence {done.sequence:,}: it has "
            f"{number(done.pending, 'message')} to deliver. This superseded {number(len(done.superseded), 'claim')}."
        )
