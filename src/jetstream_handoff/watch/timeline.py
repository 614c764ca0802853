# SPDX-License-Identifier: Apache-2.0
"""The timeline of a claim: what happened to it, in order, each step with its time and the task behind it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import KEEPER
from jetstream_handoff.ledger.history import readable

if TYPE_CHECKING:
    from jetstream_handoff.ledger.history import Attempt, Owner
    from jetstream_handoff.ledger.record import Receipt
    from jetstream_handoff.watch.seen import Seen

What = Literal["taken", "held", "handed_on", "released", "done", "acknowledged", "failed", "superseded", "reprocessing"]


@dataclass(frozen=True, slots=True)
class Milestone:
    """A step in the life of a claim.

    what:   the kind of step.
    at:     the server's time, RFC 3339; empty if the ledger does not contain it.
    text:   one sentence that says what happened. It contains strings that others wrote.
    by:     the task behind it: for ``taken`` and ``handed_on`` the owner of the claim, for the other kinds the task of
            the attempt; empty if unknown.
    token:  the attempt; empty if none is involved.
    """

    what: What
    at: str
    text: str
    by: Owner = ()
    token: str = ""


def milestones(seen: Seen, name: Callable[[Owner], str] = readable) -> list[Milestone]:
    """Return what happened to a claim, the oldest first.

    seen:  the claim.
    name:  returns the name of a task, for the texts.

    A history names the last four attempts only, and claims that ended under release 0.1 have none. What the ledger does
    not contain is left out. Steps without a time are at the end.
    """
    steps = [*_before(seen, name), *_end(seen.receipt)]
    return sorted(steps, key=lambda step: time_nanoseconds(step.at) if step.at else 2**63)


def _before(seen: Seen, name: Callable[[Owner], str]) -> Iterator[Milestone]:
    history, entry, receipt = seen.history, seen.entry, seen.receipt
    if history.taken:
        by = f" by {name(history.owner)}" if history.owner else ""
        yield Milestone("taken", history.taken, f"It was taken{by}.", history.owner)
    if entry is not None and entry.at != history.taken:
        handed_on = f"It was handed on to a later try of {name(entry.owner)}, which had taken it."
        yield Milestone("handed_on", entry.at, handed_on, entry.owner)
    for attempt in history.attempts:
        if receipt is not None and attempt.token == receipt.again:
            text = f"Attempt {attempt.token}{_of(attempt, name)} began to process it again."
            yield Milestone("reprocessing", attempt.at, text, attempt.by, attempt.token)
        else:
            how = "It was kept" if attempt.token.startswith(f"{KEEPER}-") else "It was held"
            text = f"{how} by attempt {attempt.token}{_of(attempt, name)}."
            yield Milestone("held", attempt.at, text, attempt.by, attempt.token)
    if history.released:
        how = f"Attempt {history.skipped} skipped its work" if history.skipped else "It was released by hand"
        text = f"{how}, so that its messages are redelivered."
        yield Milestone("released", history.released, text, history.attempt(history.skipped).by, history.skipped)


def _end(receipt: Receipt | None) -> Iterator[Milestone]:
    if receipt is None:
        return
    token = receipt.token or ""
    by = receipt.history.attempt(token).by
    if receipt.state == "superseded":
        others = f" Its messages are in {', '.join(receipt.superseded_by)}." if receipt.superseded_by else ""
        reason = f", because {receipt.reason}" if receipt.reason else ""
        changed = f" Its consumer was changed while it was open: {receipt.changed}." if receipt.changed else ""
        yield Milestone("superseded", receipt.at, f"It was superseded{reason}.{changed}{others}")
    elif receipt.state == "failed":
        reason = f": {receipt.reason}" if receipt.reason else "."
        yield Milestone("failed", receipt.at, f"Attempt {token} failed{reason}", by, token)
    else:
        rejected = f" {receipt.rejected.count:,} of its messages became dead letters." if receipt.rejected else ""
        gone = f" {receipt.skipped.count:,} of its messages no longer existed and were skipped."
        text = f"Attempt {token} settled it.{rejected}{gone if receipt.skipped else ''}"
        yield Milestone("done", receipt.at, text, by, token)
        if receipt.acknowledged is not None and receipt.at:
            text = f"All acknowledgements were confirmed after {receipt.acknowledged:g} s."
            yield Milestone("acknowledged", later(receipt.at, receipt.acknowledged), text, by, token)


def _of(attempt: Attempt, name: Callable[[Owner], str]) -> str:
    """The task of an attempt, as a part of a sentence. Its last value is the number of the try."""
    if not attempt.by:
        return ""
    *task, number = attempt.by
    if task and isinstance(number, int):
        return f" of {name(tuple(task))}, try {number}"
    return f" of {name(attempt.by)}"


def later(at: str, seconds: float) -> str:
    """Return a time that is so many seconds later, RFC 3339 with microseconds; the same time if the result is not a
    valid time."""
    try:
        end = datetime.fromtimestamp(time_nanoseconds(at) / 1e9 + seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return at
    return f"{end:%Y-%m-%dT%H:%M:%S.%f}Z"
