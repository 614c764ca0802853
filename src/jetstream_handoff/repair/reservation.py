# SPDX-License-Identifier: Apache-2.0
"""Ending the reservation of a consumer, when its reader is not used any more."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from jetstream_handoff.ledger.changes import Changed

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.ledger.reservation import Reservation

log = logging.getLogger(__name__)


async def reserved(ledger: Ledger) -> Reservation | None:
    """Return the reservation of the consumer; None if everybody may take from it. Raises LedgerUnavailable."""
    record = await ledger.known()
    return record.reader if record else None


async def end(ledger: Ledger, found: Reservation) -> bool:
    """End a reservation, so that everybody may take from the consumer. The checkpoint of its reader is refused from
    then on, and a batch of it that is not settled is redelivered.

    found:  the reservation as it was shown. Returns False if the consumer is reserved for another reader by now.

    Raises:
        ConsumerNotFound, StreamNotFound: the consumer or its stream does not exist.
        LedgerUnavailable: the ledger cannot be written.
    """

    def without(record: Record | None, _: ConsumerInfo) -> Changed[bool]:
        if record is None or record.reader is None:
            return Changed(record, result=True)
        if record.reader.reader != found.reader:
            return Changed(record, result=False)
        return Changed(replace(record, reader=None), result=True)

    ended = (await ledger.change(without)).result
    if ended:
        text = "consumer %s of stream %s is no longer reserved for reader %s"
        log.info(text, *reversed(ledger.names), found.reader)
    return ended
