# SPDX-License-Identifier: Apache-2.0
"""Releasing open claims by hand: one, or all claims of a run, of a pipeline or of a consumer."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import number
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import HolderAlive, HolderUnknown, Superseded
from jetstream_handoff.events import tell
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.watch import inspection
from jetstream_handoff.words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.watch.seen import Seen

log = logging.getLogger(__name__)

STOPPED = (
    "an attempt that is alive is stopped, its output does not count, and the messages are processed from the beginning"
)
"""What a release does to the attempts that hold the claims."""


@dataclass(frozen=True)
class Which:
    """Which open claims are selected. An empty field selects all.

    stream, consumer:  the names of the stream and of the consumer.
    pipeline, run:     the first two names of a claim's owner, or of the attempt that holds the claim: those of the
                       graph of tasks and of its run.
    """

    stream: str = ""
    consumer: str = ""
    pipeline: str = ""
    run: str = ""

    def fits(self, seen: Seen) -> bool:
        """Whether a claim is selected."""
        return (
            self.stream in ("", seen.stream)
            and self.consumer in ("", seen.consumer)
            and any(map(self._names, (seen.history.owner, seen.history.attempt(seen.holder).by)))
        )

    def _names(self, owner: Owner) -> bool:
        return self.pipeline in ("", *owner[:1]) and self.run in ("", *owner[1:2])


@dataclass(frozen=True)
class Released:
    """The result of a release.

    claims:   the claims that were released.
    changed:  the claims that were not released, because their state in the ledger changed in the meantime.
    """

    claims: tuple[Seen, ...] = ()
    changed: tuple[Seen, ...] = ()


async def chosen(js: JetStream, which: Which) -> list[Seen]:
    """Return the selected open claims, the oldest first.

    Raises:
        StreamNotFound, ConsumerNotFound, InvalidValue: no claim is selected, and a name is unknown.
        LedgerUnavailable: the ledger cannot be read.
    """
    stream, consumer = which.stream or None, which.consumer or None
    claims = await inspection.open_claims(js, stream, consumer)
    if found := [seen for seen in claims if which.fits(seen)]:
        return found
    await inspection.check_known(js, stream, consumer)
    if which.pipeline or which.run:
        names = sorted({" / ".join(map(str, seen.history.owner[:2])) for seen in claims})
        remedy = f"no open claim belongs to it; the open claims belong to: {', '.join(names) or 'none'}"
        raise InvalidValue("pipeline or run", " / ".join(filter(None, (which.pipeline, which.run))), remedy)
    return []


def described(claims: Sequence[Seen]) -> str:
    """Return the numbers of a release before it is confirmed: of claims, messages, consumers, and attempts at work."""
    consumers = sorted({f"consumer {seen.consumer} of stream {seen.stream}" for seen in claims})
    of = consumers[0] if len(consumers) == 1 else number(len(consumers), "consumer")
    messages = number(sum(seen.sequences.count for seen in claims), "message")
    text = f"{number(len(claims), 'open claim')} with {messages} of {of}."
    held = [seen for seen in claims if seen.holder]
    if not held:
        return f"{text} No attempt holds any of them."
    alive, listened = sum(seen.alive is True for seen in held), any(seen.alive is not None for seen in held)
    heard = f", and {alive:,} of the attempts {'is' if alive == 1 else 'are'} alive" if listened else ""
    return f"{text} Attempts hold {len(held):,} of them{heard}: {STOPPED}."


def told(seen: Seen) -> str:
    """Return what was done when a claim was released."""
    messages = number(seen.sequences.count, "message")
    return f"Claim {seen.id} was released: the next sensor that pulls receives its {messages} again."


def check_holders(claims: Iterable[Seen], remedy: str, *, despite_unknown: bool = False) -> None:
    """Check that a release that nobody has confirmed for living attempts stops none: either all claims may be released,
    or none of them.

    claims:           the claims, with ``alive`` as :func:`inspection.listen` sets it.
    remedy:           how to confirm that an attempt may be stopped, for the error.
    despite_unknown:  whether it is confirmed for attempts of which it is unknown whether they are alive.

    Raises:
        HolderAlive: an attempt is alive.
        HolderUnknown: an attempt may be alive, and this is not confirmed.
    """
    held = [seen for seen in claims if seen.holder]
    if alive := [seen for seen in held if seen.alive]:
        raise HolderAlive(
            f"{_attempts(alive, held)} alive: a heartbeat has just arrived, so nothing was released; wait until the "
            f"work has ended, or {remedy}"
        )
    if (unknown := [seen for seen in held if seen.alive is None]) and not despite_unknown:
        silence = max(seen.silence for seen in unknown)
        raise HolderUnknown(
            f"it is unknown whether {_attempts(unknown, held)} alive: no heartbeat arrived, but an attempt may be "
            f"silent for {silence:.0f} s, so nothing was released; release from the command line, which listens that "
            f"long, or {remedy}"
        )


def _attempts(some: Sequence[Seen], held: Sequence[Seen]) -> str:
    if len(held) > 1:
        return f"{len(some):,} of {len(held):,} attempts that hold a claim {'is' if len(some) == 1 else 'are'}"
    return f"attempt {held[0].holder} of claim {held[0].id} is"


async def release_all(js: JetStream, claims: Iterable[Seen]) -> Released:
    """Release open claims by hand: for each consumer, remove the tokens of its claims from the ledger with one change,
    note the time in their histories, then let their messages be redelivered at once.

    An attempt that is alive stops at its next heartbeat and cannot settle.

    Raises:
        WrongLedger: a consumer belongs to another ledger.
        ConsumerNotFound, StreamNotFound: a consumer or stream does not exist. Claims of the consumers before it, by
            name, were released.
    """
    of_consumer: dict[tuple[str, str], list[Seen]] = {}
    for seen in claims:
        of_consumer.setdefault((seen.stream, seen.consumer), []).append(seen)
    released, changed = [], []
    for names, some in sorted(of_consumer.items()):
        done = await _release(Ledger(js, *names), some)
        released += done
        changed += [seen for seen in some if seen not in done]
    return Released(tuple(released), tuple(changed))


async def release(js: JetStream, seen: Seen) -> None:
    """Release one open claim by hand, as :func:`release_all`.

    Raises:
        Superseded: the claim's entry in the ledger is no longer the one in ``seen``. Nothing was changed.
        WrongLedger, ConsumerNotFound, StreamNotFound: as :func:`release_all`.
    """
    if not (await release_all(js, [seen])).claims:
        raise Superseded(
            f"claim {seen.id} was not released, because its state in the ledger changed in the meantime; run "
            f"{words_of(js.settings).command(f'claim {seen.id}')} to see the new state before you try again"
        )


async def _release(ledger: Ledger, claims: list[Seen]) -> list[Seen]:
    """Release the claims whose entries are unchanged, and return them."""
    await ledger.locate()

    def released(record: Record | None, info: ConsumerInfo) -> Changed[list[Seen]]:
        entries = record.open if record else {}
        unchanged = [seen for seen in claims if seen.entry and entries.get(seen.id) == seen.entry]
        free = {seen.id: entries[seen.id].released(info.now) for seen in unchanged}
        return Changed(record and replace(record, open={**entries, **free}), unchanged)

    _, done = await ledger.change(released)
    if done:
        await answers.negative(ledger, Sequences.from_ranges(each for seen in done for each in seen.sequences.ranges))
    for seen in done:
        log.info("claim %s was released by hand: %d messages", seen.id, seen.sequences.count)
        tell("released", seen, seen.sequences.count, claim=seen.id)
    return done
