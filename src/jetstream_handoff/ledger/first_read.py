# SPDX-License-Identifier: Apache-2.0
"""The mark that messages of a reader's first batch were read, stored in the ledger.

A sink can skip a batch because it has one with the same number: a file sink does, if an earlier query has written to
the same folder. Such a batch is committed and was never read. The batches that a sink skips are the first ones, so it
is enough to look at the first one (docs/handoff.md, reader).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import WrongLastSequence
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.ledger.bucket import receipt_key, receipts_bucket
from jetstream_handoff.ledger.skipped import last_value, write_value

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.ledger import Ledger

_READ = b'{"v": 1, "read": true}'


def _key(claim_id: str) -> str:
    """The key of the mark in the bucket of receipts. No receipt has such a key."""
    return f"{claim_id}-read"


def mark_read(settings: ConnectionSettings, claim: Claim) -> None:
    """Store that messages of a claim are read. Returns when that is confirmed. May be repeated. Blocking.

    Raises:
        JetStreamError: the ledger cannot be read or written.
    """
    bucket, key = receipts_bucket(settings.ledger), receipt_key(claim.stream, claim.consumer, _key(claim.id))
    attempts = Attempts(lambda: f"noting that claim {claim.id} is read failed and will be tried again")
    while True:
        with attempts, Wire.open(settings) as wire:
            if not last_value(wire, bucket, key)[0]:
                try:
                    write_value(wire, f"$KV.{bucket}.{key}", _READ, 0)
                except WrongLastSequence:  # another partition was faster
                    continue
            return


async def was_read(ledger: Ledger, claim_id: str) -> bool:
    """Whether messages of a claim were read. Raises LedgerUnavailable."""
    subject = ledger.receipts.subject(_key(claim_id))
    return await ledger.buckets.last(ledger.buckets.receipts, subject) is not None
