# SPDX-License-Identifier: Apache-2.0
"""Settle: record a claim as done with one compare-and-set, then acknowledge its messages. Also fail and release."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from jetstream_client.consume.message import term
from jetstream_client.errors import ConsumerNotFound, JetStreamError, PermissionDenied, StreamNotFound
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, LedgerFull, Superseded
from jetstream_handoff.events import tell
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger import failures
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger, NotOpen
from jetstream_handoff.ledger.record import BELIEVED, DoneEntry, OpenEntry, Receipt, Record, check_value
from jetstream_handoff.ledger.work import UNKNOWN, Work
from jetstream_handoff.rules import edited

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.letters.dead_letters import DeadLetters, Holder, Rejected

log = logging.getLogger(__name__)

_NONE = Sequences()
_TOLD = 5  # reasons for which messages are given up, in a log line


async def settle_done(
    ledger: Ledger,
    claim: Claim,
    token: str,
    value: Any = None,
    rejected: Sequences = _NONE,
    *,
    entered: float | None = None,
    work: Work = UNKNOWN,
) -> None:
    """Record the claim as done and write its receipt, then acknowledge its messages and wait for confirmations.

    Once the record is written, the claim is settled, and later errors are only logged. If no acknowledgement is
    confirmed for 30 s, the next take repeats the unconfirmed acknowledgements. If the receipt cannot be written, a
    later take writes it.

    value:     the value to record: JSON of at most 8 KiB.
    rejected:  messages to terminate instead of acknowledging them. They must already have been copied to the
               dead-letter stream (:meth:`DeadLetters.copy`).
    entered:   a time at which the claim was already in the ledger, as :func:`time.monotonic` tells it; default: now.
               A server that is killed within a second of a write may forget it, so this waits until the entry is a
               second old.
    work:      the piece of work that settles the claim.

    Raises:
        InvalidValue: the value is not JSON or too large. Nothing was settled.
        LedgerFull: the record would be larger than the server accepts. Nothing was settled.
        HeldByAnother: a newer attempt holds the claim, or the claim was released.
        AlreadyDone: another attempt of this piece of work has settled the claim.
        OtherWork: another piece of work has settled the claim.
        Superseded: the claim is no longer open, or the consumer has begun a new life.
    """
    value = check_value(value)
    start = time.monotonic()
    _, skipped = await asyncio.gather(ledger.buckets.check(), ledger.receipts.skipped(claim.id, token))
    skipped &= claim.sequences
    age = 0 if entered is None else start - entered
    await asyncio.sleep(max(0, BELIEVED / 1e9 - age))

    def done(record: Record | None, info: ConsumerInfo) -> Changed[None]:
        record, entry = _held(record, claim, token)
        if record.new_life(info) or info.counter < entry.counter or info.delivered < entry.sequences.last:
            changes = edited.changed(entry.config, info.config)
            raise Superseded(
                f"claim {claim.id} cannot be settled, because consumer {claim.consumer!r} was recreated, reset or "
                "rolled back. The claim's messages are redelivered to the next take"
                + (f"; {edited.said(changes)}" if changes else "")
            )
        outcome = (token, value, rejected, info.now, entry.whole_history, work.name, skipped - rejected)
        settled = {claim.id: DoneEntry(entry.sequences, entry.counter, *outcome)}

        def decided(record: Record) -> Record:
            still_open = {claim_id: other for claim_id, other in record.open.items() if claim_id != claim.id}
            failed = failures.without(record.failures, entry.sequences)
            new = replace(record, open=still_open, done={**record.done, **settled}, failures=failed)
            return new.claimed(entry.sequences).note(info)

        # If the record has no room, the other settled claims leave it and keep only their receipts, as in a take.
        new = next(filter(ledger.can_be_written, map(decided, (record, record.tidied(info)))), None)
        if new is None:
            raise LedgerFull(
                f"claim {claim.id} cannot be settled: with the returned value and the rejected sequences, the record "
                f"of consumer {claim.consumer!r} would exceed the {ledger.largest_value} bytes that the server "
                "accepts; return a smaller value, reject fewer messages, or raise the server's max_payload"
            )
        return Changed(new, None)

    try:
        record, _ = await ledger.decide(done, claim.id, work)
    except AlreadyDone as already:
        if already.token != token:
            raise
        await acknowledge_again(ledger, claim)  # an earlier process of this attempt has settled it
        return
    log.info("claim %s is done in the ledger: acknowledging %d messages", claim.id, claim.count - rejected.count)
    tell_skipped(claim, skipped)
    receipt = ledger.receipts.of_done(claim.id, record.done[claim.id])
    written = await ledger.receipts.try_write(receipt)
    decided, left = time.monotonic(), claim.sequences
    try:
        left = await _acknowledge(ledger, claim, record, rejected)
    finally:
        tell("done", claim, claim.count - rejected.count, claim=claim.id, seconds=time.monotonic() - start)
        if left:
            tell("unconfirmed", claim, left.count, claim=claim.id)
    await ledger.buckets.reserve.fill_again()
    if not left:
        await ledger.receipts.try_write(replace(receipt, acknowledged=round(time.monotonic() - decided, 3)), written)


def tell_skipped(claim: Claim, skipped: Sequences) -> None:
    """Log which messages of a settled claim were skipped."""
    if skipped:
        text = "claim %s is settled without %d messages, which no longer existed and were skipped: sequences %s"
        log.warning(text, claim.id, skipped.count, skipped)


async def _acknowledge(ledger: Ledger, claim: Claim, record: Record, rejected: Sequences) -> Sequences:
    """Acknowledge the processed messages and terminate the rejected ones. Returns the messages whose acknowledgements
    stay unconfirmed."""
    counter = record.done[claim.id].counter
    try:
        left = await answers.acknowledge(ledger, answers.Delivered.of(record, claim.sequences - rejected, counter))
        if rejected:
            log.info("claim %s: terminating %d rejected messages, which have dead letters", claim.id, rejected.count)
            tell("dead_lettered", claim, rejected.count, claim=claim.id)
            dead = answers.Delivered.of(record, rejected, counter)
            left |= await answers.acknowledge(ledger, dead, body=term("dead letter"))
    except PermissionDenied as denied:  # the permission was withdrawn after the hold began
        text = "claim %s is done, but its messages are redelivered, because they cannot be acknowledged: %s"
        log.error(text, claim.id, denied)  # noqa: TRY400
        return claim.sequences
    if left:
        log.warning("claim %s: %d acknowledgements are unconfirmed; the next take repeats them", claim.id, left.count)
    else:
        skipped = record.done[claim.id].skipped.count
        counts = f"{claim.count - rejected.count - skipped} messages processed, {rejected.count} dead-lettered"
        counts += f", {skipped} skipped" if skipped else ""
        log.log(logging.WARNING if rejected else logging.INFO, "claim %s is acknowledged: %s", claim.id, counts)
    return left


def reasons(counted: failures.Failures, messages: Sequences, behind: Mapping[int, Sequences]) -> dict[str, Sequences]:
    """Return why messages are given up, also those whose failures are no longer among those ``counted``.

    behind:  those whose key stopped, by the sequence at which it did.
    """
    rejected: dict[str, Sequences] = {}
    left = messages - Sequences.from_ranges(each for later in behind.values() for each in later.ranges)
    for failure in counted.values():
        if both := failure.sequences & left:
            reason = f"failed {failure.alone} times alone, the last time: {failures.one_line(failure.reason)}"
            rejected[reason] = rejected.get(reason, Sequences()) | both
            left -= both
    if left:
        rejected["failed alone too many times"] = left
    return rejected | {f"its key stopped at {at}": later for at, later in behind.items()}


async def bury(dead_letters: DeadLetters, holder: Holder, rejected: Rejected, lease: timedelta) -> None:
    """Settle a claim of messages that are given up, with all of them rejected: each becomes a dead letter.

    rejected:  all messages of the claim.
    """
    ledger, claim, token = holder
    text = "dead-lettering %d messages of claim %s: sequences %s (%s)"
    why = "; ".join(islice(rejected, _TOLD))
    log.warning(text, claim.count, claim.id, claim.sequences, why + (", …" if len(rejected) > _TOLD else ""))
    await answers.negative(ledger, claim.sequences, lease)
    leased = asyncio.create_task(_leased(ledger, claim, lease))
    try:
        await dead_letters.copy(holder, rejected)
        await settle_done(ledger, claim, token, None, claim.sequences)
    except JetStreamError as error:
        # This take continues. When the lease of these messages has ended, a later take tries to copy them again.
        log.error("the messages of claim %s could not be dead-lettered (%s); a later take tries again", claim.id, error)  # noqa: TRY400
        await release(ledger, claim, token, lease)
    finally:
        leased.cancel()


async def _leased(ledger: Ledger, claim: Claim, lease: timedelta) -> None:
    """Renew the lease of messages again and again: with a stopped key, there may be many to copy."""
    while True:
        await asyncio.sleep(lease.total_seconds() / 3)
        with suppress(JetStreamError):  # the lease lasts for two more tries
            await answers.negative(ledger, claim.sequences, lease)


async def settle_failed(
    ledger: Ledger, claim: Claim, token: str, reason: str = "", *, blame: bool = True, work: Work = UNKNOWN
) -> None:
    """Fail the claim: its messages are redelivered to the next take.

    reason:  why the work failed. For a claim of one message, the message's dead letter contains the reason.
    blame:   whether the failure counts against the messages.
    work:    the piece of work that has failed.

    Raises:
        HeldByAnother, AlreadyDone, OtherWork, Superseded: as :func:`settle_done`.
    """

    def failed(record: Record | None, info: ConsumerInfo) -> Changed[Receipt]:
        record, entry = _held(record, claim, token)
        receipt = Receipt(claim.id, "failed", claim.stream, claim.consumer, claim.sequences, token, at=info.now)
        receipt = replace(receipt, reason=failures.one_line(reason), history=entry.whole_history)
        counted = failures.failed(record.failures, claim.id, claim.sequences, reason) if blame else record.failures
        new = replace(record.without([claim.id]), failures=counted).note(info)
        # If the record has no room, the failure is not counted. The messages then fail once more, but none is lost.
        return Changed(new if ledger.can_be_written(new) else replace(new, failures=record.failures), receipt)

    _, receipt = await ledger.decide(failed, claim.id, work)
    await ledger.receipts.try_write(receipt)
    log.info("claim %s has failed: its %d messages are redelivered", claim.id, claim.count)
    tell("failed", claim, claim.count, claim=claim.id)
    await answers.negative(ledger, claim.sequences)


async def release(
    ledger: Ledger, claim: Claim, token: str | None, delay: timedelta | None = None, *, skipped: bool = False
) -> bool:
    """Release the claim between two attempts. If no attempt has held it by the end of ``delay``, its messages are
    redelivered.

    skipped:  whether the attempt has skipped its work, so that no attempt is expected to hold the claim again.

    A release may be repeated. If the token no longer holds the claim, or the consumer does not exist, nothing is done
    and False is returned.
    """

    def let_go(record: Record | None, info: ConsumerInfo) -> Changed[bool]:
        entry = record.open.get(claim.id) if record else None
        if record is None or entry is None or entry.token != token:
            return Changed(record, result=False)
        freed = entry.released(info.now, str(token)) if skipped else replace(entry, token=None)
        return Changed(replace(record, open={**record.open, claim.id: freed}), result=True)

    try:
        _, ours = await ledger.change(let_go)
    except (ConsumerNotFound, StreamNotFound) as gone:
        log.warning("claim %s need not be released, because the server says %r", claim.id, gone.description)
        return False
    if ours:
        await answers.negative(ledger, claim.sequences, delay)
        log.info("claim %s is released: %d messages", claim.id, claim.count)
        tell("released", claim, claim.count, claim=claim.id)
    return ours


async def acknowledge_again(ledger: Ledger, claim: Claim) -> None:
    """Acknowledge the messages of a done claim once more, because an earlier acknowledgement may have been lost. Also
    write its receipt if the attempt that settled it died before that.

    An error is only logged, because the next take acknowledges messages that are redelivered, and writes the receipt.
    """
    try:
        record, _ = await ledger.read()
        if record is not None and (done := record.all_settled & claim.sequences):
            await answers.acknowledge(ledger, answers.Delivered.of(record, done.sequences, done.counter))
        if record is not None and (entry := record.done.get(claim.id)):
            await ledger.receipts.try_write(ledger.receipts.of_done(claim.id, entry))
    except JetStreamError as error:
        text = (
            "claim %s is done, but its messages could not be acknowledged again (%s); the next take acknowledges them"
        )
        log.error(text, claim.id, error)  # noqa: TRY400


async def confirm(ledger: Ledger, claim: Claim, token: str, work: Work = UNKNOWN) -> None:
    """Write the record, unchanged, if the attempt still holds the claim. See :meth:`~.hold.Hold.fence`."""

    def unchanged(record: Record | None, _: ConsumerInfo) -> Changed[None]:
        return Changed(_held(record, claim, token)[0], None)

    await ledger.decide(unchanged, claim.id, work, confirm=True)


def _held(record: Record | None, claim: Claim, token: str) -> tuple[Record, OpenEntry]:
    entry = record.open.get(claim.id) if record else None
    if record is None or entry is None:
        raise NotOpen(record)
    if entry.token != token:
        reason = f"attempt {entry.token} now holds it" if entry.token else "it was released"
        raise HeldByAnother(f"attempt {token} can no longer settle claim {claim.id}, because {reason}")
    return record, entry
