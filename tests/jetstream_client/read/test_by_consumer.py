"""Reading with a consumer without acknowledgements: exactly the wanted messages, and no consumer remains."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as settings_
from hypothesis import strategies as st

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.pull_window import PullWindow
from jetstream_client.errors import ConsumerRefused, JetStreamError, MessagesMissing, PermissionDenied, StreamRecreated
from jetstream_client.publish.bulk import publish_all
from jetstream_client.publish.position import Position, find
from jetstream_client.read import by_consumer
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.parser import Parser
from jetstream_client.wire.protocol import encode_publish
from jetstream_client.wire.run import Frame, Run
from tests.jetstream_client.disk import wait_for_messages
from tests.jetstream_client.losing import lose_a_delivery
from tests.jetstream_client.servers import Serve

COUNT = 30_000


@pytest.fixture
async def stream(settings: ConnectionSettings) -> AsyncIterator[Stream]:
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "DELIVERY", "subjects": ["delivery.>"], "allow_direct": True})
        messages = ((f"delivery.{number % 3}", b"%d" % number, {"K": f"{number}"}) for number in range(1, COUNT + 1))
        publish_all(settings, messages)
        yield stream
        await stream.delete()


async def read(
    settings: ConnectionSettings,
    stream: Stream,
    wanted: Sequences,
    subject: str | None = None,
    *,
    headers_only: bool = False,
) -> list[RawMessage]:
    created = (await stream.info()).created
    batches = by_consumer.read(
        settings,
        stream.name,
        wanted,
        created,
        subjects=() if subject is None else (subject,),
        headers_only=headers_only,
    )
    return [message for batch in batches for message in batch]


@pytest.mark.parametrize(
    "wanted",
    [
        [(1, COUNT)],
        [(5, 5)],
        [(COUNT, COUNT)],
        [(2, 3), (5, 9), (500, 20_700)],
        [(each, each) for each in range(2, COUNT, 3)],
    ],
    ids=["all", "one", "last", "ranges", "scattered"],
)
async def test_exactly_what_is_wanted(
    settings: ConnectionSettings, stream: Stream, wanted: list[tuple[int, int]]
) -> None:
    sequences = Sequences.from_ranges(wanted)
    messages = await read(settings, stream, sequences)
    assert [message.sequence for message in messages] == list(sequences)
    assert all(message.data == b"%d" % message.sequence for message in messages)
    assert all(message.header == b"K: %d\r\n" % message.sequence for message in messages)
    assert all(message.subject == b"delivery.%d" % (message.sequence % 3) for message in messages)
    stored = await stream.js.api(f"STREAM.MSG.GET.{stream.name}", {"seq": messages[0].sequence})
    assert int(messages[0].time) == time_nanoseconds(stored["message"]["time"])
    for _ in range(100):  # the server is asked to delete it, without waiting
        if not (left := (await stream.info()).state["consumer_count"]):
            break
        await asyncio.sleep(0.05)
    assert left == 0


async def test_a_filter_leaves_out_what_it_does_not_match(settings: ConnectionSettings, stream: Stream) -> None:
    messages = await read(settings, stream, Sequences.from_ranges([(10, 20_000)]), "delivery.1")
    assert [message.sequence for message in messages] == list(range(10, 20_001, 3))
    assert await read(settings, stream, Sequences.from_ranges([(10, 20_000)]), "delivery.none") == []


async def test_deleted_messages_are_named_after_the_others(settings: ConnectionSettings, stream: Stream) -> None:
    for sequence in (7, 20_000, COUNT):
        await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence, "no_erase": True})
    received: list[int] = []
    created = (await stream.info()).created

    def read_all() -> None:
        for batch in by_consumer.read(settings, stream.name, Sequences.from_ranges([(1, COUNT)]), created):
            received.extend(message.sequence for message in batch)

    with pytest.raises(MessagesMissing) as lost:
        read_all()
    assert list(lost.value.sequences) == [7, 20_000, COUNT]
    assert received == [number for number in range(1, COUNT) if number not in (7, 20_000)]


@pytest.mark.parametrize("step", [1, 2])
async def test_what_the_consumer_lacks_is_read_from_the_leader_in_its_place(
    settings: ConnectionSettings, stream: Stream, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The consumer may be on a server that lags behind the leader. Here it has a filter that the reader does not know
    of."""
    api = Wire.api

    def filtered(wire: Wire, request: str, payload: Any = None) -> Any:
        if request.startswith("CONSUMER.CREATE."):
            payload["config"]["filter_subjects"] = ["delivery.0", "delivery.2"]
        return api(wire, request, payload)

    monkeypatch.setattr(Wire, "api", filtered)
    wanted = Sequences.of(range(1, COUNT + 1, step)) - Sequences.from_ranges([(150, COUNT - 150)])
    messages = await read(settings, stream, wanted)
    assert [message.sequence for message in messages] == list(wanted)
    assert all(message.data == b"%d" % message.sequence for message in messages)


async def test_another_stream_of_the_name_is_refused(settings: ConnectionSettings, stream: Stream) -> None:
    with pytest.raises(StreamRecreated):
        list(by_consumer.read(settings, stream.name, Sequences.of([1]), "2020-01-01T00:00:00Z"))


async def test_a_stream_that_takes_no_more_consumers_says_so(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        config = {"name": "FULL", "subjects": ["full"], "allow_direct": True, "max_consumers": 1}
        stream = await js.create_stream(config)
        await js.api("CONSUMER.CREATE.FULL.c", {"stream_name": "FULL", "config": {"durable_name": "c", "name": "c"}})
        publish_all(settings, [("full", b"")])
        with pytest.raises(ConsumerRefused, match="maximum consumers"):
            await read(settings, stream, Sequences.of([1]))
        await stream.delete()


async def test_a_lost_delivery_is_read_again(
    settings: ConnectionSettings, stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = lose_a_delivery(monkeypatch)
    messages = await read(settings, stream, Sequences.from_ranges([(1, COUNT)]))
    assert lost
    assert [message.sequence for message in messages] == list(range(1, COUNT + 1))
    assert "is missing" in caplog.text


async def test_a_consumer_that_is_refused_in_the_middle_gives_nothing_twice(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        config = {"name": "ONE", "subjects": ["one"], "allow_direct": True, "max_consumers": 1}
        stream = await js.create_stream(config)
        created = (await stream.info()).created
        await asyncio.to_thread(publish_all, settings, (("one", b"x" * 500) for _ in range(COUNT)))
        reading = by_consumer.read(settings, "ONE", Sequences.from_ranges([(1, COUNT)]), created)
        received = [message.sequence for message in await asyncio.to_thread(next, reading)]
        (name,) = (await js.api("CONSUMER.NAMES.ONE"))["consumers"]
        await js.api(f"CONSUMER.DELETE.ONE.{name}")
        await js.api("CONSUMER.CREATE.ONE.c", {"stream_name": "ONE", "config": {"durable_name": "c", "name": "c"}})
        rest = asyncio.create_task(
            asyncio.to_thread(lambda: [message.sequence for batch in reading for message in batch])
        )
        await asyncio.sleep(2)
        assert not rest.done()
        await js.api("CONSUMER.DELETE.ONE.c")
        assert received + await rest == list(range(1, COUNT + 1))
        await stream.delete()


def filled(settings: ConnectionSettings) -> str:
    """Create the stream S with ``COUNT`` messages. Returns its creation time."""
    with Wire.open(settings) as wire:
        config = {"name": "S", "subjects": ["s"], "allow_direct": True}
        created = str(wire.api("STREAM.CREATE.S", config)["created"])
    publish_all(settings, [("s", b"x" * 500)] * COUNT)
    return created


@pytest.mark.parametrize("limit", [7, 5_000])
def test_a_server_that_limits_requests_gets_no_larger_ones(serve: Serve, limit: int) -> None:
    server = serve(f"jetstream {{ limits {{ max_request_batch: {limit} }} }}")
    settings = ConnectionSettings(servers=server.url)
    created = filled(settings)
    reading = by_consumer.read(settings, "S", Sequences.from_ranges([(1, COUNT)]), created)
    assert [sequence for batch in reading for sequence in batch.sequences] == list(range(1, COUNT + 1))


def test_a_consumer_that_is_no_longer_permitted_in_the_middle_gives_nothing_twice(tmp_path: Path) -> None:
    def allowed(publish: str) -> str:
        return f"authorization {{ users: [{{ user: u, password: p, permissions: {{ publish: {publish} }} }}] }}"

    server = NatsServer(tmp_path, allowed('">"'))
    server.start()
    try:
        settings = ConnectionSettings(servers=server.url, user="u", password="p")
        reading = by_consumer.read(settings, "S", Sequences.from_ranges([(1, COUNT)]), filled(settings))
        received = [message.sequence for message in next(reading)]
        server.stop()
        denied = '{ allow: ">", deny: "$JS.API.CONSUMER.CREATE.>" }'
        server = NatsServer(tmp_path, allowed(denied), port=server.port)
        server.start()

        def read_on() -> None:
            for batch in reading:
                received.extend(message.sequence for message in batch)

        with pytest.raises(PermissionDenied):  # and not ConsumerRefused, after which direct get would begin again
            read_on()
        assert received == list(range(1, len(received) + 1))
        assert len(received) < COUNT
    finally:
        server.stop()


BLOCKS = [
    b"",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Size: 7\r\n\r\n",  # the publisher's header, which is kept
    b"NATS/1.0\r\nNats-Msg-Size: 7\r\nA: 1\r\nNats-Msg-Size: 9\r\n\r\n",
    b"NATS/1.0\r\nnats-msg-size: 7\r\n\r\n",
    b"NATS/1.0\r\nA: Nats-Msg-Size: 5\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0\r\nA: 1",
    b"NATS/1.0\r\nA: 1\r\n",
    b"Nats-Msg-Size: 5\r\n",
    b"xy",
]


def publish_blocks(settings: ConnectionSettings, subject: str, blocks: list[bytes]) -> None:
    with Wire.open(settings) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(inbox)
        wire.send(*(encode_publish(subject, inbox, b"data", block) for block in blocks))
        answers = 0
        while answers < len(blocks):
            answers += len(wire.receive(5))


@pytest.mark.parametrize("direct", [False, True], ids=["leader", "direct get"])
async def test_headers_are_the_same_whichever_way_a_message_is_read(
    settings: ConnectionSettings, stream: Stream, direct: bool
) -> None:
    publish_blocks(settings, "delivery.x", BLOCKS)
    for message in await read(settings, stream, Sequences.from_ranges([(COUNT + 1, COUNT + len(BLOCKS))])):
        one = await stream.get_message(message.sequence, direct=direct)
        assert (one.headers, one.data) == (message.decoded().headers, b"data")


async def test_headers_only_says_the_same_but_the_data(settings: ConnectionSettings, stream: Stream) -> None:
    publish_blocks(settings, "delivery.x", BLOCKS)
    wanted = Sequences.from_ranges([(COUNT - 9, COUNT + len(BLOCKS))])
    whole = await read(settings, stream, wanted)
    assert [message.data for message in whole[10:]] == [b"data"] * len(BLOCKS)
    expected = [message._replace(data=b"") for message in whole]
    assert await read(settings, stream, wanted, headers_only=True) == expected
    filtered = await read(settings, stream, wanted, "delivery.x", headers_only=True)
    assert filtered == expected[10:]


@pytest.mark.server("2.14")
def test_a_header_block_that_ends_the_server_ends_it_once(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    restarts = 0
    over = threading.Event()

    def supervise() -> None:
        nonlocal restarts
        while not over.wait(0.05):
            if not server.running:
                restarts += 1
                server.launch()

    supervisor = threading.Thread(target=supervise)
    try:
        settings = ConnectionSettings(servers=server.url)

        async def create() -> str:
            async with connect(settings) as js:
                stream = await js.create_stream({"name": "S", "subjects": ["s"], "allow_direct": True})
                return (await stream.info()).created

        created = asyncio.run(create())
        publish_all(settings, (("s", b"x" * 200) for _ in range(20_000)))
        publish_blocks(settings, "s", [b"x"])  # one byte
        publish_all(settings, (("s", b"x" * 200) for _ in range(20_000)))
        wait_for_messages(server, "S")
        supervisor.start()
        wanted = Sequences.from_ranges([(1, 40_001)])
        batches = by_consumer.read(settings, "S", wanted, created, headers_only=True)
        received = [message.sequence for batch in batches for message in batch]
        assert restarts == 1
        with Wire.open(settings) as wire:
            config = {"name": "S", "subjects": ["s"], "allow_direct": False}
            wire.api("STREAM.UPDATE.S", config)
        found = find(settings, Position("S", created, 0, created))  # it also reads with a consumer
    finally:
        over.set()
        if supervisor.is_alive():
            supervisor.join()
        server.stop()
    # An error of nats-server 2.15.1: when it is fixed, the guard in by_consumer.py can be removed.
    assert restarts == 2
    assert (found.ids, found.unclear) == ({}, "")
    assert received == list(range(1, 40_002))


ODD = ("gap", "again", "lost", "status", "header", "domain", "nowhere", "short")


@st.composite
def deliveries(draw: st.DrawFn) -> list[Frame]:
    """A consumer's deliveries from sequence 1 or 3 on, with up to two rare deviations."""
    count = draw(st.integers(1, 6))
    odd = draw(st.lists(st.tuples(st.integers(0, count - 1), st.sampled_from(ODD)), max_size=2))
    header = draw(st.sampled_from([b"", b"NATS/1.0\r\nA: 1\r\n\r\n"]))
    frames, sequence, counter = [], draw(st.sampled_from([0, 2])), 0
    for place in range(count):
        kinds = {kind for number, kind in odd if number == place}
        sequence += 2 if "gap" in kinds else 0 if "again" in kinds else 1
        counter += 2 if "lost" in kinds else 1
        block = b"NATS/1.0 100 Idle\r\n\r\n" if "status" in kinds else b"x" if "header" in kinds else header
        front = (
            b"$JS.ACK.d.h.S.c.1" if "domain" in kinds else b"$JS.FC.S.c.1" if "status" in kinds else b"$JS.ACK.S.c.1"
        )
        reply = b"" if "nowhere" in kinds else b"%b.%d.%d.170.%d" % (front, sequence, counter, draw(st.integers(0, 3)))
        if "short" in kinds:
            reply = reply.rpartition(b".170.")[0]
        frames.append(Frame(b"in.1", 1, reply, block, b"data"))
    return frames


def as_runs(frames: list[Frame]) -> list[Run]:
    """The deliveries as they arrive over the connection."""
    verb = b"HMSG" if any(frame.header for frame in frames) else b"MSG"
    arrived = b""
    for frame in frames:
        sizes = [len(frame.header)] if verb == b"HMSG" else []
        words = [verb, frame.subject, b"%d" % frame.sid, frame.reply]
        sizes.append(len(frame.header + frame.data))
        line = b" ".join([*filter(None, words), *(b"%d" % size for size in sizes)])
        arrived += b"%b\r\n%b%b\r\n" % (line, frame.header, frame.data)
    return [run for run in Parser().cut(arrived) if isinstance(run, Run)]


USUAL = [Frame(b"s.a", 1, b"$JS.ACK.S.c.1.%d.%d.170.9" % (each, each), b"", b"data") for each in range(1, 6)]


# Seven and eleven tokens: four and six after the common beginning.
UNEVEN = [
    [Frame(b"s.a", 1, reply, b"", b"data") for reply in replies]
    for replies in (
        (b"$JS.ACK.S.c.1.1.1", b"$JS.ACK.d.h.S.c.1.2.2.170.0"),
        (b"$JS.ACK.S.c.1.1.1.170.0", b"$JS.ACK.S.c.1.2", b"2.2.170.3.3.170.0"),
        (b"$JS.ACK.S.c.1.1.1.170.0", b"$JS.ACK.S.c.1.2.2.170", b"3.3.3.170.0"),
    )
]


@settings_(max_examples=400)
@example(USUAL, [(1, 100)], None)
@example(UNEVEN[0], [(1, 100)], None)
@example(UNEVEN[1], [(1, 100)], None)
@example(UNEVEN[2], [(1, 100)], None)
@given(
    deliveries(),
    st.sampled_from([[(1, 5)], [(1, 100)], [(3, 100)], [(1, 2), (4, 100)]]),
    st.sampled_from([None, "s.*"]),
)
def test_what_is_taken_at_once_is_what_is_taken_one_by_one(
    frames: list[Frame], wanted: list[tuple[int, int]], subject: str | None
) -> None:
    def reading() -> by_consumer._Reading:
        subjects = () if subject is None else (subject,)
        return by_consumer._Reading(ConnectionSettings(), "S", Sequences.from_ranges(wanted), subjects, False)

    quick, careful = reading(), reading()
    at_once: list[RawMessage] = []
    refused = False
    for run in as_runs(frames):
        before = dict(vars(quick))
        taken = quick._next_in_line(run)
        if taken is None:
            assert vars(quick) == before
            refused = True
            break
        at_once += taken
    one_by_one: list[RawMessage] = []
    window = PullWindow(100, now=0)
    try:
        careful._one_by_one(frames, window, one_by_one, headers_only=False)
    except JetStreamError:
        assert refused
    if refused:
        assert frames is not USUAL
    else:
        assert at_once == one_by_one
        assert {**vars(quick), "_wanted": None} == {**vars(careful), "_wanted": None}
        assert window.missing == 100 - len(frames)


async def test_the_server_applies_several_filters(settings: ConnectionSettings, stream: Stream) -> None:
    """Also where the last messages of the range match none of them, and one that a replica lacked is confirmed."""
    await stream.js.publish("delivery.9", b"")
    created = (await stream.info()).created
    wanted = Sequences.from_ranges([(2, COUNT - 10), (COUNT, COUNT + 1)])
    for subjects in (("delivery.0", "delivery.2"), ("delivery.7", "delivery.8")):
        batches = by_consumer.read(settings, stream.name, wanted, created, subjects=subjects)
        found = [(message.sequence, message.subject.decode()) for batch in batches for message in batch]
        expected = [(number, f"delivery.{number % 3}") for number in wanted if number <= COUNT]
        assert found == [each for each in expected if each[1] in subjects]


async def test_filters_that_overlap_are_refused_by_the_server(settings: ConnectionSettings, stream: Stream) -> None:
    created = (await stream.info()).created
    with pytest.raises(ConsumerRefused, match="overlap"):
        list(by_consumer.read(settings, stream.name, Sequences.of([1]), created, subjects=("delivery.>", "delivery.1")))
