"""What is stuck, from numbers alone: each symptom appears, names its object, and does not appear without cause."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.failures import Failure
from jetstream_handoff.ledger.history import Attempt, History
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.record import OpenEntry, Record
from jetstream_handoff.letters.letter import Head
from jetstream_handoff.rules import edited
from jetstream_handoff.watch.stuck import Known, stuck
from jetstream_handoff.watch.view import ConsumerView, Sample, Symptom

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNER = ("flights", "run 7", "claims", -1, 0, "2026-11-21T03:00:00+00:00")
TASK = ("flights", "run 7", "delays", 3, 1)
HOUR, MINUTE = 3_600.0, 60.0


def ago(seconds: float) -> str:
    return f"{NOW - timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


CREATED = ago(100 * HOUR)


def info(quiet: float = 1.0, **changes: Any) -> ConsumerInfo:
    """A consumer that has delivered twenty messages, ten of them acknowledged, and delivered one lately."""
    raw: dict[str, Any] = {
        "config": {
            "durable_name": "delays",
            "ack_policy": "explicit",
            "max_deliver": -1,
            "ack_wait": 60 * 10**9,
            "max_ack_pending": 1_000,
            "metadata": {"_nats.level": "4"},
        },
        "created": CREATED,
        "ts": ago(0),
        "delivered": {"consumer_seq": 20, "stream_seq": 20, "last_active": ago(quiet)},
        "ack_floor": {"consumer_seq": 10, "stream_seq": 10},
        "num_ack_pending": 10,
        "num_redelivered": 0,
        "num_waiting": 0,
        "num_pending": 0,
    }
    config = {**raw["config"], **changes.pop("config", {})}
    return ConsumerInfo({**raw, **changes, "config": config})


def entry(age: float, *, held: float | None = None, attempts: int = 0) -> OpenEntry:
    """A claim of ten messages, taken so many seconds ago. ``held``: seconds since an attempt began to hold it."""
    began = [held] if held is not None else [age - 1] * attempts
    history = History(attempts=tuple(Attempt("1-aaaa", ago(each), TASK) for each in began))
    token = None if held is None else "1-aaaa"
    return OpenEntry(Sequences.from_ranges([(11, 20)]), 20, 100, ago(age), OWNER, token, history)


def view(*entries: OpenEntry, of: ConsumerInfo | None = None, **changes: Any) -> ConsumerView:
    record = Record(CREATED, counter=20, open={f"{number:012x}": each for number, each in enumerate(entries)})
    record = replace(record, failures=changes.pop("failures", {}))
    return ConsumerView("FLIGHTS", "delays", ago(0), of or info(), record, **changes)


def found(view: ConsumerView, known: Known | None = None) -> Symptom:
    (symptom,) = stuck(view, known or Known())
    assert "FLIGHTS" in symptom.text
    assert "delays" in symptom.text
    for sentence in (symptom.cause, symptom.effect, symptom.remedy):
        assert not sentence[:1].islower()
        assert sentence.endswith((".", "?")) or not sentence
    return symptom


@pytest.mark.parametrize(
    "fine",
    [
        view(),
        view(entry(30)),
        view(entry(2 * HOUR, held=HOUR)),
        view(entry(10 * MINUTE, attempts=1)),  # waits for a retry
        view(entry(2 * HOUR, held=10), of=info(quiet=20)),
        view(of=info(num_pending=5, num_waiting=1, quiet=HOUR)),
        view(of=info(num_pending=5, quiet=30)),
        view(entry(HOUR, held=HOUR), of=info(num_pending=5)),  # its pipeline takes one claim at a time
        view(entry(HOUR, held=HOUR), usual=20 * MINUTE),
        ConsumerView("FLIGHTS", "delays", ago(0), None, Record(CREATED)),
        ConsumerView("FLIGHTS", "delays", ago(0), info(), None),
    ],
)
def test_nothing_is_stuck_without_a_cause(fine: ConsumerView) -> None:
    assert stuck(fine, Known()) == ()


def test_messages_that_nobody_pulls_name_the_last_owner() -> None:
    waiting = view(of=info(num_pending=1_490, quiet=2 * HOUR))  # and ten are unacknowledged, and in no claim
    symptom = found(waiting, Known(taken=(OWNER, ago(3 * HOUR))))
    assert (symptom.kind, symptom.level) == ("no_puller", "warning")
    assert symptom.cause == "No sensor pulls from consumer delays of stream FLIGHTS."
    assert "1,500 messages" in symptom.effect
    assert "the last delivery was 2 hours ago" in symptom.text
    assert symptom.by == OWNER
    assert f"The last claim that ended was taken at {ago(3 * HOUR)}." in symptom.text
    assert "pipeline of its sensor is paused" in symptom.remedy
    fresh = info(num_pending=1, num_ack_pending=0, delivered={"consumer_seq": 0, "stream_seq": 0})
    assert "A backlog of 1 message waits, and it has never delivered a message." in found(view(of=fresh)).effect
    assert "never delivered" in found(view(of=fresh)).text
    elected = info(num_pending=1, delivered={"consumer_seq": 20, "stream_seq": 20})
    assert "the time of its last delivery is unknown" in found(view(of=elected)).text


def test_a_claim_that_waits_for_its_task_names_its_owner() -> None:
    symptom = found(view(entry(5 * MINUTE), entry(3 * MINUTE), of=info(num_pending=9, quiet=HOUR)))
    assert (symptom.kind, symptom.level, symptom.claim) == ("unheld", "warning", "000000000000")
    assert "was taken 5 minutes ago, and no attempt holds it" in symptom.text
    assert symptom.by == OWNER
    assert "The same is true of 1 other claim." in symptom.text
    late = found(view(entry(HOUR, attempts=1)))
    assert (late.kind, late.level) == ("awaiting_retry", "warning")
    assert "Attempt 1-aaaa has ended without settling its claim. It began 59 minutes ago" in late.text
    assert late.by == TASK


def test_a_claim_that_the_floor_has_passed_says_that_it_will_not_come_again() -> None:
    """Its messages are claimed, nobody holds them, and the server counts them as acknowledged."""
    claims = entry(5 * MINUTE), entry(3 * MINUTE)
    last = max(each.sequences.last for each in claims)
    symptom = found(view(*claims, of=info(ack_floor={"consumer_seq": last, "stream_seq": last})))
    assert (symptom.kind, symptom.level, symptom.claim) == ("passed", "error", "000000000000")
    assert "the server will not deliver its messages again" in symptom.text
    assert f"reset the consumer to sequence {claims[0].sequences.first}," in symptom.remedy
    assert symptom.by == OWNER


def growing(*pending: int) -> tuple[Sample, ...]:
    """The numbers of pending messages, at looks 100 s apart."""
    first = Sample.of(info(), 0, 0)
    return tuple(replace(first, at=first.at + 100 * number, pending=each) for number, each in enumerate(pending))


def in_order(*entries: OpenEntry, **changes: Any) -> ConsumerView:
    """The view of a consumer with ordered_by, whose last batch had eight claims."""
    seen = view(*entries, **changes)
    assert seen.record
    return replace(seen, record=replace(seen.record, order=Order("{2}", claims=8)))


def test_a_batch_that_waits_for_long_names_the_claim_that_holds_it_up() -> None:
    """Also if each retry has held it for a short time only, so that nothing else is wrong with it."""
    waiting = info(num_pending=12_400)
    held = entry(20 * MINUTE, held=12 * MINUTE)
    symptom = found(in_order(held, of=waiting))
    assert (symptom.kind, symptom.level, symptom.claim, symptom.by) == ("barrier", "warning", "000000000000", TASK)
    assert symptom.cause == "The next batch of consumer delays of stream FLIGHTS waits for 1 of 8 claims."
    assert symptom.effect == (
        "Claim 000000000000 was taken 20 minutes ago, and attempt 1-aaaa has held it for 12 minutes. With ordered_by, "
        "messages are taken when no claim is open: 12,400 messages wait."
    )
    kinds = [each.kind for each in stuck(in_order(entry(30 * MINUTE), of=waiting), Known())]
    assert sorted(kinds) == ["barrier", "unheld"]


@pytest.mark.parametrize(
    "fine",
    [
        in_order(entry(14 * MINUTE, held=MINUTE), of=info(num_pending=9)),
        in_order(entry(HOUR, held=MINUTE), of=info()),  # nothing waits behind it
        in_order(entry(HOUR, held=MINUTE), of=info(num_pending=9), usual=20 * MINUTE),
        in_order(entry(MINUTE, held=MINUTE), of=info(num_pending=9, config={"max_ack_pending": 10})),
        in_order(entry(8 * MINUTE, held=MINUTE), of=info(num_pending=400), samples=growing(100, 200, 300, 400)),
    ],
)
def test_that_messages_wait_for_a_batch_is_the_order_and_no_fault(fine: ConsumerView) -> None:
    """Neither a full nor a growing consumer is a fault then, because no message may be taken."""
    assert stuck(fine, Known()) == ()


def released(age: float, *, attempts: int = 0) -> OpenEntry:
    """A claim that was taken two hours ago, and released by hand so many seconds ago."""
    waits = entry(2 * HOUR, attempts=attempts)
    return replace(waits, history=replace(waits.history, released=ago(age)))


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_claim_that_was_released_by_hand_waits_for_a_sensor(attempts: int) -> None:
    """Until then, nobody is told to release it again."""
    symptom = found(view(released(5, attempts=attempts)))
    assert (symptom.kind, symptom.level, symptom.claim) == ("released", "warning", "000000000000")
    assert symptom.cause == "No sensor pulls from consumer delays of stream FLIGHTS."
    assert "was released by hand 5 seconds ago, and no sensor pulls: 10 messages wait." in symptom.effect
    assert "Start a run" in symptom.remedy
    pulled = info(num_waiting=1)
    assert stuck(view(released(10 * MINUTE, attempts=attempts), of=pulled), Known()) == ()
    symptom = found(view(released(HOUR, attempts=attempts), released(30 * MINUTE), of=pulled))
    assert symptom.effect.startswith(
        "2 claims of consumer delays of stream FLIGHTS were released by hand 60 minutes ago"
    )
    assert "and no sensor has taken the messages since: 20 messages wait." in symptom.text
    held = replace(released(HOUR), token="1-aaaa", history=History(attempts=(Attempt("1-aaaa", ago(10), TASK),)))
    assert stuck(view(held), Known()) == ()
    full = info(num_ack_pending=1_000, num_pending=5, num_waiting=1)
    assert [each.claim for each in stuck(view(released(60), entry(30), of=full), Known())] == ["000000000001"]


def test_a_dead_worker_is_noticed_by_its_silence() -> None:
    held = entry(HOUR, held=50 * MINUTE)
    symptom = found(view(held, held, of=info(quiet=2 * MINUTE)))
    assert (symptom.kind, symptom.level, symptom.claim) == ("dead_holder", "error", "000000000000")
    assert symptom.cause == "The worker of attempt 1-aaaa is dead or cut off."
    assert "but nothing has renewed the lease for 2 minutes" in symptom.effect
    assert symptom.by == TASK
    assert "The same is true of 1 other claim." in symptom.text
    assert stuck(view(held, of=info(quiet=30)), Known()) == ()  # two heartbeats are missing


def test_a_dead_worker_is_noticed_after_the_server_has_restarted() -> None:
    held = entry(HOUR, held=50 * MINUTE)
    restarted = info(delivered={"consumer_seq": 20, "stream_seq": 20})  # it does not know when it last heard anything
    assert stuck(view(held, of=restarted), Known()) == ()

    def seen(*looks: ConsumerInfo) -> ConsumerView:
        now = Sample.of(restarted, 10, 10).at
        samples = [replace(Sample.of(each, 10, 10), at=now - 20 * back) for back, each in enumerate(reversed(looks))]
        return view(held, of=looks[-1], samples=tuple(reversed(samples)))

    symptom = found(seen(restarted, restarted, restarted))
    assert symptom.kind == "dead_holder"
    assert "but nothing has renewed the lease for 40 seconds" in symptom.effect
    assert stuck(seen(info(), restarted, restarted), Known()) == ()  # 20 s are too short
    assert stuck(seen(restarted, info(), restarted), Known()) == ()  # it has restarted twice
    assert stuck(seen(restarted, restarted, info()), Known()) == ()  # the attempt is alive


def test_a_dead_worker_is_noticed_when_its_messages_are_redelivered() -> None:
    held = entry(HOUR, held=50 * MINUTE)

    def samples(**after: Any) -> tuple[Sample, Sample]:
        before = Sample.of(info(), 10, 10)
        return before, replace(before, **after)

    symptom = found(view(held, samples=samples(redelivered=4, counter=24)))
    assert (symptom.kind, symptom.claim) == ("dead_holder", "")
    assert "has redelivered 4 messages of held claims" in symptom.text
    unheld = tuple(replace(each, held=4) for each in samples(redelivered=4, counter=24))
    assert stuck(view(held, samples=unheld), Known()) == ()  # six messages are in a claim that nobody holds
    assert stuck(view(held, samples=samples(redelivered=4)), Known()) == ()
    before, after = samples(redelivered=4, counter=24)
    later = (before, after, replace(after, at=after.at + 5), replace(after, at=after.at + 10, redelivered=0))
    assert "has redelivered 4 messages" in found(view(held, samples=later)).text  # also at later looks
    assert stuck(view(held, samples=(*later, replace(later[-1], held=9))), Known()) == ()  # a claim was repaired
    failed = tuple(replace(each, ack_pending=16) for each in samples(redelivered=4, counter=24))
    assert stuck(view(held, samples=failed), Known()) == ()  # six messages are in no claim, and may be redelivered


def test_a_claim_that_is_older_than_usual_says_what_is_usual() -> None:
    symptom = found(view(entry(3 * HOUR, held=2 * HOUR), usual=10 * MINUTE))
    assert (symptom.kind, symptom.claim) == ("old_claim", "000000000000")
    assert "for 2 hours, although claims of this consumer are usually held for 10 minutes" in symptom.cause
    assert found(view(entry(30 * HOUR, held=25 * HOUR))).kind == "old_claim"


def test_a_paused_consumer_says_until_when() -> None:
    paused = info(paused=True, num_pending=5, config={"pause_until": "2026-11-22T00:00:00Z"}, quiet=HOUR)
    symptom = found(view(of=paused))
    assert (symptom.kind, symptom.level) == ("paused_consumer", "error")
    assert symptom.cause.endswith(" is paused until 2026-11-22T00:00:00Z.")
    assert "backlog of 5 messages" in symptom.effect


def test_a_consumer_that_is_full_names_its_limit() -> None:
    full = info(num_pending=5, num_ack_pending=10, config={"max_ack_pending": 10})
    symptom = found(view(entry(MINUTE / 2), of=full))
    assert (symptom.kind, symptom.claim) == ("full", "000000000000")
    assert "max_ack_pending=10" in symptom.text


def test_a_backlog_that_only_grows() -> None:
    of = info(num_pending=400, num_waiting=1)
    symptom = found(view(of=of, samples=growing(100, 200, 200, 400)))
    assert symptom.kind == "growing"
    assert "for 5 minutes, from 100 to 400 messages" in symptom.text
    for fine in (growing(100, 200, 150, 400), growing(100, 200, 400), growing(100, 100, 100, 100)):
        assert stuck(view(of=of, samples=fine), Known()) == ()
    recreated = tuple(replace(each, life=ago(HOUR)) for each in growing(1, 2)) + growing(100, 200, 300)
    assert stuck(view(of=of, samples=recreated), Known()) == ()


def test_a_message_that_fails_alone_is_named_with_its_reason() -> None:
    poison = {"5f0c9a7be21d": Failure(Sequences.of([17]), 1, 2, "ValueError: no date")}
    several = {"6f0c9a7be21d": Failure(Sequences.from_ranges([(11, 14)]), 10)}
    symptom = found(view(failures={**several, **poison}))
    assert (symptom.kind, symptom.level, symptom.claim) == ("failing", "error", "5f0c9a7be21d")
    assert symptom.cause == "Message 17 of stream FLIGHTS fails: ValueError: no date."
    assert "has failed alone 2 times at consumer delays. 4 other messages failed" in symptom.effect
    symptom = found(view(failures=several), Known(failed=(TASK, "KeyError in flights.delays[3], run run 7, try 1")))
    assert (symptom.level, symptom.claim, symptom.by) == ("warning", "6f0c9a7be21d", TASK)
    assert "has failed: KeyError." in symptom.cause
    assert "4 messages" in symptom.effect


def test_dead_letters_name_the_newest() -> None:
    newest = Head(
        9,
        ago(60),
        "FLIGHTS",
        CREATED,
        17,
        "f.a",
        CREATED,
        "delays",
        "no date",
        "5f0c9a7be21d",
        "1-a",
        3,
        5,
        "",
        "",
        None,
        17,
    )
    symptom = found(view(dead_letters=2), Known(newest=newest))
    assert symptom.kind == "dead_letters"
    assert f"has 2 dead letters. The newest is message 17, at {ago(60)}: no date." in symptom.text
    assert "at least 1 dead letter." in found(view(dead_letters=1), Known(counted=False)).text


def test_stopped_keys_are_resumed_and_only_other_dead_letters_replayed() -> None:
    stopped = view(dead_letters=3)
    assert stopped.record
    stopped = replace(stopped, record=replace(stopped.record, order=Order("{2}", stopped={"a": 17, "b": 9})))
    keys, letters = stuck(stopped, Known())
    assert (keys.kind, keys.level) == ("stopped", "warning")
    assert keys.cause == "2 keys of consumer delays of stream FLIGHTS have stopped, the first one at message 9."
    assert "dead-letters resume FLIGHTS delays`" in keys.remedy
    assert "replay those of keys that have not stopped" in letters.remedy


def test_a_missing_consumer_and_a_missing_stream_differ() -> None:
    gone = replace(view(entry(30), entry(20)), info=None)
    symptom = found(gone)
    assert (symptom.kind, symptom.level) == ("consumer_missing", "error")
    assert symptom.cause == "Consumer delays of stream FLIGHTS does not exist."
    assert "has 2 claims with 20 messages" in symptom.effect
    (symptom,) = stuck(gone, Known(stream_exists=False))
    assert symptom.text.startswith("Stream FLIGHTS does not exist")
    assert "its messages were deleted with it" in symptom.remedy


def test_claims_of_an_earlier_life_can_no_longer_be_settled() -> None:
    symptom = found(view(entry(HOUR, held=HOUR), of=info(created=ago(10))))
    assert (symptom.kind, symptom.level) == ("reset", "error")
    assert symptom.cause.endswith(" was recreated or reset.")
    assert symptom.effect.startswith("1 open claim can no longer be settled, because it was taken")


def test_a_missing_permission_names_its_subject() -> None:
    symptom = found(view(), Known(lacking=("$JS.ACK.FLIGHTS.delays.>", "x", "y")))
    assert (symptom.kind, symptom.level) == ("permission", "error")
    assert "'$JS.ACK.FLIGHTS.delays.>' and on 2 other subjects" in symptom.cause


def test_errors_come_before_warnings() -> None:
    several = stuck(view(entry(5 * MINUTE), dead_letters=1), Known(lacking=("x",)))
    assert [each.level for each in several] == ["error", "warning", "warning"]


def test_a_consumer_that_was_changed_while_claims_are_open_names_the_field() -> None:
    before = edited.kept(info().config)
    open_claim = replace(entry(30), config=before)
    assert stuck(view(open_claim), Known()) == ()
    symptom = found(view(open_claim, of=info(config={"ack_wait": 2 * 10**9})))
    assert (symptom.kind, symptom.level, symptom.claim) == ("edited", "warning", "000000000000")
    assert "ack_wait: 60000000000" in symptom.cause
    broken = found(view(open_claim, of=info(config={"max_deliver": 3})))  # once
    assert (broken.kind, broken.level) == ("unsuitable", "error")
    assert "max_deliver=3" in broken.cause


def test_messages_that_are_in_no_claim_wait_for_a_sensor() -> None:
    """Those of failed claims are another finding, and those that are done wait for their acknowledgement only."""
    symptom = found(view(of=info(quiet=2 * MINUTE)))
    assert (symptom.kind, symptom.effect[:34]) == ("no_puller", "A backlog of 10 messages waits, an")
    failing = {"5f0c9a7be21d": Failure(Sequences.from_ranges([(11, 20)]), 10)}
    assert [each.kind for each in stuck(view(of=info(quiet=2 * MINUTE), failures=failing), Known())] == ["failing"]
    settled = replace(view(of=info(quiet=2 * MINUTE)), record=None)
    done = Record(CREATED, counter=20).all_settled.add(Sequences.from_ranges([(11, 20)]), 20)
    assert stuck(replace(settled, record=Record(CREATED, counter=20, settled=done)), Known()) == ()


def test_skipped_work_is_reported_while_no_sensor_pulls() -> None:
    history = History(attempts=(Attempt("1-aaaa", ago(HOUR), TASK),), released=ago(2 * MINUTE), skipped="1-aaaa")
    skipped = replace(entry(2 * HOUR), history=history)
    symptom = found(view(skipped))
    assert symptom.cause == "Attempt 1-aaaa skipped its work, and no sensor pulls."
    assert (symptom.kind, symptom.by) == ("released", TASK)
    assert "was skipped 2 minutes ago: 10 messages wait." in symptom.effect
    assert stuck(view(skipped, of=info(num_waiting=1)), Known()) == ()
