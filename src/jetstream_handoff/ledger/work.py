# SPDX-License-Identifier: Apache-2.0
"""The piece of work for which an attempt holds a claim: what is the same over retries, clears and re-runs. No I/O.

A claim that is settled says that one piece of work is done. Another piece of work must not take this for its own
success, nor take the claim over while it is open (docs/handoff.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from jetstream_handoff.claim import KEEPER
from jetstream_handoff.errors import OtherWork
from jetstream_handoff.ledger.history import Attempt, Owner, readable

_REMEDY = (
    "One task processes a claim: do both in one task, let several tasks work on the claim before one task settles it, "
    "or give the second task a separate consumer"
)


@dataclass(frozen=True, slots=True)
class Work:
    """The piece of work that asks for a claim.

    piece:   what names it, in an :data:`~.history.Owner`; empty if it has no name, as in a script.
    holder:  the task that does it, whose last number is the number of the try; empty if unknown.
    """

    piece: Owner = ()
    holder: Owner = ()

    @classmethod
    def of(cls, holder: Owner, piece: Owner = ()) -> Work:
        """Return the work of a task. By default the piece of work is the task without the number of the try."""
        return cls(piece or holder[:-1], holder)

    @property
    def name(self) -> str:
        """The name of the piece of work in the ledger, 16 hexadecimal digits; empty if it has no name."""
        return hashlib.sha256(json.dumps(self.piece).encode()).hexdigest()[:16] if self.piece else ""

    def check_open(self, claim_id: str, work: str, attempts: Iterable[Attempt]) -> None:
        """Check that an open claim is not held for another piece of work, and waits for no retry of one.

        work:      the name of the claim's piece of work; empty if no attempt with a name has held it, or an older
                   release has written the entry. Then its attempts say for whom it was held.
        attempts:  the attempts that held the claim since it was entered or last handed on.

        Raises:
            OtherWork: it is.
        """
        last = _last(attempts)
        if work != self.name if work else last.by and not self._did(last):
            raise OtherWork(f"claim {claim_id} belongs to {_told(last)}, and {self} must not take it over. {_REMEDY}")

    def check_done(self, claim_id: str, work: str, attempts: Iterable[Attempt], token: str, at: str) -> None:
        """Check that a settled claim was settled by this piece of work. A piece without a name is not checked.

        work, attempts:  as in :meth:`check_open`.
        token:           the attempt that settled the claim.
        at:              the server's time at which it was settled; empty if unknown.

        Raises:
            OtherWork: it was settled by another one.
        """
        last = _last(each for each in attempts if each.token == token)
        if self.piece and (work != self.name if work else not (last.by and self._did(last))):
            when = f" at {at}" if at else ""
            raise OtherWork(
                f"claim {claim_id} was settled by {_told(last)}{when}, so {self} has not processed its messages, and "
                f"they are not delivered again. {_REMEDY}"
            )

    def __str__(self) -> str:
        return readable(self.holder[:-1]) or "an attempt without a task"

    def _did(self, attempt: Attempt) -> bool:
        return attempt.by[:-1] == self.holder[:-1]


UNKNOWN = Work()
"""Work of which nothing is known, as in a script."""


def _last(attempts: Iterable[Attempt]) -> Attempt:
    """Return the last of these attempts that was not a keeper; one without a token if there is none."""
    return next((each for each in reversed(list(attempts)) if not each.token.startswith(f"{KEEPER}-")), Attempt("", ""))


def _told(attempt: Attempt) -> str:
    if attempt.by:
        return f"{readable(attempt.by[:-1])}, try {attempt.by[-1]}"
    return "another piece of work, whose name is no longer known" if attempt.token else "another piece of work"
