# SPDX-License-Identifier: Apache-2.0
"""Giving a consumer to another ledger, when no message could be settled in both."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.rules import ledger_mark

if TYPE_CHECKING:
    from jetstream_client.context import JetStream

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transfer:
    """The effect of giving a consumer to the ledger of a connection.

    before, after:   the names of the ledgers; ``before`` is empty if the consumer has no mark.
    open:            number of claims that are open in the ledger ``before``.
    unacknowledged:  number of messages that are delivered and not acknowledged; 0 if ``before`` is empty or equals
                     ``after``.
    """

    stream: str
    consumer: str
    before: str
    after: str
    open: int = 0
    unacknowledged: int = 0

    @property
    def possible(self) -> bool:
        """Whether nothing can be settled in both ledgers. A ledger does not know what another one has settled, and an
        unacknowledged message may be redelivered."""
        return not (self.open or self.unacknowledged)


async def plan(js: JetStream, stream: str, consumer: str) -> Transfer:
    """Return the effect that :func:`transfer` would have now.

    Raises:
        ConsumerNotFound, StreamNotFound: the consumer or its stream does not exist.
        LedgerUnavailable: the ledger that the consumer belongs to cannot be read.
    """
    info = await js.stream(stream).consumer(consumer).info(patience=PATIENCE)
    before, after = ledger_mark.marked(info.config), js.settings.ledger
    if before in ("", after):
        return Transfer(stream, consumer, before, after)
    record = await Ledger(js, stream, consumer, before).known()
    still_open = len(record.open) if record and not record.new_life(info) else 0
    return Transfer(stream, consumer, before, after, still_open, info.ack_pending)


async def transfer(js: JetStream, stream: str, consumer: str) -> Transfer:
    """Write the name of the connection's ledger into the consumer's mark, if that is possible. Returns the effect.

    Takes with the old ledger that are under way are refused when they enter their messages.

    Raises:
        JetStreamError: as :func:`plan`; or the server refuses to change the consumer.
    """
    planned = await plan(js, stream, consumer)
    if planned.possible and planned.before != planned.after:
        await ledger_mark.put(js.stream(stream).consumer(consumer), planned.after)
        text = "consumer %s of stream %s now belongs to ledger %s (before: %s)"
        log.info(text, consumer, stream, planned.after, planned.before or "none")
    return planned
