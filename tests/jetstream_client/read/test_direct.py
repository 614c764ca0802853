"""Reading by direct get: exactly the wanted messages, or the missing ones by name."""

import asyncio
import json
import random
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DirectGetDisabled,
    JetStreamError,
    JetStreamNotEnabled,
    MessagesMissing,
    StreamRecreated,
)
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.answers import OUTSTANDING, Taken, answered_message
from jetstream_client.read.batch_window import BATCH, MAX_BYTES, BatchWindow
from jetstream_client.read.direct import LONG
from jetstream_client.read.get_window import SMALLEST, GetWindow
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire import attempts
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.parser import Parser
from jetstream_client.wire.run import AnswerRun, Frame, Run
from tests.jetstream_client.disk import wait_for_messages
from tests.jetstream_client.servers import USER, Serve
from tests.jetstream_client.until import until


@pytest.fixture
async def stream(settings: ConnectionSettings) -> AsyncIterator[Stream]:
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "DIRECT", "subjects": ["direct.>"], "allow_direct": True})
        publish_all(settings, ((f"direct.{number % 3}", b"%d" % number) for number in range(1, 30_001)))
        yield stream
        await stream.delete()


async def read(settings: ConnectionSettings, stream: Stream, wanted: Sequences) -> list[RawMessage]:
    created = (await stream.info()).created
    return [message for batch in direct.read(settings, stream.name, wanted, created) for message in batch]


@pytest.mark.parametrize(
    "wanted",
    [
        [(1, 30_000)],
        [(5, 5)],
        [(2, 3), (5, 9), (500, 20_700)],
        [(each, each) for each in range(1, 30_000, 3)],
        [(each, each) for each in range(1, 30_000, 97)],
    ],
    ids=["all", "one", "ranges", "near", "scattered"],
)
async def test_exactly_what_is_wanted(
    settings: ConnectionSettings, stream: Stream, wanted: Iterable[tuple[int, int]]
) -> None:
    sequences = Sequences.from_ranges(wanted)
    messages = await read(settings, stream, sequences)
    assert [message.sequence for message in messages] == list(sequences)
    assert all(int(message.data) == message.sequence for message in messages)
    assert messages[0].subject == b"direct.%d" % (messages[0].sequence % 3)


async def test_missing_messages_are_named_after_the_others_were_given(
    settings: ConnectionSettings, stream: Stream
) -> None:
    await stream.purge(sequence=3)
    await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": 7, "no_erase": True})
    created = (await stream.info()).created
    given: list[int] = []
    batches = direct.read(settings, stream.name, Sequences.from_ranges([(1, 100)]), created)
    with pytest.raises(MessagesMissing) as missing:
        given.extend(message.sequence for batch in batches for message in batch)
    assert missing.value.sequences == Sequences.of([1, 2, 7])
    assert given == [number for number in range(1, 101) if number not in (1, 2, 7)]
    with pytest.raises(MessagesMissing) as beyond:
        await read(settings, stream, Sequences.from_ranges([(29_999, 30_002)]))
    assert beyond.value.sequences == Sequences.of([30_001, 30_002])


async def test_large_messages_bound_the_answers_by_bytes(settings: ConnectionSettings, stream: Stream) -> None:
    publish_all(settings, [("direct.big", bytes([each]) * 700_000) for each in range(60)])
    messages = await read(settings, stream, Sequences.from_ranges([(30_001, 30_060)]))
    assert [message.sequence for message in messages] == list(range(30_001, 30_061))
    assert all(message.data == bytes([message.sequence - 30_001]) * 700_000 for message in messages)


async def test_only_the_users_headers_are_left(settings: ConnectionSettings, stream: Stream) -> None:
    publish_all(settings, [("direct.x", b"", {"Kind": ["a", "b"]})])
    (message,) = await read(settings, stream, Sequences.of([30_001]))
    assert (message.header, message.data) == (b"Kind: a\r\nKind: b\r\n", b"")


@pytest.mark.parametrize(
    "wanted", [[(1, 600)], [(each, each) for each in range(1, 30_000, 70)]], ids=["batches", "single messages"]
)
async def test_what_a_replica_lacks_is_read_from_the_leader_in_its_place(
    settings: ConnectionSettings, stream: Stream, wanted: list[tuple[int, int]]
) -> None:
    """A mirror answers direct gets of the stream too, and lacks a third of the messages."""
    config = {"name": "COPY", "mirror": {"name": stream.name}, "mirror_direct": True, "allow_direct": True}
    copy = await stream.js.create_stream(config)

    async def copied() -> bool:
        return bool((await copy.info()).state["messages"] == 30_000)

    await until(copied)
    await copy.purge(subject="direct.1")
    sequences = Sequences.from_ranges(wanted)
    with Wire.open(settings) as listener:
        listener.subscribe(f"$JS.API.STREAM.MSG.GET.{stream.name}")
        asked: list[Frame] = []
        while not asked:  # either of the two may answer a request
            messages = await read(settings, stream, sequences)
            assert [message.sequence for message in messages] == list(sequences)
            assert all(int(message.data) == message.sequence for message in messages)
            asked = listener.receive(0)
    await copy.delete()


async def test_another_stream_of_the_name_is_refused(settings: ConnectionSettings, stream: Stream) -> None:
    with pytest.raises(StreamRecreated):
        list(direct.read(settings, stream.name, Sequences.of([1]), "2020-01-01T00:00:00Z"))


async def test_a_stream_without_direct_get_is_refused(settings: ConnectionSettings, stream: Stream) -> None:
    await stream.update({"allow_direct": False})
    with pytest.raises(DirectGetDisabled, match="allow_direct"):
        await read(settings, stream, Sequences.of([1]))


@pytest.mark.parametrize("read", [direct.read, by_consumer.read], ids=["direct get", "consumer"])
def test_a_server_killed_twice_while_reading_gives_the_exact_set(tmp_path: Path, read: Any) -> None:
    server = NatsServer(tmp_path)
    server.start()
    restarts: list[threading.Timer] = []
    try:
        settings = ConnectionSettings(servers=server.url)

        async def create() -> str:
            async with connect(settings) as js:
                stream = await js.create_stream({"name": "S", "subjects": ["s"], "allow_direct": True})
                return (await stream.info()).created

        created = asyncio.run(create())
        publish_all(settings, (("s", b"x" * 200) for _ in range(50_000)))
        wait_for_messages(server, "S")
        received: list[int] = []
        strikes = [10_000, 30_000]
        for batch in read(settings, "S", Sequences.from_ranges([(1, 50_000)]), created):
            received += [message.sequence for message in batch]
            if strikes and len(received) > strikes[0]:
                strikes.pop(0)
                for restart in restarts:
                    restart.join()  # what has been read in advance may reach the next strike before the server is back
                server.kill()
                restarts.append(threading.Timer(0.3, server.start))
                restarts[-1].start()
        assert not strikes
        assert received == list(range(1, 50_001))
    finally:
        for restart in restarts:
            restart.join()
        server.stop()


def test_no_progress_for_too_long_says_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RESUMED_WITHIN", 0.5)
    nowhere = ConnectionSettings(servers="nats://127.0.0.1:1", connect_timeout=0.3)
    with pytest.raises(ConnectionLost, match="after sequence 0"):
        list(direct.read(nowhere, "S", Sequences.of([1]), ""))


async def test_a_wrong_password_is_not_tried_again(serve: Serve) -> None:
    wrong = ConnectionSettings(servers=serve(USER).url, user="airflow", password="wrong")
    with pytest.raises(AuthenticationFailed):
        list(direct.read(wrong, "S", Sequences.of([1]), ""))


def arrive(window: BatchWindow | GetWindow, number: int, frame: Frame) -> None:
    window.on_frames([frame._replace(subject=b"inbox.%d" % number)], "inbox")


def requests(window: BatchWindow | GetWindow) -> list[tuple[int, dict[str, int]]]:
    """The requests that are to be sent now, each with the number to which the answer goes."""
    lines = window.commands("GET", "inbox").split(b"\r\n")[:-1]
    found = [(line.split(), body) for line, body in zip(lines[::2], lines[1::2], strict=True)]
    assert all(int(words[3]) == len(body) for words, body in found)
    return [(int(words[2][6:]), json.loads(body)) for words, body in found]


def answer(sequence: int, size: int = 0) -> Frame:
    header = b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: x\r\n\r\n"
    return Frame(b"", 1, b"", header % sequence, b"x" * size)


def status(code: int) -> Frame:
    return Frame(b"", 1, b"", b"NATS/1.0 %d\r\n\r\n" % code, b"")


@pytest.mark.parametrize(
    ("kind", "words"),
    [(BatchWindow, "sequence 4, not 5 or higher"), (GetWindow, "sequence 4, which was not requested")],
)
def test_an_answer_with_another_sequence_is_refused(kind: type[BatchWindow | GetWindow], words: str) -> None:
    window = kind(Sequences.from_ranges([(5, 9)]))
    number = requests(window)[0][0]
    with pytest.raises(JetStreamError, match=words):
        arrive(window, number, answer(4))


@pytest.mark.parametrize("kind", [BatchWindow, GetWindow])
@pytest.mark.parametrize(
    ("code", "error"), [(503, JetStreamNotEnabled), (429, JetStreamNotEnabled), (408, JetStreamError)]
)
def test_refusals_are_errors_and_never_an_end(
    code: int, error: type[Exception], kind: type[BatchWindow | GetWindow]
) -> None:
    window = kind(Sequences.from_ranges([(5, 9)]))
    number = requests(window)[0][0]
    with pytest.raises(error, match=str(code)):
        arrive(window, number, status(code))


@given(
    kind=st.sampled_from([BatchWindow, GetWindow]),
    stored=st.sets(st.integers(1, 300)),
    wanted=st.sets(st.integers(1, 320), min_size=1),
    longest=st.integers(1, 60),
    choices=st.randoms(use_true_random=False),
)
def test_any_interleaving_gives_the_same_in_order(
    kind: type[BatchWindow | GetWindow], stored: set[int], wanted: set[int], longest: int, choices: random.Random
) -> None:
    """Answers are cut anywhere, and answers of several requests are mixed. Whatever is taken, what it leaves out up to
    its end is named as missing."""
    window = kind(Sequences.of(wanted))
    answers: dict[tuple[int, int], list[Frame]] = {}
    taken: list[int] = []
    missing: set[int] = set()
    through = 0
    while True:
        if some := window.take():
            new = [sequence for messages in some.messages for sequence in messages.sequences]
            lost = set(Sequences.from_ranges(some.missing))
            assert {*new} | lost == {each for each in wanted if through < each <= some.through}
            taken, missing, through = taken + new, missing | lost, some.through
        if window.done:
            break
        for number, asked in requests(window):
            sequence = asked["seq"]
            if "batch" not in asked:  # one message, which no status follows
                answers[number, sequence] = [answer(sequence) if sequence in stored else status(404)]
                continue
            found = sorted(each for each in stored if each >= sequence)[: min(asked["batch"], longest)]
            answers[number, sequence] = [*map(answer, found), status(204 if found else 404)]
        request = choices.choice(list(answers))
        arrive(window, request[0], answers[request].pop(0))
        if not answers[request]:
            del answers[request]
    assert taken == sorted(wanted & stored)
    assert missing == wanted - stored


def test_with_a_filter_a_message_is_not_requested_by_its_sequence() -> None:
    """The answer could come from behind the range."""
    window = BatchWindow(Sequences.of([5]), "a.*")
    assert requests(window) == [(1, {"seq": 5, "batch": 1, "max_bytes": MAX_BYTES, "next_by_subj": "a.*"})]


def test_what_may_be_on_its_way_is_bounded() -> None:
    window = BatchWindow(Sequences.from_ranges([(1, 1_000_000)]))
    assert len(requests(window)) == 2
    for sequence in range(BATCH + 1, BATCH + 9):  # the second answer waits for the first, and uses its share
        arrive(window, 2, answer(sequence, 1 << 20))
    arrive(window, 2, status(204))
    assert window.take() is None
    assert not requests(window)


def test_how_many_single_messages_may_be_on_their_way_follows_from_their_size() -> None:
    window = GetWindow(Sequences.of(range(1, 100_000, 2)), max_payload=8 << 20)
    assert requests(window) == [(1, {"seq": 1}), (1, {"seq": 3})]  # nothing is known yet
    arrive(window, 1, answer(3))
    asked = requests(window)
    assert {number for number, _ in asked} == {2}
    assert len(asked) == OUTSTANDING // SMALLEST - 2  # 3 waits for 1
    arrive(window, 1, answer(1, 1 << 20))
    taken = window.take()
    assert taken
    assert [list(messages.sequences) for messages in taken.messages] == [[1, 3]]
    assert not requests(window)
    for _, body in asked:
        arrive(window, 2, answer(body["seq"]))
    assert len(requests(window)) == 15  # the largest answer so far had 1 MiB and its headers


@settings_(max_examples=500)
@given(
    stored=st.sets(st.integers(1, 60)),
    wanted=st.sets(st.integers(1, 60), min_size=1),
    order=st.randoms(use_true_random=False),
    odd=st.sampled_from([None, "twice", "other", "unknown"]),
)
def test_answers_that_arrive_together_are_taken_like_single_ones(
    stored: set[int], wanted: set[int], order: random.Random, odd: str | None
) -> None:
    """Several servers answer, in any order. Odd answers are repeated ones, those with another sequence, and those on a
    subject that no request names."""
    together, single = GetWindow(Sequences.of(wanted), 1), GetWindow(Sequences.of(wanted), 1)
    asked = [(number, body["seq"]) for number, body in requests(together)]
    requests(single)
    order.shuffle(asked)
    answers = [
        (answer(sequence) if sequence in stored else status(404))._replace(subject=b"inbox.%d" % number)
        for number, sequence in asked
    ]
    if odd:
        number = {"twice": 1, "other": 1, "unknown": 7}[odd]
        sequence = 99 if odd == "other" else asked[0][1]
        answers.insert(order.randint(0, len(answers)), answer(sequence)._replace(subject=b"inbox.%d" % number))
    arrived = b"".join(
        b"HMSG %b 1 %d %d\r\n%b\r\n" % (each.subject, len(each.header), len(each.header), each.header)
        for each in answers
    )
    parser, size = Parser(), order.choice([50, 600, 1_000, 50_000])
    try:
        for at in range(0, len(arrived), size):
            for run in parser.cut(arrived[at : at + size]):
                assert isinstance(run, Run)
                together.on_run(run, "inbox")
        single.on_frames(answers, "inbox")
    except JetStreamError:
        assert odd == "other"
        return
    one, other = together.take(), single.take()
    assert (one is None) == (other is None)
    if one and other:
        assert [*chain(*one.messages)] == [*chain(*other.messages)]
        assert one[1:] == other[1:]
    assert together.done == single.done
    assert together.done or odd


def test_an_answer_that_is_repeated_counts_once() -> None:
    window = GetWindow(Sequences.of([1, 3, 5]))
    requests(window)
    for frame in (answer(1), answer(1), answer(5), answer(5)):
        arrive(window, 1, frame)
    taken = window.take()
    assert taken
    assert [list(messages.sequences) for messages in taken.messages] == [[1]]
    arrive(window, 1, status(404))
    assert (window.take(), window.done) == (
        Taken([RawMessages.of([answered_message(*answer(5)[3:])])], [(3, 3)], 5),
        True,
    )


OWN = [
    b"",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-Stream: X\r\n\r\n",
    b"NATS/1.0\r\nNats-Stream: X\r\nNats-Subject: x\r\nNats-Sequence: 9\r\nNats-Time-Stamp: y\r\n\r\n",
    b"NATS/1.0\r\nNats-Stream: X\r\nNats-Subject: x\r\nNats-Sequence: 9\r\nNats-Time-Stamp: y\r\n\r\nxy",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0\r\nA: 1",
    b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nA: Nats-Stream: X\r\n\r\n",
    b"NATS/1.0\r\nA: 1\n\r\n\r\n",
    b"NATS/1.0\r\n\nNats-Stream: X\r\n\r\n",
    b"NATS/1.0\r\nA: 1\rB: 2\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"A: 1\r\n\r\n",
    b"xy",
]
"""Header blocks that a publisher can send."""


@settings_(max_examples=300)
@given(st.lists(st.sampled_from(OWN), min_size=1, max_size=6), st.sampled_from([b"", b"Nats-Num-Pending: 1\r\n"]))
def test_what_is_parsed_at_once_is_what_is_parsed_one_by_one(blocks: list[bytes], more: bytes) -> None:
    """The server replaces the last two bytes of the publisher's header block by its lines."""
    added = b"Nats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: x\r\n%b\r\n"
    headers = [(block[:-2] or b"NATS/1.0\r\n") + added % (number, more) for number, block in enumerate(blocks)]
    data = [b"%d" % number for number in range(len(blocks))]
    bodies = [each + text for each, text in zip(headers, data, strict=True)]
    lines = [b"HMSG i.1 7 %d %d" % (len(each), len(body)) for each, body in zip(headers, bodies, strict=True)]
    frames = Run(lines, bodies).frames()
    arrived = b"".join(b"%b\r\n%b\r\n" % each for each in zip(lines, bodies, strict=True))
    assert Parser().feed(arrived) == frames
    usual = not more and all(block in OWN[:4] for block in blocks)
    runs = [run for run in Parser().cut(arrived) if isinstance(run, Run)]
    assert usual <= (len(runs) == 1 and isinstance(runs[0], AnswerRun))
    for answers in [Run(lines, bodies).answers(), *(run.answers() for run in runs if len(runs) == 1)]:
        assert usual <= (answers is not None)
        if answers:
            found = (map(int, answers.sequences), answers.subjects, answers.times, answers.headers, answers.data)
            expected = [answered_message(*each) for each in zip(headers, data, strict=True)]
            assert list(map(RawMessage._make, zip(*found, strict=True))) == expected


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(1, 100_000)], [(True, 100_000)]),
        ([(1, LONG)], [(True, LONG)]),
        ([(1, LONG - 1)], [(False, LONG - 1)]),
        ([(each, each) for each in range(1, 8_001, 8)], [(False, 1_000)]),  # one key of eight
        ([(each, each) for each in range(1, 8_001, 2)], [(False, 4_000)]),
        ([(each, each + 48) for each in range(1, 5_001, 50)], [(True, 4_900)]),  # every 50th was rejected
        ([(each, each + 3) for each in range(1, 5_001, 5)], [(True, 4_000)]),
        ([(each, each + 2) for each in range(1, 5_001, 4)], [(False, 3_750)]),
        ([(1, 10_000), (10_100, 20_000)], [(True, 19_901)]),  # two ranges, and one window
        ([(1, 10_000), (10_100, 10_200)], [(True, 10_000), (False, 101)]),
        ([(3, 3), (7, 8), (1_001, 9_000), (20_000, 20_000)], [(False, 3), (True, 8_000), (False, 1)]),
    ],
)
def test_which_sequences_are_read_by_batches(ranges: list[tuple[int, int]], expected: list[tuple[bool, int]]) -> None:
    wanted = Sequences(tuple(ranges))
    found = direct.pieces(wanted, in_memory=False)
    assert [(piece.batched, piece.sequences.count) for piece in found] == expected
    assert [each for piece in found for each in piece.sequences.ranges] == ranges
    # Before a batch, the server counts the messages of a memory stream that are behind it.
    assert direct.pieces(wanted, in_memory=True) == ([(False, wanted)] if ranges else [])


async def test_a_stream_with_most_messages_deleted_is_not_read_over_and_over(serve: Serve) -> None:
    monitor = free_port()
    server = serve(f'http: "127.0.0.1:{monitor}"')

    def sent() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz") as page:
            return int(json.load(page)["out_msgs"])

    settings = ConnectionSettings(servers=server.url)
    async with connect(settings) as here:
        config = {"name": "SPARSE", "subjects": ["sparse.*"], "allow_direct": True, "max_msgs_per_subject": 1}
        stream = await here.create_stream(config)
        subjects = (f"sparse.{number if number % 8 == 0 else 'same'}" for number in range(1, 120_001))
        publish_all(settings, ((subject, b"") for subject in subjects))
        wanted = Sequences.of(range(8, 120_001, 8))
        before = sent()
        assert [message.sequence for message in await read(settings, stream, wanted)] == list(wanted)
        assert sent() - before < 3 * wanted.count


async def test_what_exists_is_the_same_listed_and_read(
    settings: ConnectionSettings, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps of all lengths, also at the beginning and the end of what is asked for, and behind the stream."""
    await stream.purge(subject="direct.1")
    await stream.purge(sequence=3_000, subject="direct.2")
    stored = {each for each in range(1, 30_001) if each % 3 == 0 or (each % 3 == 2 and each >= 3_000)}
    for each in stored & {*range(5_000, 5_060), *range(9_000, 9_060), *range(29_000, 29_060)}:
        await stream.delete_message(each)
        stored.remove(each)
    edges = [1, 2, 2_999, 3_000, 5_010, 5_061, 9_030, 29_999, 30_000, 40_000]
    ranges = [(first, last) for first in edges for last in edges]

    def found() -> list[Sequences]:
        with Wire.open(settings) as wire:
            info = direct.stream_info(wire, stream.name)
            return [direct.existing(wire, info, first, last) for first, last in ranges]

    right = [Sequences.of(sorted(each for each in stored if first <= each <= last)) for first, last in ranges]
    assert await asyncio.to_thread(found) == right
    monkeypatch.setattr(direct, "LISTED_AT_ONCE", 0)
    monkeypatch.setattr(direct, "LISTED_PER_READ", 0)
    assert await asyncio.to_thread(found) == right


def test_the_server_lists_deleted_messages_if_that_is_faster_and_possible() -> None:
    assert direct.listable(10_000, 1)
    assert not direct.listable(1_000_000, 1_000)
    assert direct.listable(1_000_000, 100_000)
    assert not direct.listable(8_000_000, 10_000_000)
