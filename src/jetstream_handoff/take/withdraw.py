# SPDX-License-Identifier: Apache-2.0
"""Withdraw claims that were taken but cannot be handed on, so that their messages need not wait for their lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_client.sequences import Sequences
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence as List

    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim


async def withdraw(ledger: Ledger, claims: List[Claim]) -> Sequences:
    """Remove claims of one consumer from the ledger, except those that an attempt holds or that were handed on again.

    Returns the messages that no open claim contains now. They are still leased.

    Raises:
        ConsumerNotFound, StreamNotFound: the consumer or its stream no longer exists.
        LedgerUnavailable: the ledger cannot be read or written.
    """
    entered = {claim.id: claim.taken_at for claim in claims}
    record, _ = await ledger.change(lambda old, _: Changed(old and old.withdrawn(entered), None))
    messages = Sequences.from_ranges(each for claim in claims for each in claim.sequences.ranges)
    for entry in record.open.values() if record else ():
        messages -= entry.sequences  # another try has handed them on
    return messages


async def give_back(js: JetStream, claims: List[Claim]) -> int:
    """Withdraw claims of one consumer, and negatively acknowledge their messages. Returns how many these are.

    Nothing happens if the consumer or its stream no longer exists.

    Raises:
        JetStreamError: the ledger or the consumer cannot be reached, or may not be written.
    """
    ledger = Ledger(js, claims[0].stream, claims[0].consumer)
    try:
        messages = await withdraw(ledger, claims)
        if messages:
            await ledger.locate()
            await answers.negative(ledger, messages)
    except (ConsumerNotFound, StreamNotFound):
        return 0
    return messages.count
