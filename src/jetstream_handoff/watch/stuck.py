# SPDX-License-Identifier: Apache-2.0
"""What is stuck: from the numbers of a consumer and its open claims to sentences for the person on call. No I/O.

The order of the rules matters where one symptom explains another: a consumer that is paused has no puller, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from jetstream_client.errors import shown
from jetstream_client.filters import is_filtered
from jetstream_client.quantities import lasting, number
from jetstream_client.sequences import Sequences
from jetstream_client.times import seconds_between, time_nanoseconds
from jetstream_handoff.durations import HAND_OFF_TIMEOUT
from jetstream_handoff.ledger.history import Owner
from jetstream_handoff.rules import edited, ledger_mark
from jetstream_handoff.rules.consumer import broken_rules
from jetstream_handoff.rules.lasting import FIXED
from jetstream_handoff.take.conservation import again, given_up, without_receipt
from jetstream_handoff.watch.backlog import AT_WORK, Look, unknown
from jetstream_handoff.watch.seen import IF_UNSETTLED, PASSED, after_passed
from jetstream_handoff.watch.view import ConsumerView, Sample, Symptom
from jetstream_handoff.words import OF_HANDOFF, Words

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_handoff.ledger.failures import Failure, Failures
    from jetstream_handoff.ledger.record import OpenEntry, Record
    from jetstream_handoff.letters.letter import Head
    from jetstream_handoff.take.barrier import Barrier
    from jetstream_handoff.watch.seen import Seen


@dataclass(frozen=True, slots=True)
class Limits:
    """After how long something counts as stuck.

    idle:     messages wait, and the consumer has delivered nothing. Default: one minute.
    unheld:   a claim waits for the first attempt of its task. Default: one minute.
    retry:    a claim waits for another attempt, or was released for others and waits for a sensor. Default: 15
              minutes, the default lease.
    growing:  the backlog has grown for this long, and at no time shrunk. Default: five minutes.
    barrier:  with ``ordered_by``, messages wait and a claim has been open for this long, and :data:`SLOWER` times
              longer than claims are usually held. Default: 15 minutes, the default lease.
    """

    idle: timedelta = timedelta(minutes=1)
    unheld: timedelta = timedelta(minutes=1)
    retry: timedelta = HAND_OFF_TIMEOUT
    growing: timedelta = timedelta(minutes=5)
    barrier: timedelta = HAND_OFF_TIMEOUT


DEFAULT = Limits()
SLOWER = 4
"""How many times longer than usual a claim is held before that is reported."""
MISSED = 2.0
"""How many times longer than the longest pause between two heartbeats nothing is heard of an attempt that is dead."""
LEAST = 300.0
"""Seconds by which a hold must at least exceed the usual time before that is reported."""
LOOK_AFTER = (
    "Find out why the task of this claim takes so long, or does not run, and release the claim if its work will not "
    "go on; smaller batches (max_messages) keep the wait short."
)
"""What to do about a claim for which the next batch has waited for too long."""
_PLACE = re.compile(r" in \S+, run .*, try \d+$")  # in Airflow's reasons, and not for users who may not see the DAG
_SAMPLES = 4  # how many samples show a trend


@dataclass(frozen=True)
class Known:
    """What is known of a consumer in addition to its view.

    stream_exists:  whether its stream exists.
    taken:          the owner of the newest claim that has ended, and when it was taken; None if unknown.
    failed:         the task that failed with the claim of :func:`failing_claim`, and its error; None if unknown.
    newest:         its newest dead letter; None if it has none, or if unknown.
    counted:        whether all its dead letters are counted.
    ledger:         the name of the ledger that was read; empty if unknown.
    ledger_exists:  whether the ledger's bucket of records exists.
    lacking:        subjects on which the connection's user is not permitted to publish, although tasks need that.
    vanishing:      whether messages of its stream vanish by design, which the server counts as acknowledged.
    words:          the words of the connection.
    """

    stream_exists: bool = True
    taken: tuple[Owner, str] | None = None
    failed: tuple[Owner, str] | None = None
    newest: Head | None = None
    counted: bool = True
    ledger: str = ""
    ledger_exists: bool = True
    lacking: tuple[str, ...] = ()
    vanishing: bool = False
    words: Words = OF_HANDOFF


def stuck(view: ConsumerView, known: Known, limits: Limits = DEFAULT) -> tuple[Symptom, ...]:
    """Return what is stuck at a consumer, errors first.

    view:    the consumer.
    known:   what else is known of it.
    limits:  after how long something counts as stuck.
    """
    found = [
        *_permission(view, known),
        *_missing(view, known),
        *_other_ledger(view, known),
        *_reset(view),
        *([*_unsuitable(view)] or _edited(view)),
        *filter(None, [uncounted(view.stream, view.consumer, view.info, *view.streams)]),
        *_given_up(view),
        *_unreceipted(view, known),
        *_flow(view, known, limits),
        *_holders(view),
        *_unheld(view, known, limits),
        *_released(view, known, limits),
        *_unsettled(view),
        *_failing(view, known),
        *_stopped(view, known),
        *_dead_letters(view, known),
    ]
    return tuple(sorted(found, key=lambda symptom: symptom.level != "error"))


def _permission(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    if known.lacking:
        first, more = known.lacking[0], len(known.lacking) - 1
        others = f" and on {number(more, 'other subject')}" if more else ""
        yield Symptom(
            "permission",
            "error",
            f"The user of this connection is not permitted to publish on {first!r}{others}.",
            f"The sensors and tasks of {_of(view)} need this permission.",
            "Grant the permissions that docs/reference/permissions.md lists; "
            f"{known.words.command(f'doctor --stream {view.stream}')} names each one that is missing.",
        )


def _missing(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    if view.info is not None or not view.claims:
        return
    what = _of(view) if known.stream_exists else f"stream {view.stream}"
    claims = f"{number(view.open, 'claim')} with {number(view.claimed_messages, 'message')}"
    lowest = min(seen.sequences.first for seen in view.claims)
    remedy = (
        f"Find out why it was deleted, and create it again so that it begins at or below sequence {lowest}; the next "
        "sensor then takes the messages anew. A stream with interest retention may have removed them."
    )
    if not known.stream_exists:
        remedy = "Find out why it was deleted: its messages were deleted with it, so these claims can only be given up."
    yield Symptom(
        "consumer_missing",
        "error",
        f"{_capital(what)} does not exist.",
        f"The ledger has {claims} of {_of(view)} open.",
        remedy,
        view.claims[0].id,
    )


def _other_ledger(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    owner = ledger_mark.marked(view.info.config) if view.info else ""
    if not known.ledger or owner in ("", known.ledger):
        return
    claims = f"Its {number(view.open, 'open claim')} can no longer be settled." if view.open else ""
    command = known.words.command(f"ledger {view.stream} {view.consumer}")
    yield Symptom(
        "ledger",
        "error" if view.open else "warning",
        f"{_capital(_of(view))} belongs to ledger {owner!r}, and this connection has ledger {known.ledger!r}.",
        claims,
        f"Use connections with ledger {owner!r} for this consumer; {command} says how to give it to another ledger.",
        view.claims[0].id if view.claims else "",
    )


def _reset(view: ConsumerView) -> Iterator[Symptom]:
    lost = [seen for seen in view.claims if not seen.current]
    if view.info is None or not lost:
        return
    one = len(lost) == 1
    yield Symptom(
        "reset",
        "error",
        f"{_capital(_of(view))} was recreated or reset.",
        f"{number(len(lost), 'open claim')} can no longer be settled, because {'it was' if one else 'they were'} taken "
        "before that.",
        "Run its sensor, which takes their messages in new claims; do not clear the tasks of these claims.",
        lost[0].id,
    )


def _unsuitable(view: ConsumerView) -> Iterator[Symptom]:
    """The consumer breaks a rule for claims, because somebody has changed it."""
    if view.info is None:
        return
    if broken := [*broken_rules(view.consumer, view.info.config, 1, timedelta(0))]:
        fields = ", ".join(f"{each.rule}={shown(each.value)}" for each in broken)
        by = "" if broken[0].rule in FIXED else f", for example with `{_edit(view)}`"
        yield Symptom(
            "unsuitable",
            "error",
            f"{_capital(_of(view))} was changed: {fields}.",
            "It cannot be used for claims, so its sensors fail.",
            f"Change {broken[0].rule} of the consumer{by}: {broken[0].remedy}.",
        )


def _edited(view: ConsumerView) -> Iterator[Symptom]:
    """Somebody has changed the consumer while claims are open."""
    if view.info is None:
        return
    for seen in view.claims:
        changes = edited.changed(seen.entry.config, view.info.config) if seen.entry and seen.current else ""
        if changes:
            yield Symptom(
                "edited",
                "warning",
                f"{_capital(_of(view))} was changed while its claims are open: {changes}.",
                f"The server may redeliver the messages of {_claim(seen)} early, or no longer have the consumer.",
                f"Change the consumer back with `{_edit(view)}`, or wait until these claims have ended; find out who "
                "changes consumers.",
                seen.id,
                seen.entry.by if seen.entry else (),
            )
            return


def uncounted(stream: str, consumer: str, info: ConsumerInfo | None, *streams: StreamInfo) -> Symptom | None:
    """Return the finding that the server counts less than a consumer without a filter has to deliver; None if it does
    not, as far as that is known.

    streams:  INFO of the stream from before and from after ``info``. With one alone, what is published meanwhile would
              seem uncounted, so nothing is found.
    """
    if info is None or len(streams) < 2 or is_filtered(info.config):
        return None
    behind = min(_behind(info, each.state) for each in streams)
    if behind <= info.pending:
        return None
    return Symptom(
        "uncounted",
        "warning",
        f"Of {number(behind, 'message')} behind the last delivery of consumer {consumer}, stream {stream}, the server "
        f"counts {info.pending:,} as pending.",
        "After a filter was removed from a consumer, the server goes on not to count what the filter did not select. "
        "Sensors get such messages, but the watcher does not see them, and a stream with retention 'interest' drops "
        "them.",
        f"Set the filter that selects everything: `nats consumer edit {stream} {consumer} --filter '>'`.",
    )


def _behind(info: ConsumerInfo, state: Mapping[str, int]) -> int:
    """How many messages a stream has behind a consumer's last delivery, at least."""
    return state["messages"] - max(0, info.delivered - state["first_seq"] + 1)


def _given_up(view: ConsumerView) -> Iterator[Symptom]:
    """Messages that the server will not deliver again, although they are not done."""
    if view.info is not None and (messages := given_up(view.record, view.info)):
        yield Symptom(
            "given_up",
            "error",
            f"The server has given up deliveries of {_of(view)}.",
            f"Nothing is unacknowledged, but messages among the sequences {messages} are not done. Nothing is lost "
            "yet.",
            f"Make sure that max_deliver is -1, and {again(view.info, messages.first)}.",
        )


def _unreceipted(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    """Messages that were acknowledged without the ledger."""
    if messages := without_receipt(view.record, view.info, known.ledger, vanishing=known.vanishing):
        yield Symptom(
            "unreceipted",
            "warning",
            f"Messages of {_of(view)} among the sequences {messages} were acknowledged, but no claim in the ledger "
            "contains them.",
            "The ledger was restored from an older copy, was deleted or has lost its last writes, or another client "
            "acknowledges messages.",
            "Compare the output of the work with the stream, because committed() does not list these messages. If some "
            f"must be processed again, {again(view.info, messages.first)}. This is reported for a week.",
        )


def _flow(view: ConsumerView, known: Known, limits: Limits) -> Iterator[Symptom]:
    """Messages that are not delivered. Only the first of these reasons is reported."""
    info = view.info
    if info is None:
        return
    reasons = [_paused(view, info)]
    if view.barrier:  # then it is right that no others are delivered, however many wait
        reasons += [_barrier(view, view.barrier, limits)]
    else:
        reasons += [_full(view, info), _no_puller(view, info, known, limits), _growing(view, limits)]
    yield from next(filter(None, map(list, reasons)), [])


def _paused(view: ConsumerView, info: ConsumerInfo) -> Iterator[Symptom]:
    if info.paused:
        until = str(info.config.get("pause_until", ""))[:30]
        backlog = f"its backlog of {number(info.pending, 'message')}" if info.pending else "messages"
        yield Symptom(
            "paused_consumer",
            "error" if info.pending or info.ack_pending else "warning",
            f"{_capital(_of(view))} is paused until {until}.",
            f"Until then no sensor receives {backlog}.",
            "Resume the consumer if the pause is not intended.",
        )


def lasts(barrier: Barrier, usual: float | None = None, limits: Limits = DEFAULT) -> bool:
    """Whether messages have waited for the claims of the batch before them for too long.

    usual:  seconds for which a claim of the consumer is usually held; None if unknown.
    """
    return barrier.waiting > 0 and barrier.age >= max(limits.barrier.total_seconds(), SLOWER * (usual or 0.0))


def _barrier(view: ConsumerView, barrier: Barrier, limits: Limits) -> Iterator[Symptom]:
    """With ``ordered_by``, claims for which the next batch has waited for too long."""
    if not lasts(barrier, view.usual, limits):
        return
    entry = barrier.blocking[barrier.first]
    held = "no attempt holds it"
    if entry.token is not None:
        since = lasting(_since(view.now, _held_since(entry)))
        held = f"attempt {entry.token} has held it for {since}"
    yield Symptom(
        "barrier",
        "warning",
        f"The next batch of {_of(view)} waits for {barrier.count}.",
        f"Claim {barrier.first} was taken {lasting(barrier.age)} ago, and {held}. With ordered_by, messages are taken "
        f"when no claim is open: {barrier.queue}.",
        LOOK_AFTER,
        barrier.first,
        entry.by,
    )


def _full(view: ConsumerView, info: ConsumerInfo) -> Iterator[Symptom]:
    if info.pending and not info.deliverable:
        yield Symptom(
            "full",
            "warning",
            f"The limit max_ack_pending={info.config['max_ack_pending']} of {_of(view)} is reached.",
            f"So it delivers none of its {number(info.pending, 'waiting message')}. Of the unacknowledged messages, "
            f"{view.claimed_messages:,} are in {number(view.open, 'open claim')}.",
            "Wait until claims are settled, release a claim that is stuck, or raise max_ack_pending.",
            next((seen.id for seen in view.claims if seen.entry and not seen.entry.is_released), ""),
        )


def _no_puller(view: ConsumerView, info: ConsumerInfo, known: Known, limits: Limits) -> Iterator[Symptom]:
    if info.raw.get("num_waiting") or view.claims:
        return  # while claims are open, it is normal that their pipeline takes no others
    if known.lacking or not known.ledger_exists or any(_unsuitable(view)):
        return  # a run could only fail, and another finding says why
    failing = sum(each.sequences.count for each in view.record.failures.values()) if view.record else 0
    if not (count := _untaken(view, info, failing)):
        return
    idle = view.quiet if info.counter else _since(view.now, info.created)
    if idle is not None and idle < limits.idle.total_seconds():
        return
    delivered = "it has never delivered a message"
    if info.counter:
        delivered = (
            "the time of its last delivery is unknown" if idle is None else f"the last delivery was {lasting(idle)} ago"
        )
    by = ""
    if known.taken:
        by = f" The last claim that ended was taken at {known.taken[1]}."
    yield Symptom(
        "no_puller",
        "warning",
        f"No sensor pulls from {_of(view)}.",
        f"A backlog of {number(count, 'message')} waits, and {delivered}.{by}",
        f"Check whether the {known.words.pipeline} of its sensor is paused or has no run, and start one; if a sensor "
        "is running, read its log.",
        by=known.taken[0] if known.taken else (),
    )


def _untaken(view: ConsumerView, info: ConsumerInfo, failing: int = 0) -> int:
    """How many messages a pull would receive: those that were never delivered, and those that were delivered and are
    neither in an open claim nor done.

    failing:  how many of them another finding is about.
    """
    record = None if view.record is None or view.record.new_life(info) else view.record
    waiting = Look(info, record).backlog(unknown)
    above = Sequences.from_ranges([(info.floor + 1, max(info.floor + 1, info.delivered))])
    done = (record.all_settled.sequences & above).count if record else 0
    return waiting.new + max(0, waiting.again - done - failing)


def _growing(view: ConsumerView, limits: Limits) -> Iterator[Symptom]:
    life = view.info.created if view.info else ""
    samples = [sample for sample in view.samples if sample.life == life]
    if len(samples) < _SAMPLES or samples[-1].at - samples[0].at < limits.growing.total_seconds():
        return
    grew = samples[-1].pending - samples[0].pending
    if grew > 0 and all(after.pending >= before.pending for before, after in pairwise(samples)):
        yield Symptom(
            "growing",
            "warning",
            f"More messages arrive for {_of(view)} than are taken.",
            f"Its backlog has only grown for {lasting(samples[-1].at - samples[0].at)}, from {samples[0].pending:,} to "
            f"{number(samples[-1].pending, 'message')}.",
            "Let more runs work at the same time, or take more messages in a run (max_messages); if no sensor pulls, "
            "start one.",
            view.claims[0].id if view.claims else "",
        )


def _holders(view: ConsumerView) -> Iterator[Symptom]:
    held = [(seen, seen.entry) for seen in view.claims if seen.entry and seen.entry.token and seen.current]
    if silent := [(seen, entry) for seen, entry in held if _is_silent(view, seen, entry)]:
        seen, entry = silent[0]
        others = f" The same is true of {number(len(silent) - 1, 'other claim')}." if silent[1:] else ""
        yield Symptom(
            "dead_holder",
            "error",
            f"The worker of attempt {entry.token} is dead or cut off.",
            f"It holds {_claim(seen)}, but nothing has renewed the lease for {lasting(view.unheard or 0)}.{others}",
            "Release the claim, which listens for its holder first, to have its messages redelivered now; otherwise a "
            "retry of its task or the next sensor gets them.",
            seen.id,
            entry.by,
        )
    elif held and (count := _taken_away(view.samples)):
        yield Symptom(
            "dead_holder",
            "error",
            f"An attempt that holds a claim of {_of(view)} is probably dead or cut off.",
            f"The server has redelivered {number(count, 'message')} of held claims.",
            "Open its held claims and check whether their holders are alive; release a claim whose holder is not.",
        )
    for seen, entry in held:
        if (seen, entry) not in silent:
            yield from _old(view, seen, entry)


def _is_silent(view: ConsumerView, seen: Seen, entry: OpenEntry) -> bool:
    """Whether an attempt has missed some heartbeats. The server counts a heartbeat as activity of the consumer, as it
    does a delivery, so this is not noticed while a sensor receives messages or another attempt is alive."""
    if view.info is None or not view.info.ack_pending or seen.passed:
        return False  # the server does not count a heartbeat for messages that are no longer unacknowledged
    missed = MISSED * seen.silence
    return view.unheard is not None and missed < min(view.unheard, _since(view.now, _held_since(entry)))


def _old(view: ConsumerView, seen: Seen, entry: OpenEntry) -> Iterator[Symptom]:
    age = _since(view.now, _held_since(entry))
    most = AT_WORK.total_seconds() if view.usual is None else max(SLOWER * view.usual, view.usual + LEAST)
    if age < most:
        return
    usual = (
        "" if view.usual is None else f", although claims of this consumer are usually held for {lasting(view.usual)}"
    )
    yield Symptom(
        "old_claim",
        "warning",
        f"Attempt {entry.token} has been at work for {lasting(age)}{usual}.",
        f"It holds {_claim(seen)}.",
        "Listen for heartbeats of its attempt: if it is alive, read the log of its task; if it is not, release the "
        "claim.",
        seen.id,
        entry.by,
    )


def _unheld(view: ConsumerView, known: Known, limits: Limits) -> Iterator[Symptom]:
    late = [
        (age, seen, seen.entry)
        for seen in view.claims
        if seen.entry and seen.entry.token is None and seen.current and not seen.entry.is_released
        for age in [_since(view.now, _held_since(seen.entry))]
        if age >= (limits.retry if seen.entry.history.attempts else limits.unheld).total_seconds()
    ]
    if passed := [seen for _, seen, _ in late if seen.passed]:
        yield _passed(passed)
    late = [each for each in late if not each[1].passed]
    if not late:
        return
    age, seen, entry = max(late, key=lambda each: each[0])
    others = f" The same is true of {number(len(late) - 1, 'other claim')}." if len(late) > 1 else ""
    if entry.history.attempts:
        last = entry.history.attempts[-1]
        yield Symptom(
            "awaiting_retry",
            "warning",
            f"Attempt {last.token} has ended without settling its claim.",
            f"It began {lasting(age)} ago, and nobody holds {_claim(seen)}.{others}",
            "Usually a retry of its task holds it soon; if the task will not be retried, release the claim to have its "
            "messages redelivered now.",
            seen.id,
            entry.by,
        )
        return
    yield Symptom(
        "unheld",
        "error" if age > HAND_OFF_TIMEOUT.total_seconds() else "warning",
        f"The task of claim {seen.id} has not begun.",
        f"{_capital(_claim(seen))}, was taken {lasting(age)} ago, and no attempt holds it.{others}",
        f"Find out why its task does not run (is its {known.words.pipeline} paused, are its queue and pool full?), "
        "or release the claim to have its messages redelivered now.",
        seen.id,
        entry.owner,
    )


def _passed(claims: list[Seen]) -> Symptom:
    """Claims whose messages the server counts as acknowledged, although they are not done."""
    first = min(seen.sequences.first for seen in claims)
    others = f" The same is true of {number(len(claims) - 1, 'other claim')}." if len(claims) > 1 else ""
    return Symptom(
        "passed",
        "error",
        "The messages of an open claim were acknowledged, removed or given up.",
        f"{_capital(_claim(claims[0]))}, is not settled, but {PASSED}.{others}",
        after_passed(claims[0].info, first),
        claims[0].id,
        claims[0].entry.by if claims[0].entry else (),
    )


def _released(view: ConsumerView, known: Known, limits: Limits) -> Iterator[Symptom]:
    """Messages that a person has released wait until a take receives them. A pull that waits receives them soon."""
    released = [
        (_since(view.now, seen.entry.history.released), seen)
        for seen in view.claims
        if seen.entry and seen.entry.is_released and seen.current
    ]
    if not released:
        return
    age, seen = max(released, key=lambda each: each[0])
    by_hand = any(each.entry and not each.entry.history.skipped for _, each in released)
    pulled = view.info is not None and view.info.raw.get("num_waiting")
    if age < (limits.retry if pulled else timedelta(0) if by_hand else limits.idle).total_seconds():
        return
    count = sum(each.sequences.count for _, each in released)
    if view.info is not None and len(released) == view.open:
        count = max(count, _untaken(view, view.info))
    claims = f"claim {seen.id}" if len(released) == 1 else number(len(released), "claim")
    what = f"{claims} of {_of(view)} {'was' if len(released) == 1 else 'were'}"
    since = "no sensor has taken the messages since" if pulled else "no sensor pulls"
    waits = f"{number(count, 'message')} {'waits' if count == 1 else 'wait'}."
    skipped = seen.entry.history.skipped if seen.entry else ""
    if by_hand:
        cause = f"No sensor {'takes what was released of' if pulled else 'pulls from'} {_of(view)}."
        effect = f"{_capital(what)} released by hand {lasting(age)} ago, and {since}: {waits}"
    else:
        cause = f"Attempt {skipped} skipped its work, and {since}."
        effect = f"{_capital(what)} skipped {lasting(age)} ago: {waits}"
    yield Symptom(
        "released",
        "warning",
        cause,
        effect,
        f"Start a run of the {known.words.pipeline} that takes from this consumer; if one is running, read the log of "
        "its sensor.",
        seen.id,
        () if seen.entry is None else seen.entry.owner if by_hand else seen.entry.by,
    )


def _unsettled(view: ConsumerView) -> Iterator[Symptom]:
    often = [seen for seen in view.claims if seen.why_unsettled and seen.current]
    if not often:
        return
    seen = max(often, key=lambda each: each.unsettled)
    others = f" The same is true of {number(len(often) - 1, 'other claim')}." if len(often) > 1 else ""
    yield Symptom(
        "unsettled",
        "warning",
        f"Claims of {_of(view)} end neither settled nor failed.",
        f"{_capital(_claim(seen))}, is not the first: {seen.why_unsettled}.{others}",
        IF_UNSETTLED,
        seen.id,
        seen.entry.by if seen.entry else (),
    )


def _failing(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    failures = view.record.failures if view.record else {}
    if not failures:
        return
    remedy = (
        "Read the log of the task that failed and fix its cause; a sensor with max_failures moves a message that keeps "
        "failing to the dead letters."
    )
    claim, worst = _worst(failures)
    count = sum(each.sequences.count for each in failures.values())
    by, error = known.failed or ((), "")
    error = _PLACE.sub("", worst.reason or error).rstrip(".")
    why = f": {error}" if error else ""
    if worst.alone:
        others = f" {number(count - 1, 'other message')} failed with their claims." if count > 1 else ""
        cause = f"Message {worst.sequences.first} of stream {view.stream} fails{why}."
        effect = f"It has failed alone {number(worst.alone, 'time')} at consumer {view.consumer}.{others}"
    else:
        cause = f"A claim of {_of(view)} has failed{why}."
        effect = f"Nobody has processed {number(count, 'message')} since."
    yield Symptom("failing", "error" if worst.alone > 1 else "warning", cause, effect, remedy, claim, by)


def _worst(failures: Failures) -> tuple[str, Failure]:
    """The failure that says most, and the id of its claim."""
    return max(failures.items(), key=lambda item: (item[1].alone, -item[1].size))


def failing_claim(record: Record | None) -> str:
    """The id of the claim whose failure is reported; empty if no message fails."""
    return _worst(record.failures)[0] if record and record.failures else ""


def _stopped(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    if keys := view.stopped:
        yield Symptom("stopped", "warning", keys.cause, keys.effect, keys.remedy(known.words))


def _dead_letters(view: ConsumerView, known: Known) -> Iterator[Symptom]:
    if not view.dead_letters:
        return
    at_least = "" if known.counted else "at least "
    newest = ""
    if known.newest is not None and known.counted:
        newest = f"The newest is message {known.newest.sequence}, at {known.newest.stored_at}: {known.newest.reason}."
    others = "them" if view.stopped is None else "those of keys that have not stopped"
    yield Symptom(
        "dead_letters",
        "warning",
        f"{_capital(_of(view))} has {at_least}{number(view.dead_letters, 'dead letter')}.",
        newest,
        f"Read their reasons, fix the cause, and then replay {others}, or discard them if nobody needs them.",
    )


def _taken_away(samples: tuple[Sample, ...]) -> int:
    """How many messages of held claims were redelivered between two samples, at least, since the open claims last
    changed. So this is reported until somebody acts or a sensor takes the messages, and not only at the next look."""
    most = 0
    for after, before in pairwise(reversed(samples)):
        if (before.life, before.claimed, before.held) != (after.life, after.claimed, after.held):
            break
        most = max(most, _redelivered(before, after))
    return most


def _redelivered(before: Sample, after: Sample) -> int:
    """How many messages of held claims were redelivered between two samples, at least.

    Messages that are in no held claim are redelivered rightly, for example those of a failed claim.
    """
    if after.counter <= before.counter:
        return 0
    free = max(0, before.ack_pending - before.held)
    return max(0, after.redelivered - before.redelivered - free)


def _held_since(entry: OpenEntry) -> str:
    """When the last attempt began to hold the claim, or the claim was last handed on, whichever is later."""
    times = [entry.at, *(each.at for each in entry.history.attempts[-1:])]
    return max(times, key=time_nanoseconds)


def _claim(seen: Seen) -> str:
    of = f"stream {seen.stream}, consumer {seen.consumer}"
    return f"claim {seen.id} of {of}, with {number(seen.sequences.count, 'message')}"


def _edit(view: ConsumerView) -> str:
    return f"nats consumer edit {view.stream} {view.consumer}"


def _of(view: ConsumerView) -> str:
    return f"consumer {view.consumer} of stream {view.stream}"


def _since(now: str, at: str) -> float:
    try:
        return seconds_between(at, now)
    except ValueError:
        return 0.0


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
