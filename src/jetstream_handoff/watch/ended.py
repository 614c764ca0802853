# SPDX-License-Identifier: Apache-2.0
"""What the receipts of claims that ended lately show: how long claims are usually held, and who took the last one."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from jetstream_client.read import stored
from jetstream_client.times import seconds_between, time_nanoseconds
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.bucket import receipts_bucket
from jetstream_handoff.ledger.record import stored_receipt

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import Receipt

MOST = 500
"""How many receipts are read at a time, the newest ones."""
KEPT = 50
"""Of how many settled claims the median is taken, for each consumer."""
FEWEST = 3
"""Of how many settled claims a median says what is usual."""

Names = tuple[str, str]
"""The names of a stream and a consumer."""


class Ended:
    """The claims that ended lately, on one connection."""

    def __init__(self, js: JetStream) -> None:
        self._bucket = js.stream(f"KV_{receipts_bucket(js.settings.ledger)}")
        self._created = ""
        self._read = 0  # the sequence of the last receipt that was read
        self._holds: dict[Names, deque[float]] = {}
        self._taken: dict[Names, tuple[Owner, str]] = {}

    async def read(self) -> None:
        """Read the receipts that were written since the last call, at most ``MOST`` of them.

        Raises:
            JetStreamError: the bucket does not exist, or its receipts cannot be read by direct get.
        """
        info = await self._bucket.info()
        last = int(info.state["last_seq"])
        if info.created != self._created:
            self._created, self._read = info.created, 0
        first = max(self._read, last - MOST) + 1
        if first > last:
            return
        async for message in stored.pages(self._bucket, stored.selection(first), MOST):
            claim_id = message.subject.rpartition(".")[2]
            if is_claim_id(claim_id):
                self._add(claim_id, message.data)
        self._read = last

    def usual(self, names: Names) -> float | None:
        """Seconds for which a claim of this consumer is usually held; None if too few claims were settled."""
        holds = self._holds.get(names, ())
        return median(holds) if len(holds) >= FEWEST else None

    def taken(self, names: Names) -> tuple[Owner, str] | None:
        """The owner of the newest of these claims, and when it was taken; None if there is none."""
        return self._taken.get(names)

    def _add(self, claim_id: str, data: bytes) -> None:
        try:
            receipt = stored_receipt(claim_id, data)
        except LedgerInvalid:
            return  # the page of that claim says so
        names, history = (receipt.stream, receipt.consumer), receipt.history
        if (held := _held(receipt)) is not None:
            self._holds.setdefault(names, deque(maxlen=KEPT)).append(held)
        before = self._taken.get(names)
        if (
            history.owner
            and history.taken
            and (before is None or time_nanoseconds(history.taken) >= time_nanoseconds(before[1]))
        ):
            self._taken[names] = history.owner, history.taken


def _held(receipt: Receipt) -> float | None:
    """Seconds from the beginning of the attempt that settled the claim to its settlement; None if unknown."""
    began = receipt.history.attempt(receipt.token).at
    if receipt.state != "done" or not began or not receipt.at:
        return None
    return max(0.0, seconds_between(began, receipt.at))
