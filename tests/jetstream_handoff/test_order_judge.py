"""The judge of order per key finds what is wrong, and accepts what a reset, a stop and a resume allow."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.history import History
from jetstream_handoff.ledger.record import Receipt
from tests.jetstream_handoff.order_judge import Life, Stops, judge

KEYS = dict(enumerate("aabaab", 1))
COPIES = Stops({each: {6: 3}.get(each, each) for each in KEYS}, [datetime(2026, 11, 21, 3, 0, 40, tzinfo=UTC)])
STOPS = Stops({})


def at(second: int) -> str:
    return f"2026-11-21T03:00:{second:02}Z"


def done(second: int, *sequences: int, rejected: tuple[int, ...] = (), taken: int = 0) -> Receipt:
    """A claim that was taken and settled in these seconds."""
    history = History(taken=at(taken or second))
    receipt = Receipt(f"c{second}", "done", "S", "c", Sequences.of(sequences), "1-a", at=at(second), history=history)
    return replace(receipt, rejected=Sequences.of(rejected))


@pytest.mark.parametrize(
    ("receipts", "stops", "wrong"),
    [
        ([done(1, 1, 2), done(2, 3), done(3, 4, 5, 6)], None, ""),
        ([done(1, 1), done(2, 4), done(3, 2)], None, "gap: 2 of key a before 4"),
        ([done(1, 1), done(2, 4), done(3, 2)], None, "out of order: 2 in claim c3, after 4"),
        ([done(1, 1), done(2, 1, 2)], None, "twice: 1"),
        ([done(1, 1, 2, rejected=(2,)), done(2, 4)], None, ""),
        ([done(1, 1, 2, rejected=(2,)), done(2, 4)], STOPS, "key a stopped at 2, but processed: 4"),
        ([done(1, 1, 2, rejected=(2,)), done(2, 4, 5, rejected=(4, 5))], STOPS, ""),
        ([done(1, 3, rejected=(3,)), done(41, 6)], COPIES, ""),
        ([done(1, 3, rejected=(3,)), done(41, 6, taken=39)], COPIES, "key b stopped at 3"),
    ],
)
def test_one_life(receipts: list[Receipt], stops: Stops | None, wrong: str) -> None:
    found = judge(KEYS, receipts, stops=stops)
    assert any(wrong in each for each in found) if wrong else found == []


def test_a_copy_must_not_overtake() -> None:
    keys, stops = dict.fromkeys([1, 2, 3], "a"), Stops({1: 1, 2: 5, 3: 4})
    assert judge(keys, [done(1, 1, 2, 3)], stops=stops) == ["out of order: 3 in claim c1, a copy of 4, after 5"]


def test_each_life_is_judged_alone() -> None:
    life = Life(datetime(2026, 11, 21, 3, 0, 30, tzinfo=UTC), 2)
    first, again = [done(1, 1, 2), done(2, 3), done(3, 4)], done(31, 2, 3, 4, 5, 6)
    assert judge(KEYS, [*first, again], lives=[life]) == []
    assert judge(KEYS, [*first, done(31, 3, 4)], lives=[life]) == ["gap: 2 of key a before 4 in claim c31"]
    late = done(32, 5, taken=4)
    assert judge(KEYS, [*first, late], lives=[life]) == ["late: claim c32 was settled after its life"]
    stopped = done(4, 4, 5, rejected=(4, 5))
    assert judge(KEYS, [*first[:2], stopped, again], lives=[life], stops=STOPS) == []
    behind = [done(1, 1, rejected=(1,)), done(31, 2, 3, 4, 5, 6)]
    assert "key a stopped at 1" in judge(KEYS, behind, lives=[life], stops=STOPS)[0]
