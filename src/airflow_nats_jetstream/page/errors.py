# SPDX-License-Identifier: Apache-2.0
"""The page's own refusals, and the HTTP status of every error that the page answers with.

Refused                    a request that the page refuses; carries the status
├── UnknownConnection, UnknownClaim, UnknownDeadLetter, UnknownPath (404)
├── NotLoggedIn (401)
├── Forbidden (403)        no right on the connection
├── CrossSite (403)        an action that another site may have caused
├── Changed (409)          the state is no longer the one that the preview showed
├── NotOpen (409)          the claim has ended
├── BadInput (422)
├── Unfinished (502)       an action that failed after it had begun, or did not end in time
├── Unusable (502)         a field of the Airflow connection is invalid
└── Busy (429)             too many requests of one kind are under way
"""

from __future__ import annotations

from jetstream_client.errors import (
    ApiError,
    ConsumerNotFound,
    InvalidValue,
    JetStreamError,
    MessageNotFound,
    StreamNotFound,
)
from jetstream_handoff.errors import (
    AlreadyDone,
    HeldByAnother,
    HolderAlive,
    HolderUnknown,
    HoldLost,
    OtherWork,
    ReplayRefused,
    ResetRefused,
    Superseded,
    WrongLedger,
)


class Refused(Exception):
    """A request that the page refuses. The message says what happened, why, and what to do."""

    status = 422


class UnknownConnection(Refused):
    """Airflow has no such connection of type ``nats``."""

    status = 404

    def __init__(self, connection_id: str) -> None:
        super().__init__(
            f"Airflow has no connection {connection_id[:250]!r} of type nats; choose one of the list, or create it"
        )


class UnknownClaim(Refused):
    """The ledger does not know the claim."""

    status = 404

    def __init__(self, claim_id: str) -> None:
        super().__init__(
            f"the ledger has no claim {claim_id[:100]!r}; after a claim has ended, the ledger keeps it for 90 days"
        )


class UnknownDeadLetter(Refused):
    """The dead-letter stream has no such dead letter."""

    status = 404


class UnknownPath(Refused):
    """The page's API has no such path."""

    status = 404


class NotLoggedIn(Refused):
    """The request has no valid session."""

    status = 401


class Forbidden(Refused):
    """The user lacks a right on the connection."""

    status = 403


class CrossSite(Refused):
    """The request for an action does not come from Airflow's own pages."""

    status = 403


class Changed(Refused):
    """The state changed after the preview was made."""

    status = 409

    def __init__(self, what: str) -> None:
        super().__init__(
            f"nothing was done, because the state of these {what} changed in the meantime; look at the new state and "
            "repeat the action"
        )


class NotOpen(Refused):
    """The claim is not open, so it cannot be released."""

    status = 409


class BadInput(Refused):
    """A field of the request is missing or invalid."""


class Unusable(Refused):
    """A field of the Airflow connection is invalid."""

    status = 502


class Unfinished(Refused):
    """An action failed after it had begun, or did not end in time."""

    status = 502

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(
            f"the {verb} did not succeed, and may have been carried out in part ({reason}); look at the new state "
            "before you repeat it"
        )


class Busy(Refused):
    """Too many requests of one kind are under way."""

    status = 429


def is_refusal(error: BaseException) -> bool:
    """Whether an error that an action raised shows that the action has changed nothing."""
    return isinstance(error, Refused | HolderAlive | HolderUnknown) and not isinstance(error, Unfinished)


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error that a route raised; 500 for an unexpected one."""
    if isinstance(error, Refused):
        return error.status
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    ((StreamNotFound, ConsumerNotFound, MessageNotFound), 404),
    ((Superseded, AlreadyDone, OtherWork, HeldByAnother, HolderAlive, HolderUnknown, HoldLost), 409),
    ((ResetRefused, ReplayRefused, WrongLedger), 409),
    (InvalidValue, 422),
    ((ApiError, JetStreamError, TimeoutError), 502),
)
