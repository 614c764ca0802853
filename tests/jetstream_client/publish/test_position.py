"""Publishing again after the stream has forgotten the ids: no message is stored twice."""

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import DuplicatesPossible, InvalidValue, PublishFailed, StreamNotFound
from jetstream_client.publish.bulk import Publishable, publish_all
from jetstream_client.publish.ids import MessageIds
from jetstream_client.publish.position import Position, find
from jetstream_client.publish.window import Published
from jetstream_client.stream import Stream
from jetstream_client.wire import attempts
from jetstream_client.wire.blocking import Wire
from tests.jetstream_client.losing import lose_a_delivery
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import Serve

SHORTEST = 100_000_000
"""The shortest duplicate window that the server accepts, in nanoseconds."""
FORGOTTEN = 0.3  # seconds after which it is over, and the server has checked

PUBLISH = """
import json, sys, time
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.publish.position import Position

def messages():
    for number in range(6_000):
        if number > 2_000 and number % 50 == 0:
            time.sleep(0.01)
        yield f"{since.stream}.{number}", b"%d" % number

since = Position.from_json(json.loads(sys.argv[2]))
publish_all(ConnectionSettings(servers=sys.argv[1]), messages(), stream=since.stream, scope="run", since=since)
"""


@pytest.fixture
async def make(js: JetStream) -> AsyncIterator[Callable[..., Awaitable[Stream]]]:
    """Create streams that soon forget ids, and delete them at the end."""
    made = []

    async def create(**config: Any) -> Stream:
        name = f"S{secrets.token_hex(4)}"
        made.append(await js.create_stream(forgetful(name) | config))
        return made[-1]

    yield create
    for stream in made:
        await stream.delete()


def forgetful(name: str) -> dict[str, Any]:
    return {"name": name, "subjects": [f"{name}.>"], "duplicate_window": SHORTEST, "allow_direct": True}


def numbers(stream: str, each: Iterable[int]) -> Iterator[Publishable]:
    """Numbered messages, each on a separate subject."""
    for number in each:
        yield f"{stream}.{number}", b"%d" % number


def publish(settings: ConnectionSettings, since: Position, each: Iterable[int], **more: Any) -> Published:
    values: dict[str, Any] = {"stream": since.stream, "scope": "run", "since": since}
    return publish_all(settings, numbers(since.stream, each), **(values | more))


async def held(stream: Stream) -> dict[int, int]:
    """How many messages with each number the stream contains."""
    found: dict[str, int] = {}
    while True:
        request = {"subjects_filter": ">", "offset": len(found)}
        answer = await stream.js.api(f"STREAM.INFO.{stream.name}", request)
        found |= answer["state"].get("subjects") or {}
        if len(found) >= answer["total"]:
            return {int(subject.rpartition(".")[2]): count for subject, count in found.items()}


def once(each: Iterable[int]) -> dict[int, int]:
    return dict.fromkeys(each, 1)


BACKWARDS, ANOTHER_BATCH = range(5_999, -1, -1), range(1_000, 8_000)


@pytest.mark.parametrize(
    ("config", "again"),
    [
        ({}, BACKWARDS),
        ({}, ANOTHER_BATCH),
        ({"allow_direct": False}, BACKWARDS),
        ({"retention": "workqueue"}, ANOTHER_BATCH),
    ],
    ids=["direct get", "another batch", "consumer", "work queue"],
)
async def test_a_killed_process_is_followed_after_the_window(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]], config: dict[str, Any], again: range
) -> None:
    stream = await make(**config)
    publish_all(settings, numbers(stream.name, range(100_000, 100_010)))  # so that it does not start at the beginning
    since = Position.current(settings, stream.name)
    arguments = [settings.servers[0], json.dumps(since.to_json())]
    with subprocess.Popen([sys.executable, "-c", PUBLISH, *arguments]) as process:  # noqa: ASYNC220 - starts at once
        while (await stream.info()).state["messages"] < 2_500:
            assert process.poll() is None
            await asyncio.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    await asyncio.sleep(FORGOTTEN)
    before = {number for number in await held(stream) if number < 100_000}
    assert 2_000 < len(before) < 6_000
    published = publish(settings, since, again)
    assert (published.stored, published.duplicates) == (len(set(again) - before), len(before & set(again)))
    assert await held(stream) == once([*before, *again, *range(100_000, 100_010)])
    assert not (await stream.info()).state["consumer_count"]


async def test_what_another_task_publishes_in_between_is_not_ours(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]]
) -> None:
    stream = await make()
    since = Position.current(settings, stream.name)
    theirs = threading.Thread(
        target=publish, args=(settings, since, range(10_000, 13_000)), kwargs={"scope": "another run"}
    )
    theirs.start()
    publish(settings, since, range(3_000))
    theirs.join()
    await asyncio.sleep(FORGOTTEN)
    assert len(find(settings, since, MessageIds("run")).ids) == 3_000  # the ids of others are not even kept in memory
    published = publish(settings, since, range(4_000))
    assert (published.stored, published.duplicates) == (1_000, 3_000)
    assert await held(stream) == once([*range(4_000), *range(10_000, 13_000)])
    assert publish(settings, since, range(10), scope="third run").stored == 10  # equal content, but other messages


async def test_ids_of_the_authors_own_are_looked_up_too(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]]
) -> None:
    stream = await make()
    since = Position.current(settings, stream.name)
    first = [(f"{stream.name}.{number}", b"", {"Nats-Msg-Id": f"order {number}", "Kind": "x"}) for number in range(10)]
    publish_all(settings, first, stream=stream.name, scope="run", since=since)
    await asyncio.sleep(FORGOTTEN)
    again = [(subject, b"changed", headers) for subject, _, headers in first]
    published = publish_all(settings, again, stream=stream.name, scope="run", since=since)
    assert (published.stored, published.duplicates) == (0, 10)
    assert await held(stream) == once(range(10))


def test_a_server_killed_while_publishing_doubles_nothing_after_the_window(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    strikes: list[threading.Thread] = []

    def strike() -> None:
        server.kill()
        time.sleep(FORGOTTEN)
        server.start()

    def progress(count: int) -> None:
        if count > 3_000 and not strikes:
            strikes.append(threading.Thread(target=strike))
            strikes[0].start()

    try:
        settings = ConnectionSettings(servers=server.url)
        with Wire.open(settings) as wire:
            wire.api("STREAM.CREATE.S", forgetful("S"))
        since = Position.current(settings, "S")
        published = publish(settings, since, range(20_000), progress=progress)
        assert strikes
        with Wire.open(settings) as wire:
            state = wire.api("STREAM.INFO.S")["state"]
        assert (state["messages"], state["num_subjects"]) == (20_000, 20_000)
        assert (published.stored, published.in_order) == (20_000, True)
    finally:
        for thread in strikes:
            thread.join()
        server.stop()


def test_answers_that_never_came_are_found_in_the_stream(nats_server: NatsServer) -> None:
    """The connection ends when some thousand messages are stored and their answers are lost."""
    name = f"S{secrets.token_hex(4)}"
    settings = ConnectionSettings(servers=nats_server.url)
    with Wire.open(settings) as wire, Proxy(nats_server.port) as proxy:
        wire.api(f"STREAM.CREATE.{name}", forgetful(name))

        def progress(count: int) -> None:
            if count > 1_000 and not proxy.muted and not proxy.cuts:
                proxy.mute()
                threading.Timer(FORGOTTEN, proxy.cut).start()

        through = ConnectionSettings(servers=proxy.url)
        published = publish(through, Position.current(settings, name), range(20_000), progress=progress)
        assert proxy.cuts == 1
        state = wire.api(f"STREAM.INFO.{name}")["state"]
        wire.api(f"STREAM.DELETE.{name}")
    assert (state["messages"], state["num_subjects"]) == (20_000, 20_000)
    assert (published.stored, published.in_order) == (20_000, True)


@pytest.mark.parametrize("config", [{}, {"allow_direct": False}], ids=["direct get", "consumer"])
async def test_a_connection_lost_while_looking(
    settings: ConnectionSettings,
    nats_server: NatsServer,
    make: Callable[..., Awaitable[Stream]],
    config: dict[str, Any],
) -> None:
    stream = await make(duplicate_window=120 * 10**9, **config)  # publishing is not tested here
    since = Position.current(settings, stream.name)
    publish(settings, since, range(20_000))
    with Proxy(nats_server.port, cut_after=1 << 20) as proxy:
        found = find(ConnectionSettings(servers=proxy.url), since, MessageIds("run"))
        assert proxy.cuts == 1
    assert (sorted(found.ids.values()), found.unclear) == (list(range(1, 20_001)), "")


async def test_a_delivery_that_is_lost_on_its_way_is_noticed_and_read_again(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await make(duplicate_window=120 * 10**9, allow_direct=False)
    since = Position.current(settings, stream.name)
    publish(settings, since, range(2_000))
    lost = lose_a_delivery(monkeypatch)
    found = find(settings, since, MessageIds("run"))
    assert lost
    assert (sorted(found.ids.values()), found.unclear) == (list(range(1, 2_001)), "")


Change = Callable[[Stream, ConnectionSettings], Awaitable[Any]]


async def recreated(stream: Stream, settings: ConnectionSettings) -> None:
    config = (await stream.info()).config
    await stream.delete()
    await stream.js.create_stream(config)


async def purged(stream: Stream, settings: ConnectionSettings) -> None:
    await stream.purge()


async def one_deleted(stream: Stream, settings: ConnectionSettings) -> None:
    await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": 50})


async def limited(stream: Stream, settings: ConnectionSettings) -> None:
    await stream.update({"max_msgs": 10})


async def consumed(stream: Stream, settings: ConnectionSettings) -> None:
    consumer = await stream.create_consumer({"durable_name": "work", "ack_policy": "explicit"})
    for message in await consumer.fetch(10):
        await message.double_ack()


UNCLEAR: dict[str, tuple[dict[str, Any], Change, str]] = {
    "recreated": ({}, recreated, "recreated at 20"),
    "purged": ({}, purged, "100 of the messages from sequence 1 to 100"),
    "purged, read by consumer": ({"allow_direct": False}, purged, "100 of the messages from sequence 1 to 100"),
    "one deleted": ({}, one_deleted, "1 of the messages"),
    "one deleted, read by consumer": ({"allow_direct": False}, one_deleted, "1 of the messages"),
    "dropped by a limit": ({}, limited, "90 of the messages"),
    "consumed": ({"retention": "workqueue"}, consumed, "10 of the messages"),
    "cannot be read": ({"retention": "workqueue", "allow_direct": False}, consumed, "set allow_direct"),
}


@pytest.mark.parametrize(("config", "change", "says"), UNCLEAR.values(), ids=UNCLEAR.keys())
async def test_what_cannot_be_found_out_is_refused(
    settings: ConnectionSettings,
    make: Callable[..., Awaitable[Stream]],
    config: dict[str, Any],
    change: Change,
    says: str,
) -> None:
    stream = await make(**config)
    since = Position.current(settings, stream.name)
    publish(settings, since, range(100))
    await change(stream, settings)
    last = (await stream.info()).state["last_seq"]
    await asyncio.sleep(FORGOTTEN)
    with pytest.raises(DuplicatesPossible, match=f"{stream.name}.*{says}.*accept_duplicates"):
        publish(settings, since, range(200))
    assert (await stream.info()).state["last_seq"] == last  # nothing was sent
    if change is limited:
        await stream.update({"max_msgs": -1})
    publish(settings, since, range(200), accept_duplicates=True)
    found = await held(stream)
    assert found.keys() == set(range(200))
    if "allow_direct" not in says:
        assert found == once(range(200))  # messages that can be read are not sent again


async def test_a_first_attempt_is_not_disturbed_by_what_others_publish_and_consume(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]]
) -> None:
    stream = await make(retention="workqueue")
    since = Position.current(settings, stream.name)
    publish_all(settings, numbers(stream.name, range(100, 110)))
    await consumed(stream, settings)
    assert publish(settings, since, range(10), first=True).stored == 10
    assert await held(stream) == once(range(10))


@pytest.mark.parametrize("change", [purged, consumed])
async def test_within_the_window_the_server_knows_the_ids_of_what_is_gone(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]], change: Change
) -> None:
    stream = await make(duplicate_window=120 * 10**9, retention="workqueue")
    since = Position.current(settings, stream.name)
    publish(settings, since, range(100))
    await change(stream, settings)
    left = await held(stream)
    published = publish(settings, since, range(120))
    assert (published.stored, published.duplicates) == (20, 100)
    assert await held(stream) == left | once(range(100, 120))


async def test_nothing_is_sent_any_more_when_the_window_ends(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]]
) -> None:
    stream = await make(duplicate_window=11 * 10**9)  # 10 s of it are reserved for messages on their way
    since = Position.current(settings, stream.name)
    publish(settings, since, range(100))
    await stream.purge()

    def slowly() -> Iterator[Publishable]:
        for number in range(200):
            time.sleep(0.01)
            yield f"{stream.name}.{number}", b"%d" % number

    with pytest.raises(PublishFailed) as failed:
        publish_all(settings, slowly(), stream=stream.name, scope="run", since=since)
    assert isinstance(failed.value.cause, DuplicatesPossible)
    assert 20 < failed.value.position < 110
    assert await held(stream) == once(range(100, failed.value.position))


@pytest.mark.parametrize("allow_direct", [True, False])
async def test_an_account_that_may_not_read(serve: Serve, allow_direct: bool) -> None:
    may = '["S.>", "$JS.API.STREAM.INFO.S"]'
    server = serve(
        f"authorization {{ users: [{{ user: a, password: a }}, {{ user: p, password: p, permissions: "
        f'{{ publish: {may}, subscribe: "_INBOX.>" }} }}] }}'
    )
    settings = ConnectionSettings(servers=server.url, user="p", password="p", request_timeout=0.3)
    async with connect(ConnectionSettings(servers=server.url, user="a", password="a")) as js:
        stream = await js.create_stream(forgetful("S") | {"allow_direct": allow_direct})
        since = Position.current(settings, "S")
        assert publish(settings, since, range(100)).stored == 100
        await asyncio.sleep(FORGOTTEN)
        with pytest.raises(DuplicatesPossible, match=r"sequences 1 to 100 could not be read: .*\$JS.API"):
            publish(settings, since, range(100))
        assert await held(stream) == once(range(100))


async def test_an_account_whose_pulls_reach_nobody(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account imports the request that creates a consumer, and not the one that pulls from it."""
    monkeypatch.setattr(attempts, "RESUMED_WITHIN", 1.0)
    subjects = ("STREAM.INFO.S", "CONSUMER.CREATE.S.>", "CONSUMER.DELETE.S.>")
    exports = ", ".join(f'{{ service: "$JS.API.{each}" }}' for each in subjects)
    imports = ", ".join(
        f'{{ service: {{ account: A, subject: "$JS.API.{each}" }}, to: "JS.a.API.{each}" }}' for each in subjects
    )
    server = serve(f"""accounts {{
      A {{ jetstream: enabled, users: [{{ user: a, password: a }}], exports: [{{ service: "S.>" }}, {exports}] }}
      P {{ users: [{{ user: p, password: p }}], imports: [{{ service: {{ account: A, subject: "S.>" }} }}, {imports}] }}
    }}""")
    settings = ConnectionSettings(servers=server.url, user="p", password="p", api_prefix="JS.a.API")
    async with connect(ConnectionSettings(servers=server.url, user="a", password="a")) as js:
        stream = await js.create_stream(forgetful("S") | {"allow_direct": False})
        since = Position.current(settings, "S")
        assert publish(settings, since, range(100)).stored == 100
        await asyncio.sleep(FORGOTTEN)
        with pytest.raises(DuplicatesPossible, match="sequences 1 to 100 could not be read: "):
            publish(settings, since, range(100))
        assert await held(stream) == once(range(100))


async def test_a_stream_whose_end_went_back(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]]
) -> None:
    stream = await make()
    since = replace(Position.current(settings, stream.name), last=5)
    with pytest.raises(DuplicatesPossible, match="last sequence is 0, but was 5"):
        publish(settings, since, range(10))
    assert await held(stream) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "config"), [(100_000, {}), (30_000, {"allow_direct": False})], ids=["direct get", "consumer"]
)
async def test_many(
    settings: ConnectionSettings, make: Callable[..., Awaitable[Stream]], count: int, config: dict[str, Any]
) -> None:
    stream = await make(**config)
    since = Position.current(settings, stream.name)
    publish(settings, since, range(0, count, 2))
    await asyncio.sleep(FORGOTTEN)
    published = publish(settings, since, range(count))
    assert (published.stored, published.duplicates, published.in_order) == (count // 2, count // 2, False)
    state = (await stream.info()).state
    assert (state["messages"], state["num_subjects"]) == (count, count)


def test_positions_as_json(settings: ConnectionSettings) -> None:
    position = Position("S", "2026-11-21T03:00:00.123456789Z", 7, "2026-11-21T03:00:01Z")
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    value = position.to_json()
    wrong: object
    for wrong in (None, 7, value | {"last": "7"}, value | {"more": 1}):
        with pytest.raises(InvalidValue, match="position"):
            Position.from_json(wrong)
    with pytest.raises(StreamNotFound):
        Position.current(settings, "NONE")
