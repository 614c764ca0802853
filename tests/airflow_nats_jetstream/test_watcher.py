"""The watcher on Airflow's shared streams, with a real server: when it gives notice, and which requests it sends.

`Infos` counts what reaches the server, so that "no further notice" means: not in so many further requests.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import nats
import pytest
from airflow.models.trigger import Trigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger
from nats.aio.msg import Msg

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger, watched_assets
from demo.nats_server import NatsServer
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_handoff.watch.subjects import check_subjects
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, info, publish, sensor
from tests.airflow_versions import PARTITIONS, SHARED_STREAMS, SharedStreamManager, encode_trigger
from tests.snippets import sections

INTERVAL = 0.1
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "event-driven.md"


@dataclass
class Infos:
    """The requests for a consumer's state that reach the server, and the connections that sent them."""

    count: int = 0
    connections: set[str] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str, stream: str) -> AsyncIterator[Self]:
        infos = cls()
        client = await nats.connect(url)

        async def seen(request: Msg) -> None:
            infos.count += 1
            infos.connections.add(request.reply.rsplit(".", 1)[0])

        await client.subscribe(f"$JS.API.CONSUMER.INFO.{stream}.{CONSUMER}", cb=seen)
        await client.flush()
        try:
            yield infos
        finally:
            await client.close()

    async def further(self, count: int = 3) -> None:
        """Return when this many further requests have arrived."""
        wanted = self.count + count
        await until(lambda: self.count >= wanted)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110 - what is waited for is counted by others
            await asyncio.sleep(0.02)


class Watcher:
    """A trigger as the triggerer runs it, subscribed to the shared stream of its key. `notices` are its events."""

    def __init__(self, streams: SharedStreamManager, number: int, stream: str, **changes: Any) -> None:
        values = {"poll_interval": INTERVAL, "nats_conn_id": CONNECTION, **changes}
        self.trigger = JetStreamNoticeTrigger(stream, CONSUMER, **values)
        self.notices: list[dict[str, Any]] = []
        self._streams, self._number = streams, number
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        key = self.trigger.shared_stream_key()
        shared = self._streams.subscribe(trigger_id=self._number, trigger=self.trigger, key=key)
        async for event in self.trigger.filter_shared_stream(shared):
            self.notices.append(event.payload)

    async def noticed(self, count: int) -> list[int]:
        """Wait for this many notices, and return the number of messages in each."""
        await until(lambda: self._task.done() or len(self.notices) >= count)
        if self._task.done():
            self._task.result()
        return self.pending

    @property
    def pending(self) -> list[int]:
        return [notice["pending"] for notice in self.notices]

    async def end(self) -> None:
        """Stop as when the triggerer stops, or when Airflow ends the watcher."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._streams.unsubscribe(self._number, self.trigger.shared_stream_key())


@pytest.fixture
async def watch(hook: JetStreamHook) -> AsyncIterator[Callable[..., Watcher]]:
    """Starts watchers, which end with the test."""
    streams = SharedStreamManager()
    watchers: list[Watcher] = []

    def start(stream: str, **changes: Any) -> Watcher:
        watchers.append(Watcher(streams, len(watchers), stream, **changes))
        return watchers[-1]

    yield start
    for watcher in watchers:
        await watcher.end()
    assert not streams._groups


@pytest.fixture
async def infos(nats_server: NatsServer, stream: str) -> AsyncIterator[Infos]:
    async with Infos.of(nats_server.url, stream) as infos:
        yield infos


Watch = Callable[..., Watcher]
in_thread = asyncio.to_thread  # the hook's synchronous calls


async def test_a_message_that_is_heard_is_not_waited_for(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    watcher = watch(stream, poll_interval=3_600)
    await infos.further(2)  # the second one since it listens
    await in_thread(publish, hook, stream, 3)
    assert await watcher.noticed(1) == [3]


async def test_one_notice_until_it_is_answered(watch: Watch, infos: Infos, hook: JetStreamHook, stream: str) -> None:
    watcher = watch(stream, poll_interval=0.5)  # a busy machine may take long between pulling and entering
    await infos.further()
    assert watcher.notices == []
    await in_thread(publish, hook, stream, 3)
    assert await watcher.noticed(1) == [3]
    await in_thread(publish, hook, stream, 4)
    await infos.further()
    assert watcher.pending == [3]

    (first,) = await in_thread(execute, sensor(stream, max_messages=5, gather=timedelta(0)))
    assert first["count"] == 5
    assert await watcher.noticed(2) == [3, 2]  # the first notice is answered, and two messages are left
    await in_thread(partial(execute, sensor(stream, max_messages=5), run_id="second"))
    await infos.further()
    assert watcher.pending == [3, 2]
    await in_thread(publish, hook, stream, 1)
    assert await watcher.noticed(3) == [3, 2, 1]
    assert watcher.notices[-1] == {"stream": stream, "consumer": CONSUMER, "pending": 1, "consumer_sequence": 7}


async def test_what_is_gone_needs_no_answer(watch: Watch, infos: Infos, hook: JetStreamHook, stream: str) -> None:
    await in_thread(publish, hook, stream, 3)
    watcher = watch(stream)
    await watcher.noticed(1)
    await in_thread(hook.run, lambda js: js.stream(stream).purge())
    await infos.further()
    await in_thread(publish, hook, stream, 2)
    assert await watcher.noticed(2) == [3, 2]


async def test_a_failed_claim_is_news(watch: Watch, infos: Infos, hook: JetStreamHook, stream: str) -> None:
    taken = await in_thread(claim, hook, stream, 10)
    watcher = watch(stream)
    await infos.further(5)
    assert watcher.notices == []

    def fail() -> None:
        with hook.holding(taken, try_number=1) as held:
            held.fail("bad input")

    await in_thread(fail)
    assert await watcher.noticed(1) == [10]


async def test_many_watchers_share_one_connection_and_one_request(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    await in_thread(publish, hook, stream, 5)  # before them, as a watcher may look between two messages
    watchers = [watch(stream, min_messages=number) for number in range(1, 11)]
    for watcher in watchers[:5]:
        assert await watcher.noticed(1) == [5]
    await infos.further()
    assert [watcher.notices for watcher in watchers[5:]] == [[]] * 5
    assert len(infos.connections) == 1

    for watcher in watchers[1:]:
        await watcher.end()
    before = infos.count
    await in_thread(publish, hook, stream, 5)
    await in_thread(execute, sensor(stream, max_messages=1, gather=timedelta(0)))
    assert await watchers[0].noticed(2)  # the last watcher continues alone
    assert infos.count > before


async def test_nothing_is_delivered_or_made_by_watching(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    watcher = watch(stream)
    await in_thread(publish, hook, stream, 3)
    await watcher.noticed(1)
    state = (await in_thread(hook.run, lambda js: js.stream(stream).info())).state
    assert (state["messages"], state["consumer_count"]) == (3, 0)
    (taken,) = await in_thread(execute, sensor(stream))
    await in_thread(publish, hook, stream, 2)
    await watcher.noticed(2)
    await infos.further()
    seen = await in_thread(info, hook, stream)
    assert (seen.counter, seen.pending, seen.ack_pending) == (3, 2, 3)
    assert taken["count"] == 3


async def test_who_waits_needs_no_notice(watch: Watch, infos: Infos, hook: JetStreamHook, stream: str) -> None:
    """No notice is given while a sensor waits for 100 messages, because it receives the messages."""
    waits = partial(execute, sensor(stream, min_messages=100, timeout=120))
    waiting = asyncio.create_task(in_thread(waits))
    watcher = watch(stream)
    while not (await in_thread(consumer_of, hook, stream)).get("num_waiting"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await in_thread(publish, hook, stream, 50)
    await infos.further()
    assert watcher.notices == []
    await in_thread(publish, hook, stream, 50)
    assert (await waiting)[0]["count"] == 100
    await infos.further()
    assert watcher.notices == []


async def test_fewer_than_min_messages_cause_a_notice_after_max_wait(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    began = time.monotonic()
    await in_thread(publish, hook, stream, 3)
    watcher = watch(stream, min_messages=1_000, max_wait=2)
    never = watch(stream, min_messages=1_000)
    assert await watcher.noticed(1) == [3]
    assert time.monotonic() - began >= 1.9
    (taken,) = await in_thread(partial(execute, sensor(stream, min_messages=1_000, max_wait=timedelta(seconds=2))))
    assert taken["count"] == 3
    began = time.monotonic()
    await in_thread(publish, hook, stream, 1)
    assert await watcher.noticed(2) == [3, 1]
    assert time.monotonic() - began >= 1.9  # the new message waits, too
    assert not never.notices


async def test_a_watcher_that_is_started_again_does_not_begin_to_count_again(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    await in_thread(publish, hook, stream, 3)
    published = time.monotonic()
    first = watch(stream, min_messages=1_000, max_wait=10)
    await infos.further()
    await first.end()
    assert not first.notices
    while time.monotonic() - published < 10:  # noqa: ASYNC110 - it is the clock that is waited for
        await asyncio.sleep(0.1)
    began = time.monotonic()
    assert await watch(stream, min_messages=1_000, max_wait=10).noticed(1) == [3]
    assert time.monotonic() - began < 10


def consumer_of(hook: JetStreamHook, stream: str) -> dict[str, Any]:
    consumers: list[dict[str, Any]] = hook.run(lambda js: js.api(f"CONSUMER.LIST.{stream}"))["consumers"]
    return consumers[0] if consumers else {}


async def test_a_notice_that_nobody_answers_is_given_again(watch: Watch, hook: JetStreamHook, stream: str) -> None:
    await in_thread(publish, hook, stream, 2)
    watcher = watch(stream, remind_after=timedelta(seconds=1))
    began = time.monotonic()
    assert await watcher.noticed(3) == [2, 2, 2]
    assert time.monotonic() - began >= 2


async def test_a_watcher_that_is_started_again_repeats_what_is_unclaimed(
    watch: Watch, infos: Infos, hook: JetStreamHook, stream: str
) -> None:
    await in_thread(publish, hook, stream, 2)
    first = watch(stream)
    await first.noticed(1)
    await first.end()
    assert await watch(stream).noticed(1) == [2]


async def test_it_waits_for_nats_longer_and_longer_and_goes_on(
    watch: Watch, hook: JetStreamHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "airflow_nats_jetstream.watcher")
    server = NatsServer(tmp_path / "nats")
    server.start()
    set_connection(monkeypatch, servers=server.url, connect_timeout=2, request_timeout=2)
    try:
        await in_thread(
            hook.run, lambda js: js.create_stream({"name": "AWAY", "subjects": ["AWAY.>"], "allow_direct": True})
        )
        watcher = watch("AWAY")
        async with Infos.of(server.url, "AWAY") as infos:
            await infos.further()
        server.kill()
        await until(lambda: "attempt is in 2 s" in caplog.text)
        server.start()
        await in_thread(publish, hook, "AWAY", 2)
        assert await watcher.noticed(1) == [2]
    finally:
        await watcher.end()
        server.kill()
    assert "attempt is in 1 s" in caplog.text


async def test_a_connection_that_is_missing_may_be_made_later(
    watch: Watch, hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await in_thread(publish, hook, stream, 1)
    made = f"AIRFLOW_CONN_{CONNECTION.upper()}"
    with monkeypatch.context() as without:
        without.delenv(made)
        watcher = watch(stream)
        await until(lambda: "attempt is in 1 s" in caplog.text)
    assert CONNECTION in caplog.text
    assert await watcher.noticed(1) == [1]


async def test_it_also_runs_without_shared_streams(hook: JetStreamHook, stream: str) -> None:
    await in_thread(publish, hook, stream, 2)
    trigger = JetStreamNoticeTrigger(stream, CONSUMER, nats_conn_id=CONNECTION)
    events = trigger.run()
    assert (await anext(events)).payload["pending"] == 2
    await events.aclose()  # type: ignore[attr-defined]


def test_airflow_recognises_it_at_the_next_parse() -> None:
    """Otherwise every parse of the DAG would replace the trigger and repeat its notice."""
    trigger = JetStreamNoticeTrigger("FLIGHTS", "delays", remind_after="PT1H", poll_interval=7)
    parsed = encode_trigger(trigger)
    stored = Trigger(parsed["classpath"], parsed["kwargs"])
    assert BaseEventTrigger.hash(stored.classpath, stored.kwargs) == BaseEventTrigger.hash(**parsed)
    again = JetStreamNoticeTrigger(**stored.kwargs)
    assert again.serialize() == trigger.serialize()
    assert again.shared_stream_key() == trigger.shared_stream_key()
    assert "max_wait" not in stored.kwargs  # so that a watcher of an older release stays the same
    limited = JetStreamNoticeTrigger("FLIGHTS", "delays", min_messages=9, max_wait="PT10M")
    assert JetStreamNoticeTrigger(**limited.serialize()[1]).serialize() == limited.serialize()
    assert limited.shared_stream_key() != trigger.shared_stream_key()


def test_the_message_queue_trigger_is_the_same_watcher() -> None:
    queue = MessageQueueTrigger(scheme="nats", stream="FLIGHTS", consumer="delays", min_messages=5)
    assert queue.serialize() == JetStreamNoticeTrigger("FLIGHTS", "delays", min_messages=5).serialize()
    Asset("flights", watchers=[AssetWatcher(name="flights", trigger=queue)])


async def test_the_page_says_what_works() -> None:
    for section in sections(PAGE):
        if PARTITIONS or section.title != "Subjects as partition keys":
            await section.run()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"stream": "FLIGHTS.*"}, "stream"),
        ({"consumer": ""}, "consumer"),
        ({"min_messages": 0}, "min_messages"),
        ({"min_messages": "5"}, "min_messages"),
        ({"max_wait": 60}, "max_wait"),
        ({"max_wait": 0.5, "min_messages": 5}, "max_wait"),
        ({"max_wait": -1, "min_messages": 5}, "max_wait"),
        ({"max_wait": "soon", "min_messages": 5}, "max_wait"),
        ({"remind_after": timedelta(0)}, "remind_after"),
        ({"remind_after": "1h"}, "remind_after"),
        ({"poll_interval": -1}, "poll_interval"),
        ({"poll_interval": float("nan")}, "poll_interval"),
    ],
)
def test_what_is_wrong_fails_when_the_dag_is_parsed(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        JetStreamNoticeTrigger(**{"stream": "FLIGHTS", "consumer": "delays", **wrong})


class Many:
    """Watchers of several subjects, which share one stream of measurements."""

    def __init__(self, streams: SharedStreamManager, stream: str, subjects: dict[str, str]) -> None:
        values: dict[str, Any] = {"poll_interval": INTERVAL, "nats_conn_id": CONNECTION}
        self.assets = watched_assets(server="nats.example.com", stream=stream, subjects=subjects, **values)
        self.notices: dict[str, list[dict[str, Any]]] = {each: [] for each in subjects}
        self._streams = streams
        self._triggers: dict[str, Any] = {name: asset.watchers[0].trigger for name, asset in self.assets.items()}
        self._tasks = [asyncio.create_task(self._run(number, name)) for number, name in enumerate(subjects)]

    async def _run(self, number: int, name: str) -> None:
        trigger = self._triggers[name]
        shared = self._streams.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
        async for event in trigger.filter_shared_stream(shared):
            self.notices[name].append(event.payload)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for number, trigger in enumerate(self._triggers.values()):
            await self._streams.unsubscribe(number, trigger.shared_stream_key())


async def test_one_watcher_tells_the_subjects_of_a_stream_apart(
    hook: JetStreamHook, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four consumers, one has messages, one has none yet, one has another filter, and nobody selects a subject."""
    subjects = {name: f"{stream}.{name}.>" for name in ("eu", "us", "asia")}

    def some(js: JetStream) -> Any:
        async def publish() -> None:
            await js.stream(stream).create_consumer({"name": "asia", "filter_subject": f"{stream}.>"})
            for name in ("eu", "eu", "asia", "mars", "mars"):
                await js.publish(f"{stream}.{name}.order", b"")

        return publish()

    await in_thread(hook.run, some)
    streams = SharedStreamManager()
    many = Many(streams, stream, subjects)
    try:
        await until(lambda: many.notices["eu"])
        assert len(streams._groups) == (1 if SHARED_STREAMS else 0)
        expected = {"stream": stream, "consumer": "eu", "pending": 2, "consumer_sequence": 0}
        assert many.notices["eu"] == [{**expected, "subject": f"{stream}.eu.>"}]
        await until(lambda: "are selected by no consumer" in caplog.text)
        assert f"2 messages of stream {stream} are selected by no consumer of this watcher" in caplog.text
        assert f"{stream}.mars.order" in caplog.text
        assert f"filter_subject='{stream}.>'" in caplog.text
        await in_thread(hook.run, lambda js: js.publish(f"{stream}.us.order", b""))
        await until(lambda: many.notices["us"])
        assert (len(many.notices["eu"]), many.notices["us"][0]["pending"], many.notices["asia"]) == (1, 1, [])
    finally:
        await many.end()
    assert not streams._groups


def test_the_assets_of_many_subjects_have_names_and_uris() -> None:
    of = {"eu": "orders.eu.>", "us": "orders.us.*"}
    assets = watched_assets(server="nats.example.com", stream="ORDERS", subjects=of, min_messages=7)
    assert [(asset.name, asset.uri) for asset in assets.values()] == [
        ("ORDERS.eu", "nats://nats.example.com:4222/ORDERS/orders.eu.>"),
        ("ORDERS.us", "nats://nats.example.com:4222/ORDERS/orders.us.*"),
    ]
    trigger: Any = assets["us"].watchers[0].trigger
    parsed = encode_trigger(trigger)
    stored = Trigger(parsed["classpath"], parsed["kwargs"])
    assert BaseEventTrigger.hash(stored.classpath, stored.kwargs) == BaseEventTrigger.hash(**parsed)
    assert JetStreamNoticeTrigger(**stored.kwargs).serialize() == trigger.serialize()
    assert "subjects" not in JetStreamNoticeTrigger("ORDERS", "us").serialize()[1]


@pytest.mark.parametrize(
    ("subjects", "named"),
    [
        ({"a": "orders.>", "b": "orders.eu"}, r"subjects\['b'\].*overlaps with 'orders.>' of consumer 'a'"),
        ({"a": "orders.*.new", "b": "orders.eu.*"}, "overlaps"),
        ({"a": "orders.eu", "b": "orders.eu"}, "overlaps"),
        ({"a": ">", "b": "x"}, "overlaps"),
        ({"a": "orders..eu"}, "subjects"),
        ({"a.b": "orders.eu"}, "subjects"),
        ({}, "give a mapping"),
    ],
)
def test_overlapping_subjects_fail_when_the_dag_is_parsed(subjects: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        watched_assets(server="nats.example.com", stream="ORDERS", subjects=subjects)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "orders"}, "name='orders'.*several assets would have the name 'orders'.*{consumer}"),
        ({"name": "{stream}"}, "several assets would have the name 'ORDERS'"),
        ({"name": "{asset}"}, "name='{asset}'.*only {stream}, {consumer} and {subject}"),
        ({"name": "{}"}, "only {stream}"),
        ({"name": "{"}, "only {stream}"),
        ({"name": None}, "only {stream}"),
        ({"nats_conn_id": "{{ var.value.nats }}"}, "nats_conn_id=.*renders no templates in a watcher"),
        ({"nats_conn_id": None}, "nats_conn_id=None"),
        ({"min_messages": "10"}, "min_messages='10'"),
        ({"max_wait": "soon", "min_messages": 2}, "max_wait='soon'"),
        ({"poll_interval": "{{ params.every }}"}, "poll_interval="),
    ],
)
def test_what_is_wrong_with_many_assets_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    """Airflow uses one of several assets with a name, and logs a warning: the others would start no run."""
    with pytest.raises(InvalidValue, match=says):
        watched_assets(server="nats.example.com", stream="ORDERS", subjects={"eu": "eu.>", "us": "us.>"}, **changes)


def test_subjects_that_share_no_message_do_not_overlap() -> None:
    apart = {"a": "orders.eu", "b": "orders.eu.>", "c": "orders.*.us", "d": "items.>"}
    with pytest.raises(InvalidValue, match=r"subjects\['c'\]"):  # orders.eu.us
        check_subjects(apart)
    assert check_subjects({**apart, "c": "orders.us"})
