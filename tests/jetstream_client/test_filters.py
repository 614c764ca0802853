"""Many filters at once answer as the filters do one by one."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.filters import Filters
from jetstream_client.names import subject_matches

TOKENS = ("a", "b", "*")
FILTERS = [
    *(".".join(tokens) for count in (1, 2, 3) for tokens in product(TOKENS, repeat=count)),
    ">",
    *(f"{'.'.join(tokens)}.>" for count in (1, 2) for tokens in product(TOKENS, repeat=count)),
]
SUBJECTS = [".".join(tokens) for count in (1, 2, 3, 4) for tokens in product(("a", "b", "c"), repeat=count)]


def filters_overlap(one: str, other: str) -> bool:
    """Return whether a subject can match both filters."""
    left, right = one.split("."), other.split(".")
    for mine, yours in zip(left, right, strict=False):
        if ">" in (mine, yours):
            return True
        if mine != yours and "*" not in (mine, yours):
            return False
    return len(left) == len(right)


@given(st.lists(st.sampled_from(FILTERS), max_size=6), st.sampled_from(SUBJECTS), st.sampled_from(FILTERS))
def test_the_answers_are_those_of_each_filter(given_: list[str], subject: str, filter_: str) -> None:
    filters = Filters(given_)

    matching: list[str | None] = [each for each in given_ if subject_matches(each, subject)]
    assert filters.selecting(subject) in (matching or [None])
    common: list[str | None] = [each for each in given_ if filters_overlap(each, filter_)]
    assert filters.overlapping(filter_) in (common or [None])


@pytest.mark.parametrize("filter_", FILTERS)
def test_each_filter_alone(filter_: str) -> None:
    alone = Filters([filter_])

    for subject in SUBJECTS:
        assert alone.selecting(subject) == (filter_ if subject_matches(filter_, subject) else None)
    for other in FILTERS:
        assert alone.overlapping(other) == (filter_ if filters_overlap(filter_, other) else None)


def test_subjects_that_no_server_should_send() -> None:
    """A subject of two thousand tokens, an empty token, and wildcards in a literal subject."""
    deep = ".".join(["a"] * 1_900)
    assert Filters([deep, f"{deep}.*"]).selecting(f"{deep}.b") == f"{deep}.*"
    assert Filters(["a.*.c"]).selecting("a..c") == "a.*.c"
    assert Filters(["a.b"]).selecting("a.*") is None
    assert Filters(["a.>"]).selecting("a.>") == "a.>"
