"""The ledger's record and receipts, as another client could have written them."""

import base64
import json
import secrets
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import new_token
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.hold import settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.failures import Failure, failed, poison
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import DoneEntry, OpenEntry, Receipt, Record
from jetstream_handoff.ledger.settled import Settled
from tests.hostile.attack import attack
from tests.hostile.values import Json, changed
from tests.jetstream_handoff.steps import CONSUMER, publish, take

CREATED = "2026-11-21T03:00:00.5Z"
RECORD = Record(
    CREATED,
    1,
    3,
    4,
    (3, 4, "2026-11-21T03:00:02Z"),
    5,
    {
        "5f0c9a7be21d": OpenEntry(Sequences.of([4, 5, 9]), 7, 30, CREATED, ("dag", "run", "task", -1, 1), "1-abcd"),
        "6f0c9a7be21d": OpenEntry(Sequences.of([6]), 8, 30, CREATED, ("dag", "run", "task", 2, 1)),
    },
    {"7f0c9a7be21d": DoneEntry(Sequences.of([7, 8]), 9, "1-abce", {"count": 2}, Sequences.of([8]), CREATED)},
    Settled(((10, 12, 12), (15, 15, 11))),
    {"8f0c9a7be21d": Failure(Sequences.of([20]), 1, 2, "ValueError")},
    ("reset-token", CREATED),
).to_json()
RECEIPT = Receipt(
    "7f0c9a7be21d", "done", "S", "c", Sequences.of([7, 8]), "1-abce", 2, Sequences.of([8]), CREATED, "2-abcf"
).to_json()
COUNTERS = {"consumer_seq": 9, "stream_seq": 9}
INFO = ConsumerInfo(
    {
        "config": {},
        "created": CREATED,
        "ts": "2026-11-21T03:00:09Z",
        "delivered": COUNTERS,
        "ack_floor": COUNTERS | {"stream_seq": 5},
        "num_pending": 0,
        "num_ack_pending": 4,
    }
)


@attack(changed(RECORD) | changed(RECORD["open"]).map(lambda each: RECORD | {"open": each}) | Json, weight=3)
def test_a_record_works_or_is_refused(value: Any) -> None:
    try:
        record = Record.from_json(value)
    except LedgerInvalid as error:
        assert len(str(error)) < 500  # noqa: PT017 - most cases end here, and may
        return
    # What the ledger does with every record that it reads:
    record.new_life(INFO)
    noted = record.note(INFO).tidied(INFO)
    json.dumps(noted.to_json()).encode()
    assert all(entry.sequences and entry.counter >= 0 for entry in record.open.values())
    assert all(entry.sequences and entry.counter >= 0 for entry in record.done.values())
    assert (record.all_settled & Sequences.from_ranges([(1, 2**64 - 1)])) == record.all_settled
    assert all(failure.next_size > 0 for failure in record.failures.values())
    json.dumps(failed(record.failures, "9f0c9a7be21d", Sequences.of([20]), "x")["9f0c9a7be21d"].to_json())
    poison(record.failures, 2)
    assert all(1 <= len(entry.owner) <= 16 for entry in record.open.values())
    assert all(entry.taken_by is not None for entry in record.open.values())
    # Anything that was not understood would be lost when the record is written again.
    assert Record.from_json(record.to_json()) == record


@attack(changed(RECEIPT) | Json)
def test_a_receipt_works_or_is_refused(value: Any) -> None:
    try:
        receipt = Receipt.from_json("7f0c9a7be21d", value)
    except LedgerInvalid:
        return
    assert isinstance(receipt.attempt_id, str)
    assert receipt.sequences.count >= 0
    assert Receipt.from_json(receipt.claim_id, receipt.to_json()) == receipt


FOREIGN = [
    b"",
    b"not JSON",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"7",
    b"{}",
    b'{"v": 1}',
    b'{"v": 2}',
    b"[" * 100_000,
    json.dumps(RECORD | {"open": {"x": {}}}).encode(),
    json.dumps(RECORD | {"floor": "3"}).encode(),
    json.dumps(RECORD | {"candidate": [1, 2]}).encode(),
    json.dumps({**RECORD, "life": [CREATED, None]}).encode(),
]


@pytest.fixture
def settings(nats_server: NatsServer) -> ConnectionSettings:
    return ConnectionSettings(servers=nats_server.url, shortest_ack_wait=0.5, ledger=f"test_{secrets.token_hex(4)}")


async def test_a_foreign_record_stops_everybody_and_stays(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        name = f"S{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        await publish(stream, 20)
        claims = await take(stream, max_messages=5)
        ledger = Ledger(js, name, CONSUMER)
        _, before = await ledger.read()
        for foreign in FOREIGN:
            ack = await js.publish(ledger.subjects[0], foreign)
            with pytest.raises(LedgerInvalid, match=f"record of consumer '{CONSUMER}'.*cannot be read"):
                await ledger.read()
            with pytest.raises(LedgerInvalid):
                await take(stream, "other", wait=1, max_messages=5)
            with pytest.raises(LedgerInvalid):
                await settle.settle_done(ledger, claims[0], new_token(1), 5)
            stored = await js.api(f"STREAM.MSG.GET.KV_{settings.ledger}_claims", {"last_by_subj": ledger.subjects[0]})
            assert (stored["message"]["seq"], base64.b64decode(stored["message"].get("data", ""))) == (
                ack.seq,
                foreign,
            )
        assert before < ack.seq
        assert (await stream.consumer(CONSUMER).info()).floor == 0  # nothing was acknowledged
        # The remedy that the error names.
        await js.stream(f"KV_{settings.ledger}_claims").purge(subject=ledger.subjects[0])
        assert await ledger.read() == (None, 0)


async def test_a_foreign_receipt_is_a_typed_error(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        name = f"S{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        await publish(stream, 5)
        (claim,) = await take(stream, max_messages=5)
        ledger = Ledger(js, name, CONSUMER)
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.fail()
        for foreign in FOREIGN:
            await js.publish(Ledger(js, name, CONSUMER).receipts.subject(claim.id), foreign)
            with pytest.raises(LedgerInvalid, match=r"receipt.*Do not purge the receipt"):
                await ledger.receipts.read(claim.id)
            with pytest.raises(LedgerInvalid):
                await ledger.committed()
        with pytest.raises(LedgerInvalid):
            async with Hold.begin(js, claim, try_number=2):
                pass
