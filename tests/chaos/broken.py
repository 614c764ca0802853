"""Settling broken on purpose in three ways, in the processes that run tasks. The judge must notice each of them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from jetstream_handoff.claim import Claim
from jetstream_handoff.hold import answers, hold, settle
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from tests.chaos import windows

BREAK = "CHAOS_BREAK"
"""The environment variable that names one of BREAKS."""

ACKNOWLEDGE_FIRST, SKIP_THE_LEDGER, FORGET_THE_TOKEN = BREAKS = (
    "acknowledge before the ledger",
    "skip the ledger",
    "forget the token",
)


def install() -> None:
    """Break what the environment names; without the variable nothing changes."""
    asked = os.environ.get(BREAK)
    if asked == ACKNOWLEDGE_FIRST:
        settle.settle_done = _acknowledging_first  # whatever else it takes is passed on
    elif asked == SKIP_THE_LEDGER:
        settle.settle_done = _skipping_the_ledger
    elif asked == FORGET_THE_TOKEN:
        hold.new_token = lambda try_number: "1-00000000"  # type: ignore[attr-defined] # noqa: ARG005
    elif asked:
        raise ValueError(f"{BREAK}={asked!r}: one of {', '.join(BREAKS)}")


_settle_done = settle.settle_done


async def _acknowledging_first(ledger: Ledger, claim: Claim, token: str, *arguments: Any, **named: Any) -> None:
    record, _ = await ledger.read()
    assert record is not None
    await answers.acknowledge(ledger, answers.Delivered.of(record, claim.sequences, claim.consumer_sequence))
    windows.mark(windows.ACKNOWLEDGE, "enter", claim.stream, claim.id, ranges=claim.sequences.to_json())
    await asyncio.sleep(windows.pause(windows.ACKNOWLEDGE, claim.id))
    await _settle_done(ledger, claim, token, *arguments, **named)


async def _skipping_the_ledger(ledger: Ledger, claim: Claim, token: str, *arguments: Any, **named: Any) -> None:
    record, _ = await ledger.read()
    assert record is not None
    await ledger.receipts.write(
        Receipt(claim.id, "done", claim.stream, claim.consumer, claim.sequences, token),
    )
    delivered = answers.Delivered.of(record, claim.sequences, claim.consumer_sequence)
    await settle.answers.acknowledge(ledger, delivered)  # type: ignore[attr-defined] # the marked one
