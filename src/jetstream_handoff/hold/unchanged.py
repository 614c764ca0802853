# SPDX-License-Identifier: Apache-2.0
"""Whether a claim still matches the server and the ledger, which every attempt checks before it holds the claim."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, StreamNotFound, shown
from jetstream_handoff.errors import ClaimInvalid
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.ledger import Ledger, NotOpen, unusable
from jetstream_handoff.rules.consumer import broken_rules

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.record import OpenEntry, Record


log = logging.getLogger(__name__)


def open_entry(record: Record | None, claim: Claim) -> tuple[Record, OpenEntry]:
    """Return the record and the claim's entry in it. Raises NotOpen, or ClaimInvalid if the entry has other ranges."""
    entry = record.open.get(claim.id) if record else None
    if record is None or entry is None:
        raise NotOpen(record)
    if entry.sequences != claim.sequences:
        raise ClaimInvalid(
            f"the ranges of claim {claim.id} differ from those of its entry in the ledger; pass the claim exactly as "
            "the sensor returned it"
        )
    return record, entry


async def check_unchanged(ledger: Ledger, claim: Claim) -> ConsumerInfo:
    """Return the consumer's INFO if stream and consumer are still those from which the claim was taken.

    Raises:
        Superseded: the stream or the consumer was deleted or recreated.
        WrongLedger: the consumer belongs to another ledger.
        ClaimInvalid: the claim's acknowledgements would not go to the consumer that this connection finds.
    """
    named = f"{claim.id} of consumer {claim.consumer!r}, stream {claim.stream!r},"
    try:
        stream = await ledger.stream.info(patience=PATIENCE)
        consumer = await ledger.info()
    except (StreamNotFound, ConsumerNotFound) as gone:
        raise unusable(named, f"the server says {gone.description!r}; take the messages again") from gone
    for kind, created, claimed in (
        ("stream", stream.created, claim.stream_created),
        ("consumer", consumer.created, claim.consumer_created),
    ):
        if created != claimed:
            raise unusable(
                named,
                f"the {kind} was recreated at {created}, but the claim was taken from the {kind} created at "
                f"{claimed}; take the messages again instead of running this task again",
            )
    address = await ledger.locate()
    if claim.address != address:
        raise ClaimInvalid(
            f"claim {claim.id} has ack_prefix {claim.address.prefix!r}, but its consumer has {address.prefix!r}; pass "
            "the claim exactly as the sensor returned it, and use a connection to the same domain"
        )
    if broken := [*broken_rules(claim.consumer, consumer.config, 1, timedelta(0))]:
        changed = ", ".join(f"{each.rule}={shown(each.value)}" for each in broken)
        log.warning(
            "claim %s is held, but consumer %r of stream %r was changed and breaks rules for claims (%s): the server "
            "may redeliver its messages while the work goes on, or never again if the work fails. %s: %s",
            claim.id,
            claim.consumer,
            claim.stream,
            changed,
            broken[0].rule,
            broken[0].remedy,
        )
    return consumer
