"""How large the next batch may be, after batches whose messages could not be kept leased."""

from typing import Any

import pytest

from jetstream_handoff.take.pace import Pace
from jetstream_handoff.take.taking import Taking


def taking(min_messages: int = 1, max_messages: int = 1_000) -> Taking:
    return Taking(stream="S", consumer="c", owner=("dag",), min_messages=min_messages, max_messages=max_messages)


def test_batches_become_smaller_after_two_drops_in_a_row_and_larger_again() -> None:
    pace, limits = Pace(), []
    for size in (1_000, 1_000, 500, 100):
        pace = pace.after_drop(taking(), size, too_few=False)
        limits.append(pace.most(taking()))
    assert limits == [1_000, 500, 250, 50]
    assert pace.most(taking(min_messages=80)) == 80
    assert pace.most(taking(max_messages=20)) == 20
    limits = []
    for _ in range(6):
        pace = pace.after_entered(taking())
        limits.append(pace.most(taking()))
    assert limits == [100, 200, 400, 800, 1_000, 1_000]
    assert pace.after_drop(taking(), 1_000, too_few=False).most(taking()) == 1_000  # a single one says nothing


def test_only_as_many_messages_that_were_kept_leased_end_a_row() -> None:
    wanted = taking(min_messages=200)
    twice = Pace().after_drop(wanted, 150, too_few=True).after_drop(wanted, 100, too_few=True)
    assert not twice.hopeless
    assert twice.after_kept(99).after_drop(wanted, 150, too_few=True).hopeless
    for other in (twice.after_kept(100), twice.after_entered(wanted), twice.after_drop(wanted, 200, too_few=False)):
        assert not other.after_drop(wanted, 150, too_few=True).after_drop(wanted, 150, too_few=True).hopeless


@pytest.mark.parametrize(
    "value",
    [None, [], "1", {}, {"limit": 1}, {**Pace(1).to_json(), "size": -1}, {**Pace(1).to_json(), "dropped": True}],
)
def test_what_is_not_a_pace_is_read_as_that_of_a_take_that_begins(value: Any) -> None:
    assert Pace.from_json(value) == Pace()
