"""Bulk publishing: the stream has every message afterwards, or the first failure is named."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    HeartbeatMissed,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabledForAccount,
    NoStreamResponse,
    PublishFailed,
    RequestTimeout,
    WrongStream,
)
from jetstream_client.publish.bulk import Publishable, publish_all
from jetstream_client.publish.ids import MessageIds
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.publish.window import PublishWindow
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import ANSWERED_WITHIN
from tests.jetstream_client.servers import Serve
from tests.jetstream_client.until import SOON


class Disabled(NatsServer):
    """A server without JetStream."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.command = [each for each in self.command if each not in ("--jetstream", "--store_dir", str(self.store))]


@pytest.fixture
async def stream(settings: ConnectionSettings) -> AsyncIterator[Stream]:
    async with connect(settings) as js:
        name = f"S{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "max_msg_size": 10_000})
        yield stream
        await stream.delete()


def numbered(stream: Stream, count: int) -> Iterator[Publishable]:
    for number in range(count):
        yield f"{stream.name}.{number % 7}", json.dumps(number).encode()


async def contents(stream: Stream) -> list[bytes]:
    count = (await stream.info()).state["messages"]
    reader = await stream.create_consumer({"ack_policy": "none"})
    return [message.data for message in (await reader.fetch(count) if count else [])]


async def test_everything_in_order_and_a_repeat_stores_nothing(settings: ConnectionSettings, stream: Stream) -> None:
    reported: list[int] = []
    published = publish_all(
        settings, numbered(stream, 5_000), stream=stream.name, scope="run", progress=reported.append
    )
    assert (published.stored, published.duplicates, published.first, published.last) == (5_000, 0, 1, 5_000)
    assert reported[-1] == 5_000
    assert published.in_order
    assert [json.loads(data) for data in await contents(stream)] == list(range(5_000))
    again = publish_all(settings, numbered(stream, 5_000), stream=stream.name, scope="run")
    assert (again.stored, again.duplicates) == (0, 5_000)
    other = publish_all(settings, numbered(stream, 10), stream=stream.name, scope="another run")
    assert other.stored == 10


async def test_equal_messages_are_messages_of_their_own(settings: ConnectionSettings, stream: Stream) -> None:
    messages = [(f"{stream.name}.x", b"same")] * 50
    assert publish_all(settings, messages, stream=stream.name, scope="run").stored == 50
    assert publish_all(settings, messages, stream=stream.name, scope="run").duplicates == 50


async def test_headers_with_several_values_arrive(settings: ConnectionSettings, stream: Stream) -> None:
    publish_all(settings, [(f"{stream.name}.x", b"", {"Kind": ["a", "b"], "Nats-Msg-Id": "mine"})], scope="run")
    stored = await stream.get_message(1)
    assert stored.headers == {"Kind": ["a", "b"], "Nats-Msg-Id": ["mine"]}


async def test_one_refused_message_among_many_is_named(settings: ConnectionSettings, stream: Stream) -> None:
    def messages() -> Iterator[Publishable]:
        for number in range(20_000):
            yield f"{stream.name}.x", b"x" * (20_000 if number == 7_000 else 10)

    with pytest.raises(PublishFailed) as failed:
        publish_all(settings, messages(), stream=stream.name, scope="run")
    assert (failed.value.position, failed.value.subject) == (7_000, f"{stream.name}.x")
    assert isinstance(failed.value.cause, ApiError)
    assert failed.value.stored == (await stream.info()).state["messages"] >= 7_000


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (("nobody.listens", b""), NoStreamResponse),
        (("a b", b""), InvalidValue),
        (("a.*", b""), InvalidValue),
        (("x.y", "text"), InvalidValue),
        (("x.y",), InvalidValue),
        (("x.y", b"", {"a\n": "b"}), InvalidValue),
        (("x.y", b"x" * 2_000_000), InvalidValue),
        (("x." + 4_000 * "y", b""), InvalidValue),
    ],
)
async def test_bad_messages(
    settings: ConnectionSettings, stream: Stream, bad: Publishable, cause: type[Exception]
) -> None:
    with pytest.raises(PublishFailed) as failed:
        publish_all(settings, [(f"{stream.name}.x", b"1"), bad], scope="run")
    assert (failed.value.position, failed.value.stored) == (1, 1)
    assert isinstance(failed.value.cause, cause)


@pytest.mark.parametrize("error", [ConnectionLost("lost"), RequestTimeout("late"), HeartbeatMissed(2.0)], ids=repr)
async def test_an_input_that_fails_is_not_taken_for_a_lost_connection(
    settings: ConnectionSettings, stream: Stream, error: JetStreamError
) -> None:
    """A generator cannot be read again: publishing would end as if it had been complete."""

    def broken(after: int) -> Iterator[Publishable]:
        yield from numbered(stream, after)
        raise error

    with pytest.raises(PublishFailed) as failed:
        publish_all(settings, broken(300), stream=stream.name)
    assert (failed.value.position, failed.value.stored, failed.value.cause) == (300, 300, error)
    with pytest.raises(PublishFailed, match=r"message 0 .* publishing was stopped"):
        publish_all(settings, broken(0), stream=stream.name, stop=lambda: True)


async def test_a_subject_of_another_stream_is_refused(settings: ConnectionSettings, stream: Stream) -> None:
    with pytest.raises(PublishFailed) as failed:
        publish_all(settings, [(f"{stream.name}.x", b"")], stream="OTHER")
    assert isinstance(failed.value.cause, WrongStream)


def test_jetstream_that_is_disabled_is_named_at_once(serve: Serve, tmp_path: Path) -> None:
    without = serve(
        "accounts { A { users: [{user: a, password: a}] }, B { jetstream: enabled } , S {} }\nsystem_account: S"
    )
    settings = ConnectionSettings(servers=without.url, user="a", password="a")
    start = time.monotonic()
    with pytest.raises(PublishFailed, match=r"not enabled for account .* enable JetStream for this account") as failed:
        publish_all(settings, [("x.y", b"")] * 10, stream="ORDERS")
    assert isinstance(failed.value.cause, JetStreamNotEnabledForAccount)
    disabled = Disabled(tmp_path)
    disabled.start()
    try:
        with pytest.raises(PublishFailed, match=r"no server answers '\$JS.API.INFO'; enable JetStream") as failed:
            publish_all(ConnectionSettings(servers=disabled.url), [("x.y", b"")] * 10)
    finally:
        disabled.stop()
    assert (failed.value.position, failed.value.stored) == (0, 0)
    assert time.monotonic() - start < SOON


async def test_stopping_ends_as_failed(settings: ConnectionSettings, stream: Stream) -> None:
    stop = threading.Event()
    with pytest.raises(PublishFailed, match="stopped"):
        publish_all(
            settings,
            numbered(stream, 10**9),
            progress=lambda count: stop.set() if count > 1_000 else None,
            stop=stop.is_set,
        )


async def test_stopping_while_no_server_answers(mortal: NatsServer, on_mortal: JetStream, name: str) -> None:
    """A killed task must not wait for a minute for a server that is gone."""
    stream = await on_mortal.create_stream({"name": name, "subjects": [f"{name}.>"]})
    stop = threading.Event()

    def input_of(count: int) -> Iterator[Publishable]:
        yield from numbered(stream, count)
        mortal.kill()
        stop.set()
        yield (f"{name}.last", b"")

    settings = ConnectionSettings(servers=mortal.url, connect_timeout=0.5)
    start = time.monotonic()
    with pytest.raises(PublishFailed):
        await asyncio.to_thread(publish_all, settings, input_of(2_000), stop=stop.is_set)
    assert time.monotonic() - start < SOON


def test_a_server_killed_while_publishing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "jetstream { sync_interval: always }")
    server.start()
    settings = ConnectionSettings(servers=server.url)

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream({"name": "S", "subjects": ["S.>"]})

    async def stored() -> list[bytes]:
        async with connect(settings) as js:
            return await contents(js.stream("S"))

    strikes: list[threading.Thread] = []

    def strike() -> None:
        server.kill()
        time.sleep(0.5)
        server.start()

    def progress(count: int) -> None:
        if count > 2_000 and not strikes:
            strikes.append(threading.Thread(target=strike))
            strikes[0].start()

    try:
        asyncio.run(create())
        messages = ((f"S.{number % 5}", b"%d" % number) for number in range(8_000))
        published = publish_all(settings, messages, stream="S", scope="run", progress=progress)
        assert strikes
        assert published.count == 8_000
        assert sorted(int(data) for data in asyncio.run(stored())) == list(range(8_000))
    finally:
        for thread in strikes:
            thread.join()
        server.stop()


def test_ids_depend_on_content_and_occurrence_not_on_order() -> None:
    messages = [("a", b"1"), ("a", b"2"), ("b", b"1"), ("a", b"1")]
    forward, backward, other = MessageIds("run"), MessageIds("run"), MessageIds("other")
    ids = [forward.next(*message) for message in messages]
    assert len(set(ids)) == 4
    assert {backward.next(*message) for message in reversed(messages)} == set(ids)
    assert not {other.next(*message) for message in messages} & set(ids)


def test_ids_are_what_they_were() -> None:
    """A retry after an upgrade finds what the older version has stored."""
    ids = MessageIds("run")
    assert ids.next("a", b"1") == "uVtesx~V7CVKmDBsEaSo6qW7BNqLw"
    assert ids.next("a", b"1") == "uVtesx~V7CVKmDBsEaSo6qW7BNqLw-2"
    assert ids.next("b", b"8") == "uVtesx~8AZU7Fscf_GSg5kMGrt-aw"
    assert ids.next("orders.new", b"\xff" * 200, b"NATS/1.0\r\nA: b\r\n\r\n") == "uVtesx~UmUDh15V6QtvGNITVIEQJQ"


def test_the_oldest_unanswered_message_knows_what_was_stored_when_it_was_sent() -> None:
    """The message can only be stored after that sequence, so searching the stream begins there."""
    window = PublishWindow()
    assert [window.oldest] == [None]
    for position, now in ((0, 1.0), (1, 1.0)):
        window.add(OutgoingMessage("s", b"", position=position), now)
    window.on_reply(0, 0, b'{"stream":"S","seq":10}')
    window.add(OutgoingMessage("s", b"", position=2), 1.0)
    window.add(OutgoingMessage("s", b"", position=3), 3.0)
    assert window.oldest == (0, 1.0)
    window.on_reply(2, 0, b'{"stream":"S","seq":12}')  # not the oldest
    assert window.oldest == (0, 1.0)
    window.on_reply(1, 0, b'{"stream":"S","seq":11}')
    assert window.oldest == (10, 3.0)
    window.on_reply(3, 0, b'{"stream":"S","seq":13}')
    assert [window.oldest] == [None]
    window.add(OutgoingMessage("s", b"", position=4), 3.0)
    assert window.oldest == (13, 3.0)


def silences(window: PublishWindow, seconds: float, count: int) -> list[float]:
    """The silences while a server stores messages, each within so many seconds, and answers when it has stored all that
    have arrived: as nats-server does."""
    now, found, position, sent = 0.0, list[float](), 0, list[int]()
    window.begin()
    while window.answered < count:
        while not window.full:
            window.add(OutgoingMessage("s", b"", position=position), now)
            sent.append(position)
            position += 1
        found.append(seconds * len(sent))
        now += found[-1]
        for each in sent:
            window.on_reply(each, 0, b'{"stream":"S","seq":%d}' % (each + 1))
        sent.clear()
        window.pace(now, waited=True)
    return found


def test_a_slow_server_has_few_messages_to_answer_and_a_fast_one_many() -> None:
    """Otherwise, a server that syncs each message to a slow disk would be silent until the connection counts as
    lost."""
    assert max(silences(PublishWindow(), 0.003, 20_000)) < 4
    assert max(silences(PublishWindow(), 0.05, 2_000)) < ANSWERED_WITHIN
    assert len(silences(PublishWindow(), 1e-6, 100_000)) < 40

    changing = PublishWindow()
    silences(changing, 1e-6, 100_000)
    assert max(silences(changing, 0.003, 120_000)) < 4  # on another connection


def test_the_stream_is_the_last_one_that_answered() -> None:
    window = PublishWindow()
    for position in range(4):
        window.add(OutgoingMessage("s", b"", position=position))
    window.on_reply(0, 0, b'{"stream":"S","seq":1}')
    window.on_reply(1, 0, b'{"stream": "OTHER", "seq": 7, "domain": "hub"}')
    assert window.result().stream == "OTHER"
    window.on_reply(2, 0, b'{"stream":"S","seq":2}')
    assert window.result().stream == "S"
    window.on_reply(3, 0, b'{"stream":"T","seq":3}')
    assert window.result().stream == "T"


@pytest.mark.parametrize(
    "answer",
    [
        b'{"stream":"S","seq":}',
        b'{"stream":"S","seq":12',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":1}}',
        b"",
        b"}",
    ],
)
def test_an_answer_that_only_begins_like_the_one_before_stores_nothing(answer: bytes) -> None:
    window = PublishWindow()
    for position in range(3):
        window.add(OutgoingMessage("s", b"", position=position))
    window.on_reply(0, 0, b'{"stream":"S","seq":9}')
    window.on_reply(1, 0, answer)
    window.on_reply(2, 0, b'{"stream":"S","seq":11}')
    with pytest.raises(PublishFailed) as failed:
        window.result()
    assert (failed.value.position, failed.value.stored) == (1, 2)


def test_a_window_counts_every_answer() -> None:
    window = PublishWindow(messages=2)
    for position in range(2):
        window.add(OutgoingMessage("s", b"", position=position))
    assert window.full
    window.on_reply(1, 0, b'{"stream":"S","seq":9}')
    window.on_reply(1, 0, b'{"stream":"S","seq":9}')  # a second answer counts once
    window.on_reply(0, 0, b"no json")
    assert window.empty
    with pytest.raises(PublishFailed) as failed:
        window.result()
    assert (failed.value.position, failed.value.stored) == (0, 1)
    lost = PublishWindow()
    lost.add(OutgoingMessage("s", b"", position=0))
    lost.give_up(JetStreamError("gone"))
    with pytest.raises(PublishFailed, match="gone"):
        lost.result()


def test_what_a_busy_stream_drops_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    again = PublishWindow.again

    def counted(window: PublishWindow) -> list[OutgoingMessage]:
        refused = again(window)
        dropped.append(len(refused))
        return refused

    monkeypatch.setattr(PublishWindow, "again", counted)
    server = NatsServer(tmp_path, "jetstream { max_buffered_msgs: 20 }")
    server.start()
    try:
        settings = ConnectionSettings(servers=server.url)

        async def create() -> None:
            async with connect(settings) as js:
                await js.create_stream({"name": "BUSY", "subjects": ["busy"]})

        asyncio.run(create())
        published = publish_all(settings, [("busy", b"%d" % number) for number in range(5_000)])

        async def stored() -> list[int]:
            async with connect(settings) as js:
                reader = await js.stream("BUSY").create_consumer({"durable_name": "reader", "ack_policy": "none"})
                return [int(message.data) for message in await reader.fetch(5_000)]

        held = asyncio.run(stored())
    finally:
        server.stop()
    assert sum(dropped) > 0
    assert (published.stored, published.first, published.last) == (5_000, 1, 5_000)
    assert sorted(held) == list(range(5_000))
    assert published.in_order == (held == sorted(held))


def test_a_dropped_message_is_handed_out_once_more_and_stays_unanswered() -> None:
    window = PublishWindow()
    window.add(OutgoingMessage("busy", b"x", position=0))
    busy = json.dumps({"error": {"code": 429, "err_code": 10167, "description": "too many requests"}}).encode()
    window.on_reply(0, 429, busy)
    assert [each.position for each in window.again()] == [0]
    assert window.again() == []
    assert not window.failed
    assert len(window.unanswered) == 1
