"""A release reads what an earlier one wrote into XCom, triggers and the ledger. The files in formats/ are those of 0.1.

They are never changed. A new version of a format is a new file next to the old one, and both are read.
"""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid, LedgerInvalid
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.record import DoneEntry, Receipt, Record
from jetstream_handoff.take.taking import Taking
from tests.jetstream_handoff.steps import publish, take

FORMATS = Path(__file__).with_name("formats")
READ: dict[str, Callable[[Any], Claim | Record | Receipt | Taking]] = {
    "claim": Claim.from_json,
    "taking": Taking.from_json,
    "record": Record.from_json,
    "receipt": lambda value: Receipt.from_json("7f0c9a7be21d", value),
}


def frozen(name: str) -> Any:
    return json.loads((FORMATS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", sorted(path.stem for path in FORMATS.glob("*.json")))
def test_what_was_written_is_read_and_written_as_it_was(name: str) -> None:
    assert READ[name.split("-", maxsplit=1)[0]](frozen(name)).to_json() == frozen(name)


def test_a_taking_means_what_it_meant() -> None:
    taking = Taking.from_json(frozen("taking-1"))
    assert taking.owner == ("dag", "run", "task", -1, 0, "2026-11-20T03:00:00+00:00")
    times = (taking.gather, taking.hand_off_timeout, taking.look_every)
    assert times == (timedelta(seconds=2.5), timedelta(minutes=15), timedelta(seconds=30))
    assert taking.priority == Priority("batch", level=5)
    assert Taking.from_json({**frozen("taking-1"), "priority": {"group": "batch", "level": 5}}) == taking
    least = {"stream": "S", "consumer": "c", "owner": ["dag"], "max_messages": 1}
    assert Taking.from_json(least) == Taking(stream="S", consumer="c", owner=("dag",), max_messages=1)
    assert not {"backlog", "ordered_by", "claims"} & Taking.from_json(least).to_json().keys()
    ordered = Taking(stream="S", consumer="c", owner=("dag",), max_messages=1, ordered_by="{2}", claims=8)
    assert Taking.from_json(json.loads(json.dumps(ordered.to_json()))) == ordered
    with pytest.raises(InvalidValue, match="consumer_config='ack_wait': give a mapping"):
        Taking.from_json({**least, "consumer_config": "ack_wait"})
    with pytest.raises(InvalidValue, match="newest='…': this process has an older release"):
        Taking.from_json({**least, "newest": 1})


def test_it_means_what_it_meant() -> None:
    claim = Claim.from_json(frozen("claim-1-in-a-domain"))
    assert (list(claim.sequences), claim.domain, claim.account) == ([4, 5, 9], "hub", "AB12CD34")
    packed = Claim.from_json(frozen("claim-1-packed"))
    assert list(packed.sequences) == [number * number // 7 + 2 * number for number in range(1, 3000)]
    record = Record.from_json(frozen("record-1"))
    assert record.open["5f0c9a7be21d"].token == "1-abcd0123"
    assert record.done["7f0c9a7be21d"] == DoneEntry(
        Sequences.of([7, 8]), 9, "1-abce0123", {"count": 2}, Sequences.of([8]), "2026-11-21T03:00:00.5Z"
    )
    assert list(record.all_settled.sequences) == [7, 8, 10, 11, 12, 15]
    receipt = Receipt.from_json("7f0c9a7be21d", frozen("receipt-1"))
    assert (list(receipt.processed), receipt.attempt_id) == ([7], "7f0c9a7be21d-1-abce0123")


async def test_the_files_have_the_fields_that_the_server_is_given(stream: Stream) -> None:
    await publish(stream, 20)
    first, second = await take(stream, max_messages=20, messages_per_claim=10)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await hold.settle({"count": 10})
    stored = await value(stream, "claims")
    told = frozen("record-1-with-times")
    assert stored.keys() == told.keys() - {"unclaimed"}
    assert stored["open"][second.id].keys() == told["open"]["6f0c9a7be21d"].keys()
    assert stored["configs"][0].keys() == {"ack_wait", "max_deliver", "max_ack_pending"}
    assert stored["done"][first.id].keys() == told["done"]["7f0c9a7be21d"].keys()
    assert stored["done"][first.id]["history"].keys() == told["done"]["7f0c9a7be21d"]["history"].keys()
    assert (await value(stream, "receipts")).keys() == frozen("receipt-1-with-history").keys() - {
        "reason",
        "superseded_by",
    }
    assert second.to_json().keys() == frozen("claim-1").keys()


async def value(stream: Stream, bucket: str) -> Any:
    """Return the last entry of a bucket of the ledger."""
    answer = await stream.js.api(f"STREAM.MSG.GET.KV_{stream.js.settings.ledger}_{bucket}", {"last_by_subj": "$KV.>"})
    return json.loads(base64.b64decode(answer["message"]["data"]))


def test_a_newer_format_is_refused_by_its_version() -> None:
    with pytest.raises(ClaimInvalid, match="the claim has version 2, but this release reads version 1"):
        Claim.from_json({**frozen("claim-1"), "v": 2, "of another release": True})
    with pytest.raises(LedgerInvalid, match="it has version 4, but this release reads the versions 1 to 3"):
        Record.from_json({**frozen("record-1"), "v": 4})


AT = "2026-11-21T03:00:02Z"
RESERVATION = {
    "reader": "0" * 16,
    "run": "1" * 16,
    "at": "2026-11-21T03:00:02Z",
    "batch": 0,
    "claim": "",
    "planned": "",
}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"reader": "x"}, {"run": None}, {"at": "now"}, {"batch": -1}, {"batch": True}),
        *({"claim": "7f0c9a7be21d"}, {"claim": 1}, {"planned": "x"}),
    ],
)
def test_a_reservation_that_cannot_be_read_is_refused(wrong: Any) -> None:
    """It must not be taken for a record of a consumer that everybody may take from."""
    assert Record.from_json({**frozen("record-1"), "v": 3, "reader": RESERVATION}).reader
    with pytest.raises(LedgerInvalid, match=r"missing|invalid"):
        Record.from_json({**frozen("record-1"), "v": 3, "reader": {**RESERVATION, **wrong}})
    with pytest.raises(LedgerInvalid, match="'reader' is missing"):
        Record.from_json({**frozen("record-1"), "v": 3})


@pytest.mark.parametrize(
    "order",
    [
        None,
        {},
        {"by": "", "gathering": None, "gone": [], "claims": 0},
        {"by": "{2}", "gathering": ["a", "now"], "gone": [], "claims": 0},
        {"by": "{2}", "gathering": [1, "2026-11-21T03:00:06Z"], "gone": [], "claims": 0},
        {"by": "{2}", "gathering": None, "gone": [1], "claims": 0},
        {"by": "{2}", "gathering": None, "gone": [], "claims": -1},
        {"by": "{2}", "gathering": None, "gone": [], "claims": 0, "stopped": {"5f0c9a7be21d5f0c": -1}},
        {"by": "{2}", "gathering": None, "gone": [], "claims": 0, "stopped": [17]},
    ],
)
def test_an_order_that_cannot_be_read_is_refused(order: Any) -> None:
    """It must not be taken for a record without an order."""
    with pytest.raises(LedgerInvalid, match=r"missing|invalid"):
        Record.from_json({**frozen("record-2"), "order": order})
    with pytest.raises(LedgerInvalid, match="'order' is missing"):
        Record.from_json({**frozen("record-1"), "v": 2})
