"""Reprocess: the work of a settled claim once more, on the same messages, for another output (docs/handoff.md).

Its messages are acknowledged: the consumer has nothing to hold, to acknowledge or to give back. What an attempt owns
is the claim's receipt, by a token of its own.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import new_token
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import ClaimInvalid, HeldByAnother, Superseded
from jetstream_handoff.events import tell
from jetstream_handoff.hold import Hold, check_unchanged
from jetstream_handoff.ledger import PATIENCE, Ledger, believed
from jetstream_handoff.record import check_value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import timedelta

    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.record import Receipt

log = logging.getLogger(__name__)


class Reprocess(Hold):
    """A settled claim that is processed again. The attempt that settled it stays committed until this one does.

    Ends as a :class:`~jetstream_handoff.hold.Hold` does; failing and releasing change nothing that counts.
    """

    @classmethod
    @asynccontextmanager
    async def begin(
        cls, js: JetStream, claim: Claim, *, try_number: int, longest_hold: timedelta = LONGEST_HOLD
    ) -> AsyncIterator[Hold]:
        """Take the claim's receipt over from whoever reprocesses it.

        Raises:
            MessagesMissing: the stream does not hold all of the messages any more.
            Superseded: stream or consumer were recreated, or the claim was never settled as done.
            ClaimInvalid: its receipt is of other messages.
            LedgerUnavailable: buckets missing or not permitted.
        """
        ledger = Ledger(js, claim.stream, claim.consumer)
        await ledger.check()
        info = await check_unchanged(ledger, claim)
        record, _ = await ledger.read()
        entry = record.done.get(claim.id) if record else None
        token = new_token(try_number)

        def settled_as(old: Receipt | None) -> Receipt:
            settled = old
            if (old is None or old.state != "done") and entry is not None:
                settled = ledger.done_receipt(claim.id, entry)  # it died between the record and the receipt
            if settled is None or settled.state != "done":
                raise Superseded(f"claim {claim.id} was not settled as done: there is nothing to process again")
            if (settled.stream, settled.consumer, settled.sequences) != (claim.stream, claim.consumer, claim.sequences):
                raise ClaimInvalid(f"claim {claim.id}: its receipt is of other messages")
            if not settled.processed:
                raise Superseded(f"claim {claim.id}: all of its messages are dead letters: there is nothing to process")
            return settled

        wanted = (await believed(lambda: ledger.change_receipt(claim.id, settled_as))).processed
        if missing := wanted - await stored(ledger.stream, wanted):
            raise MessagesMissing(claim.stream, missing)
        receipt = await believed(
            lambda: ledger.change_receipt(claim.id, lambda old: replace(settled_as(old), again=token))
        )
        claim = replace(claim, sequences=wanted)
        log.info("claim %s: attempt %s processes again what %s has done", claim.id, token, receipt.token)
        async with Reprocess(ledger, claim, token, info.config["ack_wait"] / 1e9, longest_hold)._kept() as attempt:
            yield attempt

    async def settle(self, value: Any = None) -> None:
        """The work succeeded: from now on this attempt's output is the committed one, and the older one is not.

        Raises:
            HeldByAnother: a newer attempt reprocesses the claim, or has.
            InvalidValue, HoldLost: as :meth:`Hold.settle`.
        """
        check_value(value)
        self._still_held()
        await self._stop_beats()
        now = (await self._ledger.stream.info(patience=PATIENCE)).now

        def done(old: Receipt | None) -> Receipt:
            if old is not None and old.token == self.token:
                return old  # our own write, whose answer got lost
            return replace(self._ours(old), token=self.token, value=value, at=now, again=None)

        await believed(lambda: self._ledger.change_receipt(self.claim.id, done))
        self.ended = True
        log.info("claim %s is settled again: attempt %s is the committed one", self.claim.id, self.token)
        tell("reprocessed", self.claim, self.claim.count, claim=self.claim.id)

    async def reject(self, sequences: Sequences, reason: str, dead_letters: str | None = None) -> None:  # noqa: ARG002
        """Raises InvalidValue: what is acknowledged cannot be terminated any more."""
        remedy = f"claim {self.claim.id} was settled before: leave them out of the output, or publish them elsewhere"
        raise InvalidValue("sequences", str(sequences), remedy)

    async def fail(self, reason: str = "", *, blame: bool = True) -> None:  # noqa: ARG002 - nothing is delivered again
        """The work failed: what was committed before stays so."""
        self._still_held()
        await self.release()

    async def release(self, delay: timedelta | None = None) -> None:  # noqa: ARG002 - nothing is given back
        """Let the receipt go, if it is still ours."""
        await self._stop_beats()
        self.ended = True

        def let_go(old: Receipt | None) -> Receipt:
            return replace(self._ours(old), again=None)

        try:
            await self._ledger.change_receipt(self.claim.id, let_go)
        except HeldByAnother:
            return
        log.info("claim %s: attempt %s gave up; what was committed stays so", self.claim.id, self.token)

    def _ours(self, receipt: Receipt | None) -> Receipt:
        if receipt is None or receipt.again != self.token:
            newer = f"attempt {receipt.again or receipt.token}" if receipt else "nobody"
            raise HeldByAnother(f"claim {self.claim.id} is processed again by {newer}, not by {self.token}")
        return receipt

    @property
    def until(self) -> str:
        return "its messages are settled, and the next attempt takes its receipt over"

    async def _beat(self) -> None:
        """Nothing to renew: the messages are acknowledged."""

    async def _why_lost(self) -> str:
        try:
            self._ours(await self._ledger.receipt(self.claim.id))
        except HeldByAnother as newer:
            return str(newer)
        return ""


async def stored(stream: Stream, wanted: Sequences) -> Sequences:
    """Which of the sequences the stream's leader holds."""
    state = (await stream.info(patience=PATIENCE)).state
    if not state["messages"]:
        return Sequences()
    held = Sequences.from_ranges([(state["first_seq"], state["last_seq"])])
    if state.get("num_deleted"):
        held -= Sequences.of((await stream.info(deleted=True, patience=PATIENCE)).state.get("deleted") or ())
    return wanted & held
