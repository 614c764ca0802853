"""Counting failures on a real server: the bad message is isolated, and nothing else waits for it."""

import asyncio
import json
import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import DeadLettersUnsuitable
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.settle import bury, reasons
from jetstream_handoff.ledger import failures
from jetstream_handoff.ledger.failures import Failure
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from tests.jetstream_handoff import killed
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking, unacknowledged
from tests.jetstream_handoff.test_dead_letters import letters, listed


async def work(stream: Stream, claims: list[Claim], bad: Iterable[int]) -> list[int]:
    """Process each claim like a mapped task that fails at every bad message. Returns the sizes of failed claims."""
    hopeless = Sequences.of(bad)

    async def one(claim: Claim) -> int:
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            if claim.sequences & hopeless:
                await hold.fail("ValueError\r\nin the test")  # the header of a dead letter is one line
                return claim.count
            await hold.settle()
            return 0

    return sorted(size for size in await asyncio.gather(*map(one, claims)) if size)


async def test_messages_that_fail_for_the_same_reason_all_become_dead_letters(stream: Stream) -> None:
    await publish(stream, 3)
    for attempt in range(2):
        claims = await take(stream, f"run {attempt}", max_failures=2, messages_per_claim=1)
        assert await work(stream, claims, [1, 2, 3]) == [1, 1, 1]
    assert await take(stream, "last", max_failures=2, wait=3) == []
    reason = "failed 2 times alone, the last time: ValueError in the test"
    assert await letters(stream) == [(1, reason), (2, reason), (3, reason)]
    assert await unacknowledged(stream) == 0


async def test_a_message_whose_failures_are_forgotten_becomes_a_dead_letter(stream: Stream) -> None:
    """The record forgets the failures of messages that the floor has passed, as nats-server shows it for a while after
    a reset by another client. Such a message was terminated without a dead letter."""
    await publish(stream, 2)
    (claim,) = await take(stream, "run", max_failures=2)
    of = DeadLetters(stream.js, stream.name)
    await of.ensure()
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        one = {"0" * 12: Failure(Sequences.of([1]), 1, 2, "ValueError")}
        why = reasons(one, claim.sequences, {})
        await bury(of, Holder(held._ledger, claim, held.token), why, timedelta(minutes=1))
        held.ended = True
    assert await letters(stream) == [
        (1, "failed 2 times alone, the last time: ValueError"),
        (2, "failed alone too many times"),
    ]


async def test_messages_stay_leased_while_they_are_copied(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, a take that buries more than it can copy in one lease would lose them to the next one, and this one,
    too."""
    await publish(stream, 1)
    short: dict[str, Any] = {"max_failures": 1, "hand_off_timeout": timedelta(seconds=1)}
    assert await work(stream, await take(stream, "fails", **short), [1]) == [1]
    copy, others = DeadLetters.copy, list[list[Claim]]()

    async def slow(self: DeadLetters, *values: Any) -> None:
        if not others:
            others.append([])
            others[0] += await take(stream, "other", wait=3, **short)
        await copy(self, *values)

    monkeypatch.setattr(DeadLetters, "copy", slow)
    assert await take(stream, "buries", wait=3, **short) == []
    assert others == [[]]
    assert not any("could not be dead-lettered" in each for each in caplog.messages)
    assert [sequence for sequence, _ in await letters(stream)] == [1]


async def test_a_bad_message_is_isolated_and_dead_lettered_and_the_rest_is_done(stream: Stream) -> None:
    await publish(stream, 100)
    sizes = []
    for attempt in range(4):
        claims = await take(stream, f"run {attempt}", max_failures=2)
        sizes.append(await work(stream, claims, [57]))
        await publish(stream, 10)  # later messages and failed ones do not wait for each other
    assert sizes == [[100], [10], [1], [1]]
    assert await letters(stream) == []
    claims = await take(stream, "last", max_failures=2)
    assert all(57 not in claim.sequences for claim in claims)
    assert await letters(stream) == [(57, "failed 2 times alone, the last time: ValueError in the test")]
    assert await listed(stream) == [(57, True)]
    await work(stream, claims, [57])
    assert await unacknowledged(stream) == 0
    processed = Sequences()
    for receipt in await Ledger(stream.js, stream.name, CONSUMER).committed():
        assert not receipt.processed & processed
        processed |= receipt.processed
    assert processed == Sequences.from_ranges([(1, 56), (58, 140)])
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert not record.failures


async def test_without_max_failures_the_same_claim_comes_again(stream: Stream) -> None:
    await publish(stream, 100)
    for attempt in range(3):
        claims = await take(stream, f"run {attempt}")
        assert await work(stream, claims, [5]) == [100]
    assert await take(stream, "run") != []


async def test_a_holder_that_dies_is_a_failure(stream: Stream) -> None:
    await publish(stream, 100)
    (claim,) = await take(stream, max_failures=1)
    killed.run("held", stream.js.settings, claim=claim.to_json())
    again = await take(stream, "other", max_failures=1)
    assert [part.count for part in again] == [10] * 10
    assert sorted(each for part in again for each in part.sequences) == list(range(1, 101))


async def test_what_was_released_or_never_begun_is_no_failure(stream: Stream) -> None:
    await publish(stream, 100)
    (claim,) = await take(stream, max_failures=1)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.release()
    (again,) = await take(stream, "other", max_failures=1)
    async with Hold.begin(stream.js, again, try_number=1) as hold:
        await hold.fail("skipped", blame=False)
    (last,) = await take(stream, "another", max_failures=1)
    assert last.sequences == claim.sequences


async def test_a_letter_that_cannot_be_written_stops_nobody(stream: Stream) -> None:
    await publish(stream, 3)
    await work(stream, await take(stream, "run 1", max_failures=1, messages_per_claim=1, wait=2), [2])
    dead = stream.js.stream(f"DEAD_{stream.name}")
    await dead.update({"max_bytes": 100, "discard": "new"})
    await publish(stream, 3)
    claims = await take(stream, "run 2", max_failures=1, hand_off_timeout=timedelta(seconds=1))
    assert all(2 not in claim.sequences for claim in claims)
    await work(stream, claims, [])
    assert await letters(stream) == []
    await dead.update({"max_bytes": -1})
    assert await take(stream, "run 3", max_failures=1, wait=2.2) == []
    assert [sequence for sequence, _ in await letters(stream)] == [2]
    assert await unacknowledged(stream) == 0


async def test_bad_input_is_refused_before_anything_is_pulled(stream: Stream) -> None:
    with pytest.raises(InvalidValue, match="max_failures"):
        taking(stream, max_failures=0)
    with pytest.raises(InvalidValue, match="dead_letters"):
        taking(stream, dead_letters=stream.name)
    await stream.update({"subjects": [f"{stream.name}.>", f"dead.{stream.name}.>"]})
    await publish(stream, 3)
    with pytest.raises(DeadLettersUnsuitable):
        await take(stream, max_failures=1)
    assert await unacknowledged(stream) == 0


claims = st.lists(st.frozensets(st.integers(1, 60), min_size=1), min_size=1, max_size=12)


@given(claims, st.frozensets(st.integers(1, 60)), st.integers(1, 60))
def test_parts_hold_every_message_once_and_none_is_larger_than_allowed(
    failing: list[frozenset[int]], rest: frozenset[int], size: int
) -> None:
    failed: dict[str, Failure] = {}
    smallest: dict[int, int] = {}
    for number, members in enumerate(failing):
        failed = failures.failed(failed, f"claim {number}", Sequences.of(members), "why")
        for each in members:
            smallest[each] = min(smallest.get(each, 100), len(members))
    parts = list(failures.parts(failed, Sequences.of(rest), size))
    assert sorted(each for part in parts for each in part) == sorted(rest)
    for part in parts:
        for each in part:
            assert part.count <= min(size, max(1, -(-smallest.get(each, 1_000) // failures.PARTS)))
    for each in smallest:
        alone = sum(members == {each} for members in failing)
        assert failures.times_alone(failed, each) == alone
        assert (each in failures.poison(failed, 2)) == (alone >= 2)


def test_failures_are_bounded_and_forget_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LARGEST", 16 << 10)
    failed: dict[str, Failure] = failures.failed({}, "one", Sequences.of([1]), "x" * 1_000)
    scattered = random.Random(1).sample(range(2, 100_000), 15_000)  # each claim packs to about 4 KiB
    for number in range(6):
        claim = Sequences.of(scattered[number * 2_500 : number * 2_500 + 2_400 + number])
        failed = failures.failed(failed, f"claim {number}", claim, "")
        assert (
            len(json.dumps({claim_id: failure.to_json() for claim_id, failure in failed.items()})) <= failures.LARGEST
        )
    kept = sorted(set(failed) - {"one"})
    assert kept == [f"claim {number}" for number in range(len(kept))]
    assert 1 < len(kept) < 6
    assert failures.times_alone(failed, 1) == 1
    assert len(failed["one"].reason) == failures.LONGEST_REASON


def test_no_taking_has_more_parts_than_tasks_can_be_mapped() -> None:
    failed = failures.failed({}, "all", Sequences.from_ranges([(1, 2_000)]), "")
    for number in range(1, 2_001, 10):
        failed = failures.failed(failed, f"ten {number}", Sequences.from_ranges([(number, number + 9)]), "")
    parts = list(failures.parts(failed, Sequences.from_ranges([(1, 3_000)]), 1_000))
    assert parts[0] == Sequences.from_ranges([(2_001, 3_000)])
    assert [part.count for part in parts[1:]] == [1] * failures.MOST_PARTS


@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 40))
def test_parts_are_bounded_and_leave_room_for_failed_messages(most: int, fresh: int, alone: int) -> None:
    failed: dict[str, Failure] = {}
    for number in range(1, alone + 1):
        failed = failures.failed(failed, f"claim {number}", Sequences.of([number]), "why")
    rest = Sequences.of(range(1, alone + fresh + 1))
    parts = list(failures.parts(failed, rest, 1, most))
    again = [part for part in parts if part.first <= alone]
    assert len(parts) == min(most, fresh + alone)
    assert len(again) >= min(alone, max(1, most // 10))
    assert len(parts) - len(again) >= min(fresh, most - max(1, -(-most // 10)))
    assert parts == sorted(parts, key=lambda part: (part.first <= alone, part.first))


async def test_a_take_hands_on_no_more_claims_than_allowed(stream: Stream) -> None:
    leased: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=30)}, "wait": 2.0}
    await publish(stream, 10)
    first = await take(stream, "first", messages_per_claim=2, max_claims=3, **leased)
    second = await take(stream, "second", messages_per_claim=2, max_claims=3, **leased)
    assert [len(first), len(second)] == [3, 2]
    assert sorted(each for claim in first + second for each in claim.sequences) == list(range(1, 11))


async def test_what_one_taking_cannot_hand_on_is_there_for_the_next(stream: Stream) -> None:
    leased: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=30)}, "wait": 2.0}
    await publish(stream, 120)
    claims = await take(stream, messages_per_claim=1, **leased)
    assert len(await work(stream, claims, range(1, 121))) == 120
    first = await take(stream, "first", max_failures=2, **leased)
    second = await take(stream, "second", max_failures=2, **leased)
    assert [len(first), len(second)] == [100, 20]
    assert sorted(each for claim in first + second for each in claim.sequences) == list(range(1, 121))
