"""Sets of messages with their times, without I/O."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_tables.messages import FEW, SCHEMA, Messages, TwoTimes, mask

SEQUENCES = st.lists(st.integers(1, 200), max_size=80)


def pairs(sequences: list[int], shift: int = 0) -> pa.Table:
    return pa.table(
        [pa.array(sequences, pa.int64()), pa.array([each * 10 + shift for each in sequences])], schema=SCHEMA
    )


@given(st.lists(SEQUENCES, max_size=4))
def test_each_message_is_there_once(batches: list[list[int]]) -> None:
    everything = {each for batch in batches for each in batch}
    made = Messages.of(map(pairs, batches))
    assert made.table["sequence"].to_pylist() == sorted(everything)
    assert made.sequences == Sequences.of(everything)
    assert made.table["time"].to_pylist() == [each * 10 for each in sorted(everything)]


@given(SEQUENCES, SEQUENCES)
def test_a_mask_is_membership(column: list[int], chosen: list[int]) -> None:
    sequences = Sequences.of(chosen)
    assert mask(pa.array(column, pa.int64()), sequences).to_pylist() == [each in sequences for each in column]


def test_many_ranges_are_a_mask_too() -> None:
    odd = Sequences.of(range(1, 4 * FEW, 2))
    assert mask(pa.array([1, 2, 3]), odd).to_pylist() == [True, False, True]


@given(SEQUENCES, SEQUENCES, st.integers(1, 200))
def test_two_times_are_found(some: list[int], others: list[int], odd: int) -> None:
    one, two = pairs([*some, odd]), pairs([odd], 1)
    with pytest.raises(TwoTimes) as found:
        Messages.of([one, pairs(others), two])
    assert found.value.sequence == odd


@given(SEQUENCES, SEQUENCES)
def test_a_difference_is_the_first_one(some: list[int], others: list[int]) -> None:
    mine, theirs = Messages.of([pairs(some)]), Messages.of([pairs(others, 1)])
    common = sorted(set(some) & set(others))
    found = mine.differing(theirs)
    assert (found[0] if found else None) == (common[0] if common else None)
    assert mine.differing(mine) is None
