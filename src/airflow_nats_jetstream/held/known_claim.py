# SPDX-License-Identifier: Apache-2.0
"""The claim as the templates of a held operator know it, and the name of the attempt, which they know before the claim
is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from jetstream_handoff.claim import token_of

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim


class KnownClaim:
    """The claim as templates know it. ``text`` is the claim as JSON."""

    def __init__(self, claim: Claim, text: str, token: str) -> None:
        self.attempt_id = f"{claim.id}-{token}"
        self.id = claim.id
        self.stream = claim.stream
        self.consumer = claim.consumer
        self.first = claim.sequences.first
        self.last = claim.sequences.last
        self.count = claim.count
        self.bytes = claim.bytes
        self.json = text

    def __str__(self) -> str:
        return self.id


def token_in(ti: Any) -> str:
    """Return the token of a task instance's try.

    Every process of the try derives the same token: Airflow gives a task instance a new id for each try and after each
    clear, and keeps the id while the task is deferred or rescheduled.

    ti:  the task instance.
    """
    return token_of(ti.try_number, ti.id if isinstance(ti.id, UUID) else UUID(str(ti.id)))
