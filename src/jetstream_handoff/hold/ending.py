# SPDX-License-Identifier: Apache-2.0
"""What becomes of a claim when the work on it has ended. An orchestrator says how the work ended; this decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from jetstream_handoff.errors import HoldLost

if TYPE_CHECKING:
    from datetime import timedelta

    from jetstream_handoff.hold.blocking import BlockingHold


class How(Enum):
    """How the work on a claim ended. Errors that say that the claim is not this attempt's own are not among them: after
    them, nothing is left to end."""

    SUCCEEDED = "the work, and everything of its task that can still fail, has succeeded"
    SKIPPED = "the work was skipped"
    NOTHING_TO_DO = "the work was skipped, and the task says that its messages need no work"
    FAILED = "the work has failed"
    UNREADABLE = "messages of the claim no longer exist, so that a retry would fail as well"
    UNSETTLED = "the work has succeeded, and something after it has failed before the claim was settled"
    LATER = "the task goes on later, in a process that holds the claim again"


class Ownership(Enum):
    """Whose the claim is at that moment."""

    OURS = "this attempt holds the claim"
    LOST = "this attempt no longer holds the claim"
    OVER = "this attempt has ended its hold, or was killed"


@dataclass(frozen=True)
class Settle:
    """Settle the claim."""


@dataclass(frozen=True)
class Fail:
    """Fail the claim: its messages are redelivered at once.

    blame:  whether the failure counts against the messages.
    """

    blame: bool = True


@dataclass(frozen=True)
class Release:
    """Release the claim for the next try.

    delay:  how long its messages wait for that try; None: they are redelivered at once.
    """

    delay: timedelta | None


@dataclass(frozen=True)
class Skip:
    """Release the claim: its messages are redelivered to the next take."""


@dataclass(frozen=True)
class Leave:
    """Do nothing, because the hold has ended already."""


@dataclass(frozen=True)
class Lost:
    """Do nothing, and let the task fail, because another attempt may have the claim."""


Ending = Settle | Fail | Release | Skip | Leave | Lost


def ending(how: How, ownership: Ownership, next_try: timedelta | None) -> Ending:  # noqa: PLR0911 - one for each line of the table
    """Return what becomes of a claim.

    how:       how the work ended.
    ownership: whose the claim is.
    next_try:  how long it takes at most until the next try of the task holds the claim; None if there is none.
    """
    if how is How.SUCCEEDED:  # even if the hold is over: then settling raises an error, and the task does not succeed
        return Settle()
    if ownership is Ownership.OVER:
        return Leave()
    if ownership is Ownership.LOST:
        return Lost()
    if how is How.NOTHING_TO_DO:
        return Settle()
    if how is How.SKIPPED:
        return Skip()
    if how is How.UNREADABLE:
        return Fail(blame=False)
    if how is How.FAILED and next_try is None:
        return Fail()
    return Release(next_try)


def end_hold(
    held: BlockingHold,
    how: How,
    *,
    next_try: timedelta | None = None,
    value: Any = None,
    reason: str = "",
    cause: BaseException | None = None,
) -> Ending:
    """End the hold of a claim as :func:`ending` decides, and return what it has decided.

    how, next_try:  as for :func:`ending`.
    value:          the JSON value to record if the claim is settled.
    reason:         why the work failed, if it failed.
    cause:          the error with which the work ended, if any.

    Raises:
        HoldLost: the claim was lost before, or the work has succeeded although the hold is over.
    """
    over = held.killed or held.ended
    ownership = Ownership.OVER if over else Ownership.LOST if held.lost else Ownership.OURS
    decided = ending(how, ownership, next_try)
    match decided:
        case Settle():
            held.settle(value)
        case Fail(blame):
            held.fail(reason, blame=blame)
        case Release(delay):
            held.release(delay)
        case Skip():
            held.skip()
        case Lost():
            raise HoldLost(f"claim {held.id} is no longer held: {held.lost}") from cause
    return decided
