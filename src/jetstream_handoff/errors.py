# SPDX-License-Identifier: Apache-2.0
"""The errors of the hand-off: the branch ``HandoffError`` of the tree in :mod:`jetstream_client.errors`.

HandoffError                      root of the errors of the hand-off
├── ClaimInvalid (ValueError)     a value that is not a claim, or a claim that contradicts itself or the ledger
├── ConsumerUnsuitable            a consumer that breaks a rule for claims
├── ConsumerReserved              a consumer that is reserved for a reader; carries the reader's id
├── CheckpointRefused             a reader's checkpoint with which messages would be missing in its output
├── DeliveriesGivenUp             messages that the server will not deliver again, although they are not done
├── DeadLettersUnsuitable         a stream that cannot store the dead letters of another stream
├── PartitionsUnsuitable          a stream that cannot be divided into partitions
├── ReplayRefused                 a stream into which no dead letter can be published
├── ResumeRefused                 stopped keys that cannot go on yet
├── Superseded, HeldByAnother, HoldLost   the messages now belong to another claim or attempt
├── ResetRefused                  a reset that could lose messages; carries the unconfirmed acknowledgements
├── ResetElsewhere                a reset after which the server goes on at a later sequence; carries both
├── HolderAlive, HolderUnknown    a release by hand that would, or could, stop an attempt at work
├── DeletionRefused               the deletion of something that is still needed; carries the open claims
├── WorkNotDone                   a function that has returned although its work is not done
├── WrongLedger                   a consumer that belongs to another ledger
├── AlreadyDone                   a claim that has been settled already; carries the recorded value
├── OtherWork                     a claim that another piece of work holds or has settled
└── LedgerUnavailable
    ├── LedgerUnsuitable          a bucket that could lose its entries
    ├── LedgerFull                a record that has no room for more
    └── LedgerInvalid             a record or receipt that this package did not write
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError, shown

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences


class HandoffError(JetStreamError):
    """Root of the errors of taking, holding and settling claims."""


class ClaimInvalid(HandoffError, ValueError):
    """The value is not a claim, or it contradicts itself, the ledger or the address of its consumer."""


class ConsumerUnsuitable(HandoffError):
    """A consumer that breaks a rule for claims. Names the field (``rule``), its value and the remedy."""

    def __init__(self, consumer: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"consumer {consumer!r} cannot be used for claims because of {rule}={value!r}: {remedy}")
        self.consumer = consumer
        self.rule = rule
        self.value = value
        self.remedy = remedy


class ConsumerReserved(HandoffError):
    """A consumer that is reserved for a reader with its own checkpoint, so that nobody else may take from it.

    ``reader`` is the id of the reader, and ``since`` the server's time when its last run began, RFC 3339.
    """

    def __init__(self, consumer: str, reader: str, since: str) -> None:
        super().__init__(
            f"consumer {consumer!r} is reserved for reader {reader} (a streaming query), whose last run began at "
            f"{since}; use another consumer. If the checkpoint of this reader is lost, a query with a new checkpoint, "
            f"a new output folder and the option replaces={reader} can take its place: messages that the lost "
            "checkpoint had committed, and that were not acknowledged yet, are then processed again"
        )
        self.consumer = consumer
        self.reader = reader
        self.since = since


class CheckpointRefused(HandoffError):
    """A checkpoint with which a reader of a consumer must not go on, because messages would be missing in its output.

    Names the problem and the remedy; default: the newest checkpoint.
    """

    def __init__(self, consumer: str, reader: str, problem: str, remedy: str = "") -> None:
        newest = (
            "Use the newest checkpoint, with the output that belongs to it. If it is lost, a query with a new "
            f"checkpoint, a new output folder and the option replaces={reader} goes on with the messages that are not "
            "acknowledged yet"
        )
        super().__init__(
            f"reader {reader} cannot go on reading consumer {consumer!r} with this checkpoint: {problem}. "
            f"{remedy or newest}"
        )
        self.consumer = consumer
        self.reader = reader
        self.problem = problem
        self.remedy = remedy or newest


class DeliveriesGivenUp(HandoffError):
    """The server has given up deliveries of messages that are not done, and will not deliver them again.

    ``sequences`` contains the sequences among which they are, and ``first`` is the sequence to reset the consumer to.
    ``again`` says how to have them delivered again, because servers before 2.14 cannot reset a consumer.
    """

    def __init__(self, stream: str, consumer: str, sequences: Sequences, again: str) -> None:
        super().__init__(
            f"the server has given up deliveries of consumer {consumer!r}, stream {stream!r}: nothing is "
            f"unacknowledged, but messages among the sequences {sequences} are not done in the ledger. This happens "
            "when max_deliver is lowered below the number of deliveries of a message, and raising it does not bring "
            f"the message back. Nothing is lost yet: make sure that max_deliver is -1, and {again}"
        )
        self.sequences = sequences
        self.first = sequences.first


class DeadLettersUnsuitable(HandoffError):
    """A stream that breaks a rule for dead letters. Names the field (``rule``), its value and the remedy."""

    def __init__(self, stream: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"stream {stream!r} cannot store dead letters because of {rule}={value!r}: {remedy}")
        self.stream = stream
        self.rule = rule
        self.value = value
        self.remedy = remedy


class PartitionsUnsuitable(HandoffError):
    """A stream that cannot be divided into partitions. Names the field (``rule``), its value and the remedy."""

    def __init__(self, stream: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"stream {stream!r} cannot be divided into partitions because of {rule}={value!r}: {remedy}")
        self.rule = rule
        self.value = value
        self.remedy = remedy


class ReplayRefused(HandoffError):
    """No dead letter can be published into this stream, and none was published. Names the problem and the remedy."""

    def __init__(self, stream: str, problem: str, remedy: str) -> None:
        super().__init__(f"dead letters cannot be replayed into stream {stream!r}, because {problem}; {remedy}")
        self.stream = stream
        self.problem = problem
        self.remedy = remedy


class ResumeRefused(HandoffError):
    """The stopped keys of a consumer stay stopped. Names the problem and the remedy."""

    def __init__(self, stream: str, consumer: str, problem: str) -> None:
        super().__init__(f"the stopped keys of stream {stream!r}, consumer {consumer!r}, stay stopped: {problem}")
        self.problem = problem


class Superseded(HandoffError):
    """The claim is no longer open. Its messages have been or will be redelivered in another claim."""


class HeldByAnother(HandoffError):
    """Another attempt holds the claim."""


class HoldLost(HandoffError):
    """The hold ended while the work was running, so this attempt can no longer settle the claim."""


class WorkNotDone(HandoffError):
    """The function that works on a claim has returned, but its work is not done. Names the reason and the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"the work is not done although its function has returned, because {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class AlreadyDone(HandoffError):
    """The claim has already been settled as done.

    ``token`` names the attempt that settled it, ``value`` is the value that this attempt recorded, and ``at`` is the
    server's time at which the claim was settled, RFC 3339.
    """

    def __init__(self, claim_id: str, token: str, value: object, at: str = "") -> None:
        settled = f"claim {claim_id} was already settled as done by attempt {token}"
        super().__init__(f"{settled} at {at}" if at else settled)
        self.claim_id = claim_id
        self.token = token
        self.value = value
        self.at = at


class OtherWork(HandoffError):
    """The claim is held for, or was settled by, another piece of work: another task, or another instance of a mapped
    task. This attempt's work was not done, and nothing was taken over."""


class ResetRefused(HandoffError):
    """The consumer was not reset, because messages could have been lost.

    ``unconfirmed`` contains the messages whose acknowledgements are unconfirmed; None if this is not the reason.
    """

    def __init__(self, message: str, unconfirmed: Sequences | None = None) -> None:
        super().__init__(message)
        self.unconfirmed = unconfirmed


class ResetElsewhere(HandoffError):
    """The server has reset a consumer to a later sequence than it should, so that messages are not delivered.

    ``wanted`` is the first sequence that the consumer should deliver, and ``first`` the one that it delivers.
    """

    def __init__(self, stream: str, consumer: str, wanted: int, first: int) -> None:
        super().__init__(
            f"consumer {consumer!r} of stream {stream!r} was reset to sequence {first} instead of {wanted}, so the "
            f"messages {wanted} to {first - 1} are not delivered. Reset it again to sequence {wanted}; if the server "
            "refuses that, create another consumer with deliver_policy='by_start_sequence' and "
            f"opt_start_seq={wanted}, and take the messages from it"
        )
        self.wanted = wanted
        self.first = first


class HolderAlive(HandoffError):
    """No claim was released by hand, because an attempt that holds one is alive."""


class HolderUnknown(HandoffError):
    """No claim was released by hand, because an attempt that holds one may be alive: no heartbeat arrived, but it may
    be silent for longer than was listened."""


class DeletionRefused(HandoffError):
    """The stream or consumer was not deleted, because it is still needed.

    ``claims`` contains the ids of its open claims, and ``unprocessed`` is the number of unprocessed messages that the
    server would delete with it.
    """

    def __init__(self, message: str, claims: tuple[str, ...] = (), unprocessed: int = 0) -> None:
        super().__init__(message)
        self.claims = claims
        self.unprocessed = unprocessed


class WrongLedger(HandoffError):
    """The consumer belongs to another ledger than that of the connection. Names both, and the remedy."""


class LedgerUnavailable(HandoffError):
    """The ledger's buckets are missing or unreachable, or this account is not permitted to use them."""


class LedgerUnsuitable(LedgerUnavailable):
    """A bucket that breaks a rule for the ledger. Names the field, its value and the remedy."""

    def __init__(self, bucket: str, field: str, value: object, remedy: str) -> None:
        lost = (
            ", but committed() no longer lists the output of the claims whose receipts were deleted"
            if bucket.endswith("_receipts")
            else ""
        )
        super().__init__(
            f"the ledger's bucket {bucket!r} cannot be used because of {field}={shown(value)}: {remedy}. Change "
            f"this field of the stream KV_{bucket}. If the server does not allow that, delete the stream while no "
            f"claim is open; the next take creates it again{lost}"
        )
        self.bucket = bucket
        self.field = field
        self.value = value
        self.remedy = remedy


class LedgerFull(LedgerUnavailable):
    """A consumer's record would become larger than its limit, even with a smaller batch."""


class StorageFull(LedgerUnavailable):
    """The storage of the account or of the server is full, and the ledger's reserve is used up, so the ledger cannot be
    written."""

    def __init__(self, subject: str, refusal: str, remedy: str) -> None:
        super().__init__(
            f"the ledger's entry {subject!r} cannot be written, because storage is full: the server says {refusal!r}, "
            "and the ledger has no reserve left. Until it can be written, no claim is taken or settled, so no message "
            f"is acknowledged; nothing is lost. To make room, {remedy}"
        )


class LedgerInvalid(LedgerUnavailable):
    """A record or receipt that this release cannot read. The value is neither used nor overwritten.

    remedy: what to do. The default applies to a record, which may be purged, because its messages are then processed
    again. A receipt must not be purged, because the output of its claim would no longer count.
    """

    def __init__(self, what: str, wrong: str, remedy: str = "") -> None:
        remedy = remedy or (
            "Restore the record's previous value, or purge the record's subject in the bucket's stream to have the "
            "messages redelivered"
        )
        super().__init__(
            f"the ledger's {what} cannot be read ({wrong}). Nothing is acknowledged until that is fixed. {remedy}"
        )
        self.what = what
        self.wrong = wrong
        self.remedy = remedy


FOREIGN = (ClaimInvalid, OtherWork, Superseded, HeldByAnother, HoldLost)
"""Errors after which an attempt can never settle its claim: a retry would fail in the same way."""
