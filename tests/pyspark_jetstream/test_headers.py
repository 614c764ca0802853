"""Headers as a column: the way without a loop and the general way give the same result."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_arrow.columns import _any_headers, _headers, _plain_headers, record_batch
from jetstream_client.read.message import RawMessage, RawMessages

Text = st.text(st.characters(exclude_characters="\r\n\x00", exclude_categories=["Cs"]), max_size=6)
Lines = st.lists(st.tuples(st.sampled_from(["A", "B", "Nats-Msg-Id", "a"]), Text), max_size=4)


def block(lines: list[tuple[str, str]]) -> bytes:
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in lines)


@given(st.lists(Lines, min_size=1, max_size=5))
def test_both_ways_agree(messages: list[list[tuple[str, str]]]) -> None:
    blocks = [block(lines) for lines in messages]
    plain = _plain_headers(blocks)
    repeated = any(len({name for name, _ in lines}) < len(lines) for lines in messages)
    assert (plain is None) == repeated
    if plain is not None:
        assert plain.to_pylist() == _any_headers(blocks).to_pylist()


@given(st.lists(st.binary(max_size=30).map(lambda data: data + b"\r\n" if data else b""), min_size=1, max_size=5))
def test_any_bytes_are_a_column(blocks: list[bytes]) -> None:
    column = _headers(blocks)
    column.validate(full=True)
    assert len(column) == len(blocks)
    assert column.to_pylist() == _any_headers(blocks).to_pylist() or not any(blocks)


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"K: 1\r\nL:x: y\r\n", [("K", ["1"]), ("L", ["x: y"])]),
        (b"K: 1\r\nL: 2\r\nK: 3\r\n", [("K", ["1", "3"]), ("L", ["2"])]),
        (b"K:   \r\n", [("K", [""])]),
        (b"K: \xff\r\n", [("K", ["\ufffd"])]),
        (b"", None),
    ],
)
def test_what_a_block_holds(data: bytes, headers: list[tuple[str, list[str]]] | None) -> None:
    assert _headers([data, b"Other: x\r\n"]).to_pylist() == [headers, [("Other", ["x"])]]


def test_times_of_a_consumer_and_of_the_leader_are_one_column() -> None:
    times = [b"1700000000000000000", b"2023-11-14T22:13:20Z", b"2023-11-14T22:13:20.000000001Z"]
    for each in (times, times[::-1]):
        messages = RawMessages.of(RawMessage(1, b"a", time, b"", b"") for time in each)
        assert len(set(record_batch(messages, "S", ["timestamp"]).column(0).to_pylist())) == 1


BATCHES = """
import sys
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_arrow.columns import record_batch

for block in (b"", b"A: 1\\r\\nB: 2\\r\\n", b"A: 1\\r\\nA: 2\\r\\n", b"\\xff: x\\r\\n"):
    messages = RawMessages.of([RawMessage(7, b"\\xff", b"1700000000000000000", block, b"x")] * 2)
    batch = record_batch(messages, "S", ["stream", "subject", "sequence", "timestamp", "headers", "data"])
    assert batch.num_rows == 2
    print("pandas" in sys.modules)
"""


def test_no_column_costs_a_worker_the_import_of_pandas() -> None:
    ran = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] * 4
