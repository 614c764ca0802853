"""Work that is done again replaces its rows: at each moment a message has the rows of one attempt, and those of the
newest one in the end, whatever older attempts do."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from jetstream_client.errors import JetStreamError
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HeldByAnother, HoldLost
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_tables.errors import RowsInvalid, TableFailed
from tests.jetstream_handoff.steps import CONSUMER, publish, reset_by_a_stranger, take
from tests.jetstream_tables.formats import EVERYWHERE, Format
from tests.jetstream_tables.steps import Dying, Killed, begin, counted, die, once, rows


async def settled(stream: Stream, lake: Format, count: int = 10) -> Claim:
    """A claim whose rows were appended, and which was settled."""
    await publish(stream, count)
    (claim,) = await take(stream)
    with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
        held.append_to(lake.table(), rows(held))
        held.settle("first")
    return claim


def corrected(held: BlockingHold, attempt: int, only: Any = None, each: int = 1) -> pa.Table:
    """Rows whose amounts say which attempt has written them: 1,000 times its number, and the sequence."""
    given = rows(held, only, each)
    return given.set_column(2, "amount", pc.add(given["sequence"], 1_000 * attempt))


def written_by(lake: Format) -> dict[int, int]:
    """For each sequence, the attempt whose row is in the table. Each message must have one row."""
    found = lake.query('"_sequence", amount')
    assert len({sequence for sequence, _ in found}) == len(found)
    return {sequence: amount // 1_000 for sequence, amount in found}


async def value(stream: Stream) -> Any:
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    return receipt.value


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "after a lost answer", "after settling"])
async def test_a_claim_that_is_processed_again(stream: Stream, lake: Format, holds: ExitStack, point: str) -> None:
    claim = await settled(stream, lake)
    again = partial(begin, holds, stream, claim, reprocess=True)
    first = again(2)
    if point in {"before the commit", "after the commit"}:
        dies: dict[str, Any] = {"before" if point.startswith("before") else "after": die}
        with pytest.raises(Killed):
            first.replace_in(Dying(lake.table(), **dies), corrected(first, 2))
        assert set(written_by(lake).values()) == {0 if "before" in point else 2}
        assert await value(stream) == "first"
    else:
        lost = once(partial(_fail, "no answer")) if "answer" in point else lambda: None
        assert counted(first.replace_in(Dying(lake.table(), after=lost), corrected(first, 2))) == (10, 10)
        first.settle("second")
    second = again(3)
    assert counted(second.replace_in(lake.table(), corrected(second, 3))) == (10, 10)
    second.settle("third")
    assert written_by(lake) == dict.fromkeys(range(1, 11), 3)
    assert await value(stream) == "third"


def _fail(text: str) -> None:
    raise TableFailed(text)


@pytest.mark.parametrize("lake", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("with_rows", [True, False])
async def test_an_older_attempt_that_stands_still(
    stream: Stream, lake: Format, holds: ExitStack, with_rows: bool
) -> None:
    """It has looked and asked the ledger, and commits after a newer attempt has settled, even if that one has written
    nothing."""
    claim = await settled(stream, lake)
    older = begin(holds, stream, claim, 2, reprocess=True)
    newer = begin(holds, stream, claim, 3, reprocess=True)
    given = corrected(newer, 3, None if with_rows else [])
    taken_over: list[int] = []
    fence = older.fence
    older.fence = lambda: taken_over.append(1) if not taken_over else fence()  # type: ignore[method-assign]

    def meanwhile() -> None:
        newer.replace_in(lake.table(), given, every_message=with_rows)
        newer.settle("newer")

    with pytest.raises((HeldByAnother, HoldLost), match=newer.attempt_id.partition("-")[2]):
        older.replace_in(Dying(lake.table(), before=once(meanwhile)), corrected(older, 2))
    assert taken_over == [1]  # it was allowed to commit once
    assert written_by(lake) == (dict.fromkeys(range(1, 11), 3) if with_rows else {})
    with pytest.raises((HeldByAnother, HoldLost)):
        older.replace_in(lake.table(), corrected(older, 2))
    assert await value(stream) == "newer"


async def test_an_older_attempt_that_looks_late(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """It asks the ledger after its look, so that it cannot look at the rows of a newer attempt and replace them."""
    claim = await settled(stream, lake)
    older = begin(holds, stream, claim, 2, reprocess=True)

    class Late(Dying):
        def look(self, stream: str, first: int, last: int) -> Any:
            overtake()
            return super().look(stream, first, last)

    def overtake() -> None:
        newer = begin(holds, stream, claim, 3, reprocess=True)
        newer.replace_in(lake.table(), corrected(newer, 3))
        newer.settle("newer")

    with pytest.raises((HeldByAnother, HoldLost)):
        older.replace_in(Late(lake.table()), corrected(older, 2))
    assert written_by(lake) == dict.fromkeys(range(1, 11), 3)


async def test_a_reset_with_other_claims(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """The work replaces from the beginning, and one of its attempts stands still while its messages are processed
    again."""
    await publish(stream, 20)
    claims = await take(stream, messages_per_claim=10)
    for claim in claims:
        held = begin(holds, stream, claim)
        assert counted(held.replace_in(lake.table(), corrected(held, 1))) == (10, 0)
    frozen = begin(holds, stream, claims[1], 2)
    given = corrected(frozen, 2)
    await reset_by_a_stranger(stream)
    for claim in await take(stream, "again", messages_per_claim=7):
        held = begin(holds, stream, claim)
        assert held.replace_in(lake.table(), corrected(held, 3)).already == claim.sequences
        held.settle()
    with pytest.raises(JetStreamError):
        frozen.replace_in(lake.table(), given)
    assert written_by(lake) == dict.fromkeys(range(1, 21), 3)
    lake.maintain()
    assert written_by(lake) == dict.fromkeys(range(1, 21), 3)


async def test_appending_after_replacing_leaves_its_rows(stream: Stream, lake: Format, holds: ExitStack) -> None:
    claim = await settled(stream, lake)
    with BlockingHold.begin(stream.js.settings, claim, try_number=2, reprocess=True) as held:
        held.replace_in(lake.table(), corrected(held, 2))
        held.settle()
    await reset_by_a_stranger(stream)
    for claim in await take(stream, "again", messages_per_claim=4):
        held = begin(holds, stream, claim)
        assert counted(held.append_to(lake.table(), corrected(held, 3))) == (0, claim.count)
    assert written_by(lake) == dict.fromkeys(range(1, 11), 2)


async def test_messages_without_a_row_lose_theirs(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """If the work says so. Several rows of a message are replaced together."""
    claim = await settled(stream, lake)
    held = begin(holds, stream, claim, 2, reprocess=True)
    with pytest.raises(RowsInvalid, match=r"messages 4-5 of claim .* have no row"):
        held.replace_in(lake.table(), corrected(held, 2, [1, 2, 3, *range(6, 11)]))
    assert set(written_by(lake).values()) == {0}
    kept = [each for each in range(1, 11) if each % 2]
    done = held.replace_in(lake.table(), corrected(held, 2, kept, each=3), every_message=False)
    assert counted(done) == (5, 10)
    assert lake.sequences() == sorted(kept * 3)
    with pytest.raises(RowsInvalid, match="were in an earlier call"):
        held.replace_in(lake.table(), corrected(held, 2, [1]), every_message=False)
    assert counted(held.replace_in(lake.table(), corrected(held, 2, [2]), every_message=False)) in {(1, 0), (1, 5)}
    assert lake.sequences() == sorted([2, *kept * 3])
    held.settle()
    again = begin(holds, stream, claim, 3, reprocess=True)
    again.replace_in(lake.table(), corrected(again, 3))
    assert written_by(lake) == dict.fromkeys(range(1, 11), 3)


async def test_a_rejected_message_loses_its_row(stream: Stream, lake: Format, holds: ExitStack) -> None:
    await settled(stream, lake)
    await reset_by_a_stranger(stream)
    (claim,) = await take(stream, "again")
    held = begin(holds, stream, claim)
    kept = [each for each in range(1, 11) if each != 7]
    assert counted(held.replace_in(lake.table(), corrected(held, 1, kept), rejected={"bad": [7]})) == (9, 10)
    held.settle()
    assert written_by(lake) == dict.fromkeys(kept, 1)
    assert (await stream.js.stream(f"DEAD_{stream.name}").info()).state["messages"] == 1


async def test_other_rows_stay(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """Rows of other messages, of another stream, and of an earlier life of this one, with the same sequences."""
    await publish(stream, 5)
    (claim,) = await take(stream)
    first = begin(holds, stream, claim)
    first.append_to(lake.table(), rows(first))
    other = rows(first).rename_columns(["_sequence", "_timestamp", "amount"])
    lake.append(other.add_column(0, "_stream", pa.array(["another's"] * 5)))
    await stream.delete()
    await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
    await publish(stream, 12)
    for claim in await take(stream, "again", messages_per_claim=8):
        held = begin(holds, stream, claim)
        held.append_to(lake.table(), corrected(held, 1))
    before = lake.query('"_stream", "_sequence", amount')
    held = begin(holds, stream, (await _of_one(stream)), 2)
    assert counted(held.replace_in(lake.table(), corrected(held, 2))) == (8, 8)
    now = lake.query('"_stream", "_sequence", amount')
    assert sorted(set(before) - set(now)) == [(stream.name, each, 1_000 + each) for each in range(1, 9)]
    assert sorted(set(now) - set(before)) == [(stream.name, each, 2_000 + each) for each in range(1, 9)]
    assert len(now) == len(before) == 22


async def _of_one(stream: Stream) -> Claim:
    """The first claim once more, after a reset."""
    await reset_by_a_stranger(stream)
    return (await take(stream, "once more", messages_per_claim=8))[0]


async def test_many_holes(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """More ranges of sequences than are compared one after the other."""
    await publish(stream, 400)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    held.append_to(lake.table(), rows(held))
    odd = Sequences.of(range(1, 401, 2))
    second = begin(holds, stream, claim, 2)
    second.sequences = odd  # as if the claim had been cut
    assert counted(second.replace_in(lake.table(), corrected(second, 20))) == (200, 200)
    assert written_by(lake) == {each: 20 if each % 2 else 10 * each // 1_000 for each in range(1, 401)}
