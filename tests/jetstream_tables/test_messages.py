"""Sets of messages with their times, without I/O."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_tables.messages import FEW, SCHEMA, Messages, mask, stored

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
    made = Messages.of([one, pairs(others), two])
    found = made.twice()
    assert found is not None
    assert (found.sequence, found.first < found.second) == (odd, True)
    assert made.sequences == Sequences.of([*some, *others, odd])
    assert Messages.of([one, pairs(others)]).twice() is None


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(-2, 2)), max_size=60), SEQUENCES)
def test_messages_are_compared_by_both(mine: list[tuple[int, int]], others: list[int]) -> None:
    table = pa.concat_tables([pairs([each], shift) for each, shift in mine]) if mine else pairs([])
    found = Messages.of([table]).compared(Messages.of([pairs(others)]))
    assert found.same == Sequences.of(each for each, shift in mine if each in others and shift == 0)
    assert found.earlier == Sequences.of(each for each, shift in mine if each in others and shift < 0)
    later = sorted(each for each, shift in mine if each in others and shift > 0)
    assert (found.later.sequence if found.later else None) == (later[0] if later else None)
    assert found.later is None or found.later.first > found.later.second


@given(SEQUENCES, st.lists(st.integers(-(2**60), 2**60), min_size=80, max_size=80))
def test_packed_messages_come_back(sequences: list[int], times: list[int]) -> None:
    made = Messages.of([pa.table([sequences, times[: len(sequences)]], schema=SCHEMA)])
    assert Messages.unpacked(made.packed()).table.equals(made.table)


def test_packed_messages_are_small() -> None:
    burst = Messages.of(
        [pa.table([range(1, 100_001), [1_700_000_000_000_000 + 7 * each for each in range(100_000)]], schema=SCHEMA)]
    )
    assert len(burst.packed()) < 4 * 100_000


def test_times_of_the_server_lose_their_nanoseconds() -> None:
    """As those in the rows of Spark, polars or Arrow do."""
    texts = [b"1970-01-01T00:00:00.000001999Z", b"1970-01-01T00:00:01Z", b"1970-01-01T00:00:01.5Z"]
    assert stored([1, 2, 3], texts)["time"].to_pylist() == [1, 1_000_000, 1_500_000]
