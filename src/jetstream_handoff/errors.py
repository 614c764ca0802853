"""The errors of the hand-off: the part of the tree of :mod:`jetstream_client.errors` below ``HandoffError``.

HandoffError                      the contract of claims
├── ClaimInvalid (ValueError)     not a claim, or one that was tampered with
├── ConsumerUnsuitable            a consumer that breaks a rule for claims
├── DeadLettersUnsuitable         a stream that cannot hold the dead letters of another
├── ReplayRefused                 a stream that no dead letter can be published into
├── Superseded, HeldByAnother, HoldLost   the messages belong to somebody else now
├── ResetRefused                  a reset that could swallow messages; carries what is unconfirmed
├── DeletionRefused               what is to be deleted is still needed; carries the open claims
├── AlreadyDone                   settled before; carries the recorded value
└── LedgerUnavailable
    ├── LedgerUnsuitable          a bucket that could lose what is written into it
    ├── LedgerFull
    └── LedgerInvalid             somebody else wrote into the ledger
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError, shown

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences


class HandoffError(JetStreamError):
    """The contract between taking, holding and settling."""


class ClaimInvalid(HandoffError, ValueError):
    """Not a claim, or one whose content contradicts itself."""


class ConsumerUnsuitable(HandoffError):
    """A consumer that breaks a rule for claims: which rule, its value, and what it must be."""

    def __init__(self, consumer: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"consumer {consumer!r}: {rule}={value!r}: {remedy}")
        self.consumer = consumer
        self.rule = rule
        self.value = value
        self.remedy = remedy


class DeadLettersUnsuitable(HandoffError):
    """A stream that breaks a rule for dead letters: which rule, its value, and what it must be."""

    def __init__(self, stream: str, rule: str, value: object, remedy: str) -> None:
        super().__init__(f"dead-letter stream {stream!r}: {rule}={value!r}: {remedy}")
        self.stream = stream
        self.rule = rule
        self.value = value
        self.remedy = remedy


class ReplayRefused(HandoffError):
    """No dead letter can be published into this stream, and nothing was: what prevents it, and what to do."""

    def __init__(self, stream: str, problem: str, remedy: str) -> None:
        super().__init__(f"dead letters cannot be replayed into stream {stream!r}: {problem}; {remedy}")
        self.stream = stream
        self.problem = problem
        self.remedy = remedy


class Superseded(HandoffError):
    """The claim is not open any more: its messages were, or will be, handed out again in another claim."""


class HeldByAnother(HandoffError):
    """A newer attempt holds the claim."""


class HoldLost(HandoffError):
    """The hold ended while the work was running: its result must not be settled."""


class AlreadyDone(HandoffError):
    """The claim was settled as done before: ``value`` is what that attempt recorded, ``token`` which one it was, ``at``
    the server's time of it, RFC 3339."""

    def __init__(self, claim_id: str, token: str, value: object, at: str = "") -> None:
        super().__init__(f"claim {claim_id} was settled as done by attempt {token}" + (f" at {at}" if at else ""))
        self.claim_id = claim_id
        self.token = token
        self.value = value
        self.at = at


class ResetRefused(HandoffError):
    """A reset that was not made, because messages could be lost by it. ``unconfirmed``: acknowledgements, if any."""

    def __init__(self, message: str, unconfirmed: Sequences | None = None) -> None:
        super().__init__(message)
        self.unconfirmed = unconfirmed


class DeletionRefused(HandoffError):
    """Nothing was deleted, because it is still needed. ``claims``: the ids of its open claims. ``unprocessed``: how
    many messages would be deleted that nobody has processed."""

    def __init__(self, message: str, claims: tuple[str, ...] = (), unprocessed: int = 0) -> None:
        super().__init__(message)
        self.claims = claims
        self.unprocessed = unprocessed


class LedgerUnavailable(HandoffError):
    """The ledger's buckets are missing, or the account may not use them."""


class LedgerUnsuitable(LedgerUnavailable):
    """A bucket that breaks a rule for the ledger: which field, its value, and what it must be."""

    def __init__(self, bucket: str, field: str, value: object, remedy: str) -> None:
        super().__init__(
            f"the ledger's bucket {bucket!r} cannot be used: {field}={shown(value)}: {remedy}. Change its stream "
            f"KV_{bucket}; where the server does not allow that, delete it while no claim is open: a sensor creates it"
        )
        self.bucket = bucket
        self.field = field
        self.value = value
        self.remedy = remedy


class LedgerFull(LedgerUnavailable):
    """A consumer's record would pass its limit although the batch was cut."""


class LedgerInvalid(LedgerUnavailable):
    """A record or receipt that this package did not write. It is neither used nor overwritten."""

    def __init__(self, what: str, wrong: str) -> None:
        super().__init__(
            f"the ledger's {what} cannot be read ({wrong}): somebody else wrote it. Nothing is acknowledged meanwhile. "
            "Put the value of before back, or purge its subject in the bucket's stream: the messages come again then"
        )
        self.what = what
        self.wrong = wrong
