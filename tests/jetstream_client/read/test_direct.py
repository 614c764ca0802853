"""Reading by direct get: exactly the wanted messages, or the missing ones by name."""

import asyncio
import json
import random
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
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
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire import attempts
from jetstream_client.wire.parser import Frame
from tests.jetstream_client.disk import wait_for_messages
from tests.jetstream_client.servers import USER, Serve


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


def arrive(window: direct.DirectWindow, number: int, frame: Frame) -> None:
    window.on_frames([frame._replace(subject=b"inbox.%d" % number)], skip=len("inbox."))


def answer(sequence: int, size: int = 0) -> Frame:
    header = b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: x\r\n\r\n"
    return Frame(b"", 1, b"", header % sequence, b"x" * size)


def status(code: int) -> Frame:
    return Frame(b"", 1, b"", b"NATS/1.0 %d\r\n\r\n" % code, b"")


def test_an_answer_that_goes_backwards_is_refused() -> None:
    window = direct.DirectWindow(Sequences.from_ranges([(5, 9)]))
    assert window.next_request()
    with pytest.raises(JetStreamError, match="sequence 4"):
        arrive(window, 1, answer(4))


@pytest.mark.parametrize(
    ("code", "error"), [(503, JetStreamNotEnabled), (429, JetStreamNotEnabled), (408, JetStreamError)]
)
def test_refusals_are_errors_and_never_an_end(code: int, error: type[Exception]) -> None:
    window = direct.DirectWindow(Sequences.from_ranges([(5, 9)]))
    assert window.next_request()
    with pytest.raises(error, match=str(code)):
        arrive(window, 1, status(code))


@given(
    stored=st.sets(st.integers(1, 300)),
    wanted=st.sets(st.integers(1, 320), min_size=1),
    longest=st.integers(1, 60),
    choices=st.randoms(use_true_random=False),
)
def test_any_interleaving_gives_the_same_in_order(
    stored: set[int], wanted: set[int], longest: int, choices: random.Random
) -> None:
    """Answers are cut anywhere, answers of several requests are mixed, and the connection is lost sometimes."""
    window = direct.DirectWindow(Sequences.of(wanted))
    window.restart(1 << 20)
    answers: dict[int, list[Frame]] = {}
    taken: list[int] = []
    while True:
        taken += [message.sequence for message in window.take()]
        if window.done:
            break
        while request := window.next_request():
            number, body = request
            asked = json.loads(body)
            if "batch" not in asked:  # one message, which no status follows
                found = [asked["seq"]] if asked["seq"] in stored else []
                answers[number] = [*map(answer, found)] or [status(404)]
                continue
            found = sorted(each for each in stored if each >= asked["seq"])[: min(asked["batch"], longest)]
            answers[number] = [*map(answer, found), status(204 if found else 404)]
        number = choices.choice(list(answers))
        arrive(window, number, answers[number].pop(0))
        if not answers[number]:
            del answers[number]
        if choices.random() < 0.02:
            answers.clear()
            window.restart(1 << 20)
    assert taken == sorted(wanted & stored)
    assert set(window.missing) == wanted - stored


def test_one_message_is_requested_by_its_sequence() -> None:
    """The server counts the messages behind a batch, which takes milliseconds in a large memory stream."""
    window = direct.DirectWindow(Sequences.from_ranges([(5, 5), (100, 101)]))
    bodies = [json.loads(request[1]) for request in iter(window.next_request, None)]
    assert bodies == [{"seq": 5}, {"seq": 100, "batch": 2, "max_bytes": direct.MAX_BYTES}]
    filtered = direct.DirectWindow(Sequences.of([5]), "a.*").next_request()
    assert filtered is not None
    assert json.loads(filtered[1])["batch"] == 1  # without it, the answer could come from behind the range


def test_what_may_be_on_its_way_is_bounded() -> None:
    window = direct.DirectWindow(Sequences.from_ranges([(1, 1_000_000)]))
    requests = [window.next_request(), window.next_request()]
    assert all(requests)
    assert window.next_request() is None
    for sequence in range(
        direct.BATCH + 1, direct.BATCH + 9
    ):  # the second answer waits for the first, and uses its share
        arrive(window, 2, answer(sequence, 1 << 20))
    arrive(window, 2, status(204))
    assert window.take() == []
    assert window.next_request() is None


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
