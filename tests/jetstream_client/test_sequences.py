"""Sequences behave as the sets that they stand for."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences

Numbers = st.sets(st.integers(1, 60), max_size=40)


@given(Numbers, Numbers)
def test_set_arithmetic(left: set[int], right: set[int]) -> None:
    a, b = Sequences.of(left), Sequences.of(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (a.count, bool(a)) == (len(left), bool(left))
    assert all((number in a) == (number in left) for number in range(62))
    assert list(a) == sorted(left)


@given(Numbers, st.integers(0, 61), st.integers(0, 61))
def test_parts_of_a_set(numbers: set[int], one: int, other: int) -> None:
    first, last = sorted((one, other))
    sequences = Sequences.of(numbers)
    assert set(sequences.after(first)) == {number for number in numbers if number > first}
    assert list(sequences.selectors(first, last)) == [number in numbers for number in range(first, last + 1)]


@given(Numbers, st.integers(1, 10))
def test_windows_are_the_same_in_pieces(numbers: set[int], size: int) -> None:
    windows = list(Sequences.of(numbers).windows(size))
    assert [number for window in windows for number in window] == sorted(numbers)
    assert all(window.count == size for window in windows[:-1])


@given(st.sets(st.integers(1, 2**63), max_size=30), st.sampled_from([0, 8192]))
def test_json_packed_and_plain(numbers: set[int], longest: int) -> None:
    sequences = Sequences.of(numbers)
    assert Sequences.from_json(sequences.to_json(longest)) == sequences


@given(st.text(max_size=40) | st.lists(st.lists(st.integers(-3, 9), max_size=3), max_size=4))
def test_any_other_value_is_refused_or_is_well_formed(value: object) -> None:
    try:
        sequences = Sequences.from_json(value)
    except InvalidValue:
        return
    assert list(sequences) == sorted(set(sequences))


def test_a_small_text_does_not_unpack_without_end() -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(b"\x02\x00" * 5_000_000)).decode()
    with pytest.raises(InvalidValue):
        Sequences.from_json(bomb, most=1_000)


def test_words() -> None:
    assert str(Sequences.of([1, 2, 3, 7, 9, 10])) == "1-3, 7, 9-10"
    assert str(Sequences.of(range(1, 100, 2))).endswith("and 40 more ranges")


def test_a_set_is_packed_once() -> None:
    scattered = Sequences.of(range(1, 10_000, 2))
    packed = scattered.to_json()
    assert isinstance(packed, str)
    assert scattered.to_json() is packed
    again = Sequences.from_json(packed)
    assert again.to_json() is packed
    assert (again, hash(again), repr(again)) == (scattered, hash(scattered), repr(scattered))
    assert (again | Sequences.of([2])).to_json() != packed
    assert pickle.loads(pickle.dumps(again)) == scattered
