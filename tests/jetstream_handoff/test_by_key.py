"""Cutting a batch into claims by key."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.failures import Failure
from jetstream_handoff.take.by_key import Cut, cut
from jetstream_handoff.take.taking import Taking


def divided(
    keys: dict[int, int],
    failed: dict[str, Failure] | None = None,
    stopped: dict[int, int] | None = None,
    room: int = 9,
    through: int | None = None,
    **changes: Any,
) -> Cut:
    values = {"stream": "S", "consumer": "c", "owner": ("dag",), "max_messages": 100, "ordered_by": "{2}", "claims": 3}
    taking = Taking(**{**values, **changes})
    return cut(Sequences.of(keys), keys, failed or {}, taking, stopped=stopped, through=through, room=room)


def failure(*sequences: int, size: int, alone: int = 0) -> Failure:
    return Failure(Sequences.of(sequences), size, alone)


batches = st.dictionaries(st.integers(1, 60), st.integers(0, 6), min_size=1)


@given(
    batches,
    st.lists(st.tuples(st.sets(st.integers(1, 60), min_size=1), st.integers(1, 40), st.integers(0, 3)), max_size=3),
    st.integers(1, 9),
    st.integers(1, 60),
    st.sampled_from([None, 1, 2, 5, 30]),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.dictionaries(st.integers(0, 6), st.integers(1, 60), max_size=3),
    st.integers(0, 2),
)
def test_every_key_is_entered_from_its_first_message_on_without_a_gap_in_one_claim(  # noqa: PLR0917
    keys: dict[int, int],
    failed: list[tuple[set[int], int, int]],
    claims: int,
    most: int,
    max_claims: int | None,
    max_failures: int | None,
    stop: bool,
    stopped: dict[int, int],
    room: int,
) -> None:
    failures = {
        str(at): failure(*of, size=size, alone=alone if size == 1 else 0) for at, (of, size, alone) in enumerate(failed)
    }
    sizes: dict[str, Any] = {"claims": claims, "max_messages": most, "max_claims": max_claims}
    on_poison = "stop_key" if stop and max_failures else "skip"
    found = divided(keys, failures, stopped, room, max_failures=max_failures, on_poison=on_poison, **sizes)
    entered = [*found.claims, *([found.buried] if found.buried else [])]
    assert all(entered)
    together = [sequence for part in entered for sequence in part]
    assert len(together) == len(set(together))
    assert set(together) <= keys.keys()
    if max_claims is not None:
        assert len(found.claims) <= max_claims
    for key in {*keys.values()}:
        of_key = sorted(each for each in keys if keys[each] == key)
        places = [part for part in entered if any(keys[each] == key for each in part)]
        assert len(places) <= 1
        mine = sorted(each for part in places for each in part if keys[each] == key)
        assert mine == of_key[: len(mine)]
        if key in found.stopped:  # also those messages that do not fit into the claims
            assert set(of_key) <= set(found.buried)
            assert found.stopped[key] <= of_key[0]
        elif on_poison == "stop_key":
            assert not set(of_key) & set(found.buried)
    assert len(found.stopped.keys() - stopped.keys()) <= room


@given(batches, st.integers(1, 60))
def test_the_lowest_messages_are_entered(keys: dict[int, int], most: int) -> None:
    found = divided(keys, max_messages=most)
    assert sorted(each for part in found.claims for each in part) == sorted(keys)[:most]


def test_claims_are_of_about_the_same_size() -> None:
    keys = {sequence: sequence % 20 for sequence in range(1, 81)}
    assert [part.count for part in divided(keys, claims=4).claims] == [20, 20, 20, 20]
    keys |= dict.fromkeys(range(81, 141), 0)  # one key has more than a third of all messages
    assert sorted(part.count for part in divided(keys, claims=4, max_messages=200).claims) == [24, 24, 28, 64]


def test_of_a_key_that_failed_only_the_first_messages_are_entered() -> None:
    keys = {1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 2, 7: 2}
    failed = {"a": failure(1, 2, 3, 4, size=20)}  # the next size is 2
    found = divided(keys, failed, max_failures=3)
    assert [list(part) for part in found.claims] == [[6, 7], [1, 3], [2, 4]]
    assert not found.poison
    assert {*map(tuple, divided(keys, failed).claims)} == {(1, 3, 5), (2, 4), (6, 7)}  # without max_failures, all


def test_of_a_key_whose_first_message_is_poison_only_this_one_is_entered() -> None:
    keys = {1: 0, 2: 1, 3: 0, 4: 1}
    found = divided(keys, {"a": failure(1, size=1, alone=3), "b": failure(3, size=10)}, max_failures=3)
    assert [list(part) for part in found.claims] == [[2, 4]]
    assert list(found.poison) == [1]


def test_a_key_stops_at_a_poisonous_message_as_long_as_there_is_room() -> None:
    keys = {1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 2}
    failed = {"a": failure(1, size=1, alone=3), "b": failure(2, size=1, alone=3)}
    found = divided(keys, failed, max_failures=3, on_poison="stop_key", room=1)
    assert list(found.poison) == [1]
    assert found.behind == {1: Sequences.of([3, 5])}
    assert found.stopped == {0: 1}
    assert [list(part) for part in found.claims] == [[6], [2]]  # 2 is tried again, and nothing overtakes it
    assert list(found.waiting) == [2]


def test_a_stopped_key_goes_on_when_its_message_is_redelivered() -> None:
    keys = {3: 0, 4: 1, 5: 0}
    assert divided(keys, stopped={0: 2}).behind == {2: Sequences.of([3, 5])}
    found = divided(keys, {"a": failure(3, size=1, alone=1)}, {0: 4}, max_failures=1, on_poison="stop_key")
    assert (found.stopped, found.behind) == ({0: 3}, {3: Sequences.of([5])})  # it stops there again
    for at in (3, 4):
        found = divided(keys, stopped={0: at, 1: 2})
        assert [list(part) for part in found.claims] == [[3, 5]]
        assert found.stopped == {1: 2}


def test_the_messages_of_a_stopped_key_wait_while_it_is_resumed() -> None:
    keys = {3: 0, 4: 1, 5: 0, 6: 2}
    found = divided(keys, stopped={0: 2, 1: 2}, through=3)
    assert found.behind == {2: Sequences.of([3])}
    assert [list(part) for part in found.claims] == [[6]]
    assert found.stopped == {0: 2, 1: 2}


def test_a_poisonous_message_waits_for_an_earlier_one_of_its_key() -> None:
    found = divided({1: 0, 3: 0}, {"a": failure(3, size=1, alone=3)}, max_failures=3)
    assert [list(part) for part in found.claims] == [[1]]
    assert not found.poison
