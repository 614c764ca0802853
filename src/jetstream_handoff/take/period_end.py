# SPDX-License-Identifier: Apache-2.0
"""Taking only the messages of a period: those that the stream stored before ``until``.

A consumer has a beginning, but no end. So a pull also receives the first messages after the period. The take claims
none of them and gives them back at once, as if another client had received them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jetstream_client.errors import MessageNotFound
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.rules import period

if TYPE_CHECKING:
    from jetstream_client.consume.metadata import Metadata
    from jetstream_handoff.ledger.ledger import Ledger

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds between two pulls of a take that waits for the rest of its period."""


class PeriodEnd:
    """The end of a take.

    until:  the exclusive end, RFC 3339; None for a take without an end.
    """

    def __init__(self, ledger: Ledger, until: str | None) -> None:
        self._ledger = ledger
        self.until = until
        self.exhausted = False
        """Whether no message of the period waits, is in an open claim, or can be redelivered."""
        self._last: int | None = None
        self._waited = False
        self.begin()

    def begin(self) -> None:
        """Begin a batch."""
        self.over = False
        """Whether a first delivery from after the period has arrived. All redeliveries that were due, and all first
        deliveries of the period, came before it."""
        self.beyond = Sequences()
        """The messages of this batch from after the period."""

    async def known(self) -> bool:
        """Return whether all messages of the period are stored. If so, learn where it ends.

        Raises:
            PermissionDenied: this user is not permitted to read a message by its time.
            ServerTooOld: the server is older than nats-server 2.11.
        """
        if self.until is None or self._last is not None:
            return True
        stream = self._ledger.stream
        info = await stream.info(patience=PATIENCE)
        try:
            self._last = (await stream.get_message(start_time=self.until)).sequence - 1
        except MessageNotFound:
            if left := period.left(time_nanoseconds(self.until), info):
                if not self._waited:
                    log.info("waiting at least %.1f s until all messages before %s are stored", left, self.until)
                self._waited = True
                return False
            self._last = int(info.state["last_seq"])
        log.info("the messages before %s end at sequence %d of stream %s", self.until, self._last, stream.name)
        return True

    def within(self, arrived: list[Metadata]) -> list[Metadata]:
        """Return the arrived messages of the period, and note the others."""
        if (last := self._last) is None:
            return arrived
        kept = []
        for together in arrived:
            if max(together.sequences) <= last:
                kept.append(together)
                continue
            inside = [at for at, sequence in enumerate(together.sequences) if sequence <= last]
            after = {
                sequence: first
                for sequence, first in zip(together.sequences, together.firsts, strict=True)
                if sequence > last
            }
            self.beyond |= Sequences.of(sorted(after))
            self.over = self.over or any(after.values())
            if inside:
                kept.append(together.at(inside))
        return kept

    async def ended(self, *, claims: int) -> None:
        """Find out whether the period is exhausted after a batch of so many claims.

        If every unacknowledged message is known to be from after the period, none of the period is unacknowledged. If
        another client has acknowledged one of them in the meantime, this is believed too early. Then the messages of
        the period stay unacknowledged, and the next take gets them.
        """
        if (last := self._last) is None:
            return
        info = await self._ledger.info()
        delivered = info.delivered > last or not info.pending
        self.exhausted = not claims and delivered and info.ack_pending == self.beyond.count
        if self.exhausted:
            name, consumer = self._ledger.stream.name, self._ledger.consumer.name
            log.info("no message that stream %s stored before %s is left for consumer %s", name, self.until, consumer)
        if claims and not delivered:
            text = (
                "the batch ends before the period does: messages of stream %s before %s are left for the next take "
                "from consumer %s; raise max_messages to take the whole period at once"
            )
            log.warning(text, self._ledger.stream.name, self.until, self._ledger.consumer.name)
