"""The parser, with bytes that are cut anywhere and bytes that are not the protocol."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetstream_client.errors import ProtocolError
from jetstream_client.wire import parser as module
from jetstream_client.wire.parser import Parser, ServerLine
from jetstream_client.wire.protocol import decode_status
from jetstream_client.wire.run import AnswerRun, DeliveryRun, Frame, Run, read_line

STATUS = b"NATS/1.0 408 Request Timeout\r\n\r\n"
STREAM = (
    b'INFO {"server_id":"x"}\r\nPING\r\nMSG a.b 1 5\r\nhello\r\nMSG a 2 reply.to 0\r\n\r\n'
    b"HMSG a 3 12 13\r\nNATS/1.0\r\n\r\nx\r\n"
    b"HMSG a 3 r %d %d\r\n%b\r\n-ERR 'oh no'\r\n+OK\r\n" % (len(STATUS), len(STATUS), STATUS)
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    whole = Parser().feed(STREAM)
    assert len(whole) == 8
    parser = Parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[first:last] for first, last in itertools.pairwise(edges)]
    assert [frame for part in parts for frame in parser.feed(part)] == whole


def test_what_frames_hold() -> None:
    frames = Parser().feed(STREAM)
    assert frames[0] == ServerLine("INFO", b'{"server_id":"x"}')
    assert frames[2] == Frame(b"a.b", 1, b"", b"", b"hello")
    assert frames[3] == Frame(b"a", 2, b"reply.to", b"", b"")
    assert frames[4] == Frame(b"a", 3, b"", b"NATS/1.0\r\n\r\n", b"x")
    status = frames[5]
    assert isinstance(status, Frame)
    assert decode_status(status.header) == (408, "Request Timeout")


WORD = st.sampled_from([b"MSG", b"HMSG", b"a", b"a.b", b"1", b"12", b"-1", b"", b"\t", b"r", b"\r"])
LINE = st.builds(lambda verb, words: b" ".join([verb, *words]), WORD, st.lists(WORD, min_size=2, max_size=5))
USUAL = st.sampled_from([b"MSG a.b 1 12", b"MSG a 1 r 12", b"HMSG a 12 r 1 12", b"HMSG a 1 12 12"])


@settings(max_examples=600)
@example([b"MSG a 1 12", b"MSG MSG a 1 b 12"])
@example([b"MSG a 1 12", b"a a 1 12"])
@example([b"MSG a -1 12"])
@example([b"HMSG a 1 -1 12"])
@given(st.lists(USUAL | LINE, min_size=1, max_size=3) | st.builds(lambda line: [line] * 3, USUAL | LINE))
def test_a_run_is_read_at_once_as_it_is_line_by_line(lines: list[bytes]) -> None:
    bodies = [b"abcdefghijkl"[: 12 - number] for number in range(len(lines))]
    at_once = Run(lines, bodies).columns()
    try:
        one_by_one = [read_line(line, len(body)) for line, body in zip(lines, bodies, strict=True)]
    except ProtocolError:
        assert at_once is None
        with pytest.raises(ProtocolError):
            Run(lines, bodies).frames()
        return
    frames = [
        Frame(subject, sid, reply, body[:header_size], body[header_size:])
        for (subject, sid, reply, header_size), body in zip(one_by_one, bodies, strict=True)
    ]
    assert Run(lines, bodies).frames() == frames
    if len(set(lines)) == 1:
        assert at_once is not None


BODY = st.sampled_from([b"", b"x", b"text", b"\r\n", b"a\r\nb", b"MSG a 1 3", b"\r\nMSG a 1 0\r\n\r\n", b"\r", b"\n"])
ACK = b"$JS.ACK.S.c.1."
WORDS = st.sampled_from(
    [b"MSG a 1", b"MSG a 1 r", b"MSG MSG 1", b"MSG a 1 \r", b"MSG a -1", b"MSG  a", b"MSG a 1 1.2.3.4"]
)
PLACES = st.sampled_from([b"1.2.3.4", b"22.1.0.0", b"1.2.3", b"1.2.3.4.5", b"1.-2.3.4", b"1.2.3."])
MESSAGE = st.builds(
    lambda words, body: b"%b %d\r\n%b\r\n" % (words, len(body), body),
    WORDS
    | st.builds(
        lambda subject, place: b"MSG %b 1 %b%b" % (subject, ACK, place), st.sampled_from([b"a", b"b.c"]), PLACES
    ),
    BODY,
)
HEADED = st.just(b"HMSG a 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n")


def answer(own: bytes, data: bytes, less: int = 0) -> bytes:
    """An answer to a direct get, whose line may announce fewer bytes of headers than it has."""
    added = b"Nats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 9\r\nNats-Time-Stamp: x\r\n\r\n"
    header = b"NATS/1.0\r\n%b%b" % (own, added)
    return b"HMSG in.1 1 %d %d\r\n%b%b\r\n" % (len(header) - less, len(header) + len(data), header, data)


OWN = st.sampled_from([b"", b"", b"", b"A: 1\r\n", b"A: 1\r\n\r\n", b"A: 1"])
ANSWER = st.builds(answer, OWN, BODY | st.just(answer(b"", b"")) | st.just(b"\r\n" + answer(b"", b"x")))
LIE = st.sampled_from(
    [
        b"MSG a 1 2\r\nx\r\n",
        b"MSG a 1 x\r\n\r\n",
        b"MSG a 1 2000\r\n",
        b"MSG a 1 -1\r\n",
        b"PING\r\n",
        b"MSG a 1 %b1.2.3.4 2\r\nxyz\r\n" % ACK,
        b"MSG a 1 %b1.2.3.4 x\r\n" % ACK,
    ]
)
ALIKE = [b"MSG a.b 1 %b%d.2.3.4 4\r\ntext\r\n" % (ACK, number) for number in range(3)]


@settings(max_examples=600)
@example(ALIKE, [1])
@example(ALIKE, [60])
@example([*ALIKE, b"MSG a 1 %b9.2.3.4 14\r\nten and a text\r\n" % ACK, ALIKE[0]], [])
@example([b"MSG MSG 1 %b1.2.3.4 4\r\ntext\r\n" % ACK, b"MSG MSG 1 %b2.2.3.4 5\r\ntexts\r\n" % ACK] * 2, [161])
@example([*ALIKE, b"PING\r\n", ALIKE[0]], [])
@example([*ALIKE, ALIKE[0].replace(b" 1 ", b" 2 "), ALIKE[0].replace(b".c.", b".d.")], [])
@example([*ALIKE, ALIKE[0].replace(b"text", b"te")], [])
@example([b"MSG a 1 %b1.2.3.4 1001\r\n%b\r\n" % (ACK, bytes(1001))] * 2, [])
@given(
    st.lists(MESSAGE, max_size=4).map(lambda each: each * 2)
    | st.lists(MESSAGE | HEADED | LIE, max_size=6)
    | st.lists(ANSWER, max_size=6)
    | st.lists(ANSWER | MESSAGE | HEADED | LIE | st.just(answer(b"", b"x", 3)), max_size=4),
    st.lists(st.integers(0, 200), max_size=3),
)
def test_messages_are_the_same_when_they_are_cut_at_once(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)

    def read() -> tuple[list[Frame | ServerLine], bool]:
        parser, frames = Parser(max_payload=1_000), []
        edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        try:
            for first, last in itertools.pairwise(edges):
                frames += parser.feed(stream[first:last])
        except ProtocolError:
            return frames, False
        return frames, True

    at_once = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LARGE", 0)
        assert read() == at_once


@pytest.mark.parametrize("data", [[b"text"], [b"text", b"some more"], [b"t\r\n\r\n"], [bytes(1_000)]], ids=len)
def test_deliveries_are_cut_at_once(data: list[bytes]) -> None:
    parser = Parser()
    bodies = data * (100 // len(data))
    lines = [b"MSG a 1 %b%d.%d.3.4 %d" % (ACK, each, each, len(body)) for each, body in enumerate(bodies)]
    arrived = b"".join(b"%b\r\n%b\r\n" % message for message in zip(lines, bodies, strict=True))
    (run,) = parser.cut(arrived[:-1])
    assert isinstance(run, DeliveryRun)
    assert run.bodies == bodies[:-1]
    run.pop(3)
    assert len(run) == len(run.columns().subjects) == len(run.deliveries().subjects) == 98
    assert run.deliveries().places[8:16] == [b"2", b"2", b"3", b"4", b"4", b"4", b"3", b"4"]
    assert run.frames()[3] == Frame(b"a", 1, ACK + b"4.4.3.4", b"", bodies[4])
    assert parser.feed(b"\n") == [Frame(b"a", 1, ACK + b"99.99.3.4", b"", bodies[-1])]


@pytest.mark.parametrize("data", [b"", b"text", b"\r\n", bytes(2_000)], ids=len)
def test_answers_are_cut_at_once(data: bytes) -> None:
    parser = Parser()
    (run,) = parser.cut((answer(b"", data) * 60 + answer(b"A: 1\r\n", data) * 40)[:-1])
    assert isinstance(run, AnswerRun)
    run.pop(3)
    assert len(run) == len(run.columns().subjects) == len(run.answers().sequences) == 98
    assert run.answers().headers == [b""] * 59 + [b"A: 1\r\n"] * 39
    assert run.bodies == [data] * 98
    assert parser.feed(b"\n") == run.frames()[-1:]


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    parser = Parser(max_payload=1_000)
    try:
        for frame in parser.feed(data + b"\r\n"):
            assert isinstance(frame, Frame | ServerLine)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "line",
    [b"MSG a 1 99999999999\r\n", b"MSG a x 1\r\n", b"MSG\r\n", b"HMSG a 1 9 5\r\n", b"MSG a 1 -5\r\n", b"HELLO\r\n"],
)
def test_lines_that_lie_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Parser(max_payload=1 << 20).feed(line + b"\r\n")
