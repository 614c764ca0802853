"""Messages that vanish by design, on a real server: ``missing="error"`` and ``missing="skip"``."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue, MessagesMissing
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HoldLost, LedgerInvalid, Superseded
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.ledger import skipped
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import DoneEntry, Record, stored_record
from jetstream_handoff.rules.missing import is_final, reason_of, vanishing
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.inspection import find, plain
from jetstream_handoff.watch.timeline import milestones
from tests.jetstream_handoff.steps import CONSUMER, floor, publish, take

KEYS = 6


@pytest.fixture
async def last_values(stream: Stream) -> Stream:
    """A stream that keeps the last message on each subject."""
    await stream.update({"max_msgs_per_subject": 1})
    return stream


async def update(stream: Stream, *keys: int) -> None:
    for key in keys or range(KEYS):
        await stream.js.publish(f"{stream.name}.{key}", b"value")


def working(
    settings: ConnectionSettings, claim: Claim, missing: str, work: Callable[[BlockingHold], object], number: int = 1
) -> None:
    with BlockingHold.begin(settings, claim, try_number=number, missing=missing) as held:  # type: ignore[arg-type]
        held.settle(work(held))


def read(held: BlockingHold) -> list[int]:
    return [message.sequence for message in held.messages()]


async def test_what_newer_messages_have_replaced_is_skipped_and_named(
    last_values: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)
    await update(stream, 1, 3)  # sequences 2 and 4 vanish
    with pytest.raises(MessagesMissing, match=r"sequences 2, 4.*a retry does not help.*missing='skip'") as wrong:
        await asyncio.to_thread(working, settings, claim, "error", read)
    assert is_final(wrong.value)
    await asyncio.to_thread(working, settings, claim, "skip", read, 2)
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.skipped, receipt.value) == (Sequences.of([2, 4]), [1, 3, 5, 6])
    assert receipt.processed == Sequences.of([1, 3, 5, 6])
    assert await floor(stream) == 6
    assert "is settled without 2 messages, which no longer existed and were skipped: sequences 2, 4" in caplog.text
    assert "4 messages processed, 0 dead-lettered, 2 skipped" in caplog.text
    seen = await find(stream.js, claim.id)
    assert seen is not None
    assert plain(seen)["skipped"] == [[2, 2], [4, 4]]
    assert "2 of its messages no longer existed and were skipped." in milestones(seen)[-2].text


async def test_updates_every_half_second_keep_no_claim_from_being_settled(last_values: Stream) -> None:
    """Six of six such claims failed before, and nothing was ever processed."""
    stream, settings = last_values, last_values.js.settings
    settled = 0
    for run in range(6):
        await update(stream)
        claims = await take(stream, f"run {run}")
        await update(stream)
        for claim in claims:
            await asyncio.to_thread(working, settings, claim, "skip", read)
            settled += 1
    assert settled == 6
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record is not None
    assert record.open == {}
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 0


async def test_nothing_is_skipped_without_being_named(last_values: Stream) -> None:
    """An attempt that lost its claim, and a connection with another ledger, cannot name what they skip."""
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)
    await update(stream, 0)

    def lost(held: BlockingHold) -> object:
        held._hold.token = "9-abcdef01"
        try:
            return read(held)
        finally:
            held._hold.token = held.attempt_id.partition("-")[2]

    with pytest.raises(HoldLost, match="attempt 9-abcdef01 does not hold claim"):
        await asyncio.to_thread(working, settings, claim, "skip", lost)
    other = replace(settings, ledger=f"{settings.ledger}_other")
    await Ledger(stream.js, stream.name, CONSUMER, other.ledger).create()
    with pytest.raises(HoldLost, match=r"in ledger .*_other'"):
        await asyncio.to_thread(skipped.report, other, claim, "1-abcdef01", Sequences.of([1]))


async def test_several_readers_of_an_attempt_name_what_each_has_skipped(last_values: Stream) -> None:
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)

    def work(held: BlockingHold) -> None:
        token = held.attempt_id.partition("-")[2]
        for sequences in ([1, 2], [2, 5], [1]):
            skipped.report(settings, claim, token, Sequences.of(sequences))

    await asyncio.to_thread(working, settings, claim, "skip", work)
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.skipped == Sequences.of([1, 2, 5])


async def test_what_an_earlier_attempt_has_skipped_is_not_skipped_by_the_next(last_values: Stream) -> None:
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)
    await update(stream, 0)

    def fails(held: BlockingHold) -> None:
        read(held)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await asyncio.to_thread(working, settings, claim, "skip", fails)
    await asyncio.to_thread(working, settings, claim, "skip", lambda _: "without reading", 2)
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert not receipt.skipped


async def test_a_claim_is_processed_again_without_what_has_vanished(last_values: Stream) -> None:
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)
    await asyncio.to_thread(working, settings, claim, "error", read)
    await update(stream, 0, 1)

    def again(missing: str) -> None:
        with BlockingHold.begin(settings, claim, try_number=2, reprocess=True, missing=missing) as held:  # type: ignore[arg-type]
            held.settle(read(held))

    with pytest.raises(MessagesMissing, match="sequences 1-2"):
        await asyncio.to_thread(again, "error")
    await asyncio.to_thread(again, "skip")
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.skipped, receipt.value) == (Sequences.of([1, 2]), [3, 4, 5, 6])


async def test_a_claim_whose_messages_have_all_vanished_is_settled_without_an_output(last_values: Stream) -> None:
    stream, settings = last_values, last_values.js.settings
    await update(stream)
    (claim,) = await take(stream)
    await update(stream)
    await asyncio.to_thread(working, settings, claim, "skip", read)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    assert await ledger.committed() == []
    receipt = await ledger.receipts.read(claim.id)
    assert receipt is not None
    assert receipt.skipped == claim.sequences
    again = BlockingHold.begin(settings, claim, try_number=2, reprocess=True, missing="skip")
    with pytest.raises(Superseded, match="all its messages are dead letters or were skipped"):
        await asyncio.to_thread(again.__enter__)


async def test_the_record_keeps_what_was_skipped_until_the_receipt_is_written(stream: Stream, js: JetStream) -> None:
    done = DoneEntry(Sequences.of([1, 2]), 2, "1-abcdef01", None, skipped=Sequences.of([2]))
    record = Record("2026-11-21T03:00:00Z", done={"5f0c9a7be21d": done})
    again = stored_record(json.dumps(record.to_json()).encode(), "record")
    assert again == record
    receipt = Ledger(js, stream.name, CONSUMER).receipts.of_done("5f0c9a7be21d", again.done["5f0c9a7be21d"])
    assert receipt.skipped == Sequences.of([2])


async def test_an_unreadable_list_keeps_the_claim_from_being_settled(stream: Stream) -> None:
    await publish(stream, 3)
    (claim,) = await take(stream)

    def work(held: BlockingHold) -> None:
        subject = Ledger(stream.js, stream.name, CONSUMER).receipts.subject(held.attempt_id)
        held._portal.call(stream.js.publish, subject, b"?")

    with pytest.raises(LedgerInvalid, match="skipped messages of claim"):
        await asyncio.to_thread(working, stream.js.settings, claim, "skip", work)
    assert await floor(stream) == 0


def test_the_choice_is_checked() -> None:
    with pytest.raises(InvalidValue, match="missing='ignore': give 'error' or 'skip'"):
        BlockingHold.begin(None, None, try_number=1, missing="ignore").__enter__()  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="attempt="):
        skipped.split_attempt("5f0c9a7be21d-1-abcdef01", "6f0c9a7be21d")
    assert skipped.split_attempt("5f0c9a7be21d-1-abcdef01", "5f0c9a7be21d") == "1-abcdef01"


def test_streams_from_which_messages_vanish_are_recognised() -> None:
    assert vanishing({"max_msgs_per_subject": 1, "allow_msg_ttl": True}) == {
        "max_msgs_per_subject": 1,
        "allow_msg_ttl": True,
    }
    assert vanishing({"max_msgs_per_subject": -1, "allow_msg_ttl": False, "allow_msg_schedules": None}) == {}
    refusing = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    assert vanishing(refusing) == {}


def test_an_error_of_spark_that_names_missing_messages_is_final() -> None:
    text = "Traceback …\njetstream_client.errors.MessagesMissing: stream 'S' does not contain 2 of the requested"
    assert is_final(RuntimeError(text))
    assert reason_of(RuntimeError(text)) == "stream 'S' does not contain 2 of the requested"
    outer = ValueError("outer")
    outer.__cause__ = MessagesMissing("S", Sequences.of([1]))
    assert is_final(outer)
    assert not is_final(RuntimeError("something else"))
    assert not is_final(None)


async def test_a_take_and_the_doctor_warn_of_a_stream_from_which_messages_vanish(
    last_values: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream = last_values
    await update(stream)
    await take(stream)
    told = r"because of max_msgs_per_subject=1 \(newer messages on a subject replace older ones\); set missing='skip'"
    assert re.search(f"stream {stream.name}: claimed messages may vanish .*{told}", caplog.text)
    found = await examine(stream.js.settings, Scope(stream.name, CONSUMER))
    (finding,) = [each for each in found["Streams and consumers"] if each.what == f"messages of stream {stream.name}"]
    assert (finding.state, bool(re.search(told, finding.text))) == ("fine", True)
