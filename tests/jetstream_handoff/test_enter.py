"""Entering a batch in a record: the new record and the entered claims."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.ledger.failures import Failure
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.record import Heir, OpenEntry, Record
from jetstream_handoff.ledger.settled import Settled
from jetstream_handoff.moment import Moment
from jetstream_handoff.rules.order_key import OrderKey
from jetstream_handoff.take.by_key import Keys, digest
from jetstream_handoff.take.deliveries import Deliveries, Delivery
from jetstream_handoff.take.enter import Entered, Whole, enter
from jetstream_handoff.take.gather import Batch
from jetstream_handoff.take.taking import Taking

AT = "2026-11-21T03:00:05Z"
NOW = time_nanoseconds(AT)
LIFE = "2026-11-21T03:00:00Z"
ACK_WAIT = 30.0
batches = st.sets(st.integers(1, 40), min_size=1, max_size=25)


def info(counter: int = 100, **changes: Any) -> ConsumerInfo:
    delivered, floor = {"consumer_seq": counter, "stream_seq": 40}, {"consumer_seq": 0, "stream_seq": 5}
    raw = {"created": LIFE, "ts": AT, "delivered": delivered, "ack_floor": floor, "config": {}}
    return ConsumerInfo({**raw, "num_pending": 0, "num_ack_pending": 0, **changes})


def batch(sequences: set[int], age: float = 1.0, first: bool = False) -> Batch:
    """A batch delivered after all messages that the record knows."""
    deliveries = (Delivery(each, 50 + at, 10, first, each) for at, each in enumerate(sorted(sequences), 1))
    return Batch(Deliveries(deliveries), Moment(100.0 - age, NOW - round(age * 1e9)), 100.0 - age, ACK_WAIT)


def entered(record: Record | None, of: Batch, now: ConsumerInfo, room: int = 100, **changes: Any) -> Entered:
    values = {"stream": "S", "consumer": "c", "owner": ("dag",), "max_messages": 100, "gather": timedelta(0)}

    def fits(record: Record, *, reserve: bool = False) -> bool:
        return len(record.open) <= room

    return enter(record, now, of, now=100.0, taking=Taking(**{**values, **changes}), fits=fits)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Records in which each message is in one claim or settled, with a floor that was true when it was believed."""
    free = draw(st.permutations(range(1, 41)))
    settled, entries = Settled(), {}
    for number in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 8))
        mine, free = Sequences.of(free[:size]), free[size:]
        if draw(st.booleans()):
            settled = settled.add(mine, 40)
        else:
            token = draw(st.sampled_from([None, "1-abc"]))
            entries[f"{number:012x}"] = OpenEntry(mine, 40, 10, AT, ("dag",), token)
    failed = {"f" * 12: Failure(Sequences.of(free[:1]), 1, draw(st.integers(1, 3)), "why")}
    floor, counter = draw(st.integers(0, 5)), draw(st.sampled_from([10, 52, 100]))
    return Record(LIFE, floor=floor, counter=counter, last_counter=50, open=entries, settled=settled, failures=failed)


@settings(derandomize=True)
@given(records(), batches, st.integers(1, 10), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_claims_that_ended_neither_settled_nor_failed_are_counted(
    record: Record, sequences: set[int], size: int, counts: list[int]
) -> None:
    counted = zip(record.open.items(), counts, strict=False)
    record = replace(record, open={each: replace(entry, unsettled=count) for (each, entry), count in counted})
    result = entered(record, batch(sequences), info(), messages_per_claim=size)
    assert result.record
    for claim in result.claims.values():
        before = [
            entry.unsettled + (entry.token is None)
            for entry in record.open.values()
            if entry.sequences & claim.sequences
        ]
        assert claim.unsettled == max(before, default=0)


@settings(derandomize=True)
@given(st.none() | records(), batches, st.sampled_from([None, 2]), st.integers(1, 10))
def test_each_message_has_one_fate(
    record: Record | None, sequences: set[int], max_failures: int | None, size: int
) -> None:
    of = batch(sequences)
    done = record.settled if record else Settled()
    floor = record.floor if record else 0
    undone = {each for entry in record.open.values() for each in entry.sequences} if record else set()
    counters = {each.sequence: each.counter for each in of.deliveries}
    passed = {each for each in sequences - undone if each <= floor and record and counters[each] <= record.counter}
    now = info(ack_floor={"consumer_seq": 0, "stream_seq": floor})
    result = entered(record, of, now, max_failures=max_failures, messages_per_claim=size)
    assert (result.dropped, result.too_large) == ("", False)
    assert result.record
    own = {**result.claims, **result.poisoned}
    fates = [each for entry in own.values() for each in entry.sequences] + [*result.again, *result.left]
    assert sorted(fates) == sorted(sequences - passed)
    assert set(result.passed) == passed
    assert set(result.again) == set((done & of.sequences).sequences) - passed
    assert all(entry.sequences.count <= size for entry in result.claims.values())
    assert own.items() <= result.record.open.items()
    held = [each for entry in result.record.open.values() for each in entry.sequences]
    assert len(held) == len(set(held))
    before = dict(record.open) if record else {}
    assert before.keys() == (result.superseded.keys() | result.record.open.keys()) - own.keys()
    assert all(entry.token is None for entry in result.claims.values())
    if max_failures is None or record is None:
        assert not result.poisoned
    for entry in result.poisoned.values():
        assert record
        assert entry.token
        assert record.failures["f" * 12].alone >= 2 or any(each.token for each in result.superseded.values())


@pytest.mark.parametrize(
    ("first", "counter", "undone"),
    [(True, 1_000, ""), (False, 40, ""), (False, 1_000, "open"), (False, 1_000, "unclaimed")],
    ids=["for the first time", "after the floor had passed", "of an open claim", "of a claim that was not settled"],
)
def test_what_is_delivered_below_the_floor_is_not_done(first: bool, counter: int, undone: str) -> None:
    """nats-server sometimes shows the previous floor after a reset by another client: such messages were dropped and
    redelivered again and again, and nobody was told."""
    record = Record(LIFE, floor=5, counter=counter, last_counter=counter)
    three = Sequences.of([3])
    if undone == "open":
        record = replace(record, open={"0" * 12: OpenEntry(three, 3, 10, AT, ("another",))})
    if undone == "unclaimed":
        record = replace(record, unclaimed=three)
    result = entered(record, batch({3}, first=first), info(2_000))
    (claim,) = result.claims.values()
    assert claim.sequences == three


def test_what_was_acknowledged_after_its_redelivery_is_done() -> None:
    result = entered(Record(LIFE, floor=5, counter=51, last_counter=51), batch({3, 4, 8}), info())
    assert (result.passed, [str(each.sequences) for each in result.claims.values()]) == (Sequences.of([3]), ["4, 8"])


@settings(derandomize=True)
@given(records(), batches, st.floats(0, 60))
def test_what_is_too_old_is_never_entered(record: Record, sequences: set[int], age: float) -> None:
    result = entered(record, batch(sequences, age), info())
    if age > 0.76 * ACK_WAIT:
        assert "75% of ack_wait" in result.dropped
    if age < 0.74 * ACK_WAIT:
        assert not result.dropped
    else:
        assert result.record is record or not result.dropped
    assert not (result.dropped and (result.claims or result.poisoned or result.again or result.superseded))


@settings(derandomize=True)
@given(records(), batches)
def test_what_was_pulled_before_a_reset_is_never_entered(record: Record, sequences: set[int]) -> None:
    of = batch(sequences)
    assert entered(record, of, info(of.counter - 1)) == Entered(
        record, dropped="the consumer was reset or rolled back after the pull"
    )


@settings(derandomize=True)
@given(records(), batches)
def test_what_is_delivered_anew_supersedes_everything(record: Record, sequences: set[int]) -> None:
    result = entered(record, batch(sequences, first=True), info())
    assert result.record
    if record.settled & Sequences.of(sequences):
        assert result.record.n == 1
        assert result.superseded == record.open
        assert not result.again
        assert {each for entry in result.claims.values() for each in entry.sequences} == sequences
    else:
        assert result.record.n == 0


@settings(derandomize=True)
@given(records(), batches)
def test_without_room_nothing_is_entered(record: Record, sequences: set[int]) -> None:
    result = entered(record, batch(sequences), info(), room=-1)
    assert (result.too_large, result.full) == (True, True)
    assert {**result.claims, **result.poisoned} == {}
    assert result.record
    assert result.record.open == record.open
    assert result.record.failures == record.tidied(info()).failures


@settings(derandomize=True)
@given(records())
def test_what_was_handed_on_again_is_not_withdrawn(record: Record) -> None:
    entered_at = {each: entry.at for each, entry in record.open.items()}
    later = info(ts="2026-11-21T03:00:06Z")
    heir = Heir(("dag",))
    unheld = record.inherited(heir)
    assert record.withdrawn(entered_at).open.keys() == record.open.keys() - unheld.keys()
    again = record.handed_on_again(heir, later)
    assert again.withdrawn(entered_at).open == again.open
    assert again.inherited(heir).keys() == unheld.keys()
    assert record.inherited(Heir(("another",))) == {}
    assert record.handed_on_again(heir, info(5)) is record  # in a new life none of it counts


@settings(derandomize=True)
@given(records())
def test_a_run_inherits_from_its_predecessors_what_nobody_holds(record: Record) -> None:
    successor = Heir(("another",), predecessors=(("dag",),))
    unheld = {each for each, entry in record.open.items() if entry.token is None}
    assert record.inherited(successor).keys() == unheld
    after = record.handed_on_again(successor, info(ts="2026-11-21T03:00:06Z"))
    assert {each: entry.owner == ("another",) for each, entry in after.open.items()} == {
        each: each in unheld for each in record.open
    }
    assert after.inherited(Heir(("dag",))) == {}  # the predecessor has nothing left to hand on


@settings(derandomize=True)
@given(records())
def test_a_try_inherits_what_its_dead_predecessor_holds(record: Record) -> None:
    heir = Heir(("dag",), even_if_held=True)
    assert record.inherited(heir) == record.open
    after = record.handed_on_again(heir, info(ts="2026-11-21T03:00:06Z"))
    assert {entry.token for entry in after.open.values()} <= {None}  # the older attempt has lost its claim
    assert {entry.sequences for entry in after.open.values()} == {entry.sequences for entry in record.open.values()}
    stranger = Heir(("another",), predecessors=(("dag",),), even_if_held=True)
    assert record.inherited(stranger).keys() == {each for each, entry in record.open.items() if entry.token is None}


KEYS = Keys(OrderKey.parse("{2}"))
KEYS.of = {10: 0, 11: 1, 12: 0}
KEYS._numbers = {"a": 0, "b": 1}


def in_order(record: Record, *, by: str | None = "{2}", at: ConsumerInfo | None = None, **changes: Any) -> Entered:
    """Enter the messages 10 to 12, of which 10 and 12 have one key, as a take with ordered_by."""
    known = Sequences.of([10, 11, 12])
    values: dict[str, Any] = {
        "known": known,
        "delivered": 40,
        "life": (LIFE, 0),
        "take": "mine",
        "keys": KEYS,
    }
    whole = None if "whole" in changes else Whole(**{**values, **changes})
    now = at or info()
    claims = 2 if by else None
    taking = Taking(stream="S", consumer="c", owner=("dag",), max_messages=100, ordered_by=by, claims=claims)

    def fits(record: Record, *, reserve: bool = False) -> bool:
        return True

    return enter(record, now, batch({10, 11, 12}), now=100.0, taking=taking, fits=fits, whole=whole)


def ordered(*, gathering: str = "mine", gone: tuple[str, ...] = (), **entries: Sequences) -> Record:
    opened = {each: OpenEntry(sequences, 20, 10, AT, ("dag",)) for each, sequences in entries.items()}
    return Record(LIFE, order=Order("{2}", (gathering, AT), gone), open=opened)


def test_a_key_is_in_one_claim_and_another_take_may_gather() -> None:
    found = in_order(ordered())
    assert [list(entry.sequences) for entry in found.claims.values()] == [[10, 12], [11]]
    assert found.record
    assert found.record.order == Order("{2}", claims=2)


def test_the_messages_of_a_stopped_key_are_given_up_and_its_stop_is_kept() -> None:
    stopped = {digest("a"): 4, digest("elsewhere"): 7}
    order = Order("{2}", ("mine", AT), stopped=stopped)
    found = in_order(Record(LIFE, order=order))
    assert [list(entry.sequences) for entry in found.claims.values()] == [[11]]
    (given_up,) = found.poisoned.values()
    assert list(given_up.sequences) == [10, 12]
    assert given_up.token  # nobody else may hold it
    assert {at: list(each) for at, each in found.behind.items()} == {4: [10, 12]}
    assert found.record
    assert found.record.order == Order("{2}", claims=2, stopped=stopped)


def test_a_stop_survives_a_new_life_until_its_message_is_redelivered() -> None:
    order = Order("{2}", ("mine", AT), stopped={digest("a"): 10, digest("b"): 4})
    reborn = Record(LIFE, order=order).reborn(info())
    assert reborn.order == Order("{2}", stopped=order.stopped)
    found = in_order(replace(reborn, order=order, n=0))  # 10 was delivered again
    assert [list(entry.sequences) for entry in found.claims.values()] == [[10, 12]]
    assert found.record
    assert found.record.order
    assert found.record.order.stopped == {digest("b"): 4}


@pytest.mark.parametrize(
    ("record", "changes", "reason"),
    [
        (ordered(), {"whole": None}, "not counted"),
        (ordered(gathering="other"), {}, "another take gathers"),
        (ordered(), {"life": (LIFE, 1)}, "new life"),
        (ordered(), {"delivered": 41}, "forgotten deliveries"),
        (ordered(other=Sequences.of([20])), {}, "claim other is open"),
        (ordered(other=Sequences.of([11, 45])), {}, "forgotten deliveries of claim other"),
    ],
)
def test_a_batch_that_may_not_be_whole_is_not_entered(record: Record, changes: dict[str, Any], reason: str) -> None:
    found = in_order(record, **changes)
    assert reason in found.dropped
    assert found.record is record
    assert not found.claims


def test_open_claims_that_do_not_block() -> None:
    """Below the floor, without a message to deliver, or redelivered to this take."""
    record = ordered(
        below=Sequences.of([4, 5]), gone=("removed",), removed=Sequences.of([20]), again=Sequences.of([11, 30])
    )
    found = in_order(record)
    assert len(found.claims) == 2
    assert found.superseded.keys() == {"again"}
    assert found.record
    assert found.record.order == Order("{2}", gone=("removed",), claims=2)


def test_a_new_life_drops_the_batch_and_keeps_the_rule() -> None:
    found = in_order(ordered(other=Sequences.of([20])), at=info(created="2026-11-21T04:00:00Z"))
    assert found.record
    assert (found.record.n, found.record.open, found.record.order) == (1, {}, Order("{2}"))
    assert "new life" in found.dropped


def test_a_take_without_the_order_is_refused() -> None:
    for by in (None, "{3}"):
        with pytest.raises(ConsumerUnsuitable, match=r"ordered_by='\{2\}'"):
            in_order(ordered(), by=by)
