"""What the ledger remembers of a claim for people: who took and held it, and how it ended. Nothing depends on it."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client.errors import RequestTimeout
from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.protocol import Reply
from jetstream_handoff.claim import KEEPER, Claim
from jetstream_handoff.errors import HoldLost, Superseded
from jetstream_handoff.hold import keep
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.reprocess import Reprocess
from jetstream_handoff.ledger import ledger
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.history import KEPT, LONGEST_OWNER, Attempt, History, readable
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.receipts import Receipts
from jetstream_handoff.ledger.record import DoneEntry, OpenEntry, Receipt, Record
from jetstream_handoff.repair.release import release
from jetstream_handoff.watch.inspection import find
from jetstream_handoff.watch.seen import Seen, revision
from jetstream_handoff.watch.timeline import later, milestones
from tests.jetstream_client.until import until
from tests.jetstream_handoff import killed
from tests.jetstream_handoff.steps import CONSUMER, publish, reset_by_a_stranger, rewrite, take, unacknowledged

FORMATS = Path(__file__).with_name("formats")
OWNER = ("dag", "run", "sensor", -1, 1)
FIRST, SECOND = ("dag", "run", "work", 3, 1), ("dag", "run", "work", 3, 2)
AT = "2026-11-21T03:00:05Z"


async def taken(stream: Stream, run: str = "run", **changes: Any) -> Claim:
    await publish(stream, 10)
    (claim,) = await take(stream, run, **changes)
    return claim


async def seen(stream: Stream, claim: Claim) -> Seen:
    found = await find(stream.js, claim.id)
    assert found
    steps = milestones(found)
    times = [time_nanoseconds(step.at) for step in steps]
    assert times == sorted(times)
    return found


def steps(found: Seen) -> list[tuple[str, Any]]:
    return [(step.what, step.by) for step in milestones(found)]


async def receipt(stream: Stream, claim: Claim) -> Receipt | None:
    return await Ledger(stream.js, stream.name, CONSUMER).receipts.read(claim.id)


async def test_a_claim_remembers_its_owner_its_attempts_and_its_acknowledgement(stream: Stream) -> None:
    claim = await taken(stream)
    found = await seen(stream, claim)
    assert steps(found) == [("taken", OWNER)]
    assert milestones(found)[0].at == claim.taken_at
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as first:
        pass  # released, as before a retry
    async with Hold.begin(stream.js, claim, try_number=2, holder=SECOND) as second:
        found = await seen(stream, claim)
        assert steps(found) == [("taken", OWNER), ("held", FIRST), ("held", SECOND)]
        assert [step.token for step in milestones(found)] == ["", first.token, second.token]
        assert milestones(found)[2].text == f"It was held by attempt {second.token} of dag / run / work[3], try 2."
        await second.settle({"rows": 10})
    found = await seen(stream, claim)
    assert steps(found) == [
        ("taken", OWNER),
        ("held", FIRST),
        ("held", SECOND),
        ("done", SECOND),
        ("acknowledged", SECOND),
    ]
    written = await receipt(stream, claim)
    assert written
    assert written.acknowledged is not None
    assert 0 <= written.acknowledged < 30
    assert milestones(found)[-1].at == later(written.at, written.acknowledged)
    (committed,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert committed == written


async def test_a_claim_that_is_handed_on_remembers_when_it_was_taken(stream: Stream) -> None:
    claim = await taken(stream)
    (again,) = await take(stream)  # a retry of the same owner
    assert again.id == claim.id
    found = await seen(stream, claim)
    assert steps(found) == [("taken", OWNER), ("handed_on", OWNER)]
    assert [step.at for step in milestones(found)] == [claim.taken_at, again.taken_at]
    async with Hold.begin(stream.js, again, try_number=1, holder=FIRST) as held:
        await held.settle()
    found = await seen(stream, claim)
    assert (found.history.taken, found.history.owner) == (claim.taken_at, OWNER)


async def test_a_failed_claim_remembers_why_and_when(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as held:
        await held.fail("ValueError: no date")
    found = await seen(stream, claim)
    assert steps(found) == [("taken", OWNER), ("held", FIRST), ("failed", FIRST)]
    assert milestones(found)[-1].text == f"Attempt {held.token} failed: ValueError: no date"
    assert found.receipt
    assert found.receipt.at
    (again,) = await take(stream, "other")
    assert (await seen(stream, claim)).overlapping == (again.id,)
    assert (await seen(stream, again)).overlapping == ()


async def test_a_failed_claim_has_never_the_receipt_of_a_superseded_one(stream: Stream) -> None:
    """Of two claims that end with the same write, the other one gets its receipt."""
    await publish(stream, 20)
    failing, withdrawn = await take(stream, max_messages=20, messages_per_claim=10)
    book = Ledger(stream.js, stream.name, CONSUMER)
    written: list[tuple[str, str]] = []

    def withdraw(record: Record | None, info: ConsumerInfo) -> Record | None:
        assert record
        return record.withdrawn({withdrawn.id: withdrawn.taken_at})

    def arrived(reply: Reply) -> None:
        written.append((reply.subject.rpartition(".")[2], json.loads(reply.data)["state"]))

    async with stream.js.connection.listen(book.receipts.subject("*"), arrived):
        async with Hold.begin(stream.js, failing, try_number=1, holder=FIRST) as held:
            await asyncio.gather(held.fail("no date"), rewrite(book, withdraw))
        await stream.js.connection.flush()
    assert sorted(written) == sorted([(failing.id, "failed"), (withdrawn.id, "superseded")])


async def test_a_claim_that_was_superseded_before_it_failed_has_that_receipt(stream: Stream) -> None:
    claim = await taken(stream)
    book = Ledger(stream.js, stream.name, CONSUMER)

    def forget(record: Record | None, info: ConsumerInfo) -> Record | None:
        assert record
        return replace(record, open={})

    async with Hold.begin(stream.js, claim, try_number=1) as held:
        await held._stop_beats()
        outcomes = await asyncio.gather(rewrite(book, forget), held.fail("no date"), return_exceptions=True)
        assert isinstance(outcomes[1], Superseded)
    assert (await seen(stream, claim)).state == "superseded"


async def test_a_keeper_waits_for_the_receipt_of_a_failed_claim(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt writes it a moment after the record. Without the wait, the keeper would say that it is superseded."""
    claim = await taken(stream)
    monkeypatch.setattr(keep, "SECOND_READ", 3.0)
    write, go_on = Receipts.write, asyncio.Event()

    async def late(self: Receipts, *arguments: Any, **options: Any) -> None:
        await go_on.wait()
        await write(self, *arguments, **options)

    monkeypatch.setattr(Receipts, "write", late)
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        failing = asyncio.create_task(held.fail("no date"))
        book = Ledger(stream.js, stream.name, CONSUMER)

        async def is_forgotten() -> bool:
            record, _ = await book.read()
            return record is not None and not record.open

        await until(is_forgotten)
        keeping = asyncio.create_task(keep.keep(stream.js, claim, 60))
        await asyncio.sleep(1)  # longer than its second read
        assert not keeping.done()
        go_on.set()
        await failing
    assert await keeping == "failed"


async def test_a_superseded_claim_remembers_why(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as dead:
        await dead._stop_beats()  # as a killed worker does
        again = await take(stream, "other", wait=5, messages_per_claim=5)
        with pytest.raises(Superseded):
            await dead.settle()
    found = await seen(stream, claim)
    assert steps(found) == [("taken", OWNER), ("held", FIRST), ("superseded", ())]
    assert set(found.overlapping) == {each.id for each in again}
    assert "redelivered to another take" in milestones(found)[-1].text


async def test_a_superseded_claim_remembers_by_which(stream: Stream) -> None:
    claim = await taken(stream)
    seen_now = await find(stream.js, claim.id)
    assert seen_now
    await release(stream.js, seen_now)
    left, right = await take(stream, "other", wait=2, messages_per_claim=5)
    found = await seen(stream, claim)
    assert found.receipt
    assert set(found.receipt.superseded_by) == {left.id, right.id}
    assert left.id in milestones(found)[-1].text


async def test_a_release_by_hand_is_remembered(stream: Stream) -> None:
    """Also that of a claim that nobody holds. The same confirmation does not release it twice."""
    claim = await taken(stream)
    before = await seen(stream, claim)
    await release(stream.js, before)
    after = await seen(stream, claim)
    assert [step.what for step in milestones(after)] == ["taken", "released"]
    assert revision(after) != revision(before)
    assert after.next.startswith("It was released by hand")
    with pytest.raises(Superseded, match="its state in the ledger changed"):
        await release(stream.js, before)
    assert revision(await seen(stream, claim)) == revision(after)
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as held:
        await release(stream.js, await seen(stream, claim))
        await until(lambda: bool(held.lost))
        with pytest.raises(HoldLost):
            await held.settle()
    last = await seen(stream, claim)
    assert steps(last) == [("taken", OWNER), ("held", FIRST), ("released", ())]
    assert last.entry
    assert last.entry.is_released


async def test_a_released_claim_that_is_held_again_is_not_released(stream: Stream) -> None:
    claim = await taken(stream)
    await release(stream.js, await seen(stream, claim))
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as held:
        found = await seen(stream, claim)
        assert steps(found) == [("taken", OWNER), ("released", ()), ("held", FIRST)]
        assert found.entry
        assert not found.entry.is_released
        await held.settle()
    assert ("released", ()) in steps(await seen(stream, claim))


async def test_a_release_whose_answer_got_lost_is_our_own(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await taken(stream)
    write = Buckets.write
    writes = 0

    async def lossy(self: Buckets, *arguments: Any) -> int:
        nonlocal writes
        writes += 1
        revision = await write(self, *arguments)
        if writes == 1:
            raise RequestTimeout("the answer was lost")
        return revision

    found = await seen(stream, claim)
    monkeypatch.setattr(Buckets, "write", lossy)
    await release(stream.js, found)
    assert writes == 1
    assert [step.what for step in milestones(await seen(stream, claim))] == ["taken", "released"]


@pytest.mark.server("2.14")
async def test_a_reset_is_the_reason_why_a_claim_is_superseded(stream: Stream) -> None:
    claim = await taken(stream)
    await stream.purge()
    await reset_by_a_stranger(stream)
    assert await take(stream, "other", wait=0.2) == []
    found = await seen(stream, claim)
    assert steps(found) == [("taken", OWNER), ("superseded", ())]
    assert "its consumer was recreated, reset or rolled back" in milestones(found)[-1].text
    assert found.overlapping == ()


async def test_processing_again_is_remembered_with_both_attempts(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST) as first:
        await first.settle("first")
    async with Reprocess.begin(stream.js, claim, try_number=2, holder=SECOND) as second:
        found = await seen(stream, claim)
        assert ("reprocessing", SECOND) in steps(found)
        assert found.holder == second.token
        await second.settle("second")
    found = await seen(stream, claim)
    assert [step for step in steps(found) if step[0] == "held"] == [("held", FIRST), ("held", SECOND)]
    assert ("done", SECOND) in steps(found)
    assert ("reprocessing", SECOND) not in steps(found)


async def test_a_keeper_is_no_attempt_that_works(stream: Stream) -> None:
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=KEEPER, holder=FIRST):
        found = await seen(stream, claim)
    assert milestones(found)[-1].text.startswith("It was kept by attempt 0-")


async def test_a_revision_changes_with_everything_that_an_action_depends_on(stream: Stream) -> None:
    claim = await taken(stream)
    revisions = [revision(await seen(stream, claim))]
    assert revision(await seen(stream, claim)) == revisions[0]

    async def changed() -> None:
        revisions.append(revision(await seen(stream, claim)))

    await take(stream)  # handed on again
    await changed()
    async with Hold.begin(stream.js, claim, try_number=1) as first:
        await changed()
        assert revision(replace(await seen(stream, claim), alive=True)) == revisions[-1]
        async with Hold.begin(stream.js, claim, try_number=2):
            await changed()
            before = await seen(stream, claim)
        await changed()
        with pytest.raises(Superseded):
            await release(stream.js, before)
    async with Hold.begin(stream.js, claim, try_number=3) as last:
        await last.settle()
    await changed()
    assert len(set(revisions)) == len(revisions), first.token


async def test_killed_before_its_messages_are_acknowledged_the_next_take_does_both(stream: Stream) -> None:
    claim = await taken(stream)
    killed.run("decided", stream.js.settings, claim=claim.to_json(), rejected=[3])
    assert await unacknowledged(stream) == 10
    assert await receipt(stream, claim) is None
    assert [each.claim_id for each in await Ledger(stream.js, stream.name, CONSUMER).committed()] == [claim.id]
    assert await take(stream, "other", wait=1.8) == []
    assert await unacknowledged(stream) == 0
    written = await receipt(stream, claim)
    assert written
    assert (written.state, written.history.owner, written.acknowledged) == ("done", OWNER, None)


def test_only_the_last_attempts_are_kept() -> None:
    history = History(OWNER, AT)
    for number in range(10):
        history = history.held(Attempt(f"{number}-a", AT, FIRST))
    assert [attempt.token for attempt in history.attempts] == [f"{number}-a" for number in range(10 - KEPT, 10)]
    assert history.held(history.attempts[0]).attempts[-1] == history.attempts[0]  # our own write, repeated
    assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


async def test_a_record_that_is_large_keeps_no_attempts(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """They must not take the room that claims need."""
    claim = await taken(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=FIRST):
        pass
    monkeypatch.setattr(ledger, "LARGEST_RECORD", 100)
    async with Hold.begin(stream.js, claim, try_number=2, holder=FIRST) as hold:
        record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
        assert record
        entry = record.open[claim.id]
        assert (entry.token, entry.history.attempts) == (hold.token, ())
        assert entry.whole_history.taken == claim.taken_at
        await hold.settle(1)


def test_what_release_0_1_wrote_has_no_history() -> None:
    record = Record.from_json(json.loads((FORMATS / "record-1.json").read_text()))
    entries: list[OpenEntry | DoneEntry] = [*record.open.values(), *record.done.values()]
    assert {entry.history for entry in entries} == {History()}
    old = Receipt.from_json("7f0c9a7be21d", json.loads((FORMATS / "receipt-1.json").read_text()))
    assert (old.acknowledged, old.reason, old.superseded_by, old.history) == (None, "", (), History())
    shown = Seen(old.claim_id, old.state, old.stream, old.consumer, old.sequences, old.at, receipt=old)
    assert [(step.what, step.at, step.by) for step in milestones(shown)] == [("done", old.at, ())]
    failed = replace(shown, state="failed", receipt=replace(old, state="failed", at=""))
    assert [(step.what, step.at) for step in milestones(failed)] == [("failed", "")]


HOSTILE: list[Any] = [
    None,
    5,
    "x",
    [],
    [[]],
    {"owner": 5},
    {"owner": "dag"},
    {"owner": [None]},
    {"owner": [True]},
    {"owner": [["dag"]]},
    {"owner": ["dag"] * (LONGEST_OWNER + 1)},
    {"taken": 5},
    {"taken": "yesterday"},
    {"taken": {"at": AT}},
    {"attempts": 5},
    {"attempts": "abc"},
    {"attempts": [5]},
    {"attempts": [["1-a", AT]]},
    {"attempts": [[5, AT, []]]},
    {"attempts": [["1-a", 5, []]]},
    {"attempts": [["1-a", "", []]]},
    {"attempts": [["1-a", AT, [1.5]]]},
    {"attempts": {"1-a": AT}},
    {"released": 5},
    {"released": "yesterday"},
    {"released": None},
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
def test_a_hostile_history_is_ignored(hostile: Any) -> None:
    assert History.from_json(hostile) == History()
    stored = json.loads((FORMATS / "record-1.json").read_text())
    plain = Record.from_json(stored)
    for entry in [*stored["open"].values(), *stored["done"].values()]:
        entry["history"] = hostile
    assert Record.from_json(stored) == plain
    written = json.loads((FORMATS / "receipt-1.json").read_text())
    assert Receipt.from_json("7f0c9a7be21d", {**written, "history": hostile}).history == History()


def test_an_owner_in_the_history_of_an_open_claim_does_not_become_its_owner() -> None:
    stored = json.loads((FORMATS / "record-1.json").read_text())
    for entry in stored["open"].values():
        entry["history"] = {"owner": ["forged"]}
    assert Record.from_json(stored) == Record.from_json(json.loads((FORMATS / "record-1.json").read_text()))


def test_names_are_readable() -> None:
    assert readable(OWNER) == "dag / run / sensor"
    assert readable(FIRST[:-1]) == "dag / run / work[3]"
    assert readable(()) == ""
    assert later(AT, 1.5) == "2026-11-21T03:00:06.500000Z"
    assert later(AT, float("inf")) == later(AT, float("nan")) == AT


@pytest.mark.parametrize("owner", [(), ("dag",), ("dag", 7)])
def test_a_timeline_needs_no_known_task(owner: tuple[Any, ...]) -> None:
    entry = OpenEntry(Sequences.of([1]), 1, 1, AT, ("a",), "1-a", History(attempts=(Attempt("1-a", AT, owner),)))
    shown = Seen("0" * 12, "open", "S", "c", entry.sequences, AT, entry=entry)
    assert [step.what for step in milestones(shown)] == ["taken", "held"]
    assert timedelta(0) == timedelta(seconds=shown.age or 0)
