"""The parser against a server that lies: frames or a `ProtocolError`, in bounded memory and time."""

import itertools
import time
import tracemalloc

import pytest
from hypothesis import strategies as st

from jetstream_client.errors import InvalidValue, ProtocolError
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.parser import LONGEST_LINE, Parser, ServerLine
from jetstream_client.wire.protocol import AckSubject, decode_headers, decode_status, encode_headers
from jetstream_client.wire.run import Frame
from tests.hostile.attack import attack
from tests.hostile.values import Texts

Word = st.sampled_from(
    [b"a", b"a.b", b"1", b"0", b"-1", b"+1", b"1_0", b"07", b"99999999999", b"9" * 5_000, b"\xff", b""]
)
Line = st.builds(
    lambda verb, words, end: b" ".join([verb, *words]) + end,
    st.sampled_from([b"MSG", b"HMSG", b"msg", b"INFO", b"PING", b"PONG", b"+OK", b"-ERR", b"-err 'x'", b"", b"HELLO"]),
    st.lists(Word, max_size=6),
    st.sampled_from([b"\r\n", b"\n", b"", b"\r\n\r\n", b"\r\nhello\r\n"]),
)
Block = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA:b\r\nA: c\r\n\r\n"])


@st.composite
def good(draw: st.DrawFn) -> bytes:
    """One whole frame as a server writes it."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b'INFO {"a":1}\r\n']))
    data, reply = draw(st.binary(max_size=40)), draw(st.sampled_from([b"", b" r.s"]))
    if draw(st.booleans()):
        block = draw(Block)
        return b"HMSG a.b 7%b %d %d\r\n%b%b\r\n" % (reply, len(block), len(block) + len(data), block, data)
    return b"MSG a.b 7%b %d\r\n%b\r\n" % (reply, len(data), data)


Stream = st.lists(good(), min_size=1, max_size=6).map(b"".join)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid stream with a few bytes changed, removed, repeated or inserted."""
    stream = bytearray(draw(Stream))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream)))
        end = at + draw(st.integers(0, 4))
        stream[at:end] = draw(st.binary(max_size=4) | st.sampled_from([b"\r\n", b" ", b"0", b"-", b"9" * 30, b"MSG "]))
        if draw(st.booleans()):
            stream += stream[at : at + 30]
    return bytes(stream)


def in_parts(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[first:last] for first, last in itertools.pairwise([0, *sorted(cuts), len(data)])]


def fed(parts: list[bytes]) -> tuple[list[Frame | ServerLine], bool]:
    """The frames, and whether parsing ended with ProtocolError."""
    parser = Parser(max_payload=1_000)
    frames: list[Frame | ServerLine] = []
    for part in parts:
        try:
            frames += parser.feed(part)
        except ProtocolError:
            return frames, True
    return frames, False


@attack(st.binary(max_size=400) | st.lists(Line | good() | st.binary(max_size=8), max_size=6).map(b"".join), weight=3)
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    frames, _ = fed([data])
    assert sum(len(frame.data) + len(frame.header) for frame in frames if isinstance(frame, Frame)) <= len(data)
    assert all(frame.sid >= 0 for frame in frames if isinstance(frame, Frame))


@attack(Stream, st.lists(st.integers(0, 300), max_size=8), weight=2)
def test_a_valid_stream_is_the_same_wherever_it_is_cut(stream: bytes, cuts: list[int]) -> None:
    whole, broken = fed([stream])
    assert whole
    assert not broken
    assert fed(in_parts(stream, [min(cut, len(stream)) for cut in cuts])) == (whole, False)


@attack(mutated(), st.lists(st.integers(0, 300), max_size=8), weight=3)
def test_a_mutated_stream_is_the_same_wherever_it_is_cut(stream: bytes, cuts: list[int]) -> None:
    frames, broken = fed([stream])
    cut_frames, cut_broken = fed(in_parts(stream, [min(cut, len(stream)) for cut in cuts]))
    assert cut_broken == broken
    # Frames in the same read as the error are dropped with the connection; earlier ones were delivered.
    assert broken or cut_frames == frames


@attack(st.binary(max_size=80), st.integers(-50, 50))
def test_a_size_that_lies_is_refused(data: bytes, lie: int) -> None:
    size = len(data) + lie
    frames, broken = fed([b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (size, data)])
    if lie < 0 and not (size >= 0 and data[size:].startswith(b"\r\n")):
        assert broken
    if lie == 0:
        assert frames == [Frame(b"a", 1, b"", b"", data), ServerLine("PING", b"")]


@pytest.mark.parametrize("start", [b"INFO ", b"MSG a 1 60000000\r\n", b"HMSG a 1 60000000 60000000\r\n", b""])
def test_what_does_not_end_takes_no_more_memory_than_came(start: bytes) -> None:
    parser = Parser()
    parser.feed(start)
    came = 0
    tracemalloc.start()
    try:
        while came < 16 << 20:
            parser.feed(b"x" * 65_536)
            came += 65_536
    except ProtocolError:
        assert not start.endswith(b"\n")
        assert came <= LONGEST_LINE
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * came + (1 << 20)


@pytest.mark.parametrize("start", [b"INFO ", b"MSG a 1 60000000\r\n"])
def test_bytes_one_by_one_are_not_copied_each_time(start: bytes) -> None:
    # A parser that joins and searches all its bytes each time needs half a minute for this.
    parser = Parser()
    parser.feed(start)
    begin = time.process_time()
    for _ in range(300_000):
        parser.feed(b"x")
    assert time.process_time() - begin < 5


def test_a_large_message_in_small_pieces_is_whole() -> None:
    data = bytes(range(256)) * 20_000
    parser = Parser()
    stream = b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (len(data), data)
    frames = [frame for at in range(0, len(stream), 1_400) for frame in parser.feed(stream[at : at + 1_400])]
    assert frames == [Frame(b"a", 1, b"", b"", data), ServerLine("PING", b"")]


@attack(st.binary(max_size=200) | st.lists(Block | st.binary(max_size=12), max_size=5).map(b"".join), weight=2)
def test_any_header_block_is_read(block: bytes) -> None:
    status, description = decode_status(block)
    assert 0 <= status <= 999
    assert isinstance(description, str)
    for name, values in decode_headers(block).items():
        assert isinstance(name, str)
        assert all("\r\n" not in value for value in values)


@attack(
    st.builds(lambda a, b: b"NATS/1.0" + a + b, st.binary(max_size=4), st.binary(max_size=30) | st.just(b"9" * 5_000))
)
def test_any_status_line_is_read(block: bytes) -> None:
    assert 0 <= decode_status(block)[0] <= 999


@attack(st.dictionaries(Texts, Texts | st.lists(Texts, max_size=3), max_size=4))
def test_headers_to_send_are_whole_lines_or_refused(headers: dict[str, str | list[str]]) -> None:
    try:
        block = encode_headers(headers)
    except InvalidValue:
        return
    count = sum(1 if isinstance(value, str) else len(value) for value in headers.values())
    assert block.count(b"\r\n") == count + 2
    assert block.count(b"\n") == block.count(b"\r")


Token = st.sampled_from(["S", "c", "1", "0", "-1", "1_0", "²", "٣", str(2**64), "9" * 5_000, "", "_", " 1", "x"])


@attack(
    st.lists(Token, min_size=5, max_size=11).map(lambda words: ".".join(["$JS", "ACK", *words])) | st.text(max_size=60)
)
def test_a_reply_subject_is_read_whole_or_refused(reply: str) -> None:
    try:
        parsed = AckSubject.parse(reply)
    except ProtocolError:
        return
    numbers = (parsed.delivered, parsed.sequence, parsed.consumer_sequence, parsed.timestamp, parsed.pending)
    assert all(0 <= number < 2**64 for number in numbers)
    assert reply.split(".")[parsed.tokens - 7 if parsed.tokens < 12 else 4] == parsed.stream
    words = reply.split(".")
    assert ".".join(map(str, numbers)) == ".".join(words[words.index(parsed.stream) + 2 :][:5])


@attack(
    Texts
    | st.datetimes().map(lambda time: time.isoformat() + "Z")
    | st.from_regex(
        r"[0-9]{4}-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{0,12})?(Z|[+-][0-9]{2}:[0-9]{2})?"
    )
)
def test_a_time_is_read_or_refused(text: str) -> None:
    try:
        nanoseconds = time_nanoseconds(text)
    except ValueError:
        return
    assert text[4] == "-"
    assert "T" in text
    assert text.strip()[-1] == "Z" or text[-6] in "+-"  # a time without a time zone would depend on the machine
    assert isinstance(nanoseconds, int)
