# SPDX-License-Identifier: Apache-2.0
"""Keep: hold a claim for the work of other tasks or of another engine, until an attempt settles or fails the claim."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from jetstream_handoff.claim import KEEPER
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, Superseded
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import SECOND_READ

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.history import Owner

log = logging.getLogger(__name__)

_RETRY_DELAY = 2.0  # seconds between two tries to hold a claim that an attempt holds


async def keep(js: JetStream, claim: Claim, seconds: float, holder: Owner = ()) -> str | None:
    """Hold a claim until an attempt has settled or failed it, then return ``"done"`` or ``"failed"``.

    After ``seconds`` the claim is released and None is returned. ``holder`` is the task that keeps it, for its history.

    An attempt takes the claim over from its keeper, never the reverse. While an attempt holds the claim, the keeper
    waits. It holds the claim again when the attempt has released it. A keeper that is cancelled leaves a lease, so that
    another keeper can hold the claim next.

    Raises:
        Superseded: the claim can no longer be held or settled.
        ClaimInvalid, LedgerUnavailable, PermissionDenied: as :meth:`Hold.begin`.
        ConnectionEnded: the connection has ended and does not reconnect.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while (left := end - clock()) > 0:
        try:
            longest = timedelta(seconds=left)
            async with Hold.begin(js, claim, try_number=KEEPER, longest_hold=longest, holder=holder) as hold:
                await _lost(hold, js)
        except AlreadyDone:
            return "done"
        except Superseded:
            if await _failed(Ledger(js, claim.stream, claim.consumer), claim):
                return "failed"
            raise
        except HeldByAnother:
            log.info("claim %s is held by an attempt: waiting until the attempt ends", claim.id)
            await asyncio.sleep(min(left, _RETRY_DELAY))
    return None


async def _failed(ledger: Ledger, claim: Claim) -> bool:
    """Whether the claim has failed. The attempt that fails it writes the receipt a moment after the record."""
    receipt = await ledger.receipts.read(claim.id)
    if receipt is None:
        await asyncio.sleep(SECOND_READ)
        receipt = await ledger.receipts.read(claim.id)
    return receipt is not None and receipt.state == "failed"


async def _lost(hold: Hold, js: JetStream) -> None:
    """Wait until the hold is lost, usually because an attempt holds the claim or has ended it."""
    lost = asyncio.Event()
    hold.on_lost(lambda _: lost.set())
    async with js.connection.timeout(None):  # without a connection no heartbeat reaches the server
        await lost.wait()
