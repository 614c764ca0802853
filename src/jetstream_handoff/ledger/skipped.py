# SPDX-License-Identifier: Apache-2.0
"""The messages that an attempt could not read and has skipped, stored in the ledger until its claim is settled.

The processes that read a claim, such as Spark's executors, do not settle it. Before a reader goes on without a message,
it writes the message's sequence to a key of the attempt in the bucket of receipts, and the settlement copies this key
into the receipt. So a message is never acknowledged without a receipt that names it as skipped.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, MessageNotFound, WrongLastSequence
from jetstream_client.publish.ack import acknowledged
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import Sequences
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import decode_status, encode_headers
from jetstream_handoff.claim import is_claim_id, is_token
from jetstream_handoff.errors import HoldLost
from jetstream_handoff.ledger.bucket import receipt_key, receipts_bucket, record_key, records_bucket
from jetstream_handoff.ledger.record import (
    SECOND_READ,
    skipped_key,
    skipped_value,
    stored_receipt,
    stored_record,
    stored_skipped,
)

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim

log = logging.getLogger(__name__)


def report(settings: ConnectionSettings, claim: Claim, token: str, sequences: Sequences) -> None:
    """Store that an attempt has skipped messages. Returns when that is confirmed. May be repeated. Blocking.

    Raises:
        HoldLost: the attempt does not hold the claim, according to the ledger of this connection.
        JetStreamError: the ledger cannot be read or written.
    """
    text = "claim %s: %d of its messages no longer exist and are skipped: sequences %s"
    log.warning(text, claim.id, sequences.count, sequences)
    bucket, key = (
        receipts_bucket(settings.ledger),
        receipt_key(claim.stream, claim.consumer, skipped_key(claim.id, token)),
    )
    attempts = Attempts(lambda: f"naming the skipped messages of claim {claim.id} failed and will be tried again")
    while True:
        with attempts, Wire.open(settings) as wire:
            _check_held(wire, claim, token)
            while True:
                data, revision = last_value(wire, bucket, key)
                before = stored_skipped(claim.id, data) if data else Sequences()
                if not sequences - before:
                    return
                try:
                    write_value(wire, f"$KV.{bucket}.{key}", skipped_value(before | sequences), revision)
                except WrongLastSequence:  # another reader of the attempt has skipped messages, too
                    continue
                return


def split_attempt(attempt: str, claim_id: str) -> str:
    """Return the token in the name of an attempt. Raises InvalidValue if it is not an attempt for this claim."""
    of, _, token = attempt.partition("-")
    if not is_claim_id(of) or not is_token(token) or of != claim_id:
        remedy = f"give the attempt that holds claim {claim_id}: its attempt_id, which begins with the id of the claim"
        raise InvalidValue("attempt", attempt[:60], remedy)
    return token


def _check_held(wire: Wire, claim: Claim, token: str) -> None:
    """Raise HoldLost if the ledger does not know that the attempt holds the claim: nobody would settle with its key.
    Believed only if a second read says the same."""
    for pause in (SECOND_READ, 0):
        if _holds(wire, claim, token):
            return
        time.sleep(pause)
    raise HoldLost(
        f"attempt {token} does not hold claim {claim.id} in ledger {wire.settings.ledger!r}, so no receipt would name "
        "the skipped messages; use the connection with which the claim is held, and the name of its attempt"
    )


def _holds(wire: Wire, claim: Claim, token: str) -> bool:
    ledger = wire.settings.ledger
    data, _ = last_value(wire, records_bucket(ledger), record_key(claim.stream, claim.consumer))
    if data and (entry := stored_record(data, f"record of consumer {claim.consumer!r}").open.get(claim.id)):
        return entry.token == token
    data, _ = last_value(wire, receipts_bucket(ledger), receipt_key(claim.stream, claim.consumer, claim.id))
    return bool(data) and stored_receipt(claim.id, data).again == token


def last_value(wire: Wire, bucket: str, key: str) -> tuple[bytes, int]:
    """The value of a key and its revision; ``(b"", 0)`` if it does not exist."""
    try:
        message = RawMessage.parse(wire.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{key}"}))
    except MessageNotFound:
        return b"", 0
    return message.data, message.sequence


def write_value(wire: Wire, subject: str, data: bytes, revision: int) -> None:
    """Write a value if the key still has this revision. Raises WrongLastSequence."""
    subject = wire.settings.sent_to(subject)
    header = encode_headers({"Nats-Expected-Last-Subject-Sequence": str(revision)})
    answer = wire.request(subject, data, header=header)
    acknowledged(answer.data, subject, wire.settings.domain, decode_status(answer.header)[0])
