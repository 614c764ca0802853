# SPDX-License-Identifier: Apache-2.0
"""Enter a batch in the ledger's record: make a new record, and claims, from the old record and the batch. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import new_claim_id, new_token
from jetstream_handoff.ledger import failures
from jetstream_handoff.ledger.history import History
from jetstream_handoff.ledger.order import MOST_STOPPED
from jetstream_handoff.ledger.record import OpenEntry, Record
from jetstream_handoff.ledger.reservation import check_taker
from jetstream_handoff.ledger.settled import Settled
from jetstream_handoff.moment import Moment
from jetstream_handoff.rules import edited
from jetstream_handoff.rules.order_key import check_same
from jetstream_handoff.take import by_key
from jetstream_handoff.take.conservation import on_their_way
from jetstream_handoff.take.gather import LeaseOver

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.order import Order
    from jetstream_handoff.ledger.reservation import Reader
    from jetstream_handoff.take.gather import Batch
    from jetstream_handoff.take.taking import Taking

SMALLEST_BATCH = 100
"""If a record is too large even with a batch of at most this many messages, the batch is not the reason."""

Entries = Mapping[str, OpenEntry]


@dataclass(frozen=True, slots=True)
class Entered:
    """The result of entering a batch in a record.

    record:     the new record.
    claims:     the claims to hand on.
    poisoned:   the claim of messages that have failed alone too many times, if any, and of those whose key stopped. The
                take itself holds it.
    behind:     those whose key stopped, by the sequence at which it did.
    waiting:    those that are tried again, because too many keys have stopped.
    again:      messages that were redelivered although they are done.
    passed:     messages that were acknowledged after they had been redelivered to this take.
    left:       messages for a later batch.
    superseded: claims that are no longer open.
    dropped:    the reason why nothing was entered, if another client may have received the messages; otherwise empty.
    too_large:  whether nothing was entered because the record would be too large.
    full:       whether the record would be too large even without the messages that are settled.
    """

    record: Record | None
    claims: Entries = field(default_factory=dict)
    poisoned: Entries = field(default_factory=dict)
    behind: Mapping[int, Sequences] = field(default_factory=dict)
    waiting: Sequences = field(default_factory=Sequences)
    again: Sequences = field(default_factory=Sequences)
    passed: Sequences = field(default_factory=Sequences)
    left: Sequences = field(default_factory=Sequences)
    superseded: Entries = field(default_factory=dict)
    dropped: str = ""
    too_large: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """What a take with ``ordered_by`` knows of a batch that contains everything that is delivered and not done.

    known:      the messages of the batch that are not done. When they were counted, the server had delivered no others
                that are unacknowledged.
    delivered:  the highest sequence that the server had delivered then.
    life:       the life of the consumer.
    take:       the id of the take, which must still be the one that gathers.
    keys:       the keys of the messages.
    """

    known: Sequences
    delivered: int
    life: tuple[str, int]
    take: str
    keys: by_key.Keys


def enter(
    old: Record | None,
    info: ConsumerInfo,
    batch: Batch,
    *,
    now: float,
    taking: Taking,
    fits: Callable[..., bool],
    whole: Whole | None = None,
    reader: Reader | None = None,
) -> Entered:
    """Enter a batch in a record.

    now:    a time on our clock after ``info`` has arrived.
    fits:   :meth:`~jetstream_handoff.ledger.ledger.Ledger.fits`.
    whole:  for a take with ``ordered_by``: the batch, of which ``batch`` may be the first part.
    reader: the reader that takes, if it is one.

    Raises:
        ConsumerReserved, HeldByAnother: the consumer is reserved for another reader, or for another run of it.
        ConsumerUnsuitable: the other takes of the consumer have another ``ordered_by``.
    """
    if reason := _stale(batch, info, now):
        return Entered(old, dropped=reason)
    earlier = on_their_way(info, batch.deliveries)
    record = old or Record.begun(info, earlier)
    check_same(taking.consumer, record.order.by if record.order else None, taking.ordered_by)
    check_taker(taking.consumer, record.reader, reader)
    if whole is None and taking.ordered_by is not None:
        return Entered(old, dropped="its messages were not counted")
    done = record.all_settled
    if record.new_life(info) or delivered_anew(batch, done & batch.sequences):
        record, done = record.reborn(info, earlier), Settled()
        if whole is not None:
            reason = "the consumer has begun a new life"
            return Entered(record.note(info).remembering(batch.sequences), dropped=reason)
    if whole is not None and (reason := _not_whole(record, info, whole)):
        return Entered(old, dropped=reason)
    rest = batch.sequences - (passed := passed_by(batch, record))
    again = (done & rest).sequences
    rest -= again
    lost, failed = superseded_by(record, rest if whole is None else whole.known - done.sequences)
    cut = _cut(rest, failed, taking, whole, record.order, info.now)
    claims, poisoned = _entries(batch, cut, info, taking)
    claims = _counted(claims, lost)
    entries = {**claims, **poisoned}
    own = Sequences.from_ranges(each for entry in entries.values() for each in entry.sequences.ranges)
    left = rest - own
    kept = record.without(lost)
    new = replace(kept, open={**kept.open, **entries}, failures=failed).claimed(own | again).remembering(left)
    if record.order and whole is not None:
        gone = tuple(each for each in record.order.gone if each in kept.open)
        stopped = _stopped(record.order, whole.keys, cut)
        resuming = record.order.resuming if record.order.through(info.now) is not None else None
        order = replace(record.order.left_by(whole.take), gone=gone, claims=len(entries))
        order = replace(order, stopped=stopped, resuming=resuming)
        new = replace(new, order=order)
    new = new.note(info).tidied(info)
    # Settled messages leave the record when the acknowledgement floor rises above them. So there must be room in the
    # record for the unsettled messages that keep the floor from rising.
    holds_the_floor = bool(done and rest) and rest.first < done.first
    if not fits(new, reserve=holds_the_floor and batch.sequences.count <= SMALLEST_BATCH):
        full = not fits(replace(new, settled=Settled()))
        return Entered(record.note(info).tidied(info), too_large=True, full=full)
    superseded = {claim_id: entry for claim_id, entry in (old.open if old else {}).items() if claim_id not in kept.open}
    return Entered(new, claims, poisoned, cut.behind, cut.waiting, again, passed, left, superseded)


def _not_whole(record: Record, info: ConsumerInfo, whole: Whole) -> str:
    """The reason why the batch may no longer contain everything that is delivered and not done; empty if it does.

    Whatever was delivered since the messages were counted, and is not one of them, has a higher sequence than all of
    them.
    """
    if record.life != whole.life:
        return "the consumer has begun a new life"
    if record.order is None or not record.order.gathers(whole.take):
        return "another take gathers the messages of this consumer"
    if info.delivered < whole.delivered:
        return "the server has forgotten deliveries"
    for claim_id, entry in record.order.blocking(record.open, info).items():
        others = entry.sequences - whole.known
        if others == entry.sequences:
            return f"claim {claim_id} is open"
        if others and others.last > whole.delivered:
            return f"the server has forgotten deliveries of claim {claim_id}"
    return ""


def superseded_by(record: Record, messages: Sequences) -> tuple[dict[str, OpenEntry], failures.Failures]:
    """Return the open claims that are superseded because these messages were delivered again, and the failures with
    theirs: a claim that an attempt held has failed."""
    lost = {claim_id: entry for claim_id, entry in record.open.items() if entry.sequences & messages}
    failed = record.failures
    for claim_id, entry in lost.items():
        if entry.token is not None:
            reason = "the attempt that held the claim died, or lost the claim"
            failed = failures.failed(failed, claim_id, entry.sequences, reason)
    return lost, failed


def _stale(batch: Batch, info: ConsumerInfo, now: float) -> str:
    """The reason why another client may have received the messages; empty if that is impossible."""
    try:
        batch.check(Moment.of(info, now))
    except LeaseOver as over:
        return str(over)
    return "the consumer was reset or rolled back after the pull" if info.counter < batch.counter else ""


def delivered_anew(batch: Batch, done: Settled) -> bool:
    """Whether a settled message arrives as if it had never been delivered, because the consumer began a new life."""
    return any(
        batch.deliveries.delivered_anew(Sequences(((first, last),)), counter) for first, last, counter in done.spans
    )


def passed_by(batch: Batch, record: Record) -> Sequences:
    """The messages that were acknowledged after they had been redelivered to this batch: those that the floor has
    passed.

    A message that the floor has passed is delivered no more. If it is delivered for the first time, or was delivered
    after that, or is known to be undone, then another client has reset the consumer, and nats-server shows the
    previous floor (docs/handoff.md, What remains).
    """
    below = batch.sequences & Sequences.from_ranges([(1, record.floor)] if record.floor else [])
    if not below:
        return below
    return batch.deliveries.redelivered_within(below - record.undone, record.counter)


def _cut(  # noqa: PLR0917 - the messages, and all that decides about them
    rest: Sequences, failed: failures.Failures, taking: Taking, whole: Whole | None, order: Order | None, now: str
) -> by_key.Cut:
    """Cut the messages into claims, and find those that become dead letters."""
    if whole is not None and order is not None:
        stopped, room = whole.keys.numbered(order.stopped), MOST_STOPPED - len(order.stopped)
        through = order.through(now)
        return by_key.cut(rest, whole.keys.of, failed, taking, stopped=stopped, through=through, room=room)
    size = taking.messages_per_claim or taking.max_messages
    if taking.max_failures is None:
        return by_key.Cut(list(islice(rest.windows(size), taking.max_claims)), Sequences())
    poison = rest & failures.poison(failed, taking.max_failures)
    return by_key.Cut(list(failures.parts(failed, rest - poison, size, taking.max_claims)), poison)


def _stopped(order: Order, keys: by_key.Keys, cut: by_key.Cut) -> dict[str, int]:
    """All keys that are stopped now: those of the batch, and the others."""
    here = keys.named(keys.numbered(order.stopped))
    return {**{key: at for key, at in order.stopped.items() if key not in here}, **keys.named(cut.stopped)}


def _entries(batch: Batch, cut: by_key.Cut, info: ConsumerInfo, taking: Taking) -> tuple[Entries, Entries]:
    """The claims to hand on, and the claim of messages that become dead letters, which is not handed on."""
    config = edited.kept(info.config)

    def entry(part: Sequences, token: str | None = None) -> OpenEntry:
        counter, size = batch.deliveries.totals(part)
        history = History(stored=batch.deliveries.stored(part))
        return OpenEntry(part, counter, size, info.now, taking.owner, token, history, config=config)

    claims = {new_claim_id(): entry(part) for part in cut.claims}
    return claims, {new_claim_id(): entry(cut.buried, new_token(0))} if cut.buried else {}


def _counted(claims: Entries, lost: Entries) -> Entries:
    """The claims, each with the number of claims before it that contained its messages and ended neither settled nor
    failed. A claim that an attempt held has failed."""
    ended = sorted(
        (first, last, entry.unsettled + (entry.token is None))
        for entry in lost.values()
        for first, last in entry.sequences.ranges
    )
    if not any(count for *_, count in ended):
        return claims
    lasts = list(accumulate((last for _, last, _ in ended), max))

    def before(entry: OpenEntry) -> int:
        most = 0
        for first, last in entry.sequences.ranges:
            for begin, end, count in islice(ended, bisect_left(lasts, first), None):
                if begin > last:
                    break
                if end >= first:
                    most = max(most, count)
        return most

    return {claim_id: replace(entry, unsettled=before(entry)) for claim_id, entry in claims.items()}
