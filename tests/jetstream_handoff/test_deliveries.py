"""The deliveries of a batch as columns, compared with a dictionary of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_handoff.take import deliveries as module
from jetstream_handoff.take.deliveries import Deliveries, Delivery
from tests.jetstream_handoff.steps import arrived

LARGEST = 10**19 - 1  # of a number in a reply subject
numbers = st.integers(1, 40) | st.integers(LARGEST - 2, LARGEST)
each = st.builds(Delivery, numbers, numbers, st.integers(0, 9), st.booleans(), numbers)
runs = st.lists(each, min_size=1, max_size=30)
ascending = runs.map(sorted)


@settings(max_examples=100, derandomize=True)
@given(st.lists(runs | ascending, max_size=6), st.integers(0, 5), st.integers(1, 5), st.data())
def test_the_last_delivery_of_each_message_counts(
    together: list[list[Delivery]], late: int, chunk: int, data: st.DataObject
) -> None:
    found = Deliveries()
    expected: dict[int, Delivery] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LATE", late)
        patch.setattr(module, "_CHUNK", chunk)
        for run in together:
            for metadata in arrived(*run):
                found.add(metadata)
            for delivery in run:
                before = expected.get(delivery.sequence)
                first = delivery.first or (before is not None and before.first)
                expected[delivery.sequence] = delivery._replace(first=first)
            assert len(found) == len(expected)
            assert found.bytes == sum(each.size for each in expected.values())
            if data.draw(st.booleans()):
                assert list(found.sequences) == sorted(expected)
        assert list(found) == [expected[sequence] for sequence in sorted(expected)]
        assert found.ranges() == Sequences.of(expected)
        half = sorted(expected)[: len(expected) // 2]
        assert list(found.lower_half()) == [expected[sequence] for sequence in half]
        assert found.lower_half().bytes == sum(expected[sequence].size for sequence in half)
        assert list(Deliveries(expected.values())) == list(found)
    assert found.first_new == min((each.sequence for each in expected.values() if each.first), default=None)
    if not expected:
        return
    assert found.lowest_counter == min(delivery.counter for delivery in expected.values())
    assert found.counter == max(delivery.counter for delivery in expected.values())
    some = data.draw(st.sets(st.sampled_from(sorted(expected)), min_size=1))
    chosen = [expected[sequence] for sequence in some]
    highest, size = max(delivery.counter for delivery in chosen), sum(delivery.size for delivery in chosen)
    assert found.totals(Sequences.of(some)) == (highest, size)
    assert found.stored(Sequences.of(some)) == (expected[min(some)].stored, expected[max(some)].stored)
    counter = data.draw(numbers)
    anew = any(delivery.first or delivery.counter <= counter for delivery in chosen)
    assert found.delivered_anew(Sequences.of(some), counter) == anew
