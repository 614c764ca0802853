"""A claim survives JSON, and nothing that was tampered with passes for one."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid


def claim(sequences: Sequences) -> Claim:
    return Claim(
        id="5f0c9a7be21d",
        stream="FLIGHTS",
        stream_created="2026-11-21T03:00:00.123456789Z",
        consumer="delays",
        consumer_created="2026-11-21T03:00:01.5Z",
        sequences=sequences,
        bytes=36_272_800,
        consumer_sequence=sequences.last,
        taken_at="2026-11-21T03:00:05Z",
    )


@settings(max_examples=200)
@given(st.sets(st.integers(1, 5_000), min_size=1, max_size=3_000))
def test_survives_json(numbers: set[int]) -> None:
    given = claim(Sequences.of(numbers))
    assert Claim.from_json(json.loads(json.dumps(given.to_json()))) == given
    assert Claim.from_json(json.dumps(given.to_json())) == given


def test_the_domain_and_the_account_survive_json() -> None:
    given = replace(claim(Sequences.of([1])), domain="hub", account="szMpdrwD")
    value = given.to_json()
    assert value["ack_prefix"] == "$JS.ACK.hub.szMpdrwD.FLIGHTS.delays"
    assert Claim.from_json(json.dumps(value)) == given


def test_a_hundred_thousand_contiguous_messages_are_under_a_kibibyte() -> None:
    assert len(json.dumps(claim(Sequences.from_ranges([(1, 100_000)])).to_json())) < 1024


def test_scattered_ranges_are_packed() -> None:
    value = claim(Sequences.of(range(1, 100_000, 7))).to_json()
    assert isinstance(value["ranges"], str)
    assert Claim.from_json(value).count == len(range(1, 100_000, 7))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 2),
        ("id", "../../x"),
        ("stream", "A.B"),
        ("stream", "OTHER"),  # ack_prefix contradicts it
        ("consumer", "other"),
        ("stream_created", "yesterday"),
        ("consumer_created", None),
        ("ranges", [[1, 99]]),
        ("ranges", [[5, 1]]),
        ("ranges", [[0, 9]]),
        ("ranges", [[1, 5], [3, 9]]),
        ("ranges", "eJxjZGRkAAAADAAE"),
        ("ranges", "no base64"),
        ("count", 11),
        ("count", True),
        ("bytes", -1),
        ("consumer_sequence", 3),
        ("ack_prefix", "$JS.ACK.FLIGHTS.other"),
        ("ack_prefix", "$JS.ACK.hub.x.FLIGHTS.delays"),
        ("ack_prefix", "$JS.ACK.*.szMpdrwD.FLIGHTS.delays"),
        ("ack_prefix", "$JS.ACK.hub.>.FLIGHTS.delays"),
        ("ack_prefix", "$JS.ACK._.szMpdrwD.FLIGHTS.delays"),
        ("ack_prefix", "$JS.ACK.hub.szMpdrwD.FLIGHTS.other"),
        ("ack_prefix", "$JS.ACK.hub.szMpdrwD.FLIGHTS.delays.x"),
        ("ack_prefix", None),
    ],
)
def test_tampered_fields_are_refused(field: str, value: object) -> None:
    good: dict[str, Any] = claim(Sequences.from_ranges([(1, 10)])).to_json()
    with pytest.raises(ClaimInvalid):
        Claim.from_json(good | {field: value})


@pytest.mark.parametrize("value", [None, 3, [], "text", "[]", {}, {"v": 1}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ClaimInvalid):
        Claim.from_json(value)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ClaimInvalid, match="reply"):
        Claim.from_json(claim(Sequences.of([1])).to_json() | {"reply": "$JS.ACK"})
