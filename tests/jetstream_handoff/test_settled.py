"""The settled messages above the floor: equal to a mapping from message to counter, but compact."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.settled import Settled

Claims = list[tuple[set[int], int]]
claims = st.lists(st.tuples(st.sets(st.integers(1, 60), min_size=1), st.integers(1, 1_000)), max_size=12)


def made(of: Claims) -> tuple[Settled, dict[int, int]]:
    """Sets with the mapping that they must equal, in which the first counter of a message stays."""
    settled, model = Settled(), dict[int, int]()
    for messages, counter in of:
        settled = settled.add(Sequences.of(messages), counter)
        model = dict.fromkeys(messages, counter) | model
    return settled, model


def mapping(settled: Settled) -> dict[int, int]:
    return {message: counter for first, last, counter in settled.spans for message in range(first, last + 1)}


@given(claims, st.sets(st.integers(1, 70)), st.integers(0, 70))
def test_as_a_mapping(of: Claims, wanted: set[int], floor: int) -> None:
    settled, model = made(of)
    assert mapping(settled) == model
    assert set(settled.sequences) == set(model)
    among = settled & Sequences.of(wanted)
    assert mapping(among) == {message: model[message] for message in wanted & set(model)}
    assert among.counter == max((model[message] for message in wanted & set(model)), default=0)
    above = mapping(settled.above(floor))
    assert {message for message in above if message > floor} == {message for message in model if message > floor}
    assert above.items() <= model.items()
    assert all(last > floor for _, last, _ in settled.above(floor).spans)
    assert Settled.from_json(json.loads(json.dumps(settled.to_json()))) == settled


def test_small_however_much_it_is() -> None:
    settled = Settled(tuple((10 * claim + 1, 10 * claim + 10, 10 * claim + 10) for claim in range(1, 100_000)))
    assert len(json.dumps(settled.to_json())) < 100_000
    scattered = Settled().add(Sequences.of(range(1, 600_000, 2)), 300_000)
    assert len(json.dumps(scattered.to_json())) < 100_000
    for each in (settled, scattered):
        assert Settled.from_json(each.to_json()) == each


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [1, 2],
        [0, 0, 1],
        [1, -1, 1],
        [1, 0, -1],
        [1, 0, 1, 0, 0, 1],
        [1, 0, True],
        [1, 0, 2**64],
        [2**64, 0, 1],
        [1.0, 0, 1],
        "",
        "no base64",
        "bm8gemxpYg==",
        [[1, 0, 1]],
    ],
)
def test_what_is_nothing_settled_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a set of settled messages|packed"):
        Settled.from_json(value)
