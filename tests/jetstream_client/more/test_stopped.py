"""Reading that is stopped while it is opened or reopened ends, wherever it was at that moment."""

import asyncio
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.message import Message
from jetstream_client.consume.messages import Messages
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import JetStreamError
from jetstream_client.more import ordered
from jetstream_client.stream import Stream
from jetstream_client.wire.protocol import Reply
from tests.jetstream_client.paused import Paused
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.until import SOON, until

SMALL = Pulling(max_messages=20, expires=2, heartbeat=0.1)
KINDS = ["ordered pull", "ordered push", "pull", "push"]


def ignore(_: JetStreamError) -> None: ...


async def opened(kind: str, stream: Stream, js: JetStream) -> Messages:
    """Messages of a new consumer, which are not yet being read. ``js`` has the reader's connection."""
    mine = js.stream(stream.name)
    if kind.startswith("ordered"):
        return mine.ordered_consumer(push="push" in kind).messages(SMALL, on_error=ignore)
    if kind == "pull":
        await stream.create_consumer({"name": "c", "ack_policy": "none"})
        return mine.consumer("c").messages(SMALL, on_error=ignore)
    config = {"name": "c", "ack_policy": "none", "deliver_subject": f"to.{stream.name}", "idle_heartbeat": 500_000_000}
    await stream.create_consumer(config)
    return mine.push_consumer("c").messages(on_error=ignore)


async def names(stream: Stream) -> list[str]:
    return list((await stream.js.api(f"CONSUMER.NAMES.{stream.name}"))["consumers"] or ())


async def first(messages: Messages) -> Message | None:
    """The next message, or None at the end."""
    async for message in messages:
        return message
    return None


async def ends(reading: asyncio.Task[Message | None], messages: Messages, how: str) -> None:
    """The reading ends soon, without an error. After ``drain``, messages that were delivered can still be read."""
    async with asyncio.timeout(SOON):
        last = await asyncio.shield(reading)
        assert last is None or how == "drain"
        while last is not None:
            last = await first(messages)


async def nothing_left(kind: str, stream: Stream, js: JetStream) -> None:
    """No subscription remains here, and no ordered consumer on the server."""
    assert [each for each in js.connection._session.subscriptions.values() if not each.subject.endswith(".*")] == []
    await js.connection.flush()

    async def none() -> bool:
        return not (kind.startswith("ordered") and await names(stream))

    await until(none)


@pytest.mark.parametrize("how", ["stop", "drain"])
@pytest.mark.parametrize("kind", KINDS)
async def test_while_it_is_opened(stream: Stream, settings: ConnectionSettings, kind: str, how: str) -> None:
    await stream.js.publish(f"{stream.name}.x")
    at = 0
    while await opening_is_paused(stream, settings, kind, how, at + 1):
        at += 1
    assert at > (2 if kind.startswith("ordered") else 0)


@pytest.mark.parametrize("kind", ["ordered pull", "ordered push"])
async def test_a_deletion_waits_for_its_creation(
    stream: Stream, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """nats-server 2.15 serves the requests of one connection side by side: of 1,000 deletions that were sent directly
    after the creation, 14 were served before it, and 14 consumers remained."""
    monkeypatch.setattr(ordered, "TO_STOP", SOON)
    created, arrives = asyncio.Event(), asyncio.Event()
    deleted: list[Reply] = []

    async def api(name: str, *request: Any, **how: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await JetStream.api(js, name, *request, **how)
        if name.startswith("CONSUMER.CREATE."):
            created.set()
            await arrives.wait()
        return answer

    async with connect(settings) as js, stream.js.connection.listen("$JS.API.CONSUMER.DELETE.>", deleted.append):
        monkeypatch.setattr(js, "api", api)
        messages = await opened(kind, stream, js)
        reading = asyncio.create_task(first(messages))
        async with asyncio.timeout(SOON):
            await created.wait()
        stopping = asyncio.create_task(messages.stop())
        for _ in range(3):
            await js.connection.flush()
        await stream.js.connection.flush()
        assert not deleted
        arrives.set()
        await stopping
        await ends(reading, messages, "stop")
        await nothing_left(kind, stream, js)


async def opening_is_paused(stream: Stream, settings: ConnectionSettings, kind: str, how: str, at: int) -> bool:
    """Whether the reading suspends so many times before it returns a message. If it does, it is stopped there."""
    async with connect(settings) as js:
        messages = await opened(kind, stream, js)
        with Paused(first(messages), at) as paused:
            if arrived := await paused.arrived():
                await getattr(messages, how)()
                paused.resume()
                await ends(paused.task, messages, how)
        await messages.stop()
        await nothing_left(kind, stream, js)
    for name in await names(stream):
        await stream.consumer(name).delete()
    return arrived


@pytest.mark.parametrize("how", ["stop", "drain"])
@pytest.mark.parametrize("kind", KINDS)
async def test_while_it_is_reopened(stream: Stream, settings: ConnectionSettings, kind: str, how: str) -> None:
    at = 0
    while await reopening_is_paused(stream, settings, kind, how, at + 1):
        at += 1
    assert at > (3 if kind.startswith("ordered") else 0)


async def reopening_is_paused(stream: Stream, settings: ConnectionSettings, kind: str, how: str, at: int) -> bool:
    """Interrupt reading, and stop it at its ``at``-th suspension after that. Returns whether there were so many."""
    with Proxy(int(str(settings.servers[0]).rpartition(":")[2])) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url)) as js:
            messages = await opened(kind, stream, js)
            await stream.js.publish(f"{stream.name}.x")
            await anext(messages)
            while await messages.next(0.1):
                pass
            if kind.startswith("ordered"):
                for name in await names(stream):
                    await stream.consumer(name).delete()
            else:
                proxy.cut()
            with Paused(first(messages), at) as paused:
                if arrived := await paused_while_messages_come(paused, stream):
                    await getattr(messages, how)()
                    paused.resume()
                    await ends(paused.task, messages, how)
            await messages.stop()
            await until(lambda: js.connection.is_connected)
            await nothing_left(kind, stream, js)
    for name in await names(stream):
        await stream.consumer(name).delete()
    return arrived


async def paused_while_messages_come(paused: Paused, stream: Stream) -> bool:
    arrived = asyncio.ensure_future(paused.arrived())
    while not arrived.done():
        await stream.js.publish(f"{stream.name}.x")
        await asyncio.wait([arrived], timeout=0.05)
    return arrived.result()


@pytest.mark.parametrize("kind", ["ordered pull", "ordered push"])
async def test_a_callback_while_its_consumer_is_recreated(
    stream: Stream, settings: ConnectionSettings, kind: str
) -> None:
    """The leader does not answer, so that stopping cannot wait for the answer."""
    with Proxy(int(str(settings.servers[0]).rpartition(":")[2])) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url)) as js:
            called = asyncio.Event()
            recreated = asyncio.Event()

            async def note(_: Message) -> None:
                called.set()

            def told(_: Exception) -> None:
                proxy.mute()
                recreated.set()

            await stream.js.publish(f"{stream.name}.x")
            ordered = js.stream(stream.name).ordered_consumer(push="push" in kind)
            async with ordered.consume(note, SMALL, on_error=told) as consuming, asyncio.timeout(SOON):
                await called.wait()
                for name in await names(stream):
                    await stream.consumer(name).delete()
                await recreated.wait()
                async with asyncio.timeout(2):  # less than request_timeout
                    await consuming.stop()
