# SPDX-License-Identifier: Apache-2.0
"""The history of a claim, for people: when its messages were stored, who took it, which attempts held it, and when it
was released for others. No I/O.

No decision depends on a history. A release that does not know it ignores it, and drops it with its next write.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jetstream_client.times import time_nanoseconds, time_text

Owner = tuple[str | int, ...]
"""The owner for which a claim was taken, chosen by the orchestrator. The leading strings are a name for people to read.
A number that follows them is the owner's index, unless it is negative. The other values only distinguish owners. A
claim that no attempt holds is handed on to a take with an equal owner. So an owner must stay the same when its task is
retried, and differ between deployments."""

LONGEST_OWNER = 16
"""The largest number of values in an owner."""
_LATEST = 2**63  # the server's times are 64-bit integers
KEPT = 4
"""How many attempts a history contains at most, the newest ones."""


def readable(owner: Owner) -> str:
    """Return an owner in a readable form: ``dag / run / task[3]``.

    owner:  the owner.
    """
    names = list(itertools.takewhile(lambda each: isinstance(each, str), owner))
    index = owner[len(names)] if len(names) < len(owner) else -1
    return " / ".join(map(str, names)) + (f"[{index}]" if isinstance(index, int) and index >= 0 else "")


def owner_of(value: Any) -> Owner:
    """Return an owner from its JSON value. Raises TypeError or ValueError.

    value:  the value.
    """
    if not isinstance(value, list) or not all(
        isinstance(each, str | int) and not isinstance(each, bool) for each in value
    ):
        raise TypeError("invalid owner")
    if not 1 <= len(value) <= LONGEST_OWNER:
        raise ValueError("invalid owner")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that held a claim.

    token:  the token of the attempt.
    at:     the server's time when it began to hold the claim, RFC 3339.
    by:     the task that held it, as an :data:`Owner` whose last number is the number of the try; empty if unknown.
    """

    token: str
    at: str
    by: Owner = ()


@dataclass(frozen=True, slots=True)
class History:
    """The owner for which a claim was taken, the attempts that held it, and when it was released for others.

    owner:     the owner for which it was taken; empty if unknown.
    taken:     the server's time when it was entered in the ledger, RFC 3339; empty if unknown.
    attempts:  the attempts that held it, the oldest first. Only the last four are kept.
    released:  the server's time when it was last released so that its messages are redelivered, by hand or because an
               attempt skipped its work, RFC 3339; empty if it never was.
    skipped:   the token of the attempt that skipped its work and thereby released it; empty if it was released by hand.
    stored:    when the server stored the first and the last message of the claim, in nanoseconds since 1970; None if
               unknown. A stream that is restored from an older copy uses sequences again; these times tell claims of
               the same sequences apart.
    """

    owner: Owner = ()
    taken: str = ""
    attempts: tuple[Attempt, ...] = ()
    released: str = ""
    skipped: str = ""
    stored: tuple[int, int] | None = None

    @property
    def stored_at(self) -> tuple[str, str] | None:
        """The times of ``stored``, RFC 3339 with nanoseconds."""
        return (time_text(self.stored[0]), time_text(self.stored[1])) if self.stored else None

    def attempt(self, token: str | None) -> Attempt:
        """Return the attempt with this token; without time and task if the history does not contain it."""
        return next((each for each in self.attempts if each.token == token), Attempt(token or "", ""))

    def held(self, attempt: Attempt) -> History:
        """Return the history with one more attempt."""
        others = [each for each in self.attempts if each.token != attempt.token]
        return replace(self, attempts=(*others, attempt)[-KEPT:])

    def to_json(self) -> dict[str, Any]:
        """Return the history as JSON. Empty fields are left out."""
        attempts = [[each.token, each.at, list(each.by)] for each in self.attempts]
        fields: dict[str, Any] = {"owner": list(self.owner), "taken": self.taken, "attempts": attempts}
        fields |= {"released": self.released, "skipped": self.skipped, "stored": self.stored and list(self.stored)}
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_json(cls, value: Any) -> History:
        """Read a history. A value that cannot be read yields an empty history, because no decision depends on it.

        value:  the return value of :meth:`to_json`, or None.
        """
        if not isinstance(value, Mapping):
            return cls()
        try:
            owner = owner_of(value["owner"]) if value.get("owner") else ()
            taken, released = value.get("taken", ""), value.get("released", "")
            for at in (taken, released):
                if at != "":
                    time_nanoseconds(at)
            attempts, skipped = tuple(map(_attempt, value.get("attempts") or ())), value.get("skipped", "")
            known = skipped if isinstance(skipped, str) else ""
            return cls(owner, taken, attempts[-KEPT:], released, known, _stored(value.get("stored")))
        except (TypeError, ValueError, KeyError, AttributeError):
            return cls()


def _stored(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    first, last = value
    if type(first) is not int or type(last) is not int or not (0 <= first < _LATEST and 0 <= last < _LATEST):
        raise ValueError("invalid times")
    return first, last


def _attempt(value: Any) -> Attempt:
    token, at, by = value
    if not isinstance(token, str):
        raise TypeError("invalid token")
    time_nanoseconds(at)
    return Attempt(token, at, owner_of(by) if by else ())
