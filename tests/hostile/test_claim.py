"""Claims as any task could write them into XCom: reading gives the written claim, or `ClaimInvalid`."""

import json
from typing import Any

from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid
from tests.hostile.attack import attack
from tests.hostile.values import DEEP, Json, changed

GOOD = Claim(
    id="5f0c9a7be21d",
    stream="FLIGHTS",
    stream_created="2026-11-21T03:00:00.123456789Z",
    consumer="delays",
    consumer_created="2026-11-21T03:00:01.5Z",
    sequences=Sequences.from_ranges([(1, 5), (9, 9)]),
    bytes=600,
    consumer_sequence=6,
    taken_at="2026-11-21T03:00:05Z",
).to_json()


@attack(changed(GOOD) | Json, st.booleans(), weight=3)
def test_a_claim_is_what_was_written_or_refused(value: Any, as_text: bool) -> None:
    given = value
    if as_text:
        try:
            given = json.dumps(value)
        except (TypeError, ValueError):
            return
    try:
        claim = Claim.from_json(given)
    except ClaimInvalid as error:
        wrong = str(error)
        if len(wrong) > 2_000:
            raise AssertionError("a log is for people") from None
        return
    assert claim.to_json() == GOOD | dict(value)
    json.dumps(claim.to_json()).encode()
    assert f"$JS.ACK.{claim.stream}.{claim.consumer}".encode().count(b".") == 3


@attack(st.text(max_size=80) | st.just(DEEP.decode()))
def test_any_text_is_no_claim(text: str) -> None:
    try:
        Claim.from_json(text)
    except ClaimInvalid:
        return
    raise AssertionError(text)
