# SPDX-License-Identifier: Apache-2.0
"""Reprocess: do the work of a settled claim once more, on the same messages, for another output (docs/handoff.md).

The messages are already acknowledged, so nothing is leased, acknowledged or released. The attempt owns the claim's
receipt, in which it stores its token.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import new_token
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import ClaimInvalid, HeldByAnother, Superseded
from jetstream_handoff.events import tell
from jetstream_handoff.hold import settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.unchanged import check_unchanged
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.history import Attempt
from jetstream_handoff.ledger.ledger import Ledger, believed
from jetstream_handoff.ledger.record import check_value
from jetstream_handoff.ledger.work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import timedelta

    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import Receipt
    from jetstream_handoff.rules.missing import Missing

log = logging.getLogger(__name__)


class Reprocess(Hold):
    """A settled claim that is processed again. The attempt that settled it stays committed until the new attempt
    settles the claim.

    It ends in the same ways as a :class:`~jetstream_handoff.hold.hold.Hold`. If it is failed or released, the earlier
    attempt stays committed.
    """

    @classmethod
    @asynccontextmanager
    async def begin(
        cls,
        js: JetStream,
        claim: Claim,
        *,
        try_number: int,
        token: str | None = None,
        longest_hold: timedelta = LONGEST_HOLD,
        holder: Owner = (),
        piece: Owner = (),
        missing: Missing = "error",
    ) -> AsyncIterator[Hold]:
        """Take over the claim's receipt from any earlier attempt that is reprocessing the claim.

        missing:  what reading the claim will do with messages that no longer exist. Default: ``"error"``, so that the
                  work does not begin if one is missing.

        Raises:
            MessagesMissing: the stream no longer contains all of the messages, and ``missing`` is ``"error"``.
            Superseded: the stream or the consumer was deleted or recreated, the claim was never settled as done, or
                all its messages are dead letters.
            OtherWork: another piece of work has settled the claim. Its output would no longer count.
            ClaimInvalid: the receipt belongs to other messages.
            LedgerUnavailable: the ledger's buckets are missing, or this account cannot use them.
        """
        ledger = Ledger(js, claim.stream, claim.consumer)
        await ledger.buckets.check()
        info = await check_unchanged(ledger, claim)
        record, _ = await ledger.read()
        entry = record.done.get(claim.id) if record else None
        token = token or new_token(try_number)
        work = Work.of(holder, piece)

        def settled_as(old: Receipt | None) -> Receipt:
            settled = old
            if (old is None or old.state != "done") and entry is not None:
                settled = ledger.receipts.of_done(claim.id, entry)  # the attempt died before it wrote the receipt
            if settled is None or settled.state != "done":
                raise Superseded(f"claim {claim.id} cannot be processed again, because it was never settled as done")
            work.check_done(claim.id, settled.work, settled.history.attempts, settled.token or "", settled.at)
            if (settled.stream, settled.consumer, settled.sequences) != (claim.stream, claim.consumer, claim.sequences):
                raise ClaimInvalid(
                    f"the messages of claim {claim.id} differ from those of its receipt; pass the claim exactly as the "
                    "sensor returned it"
                )
            if not settled.processed:
                raise Superseded(
                    f"claim {claim.id} cannot be processed again, because all its messages are dead letters or were "
                    "skipped"
                )
            return settled

        seen, _ = await believed(lambda: ledger.receipts.change(claim.id, settled_as))
        wanted = seen.processed
        if missing == "error" and (gone := wanted - await stored(ledger.stream, wanted)):
            raise MessagesMissing(claim.stream, gone)

        def again(old: Receipt | None) -> Receipt:
            settled = settled_as(old)
            return replace(settled, again=token, history=settled.history.held(Attempt(token, info.now, holder)))

        receipt, _ = await believed(lambda: ledger.receipts.change(claim.id, again))
        claim = replace(claim, sequences=wanted)
        log.info("claim %s is processed again by attempt %s; attempt %s settled it", claim.id, token, receipt.token)
        attempt = Reprocess(ledger, claim, token, info.config["ack_wait"] / 1e9, longest_hold, work)
        async with attempt._kept():
            yield attempt

    async def fence(self) -> None:
        """Confirm, with a write of the receipt, that no newer attempt reprocesses the claim. See :meth:`Hold.fence`.

        Raises:
            HeldByAnother: a newer attempt reprocesses or has reprocessed the claim.
            HoldLost, LedgerUnavailable: as :meth:`Hold.fence`.
        """
        self._still_held()
        await believed(lambda: self._ledger.receipts.change(self.claim.id, self._ours, confirm=True))

    async def settle(self, value: Any = None) -> None:
        """Settle the claim again after its work has succeeded. From now on the output of this attempt counts, and the
        older output does not.

        Raises:
            HeldByAnother: a newer attempt reprocesses or has reprocessed the claim.
            InvalidValue, HoldLost: as :meth:`Hold.settle`.
        """
        check_value(value)
        self._still_held()
        await self._stop_beats()
        now = (await self._ledger.stream.info(patience=PATIENCE)).now
        skipped = await self._ledger.receipts.skipped(self.claim.id, self.token) & self.claim.sequences

        def done(old: Receipt | None) -> Receipt:
            if old is not None and (old.token, old.at) == (self.token, now):
                return old  # our own unanswered write: it counts, even if another attempt has begun since
            ours = self._ours(old)
            settled = replace(ours, token=self.token, value=value, at=now, again=None, work=self.work.name)
            return replace(settled, skipped=ours.skipped | skipped)

        await believed(lambda: self._ledger.receipts.change(self.claim.id, done))
        self.ended = True
        log.info(
            "claim %s is settled again: the output of attempt %s is now the committed output", self.claim.id, self.token
        )
        settle.tell_skipped(self.claim, skipped)
        tell("reprocessed", self.claim, self.claim.count, claim=self.claim.id)

    async def reject(self, sequences: Sequences, reason: str, dead_letters: str | None = None) -> None:  # noqa: ARG002
        """Raise InvalidValue, because acknowledged messages cannot be terminated."""
        remedy = (
            f"messages of claim {self.claim.id} cannot be rejected, because they are already acknowledged; leave them "
            "out of the output, or publish them elsewhere"
        )
        raise InvalidValue("sequences", str(sequences), remedy)

    async def fail(self, reason: str = "", *, blame: bool = True) -> None:  # noqa: ARG002 - nothing is redelivered
        """Fail the attempt. The earlier attempt stays committed."""
        self._still_held()
        await self.release()

    async def skip(self) -> None:
        """Release the receipt: the earlier attempt stays committed."""
        self._still_held()
        await self.release()

    async def release(self, delay: timedelta | None = None) -> None:  # noqa: ARG002 - nothing is redelivered
        """Release the receipt if this attempt still owns it."""
        await self._stop_beats()
        self.ended = True

        def let_go(old: Receipt | None) -> Receipt:
            return replace(self._ours(old), again=None)

        try:
            await self._ledger.receipts.change(self.claim.id, let_go)
        except HeldByAnother:
            return
        log.info(
            "claim %s is released by attempt %s; the output of the earlier attempt stays committed",
            self.claim.id,
            self.token,
        )

    def _ours(self, receipt: Receipt | None) -> Receipt:
        if receipt is None or receipt.again != self.token:
            what = f"attempt {self.token} can no longer settle or release claim {self.claim.id}"
            raise HeldByAnother(f"{what}: {_taken_over(receipt)}")
        return receipt

    @property
    def until(self) -> str:
        return "its messages stay settled, and the next attempt can process the claim again"

    async def _beat(self) -> None:
        """Renew nothing, because the messages are acknowledged."""

    async def _why_lost(self) -> str:
        receipt = await self._ledger.receipts.read(self.claim.id)
        return "" if receipt is not None and receipt.again == self.token else _taken_over(receipt)


def _taken_over(receipt: Receipt | None) -> str:
    """Return the reason why an attempt no longer owns the receipt of its claim."""
    if receipt is None:
        return "the claim's receipt no longer exists"
    if receipt.again:
        return f"attempt {receipt.again} has since started to reprocess it"
    return f"it is settled by attempt {receipt.token}, and no attempt is reprocessing it"


async def stored(stream: Stream, wanted: Sequences) -> Sequences:
    """Return the wanted sequences that the stream contains, according to its leader."""
    info = await stream.info(patience=PATIENCE)
    state = info.state
    if not state["messages"]:
        return Sequences()
    wanted &= Sequences.from_ranges([(state["first_seq"], state["last_seq"])])
    deleted = int(state.get("num_deleted", 0))
    if not deleted or not wanted:
        return wanted
    if direct.listable(deleted, wanted.count):
        return wanted - Sequences.of((await stream.info(deleted=True, patience=PATIENCE)).state.get("deleted") or ())
    return await asyncio.to_thread(_readable, stream, info.created, wanted)


def _readable(stream: Stream, created: str, wanted: Sequences) -> Sequences:
    """Return the wanted sequences whose messages can be read. Blocking."""
    try:
        for _ in direct.read(stream.js.settings, stream.name, wanted, created):
            pass
    except MessagesMissing as gone:
        return wanted - Sequences.from_ranges(gone.sequences.ranges)
    return wanted
