"""Attempts that die at each point, stand still, or overlap: each message is in the table exactly once.

The claims are taken and settled on a real server. Afterwards a reader that knows nothing of this package counts.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import AlreadyDone, HandoffError, HoldLost
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_tables.errors import TableFailed
from tests.jetstream_handoff.steps import publish, reset_by_a_stranger, take
from tests.jetstream_tables.formats import EVERYWHERE, Format
from tests.jetstream_tables.steps import Dying, Killed, begin, counted, die, once, rows

pytestmark = pytest.mark.parametrize("lake", EVERYWHERE, indirect=True)

Sink = Callable[[BlockingHold], object]


async def everything(stream: Stream, sink: Sink, run: str, size: int) -> None:
    """Take all messages of the stream in claims of this size, and process each."""
    left = (await stream.info()).state["messages"]
    while left:
        for claim in await take(stream, run, messages_per_claim=size):
            with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
                sink(held)
                held.settle()
            left -= claim.count


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "after the settlement", "before the ack"])
async def test_a_retry_after_a_kill(
    stream: Stream, lake: Format, holds: ExitStack, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 20)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    table: Any = lake.table()
    if point.endswith("commit"):
        dies = {"before the commit": Dying(table, before=die), "after the commit": Dying(table, after=die)}[point]
        with pytest.raises(Killed):
            first.append_to(dies, rows(first))
        second = begin(holds, stream, claim, 2)
        assert counted(second.append_to(lake.table(), rows(second))) == ((20, 0) if "before" in point else (0, 20))
        second.settle()
    else:
        assert counted(first.append_to(table, rows(first))) == (20, 0)
        with monkeypatch.context() as patched:
            if "ack" in point:
                patched.setattr(answers, "acknowledge", _lost)
            first.settle()
        with pytest.raises(AlreadyDone):
            begin(holds, stream, claim, 2)
    assert lake.sequences() == [*range(1, 21)]
    await reset_by_a_stranger(stream)
    await everything(stream, lambda held: held.append_to(lake.table(), rows(held)), "again", 7)
    assert lake.sequences() == [*range(1, 21)]


async def test_many_claims_at_once(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """Their commits conflict with each other, or wait for each other. One of them always succeeds."""
    await publish(stream, 40)
    helds = [begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10)]
    given = [(held, lake.table(), rows(held)) for held in helds]
    with ThreadPoolExecutor(len(given)) as pool:
        done = pool.map(lambda each: each[0].append_to(*each[1:]), given)
        assert [counted(each) for each in done] == [(10, 0)] * 4
    assert lake.sequences() == [*range(1, 41)]


async def test_a_commit_whose_answer_is_lost(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """The table is looked at again before anything is sent again."""
    await publish(stream, 20)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)

    def lose() -> None:
        raise TableFailed("no answer")

    assert counted(held.append_to(Dying(lake.table(), after=once(lose)), rows(held))) == (0, 20)
    assert lake.sequences() == [*range(1, 21)]


async def _lost(*_: object) -> Sequences:
    """Acknowledgements that no server receives: all of them stay unconfirmed."""
    return Sequences()


def by_message(lake: Format, held: BlockingHold, dies: Callable[[], None]) -> None:
    held.append_to(Dying(lake.table(), after=dies), rows(held))


def by_claim(lake: Format, held: BlockingHold, dies: Callable[[], None]) -> None:
    """What most connectors do: a claim (a range of offsets, a checkpoint) is written once."""
    if (held.id,) not in lake.query("claim", "by_claim"):
        given = rows(held).rename_columns(["_sequence", "_timestamp", "amount"])
        lake.append(given.append_column("claim", pa.array([held.id] * len(given))), "by_claim")
    dies()


@pytest.mark.parametrize("sink", [by_message, by_claim])
async def test_a_kill_and_a_reset_with_other_claims(
    stream: Stream, lake: Format, holds: ExitStack, sink: Callable[..., None]
) -> None:
    """The control: with the claim as identity, all that was committed is in the table twice."""
    await publish(stream, 60)
    for number, claim in enumerate(await take(stream, messages_per_claim=20)):
        held = begin(holds, stream, claim)
        if number == 1:
            with pytest.raises(Killed):
                sink(lake, held, die)
            continue
        sink(lake, held, lambda: None)
        held.settle()
    await reset_by_a_stranger(stream)
    await everything(stream, lambda held: sink(lake, held, lambda: None), "again", 25)
    assert lake.sequences("by_claim" if sink is by_claim else "orders") == sorted(
        [*range(1, 61)] * (2 if sink is by_claim else 1)
    )


@pytest.mark.killed
@pytest.mark.parametrize("exists", [True, False])
async def test_two_attempts_at_once(stream: Stream, lake: Format, holds: ExitStack, exists: bool) -> None:
    """The second attempt commits between the look and the commit of the first one."""
    await publish(stream, 20)
    # The first attempt does not look at the ledger while the second one waits for its lock.
    (claim,) = await take(stream, consumer_config={"ack_wait": timedelta(seconds=60)})
    first = begin(holds, stream, claim)
    given, done = rows(first), range(1, 6 if exists else 1)
    first.append_to(lake.table(), rows(first, done), every_message=False)
    second = begin(holds, stream, claim, 2)

    def overtake() -> None:
        assert counted(second.append_to(lake.table(), given)) == (20 - len(done), len(done))

    first.append_to(Dying(lake.table(), before=once(overtake)), given.slice(len(done)))
    assert lake.sequences() == [*range(1, 21)]
    with pytest.raises(HandoffError):
        first.settle()
    second.settle()


async def test_a_frozen_attempt_wakes(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """It has looked, stood still while its claim was done in other claims, with other writers and maintenance, and
    commits then."""
    await publish(stream, 20)
    claims = await take(stream, messages_per_claim=10)
    with BlockingHold.begin(stream.js.settings, claims[0], try_number=1) as held:
        held.append_to(lake.table(), rows(held))
        held.settle()
    frozen = begin(holds, stream, claims[1])
    given, plain = rows(frozen), rows(frozen)
    again: list[Claim] = []
    await reset_by_a_stranger(stream)
    again += await take(stream, "again", messages_per_claim=15)

    def meanwhile() -> None:
        for claim in again:
            with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
                held.append_to(lake.table(), rows(held))
                held.settle()
        lake.maintain()

    assert len(plain) == 10
    with suppress(HoldLost):  # if a heartbeat has noticed it by then
        assert counted(frozen.append_to(Dying(lake.table(), before=once(meanwhile)), given)) == (0, 10)
    with pytest.raises(HandoffError):
        frozen.settle()
    assert lake.sequences() == [*range(1, 21)]


async def test_maintenance_before_a_reset(stream: Stream, lake: Format) -> None:
    """Rows are the memory: compaction, vacuum and expired snapshots do not touch it."""
    await publish(stream, 30)
    append = partial(_append, lake)
    await everything(stream, append, "first", 4)
    lake.maintain()
    await reset_by_a_stranger(stream)
    await everything(stream, append, "second", 11)
    lake.maintain()
    assert lake.sequences() == [*range(1, 31)]


async def test_overlaps_with_holes(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """Some messages of a claim are in the table, with holes between them."""
    await publish(stream, 40)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    odd = [*range(1, 41, 2)]
    assert counted(first.append_to(lake.table(), rows(first, odd), every_message=False)) == (20, 0)
    second = begin(holds, stream, claim, 2)
    appended = second.append_to(lake.table(), rows(second))
    assert (appended.new, appended.already) == (Sequences.of(range(2, 41, 2)), Sequences.of(odd))
    assert lake.sequences() == [*range(1, 41)]


async def test_a_table_that_is_dropped_and_created_again(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """Its rows are gone, and so is what it remembered: the retry writes its rows again."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    assert counted(first.append_to(lake.table(), rows(first))) == (10, 0)
    lake.drop()
    second = begin(holds, stream, claim, 2)
    assert counted(second.append_to(lake.table(), rows(second))) == (10, 0)
    assert lake.sequences() == [*range(1, 11)]


async def test_a_table_that_is_dropped_between_look_and_commit(stream: Stream, lake: Format, holds: ExitStack) -> None:
    await publish(stream, 10)
    first, second = await take(stream, messages_per_claim=5)
    held = begin(holds, stream, first)
    held.append_to(lake.table(), rows(held))
    other = begin(holds, stream, second)
    other.append_to(Dying(lake.table(), before=once(lake.drop)), rows(other))
    assert lake.sequences() == [*range(6, 11)]


async def test_the_first_two_appends_at_once(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """Both find no table, and each creates it."""
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))

    def overtake() -> None:
        assert counted(second.append_to(lake.table(), rows(second))) == (10, 0)

    assert counted(first.append_to(Dying(lake.table(), before=once(overtake)), rows(first))) == (10, 0)
    assert lake.sequences() == [*range(1, 21)]


def _append(lake: Format, held: BlockingHold) -> None:
    held.append_to(lake.table(), rows(held))
