"""The packed form of sequences: unpacking restores them, and a short string never becomes a large set."""

import base64
import tracemalloc
import zlib

import pytest
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import MOST_RANGES, Sequences
from tests.hostile.attack import attack
from tests.hostile.values import Json, changed

Packed = st.builds(
    lambda data, tail: base64.b64encode(zlib.compress(data) + tail).decode(),
    st.binary(max_size=60) | st.lists(st.integers(0, 3), max_size=20).map(bytes) | st.just(b"\xff" * 40),
    st.binary(max_size=2),
)


def check(value: object) -> None:
    try:
        sequences = Sequences.from_json(value)
    except InvalidValue:
        return
    before = -1
    for first, last in sequences.ranges:
        assert type(first) is type(last) is int
        assert before + 1 < first <= last < 2**64
        before = last
    assert Sequences.from_json(sequences.to_json()) == sequences


@attack(Packed | st.text(max_size=40) | Json | st.lists(st.lists(st.integers(-3, 9), max_size=3), max_size=4), weight=2)
def test_any_value_is_refused_or_well_formed(value: object) -> None:
    check(value)


@attack(changed([[1, 5], [7, 7], [100, 2**40]]))
def test_a_changed_list_is_refused_or_well_formed(value: object) -> None:
    check(value)


@st.composite
def bitten(draw: st.DrawFn) -> str:
    text = Sequences.of(draw(st.sets(st.integers(1, 10_000), min_size=1, max_size=20))).to_json(0)
    assert isinstance(text, str)
    packed = bytearray(base64.b64decode(text))
    packed[draw(st.integers(0, len(packed) - 1))] ^= draw(st.integers(1, 255))
    return base64.b64encode(bytes(packed)).decode()


@attack(bitten())
def test_a_packed_text_with_a_changed_byte_is_refused_or_well_formed(text: str) -> None:
    check(text)


@pytest.mark.parametrize("unit", [b"\x02\x00", b"\x00\x00", b"\xff", b"\x80\x01", b"\x02"], ids=repr)
def test_a_bomb_is_refused_in_bounded_memory(unit: bytes) -> None:
    bomb = zlib.compressobj(9)
    packed = b"".join(bomb.compress(unit * (1 << 20)) for _ in range(64)) + bomb.flush()
    text = base64.b64encode(packed).decode()
    assert len(text) < 400_000
    tracemalloc.start()
    try:
        with pytest.raises(InvalidValue):
            Sequences.from_json(text)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_what_could_not_be_read_again_is_not_written() -> None:
    too_many = tuple((number, number) for number in range(1, 2 * MOST_RANGES + 2, 2))
    with pytest.raises(InvalidValue, match="ranges"):
        Sequences(too_many).to_json()
    with pytest.raises(InvalidValue, match="ranges"):
        Sequences.from_json([list(each) for each in too_many])
    text = Sequences(too_many[:1_000]).to_json(0)
    assert Sequences.from_json(text, most=1_000).count == 1_000
    with pytest.raises(InvalidValue, match="at most 999"):
        Sequences.from_json(text, most=999)
