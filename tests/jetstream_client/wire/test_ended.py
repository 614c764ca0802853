"""A connection that has ended for good: everything that waits on it ends at once, with the right error."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import ConnectionEnded, ConnectionLost, PublishFailed
from jetstream_client.stream import Stream
from tests.installed_server import has
from tests.jetstream_client.servers import Serve, frozen
from tests.jetstream_client.test_shared import BOB, Monitored
from tests.jetstream_client.until import SOON, until

PATIENT = 600.0
"""Seconds, longer than any test: anything that returns sooner was ended by the end of the connection."""
IN_TIME = 2.0
"""Seconds within which everything must end."""
LONG = {"max_wait": PATIENT, "heartbeat": PATIENT / 3}
PULLING = Pulling(expires=PATIENT)


async def ignore(_: object) -> None: ...


async def iterated(messages: Any) -> None:
    async with messages:
        async for _ in messages:
            pass


async def next_one(messages: Any) -> None:
    async with messages:
        await messages.next()


async def called_back(consuming: Any) -> None:
    async with consuming:
        await consuming.closed()


async def told(stream: Stream) -> None:
    errors: list[Exception] = []
    consumer = await pulled(stream)
    try:
        await called_back(consumer.consume(ignore, PULLING, on_error=errors.append))
    finally:
        assert [type(error) for error in errors] == [ConnectionEnded]


async def pulled(stream: Stream) -> Any:
    return await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})


async def pushed(stream: Stream) -> Any:
    await stream.create_consumer({"durable_name": "p", "deliver_subject": f"to.{stream.name}"})
    return stream.push_consumer("p")


async def silent(stream: Stream, **config: object) -> str:
    """A subject of the stream, which no longer answers publishers."""
    await stream.update({"no_ack": True, **config})
    return f"{stream.name}.a"


async def published(stream: Stream) -> None:
    await stream.js.publish(await silent(stream))


async def answered_later(stream: Stream) -> None:
    async with stream.js.publisher(ack_timeout=PATIENT) as publisher:
        future = await publisher.publish(await silent(stream))
        await publisher.complete()
        await future


async def slot(stream: Stream) -> None:
    subject = await silent(stream)
    async with stream.js.publisher(max_pending=1, ack_timeout=PATIENT) as publisher:
        future = await publisher.publish(subject)
        try:
            await publisher.publish(subject)
        except ConnectionLost:
            await future


async def batch(stream: Stream) -> None:
    subject = await silent(stream, allow_atomic=True)
    async with stream.js.batch() as adding:
        await adding.add(subject)
        await adding.add(subject)


async def fast_batch(stream: Stream) -> None:
    subject = await silent(stream, allow_batched=True)
    try:
        async with stream.js.fast_batch() as adding:
            await adding.add(subject)
            await adding.add(subject)
            await adding.add(subject)
    except PublishFailed as failed:
        raise failed.cause from None


async def request(stream: Stream) -> None:
    async with stream.js.connection.listen(f"silent.{stream.name}", lambda _: None):
        await stream.js.connection.request(f"silent.{stream.name}")


async def page(stream: Stream) -> None:
    """Read a page of a stream whose direct gets are not answered."""
    async with stream.js.connection.listen(f"$JS.API.DIRECT.GET.{stream.name}", lambda _: None):
        await stream.update({"allow_direct": False})
        async for _ in stream.get_messages(1):
            pass


WAITING: dict[str, Callable[[Stream], Coroutine[Any, Any, object]]] = {
    "fetch": lambda stream: _after(pulled(stream), lambda consumer: consumer.fetch(5, **LONG)),
    "fetch_bytes": lambda stream: _after(pulled(stream), lambda consumer: consumer.fetch_bytes(500, **LONG)),
    "next": lambda stream: _after(pulled(stream), lambda consumer: consumer.next(**LONG)),
    "messages": lambda stream: _after(pulled(stream), lambda consumer: iterated(consumer.messages(PULLING))),
    "messages.next": lambda stream: _after(pulled(stream), lambda consumer: next_one(consumer.messages(PULLING))),
    "consume": lambda stream: _after(pulled(stream), lambda consumer: called_back(consumer.consume(ignore, PULLING))),
    "consume, told": told,
    "push messages": lambda stream: _after(pushed(stream), lambda consumer: iterated(consumer.messages())),
    "push consume": lambda stream: _after(pushed(stream), lambda consumer: called_back(consumer.consume(ignore))),
    "ordered fetch": lambda stream: stream.ordered_consumer().fetch(5, max_wait=PATIENT),
    "ordered next": lambda stream: stream.ordered_consumer().next(max_wait=PATIENT),
    "ordered messages": lambda stream: iterated(stream.ordered_consumer().messages()),
    "ordered push": lambda stream: iterated(stream.ordered_consumer(push=True).messages()),
    "ordered consume": lambda stream: called_back(stream.ordered_consumer().consume(ignore)),
    "publish": published,
    "publish_async": answered_later,
    "slot": slot,
    **({"batch": batch} if has("2.12") else {}),
    **({"fast batch": fast_batch} if has("2.14") else {}),
    "request": request,
    "page": page,
}


async def _after(first: Coroutine[Any, Any, Any], then: Callable[[Any], Coroutine[Any, Any, object]]) -> object:
    return await then(await first)


class Waiting:
    """One of everything that can wait, on one connection."""

    def __init__(self, js: JetStream) -> None:
        self.js = js
        self._tasks: dict[str, asyncio.Task[object]] = {}

    async def begin(self) -> None:
        for number, (name, wait) in enumerate(WAITING.items()):
            stream = await self.js.create_stream({"name": f"W{number}", "subjects": [f"W{number}.>"]})
            self._tasks[name] = asyncio.create_task(wait(stream))

        async def all_wait() -> bool:
            readers = [f"W{number}" for number, name in enumerate(WAITING) if name not in _WITHOUT_CONSUMER]
            infos = [await self.js.api(f"STREAM.INFO.{name}") for name in readers]
            return all(info["state"]["consumer_count"] == 1 for info in infos)

        await until(all_wait)
        await self.js.connection.flush()
        assert self._ended() == {}

    async def end(self) -> dict[str, str]:
        """How each of them ended, within the time limit."""
        await asyncio.wait(self._tasks.values(), timeout=IN_TIME)
        ended = self._ended()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return ended

    def _ended(self) -> dict[str, str]:
        done = {name: task for name, task in self._tasks.items() if task.done()}
        return {name: "no error" if (e := task.exception()) is None else _shown(e) for name, task in done.items()}


_FAILS_WHEN_LOST = {"publish_async", "slot", "batch", "fast batch"}
"""Each of these ends as soon as the connection is lost, because it may never be restored."""
_WITHOUT_CONSUMER = {"publish", "publish_async", "slot", "batch", "fast batch", "request", "page"}


def _shown(error: BaseException) -> str:
    return f"ConnectionEnded: {error}" if isinstance(error, ConnectionEnded) else repr(error)


def all_said(ended: dict[str, str], *words: str, lost_before: bool = False) -> None:
    assert [name for name in WAITING if name not in ended] == []
    otherwise = {name: how for name, how in ended.items() if not how.startswith("ConnectionEnded")}
    if lost_before:
        assert set(otherwise) == _FAILS_WHEN_LOST & WAITING.keys()
        assert all("connection to NATS was lost" in how for how in otherwise.values()), otherwise
    else:
        assert otherwise == {}
    assert all(word in how for name, how in ended.items() for word in words if name not in otherwise), ended


@pytest.fixture
async def leave() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.mark.parametrize("state", ["running", "frozen", "killed"])
async def test_whoever_waits_is_told_when_the_block_is_left(serve: Serve, leave: AsyncExitStack, state: str) -> None:
    server = serve("")
    settings = ConnectionSettings(servers=server.url, request_timeout=PATIENT)
    js = await leave.enter_async_context(connect(settings))
    waiting = Waiting(js)
    await waiting.begin()
    with frozen(server) if state == "frozen" else nullcontext():
        if state == "killed":
            server.kill()
            await until(lambda: not js.connection.is_connected)
        leaving = asyncio.create_task(leave.aclose())
        all_said(await waiting.end(), "closed", server.url, lost_before=state == "killed")
        await leaving
    assert js.connection.ended


async def test_a_server_that_reads_nothing_does_not_keep_the_block_from_ending(
    serve: Serve, leave: AsyncExitStack
) -> None:
    server = serve("")
    async with asyncio.timeout(SOON):
        async with connect(ConnectionSettings(servers=server.url, request_timeout=0.2)) as js:
            leave.enter_context(frozen(server))
            for _ in range(64):  # more than the socket accepts
                await js.connection.publish("a", b"x" * 500_000)


async def test_whoever_waits_is_told_what_the_server_said(serve: Serve) -> None:
    server = serve("")
    async with connect(ConnectionSettings(servers=server.url, request_timeout=PATIENT)) as js:
        waiting = Waiting(js)
        await waiting.begin()
        js.connection._session.write(b"WHAT\r\n")
        await js.connection.publish("a")
        await until(lambda: js.connection.ended)
        all_said(await waiting.end(), "unknown protocol operation")


async def test_whoever_waits_is_told_that_there_are_no_attempts_left(serve: Serve) -> None:
    server = serve("")
    settings = ConnectionSettings(servers=server.url, request_timeout=PATIENT, max_reconnects=2)
    async with connect(settings) as js:
        waiting = Waiting(js)
        await waiting.begin()
        server.kill()
        await until(lambda: js.connection.ended)
        all_said(await waiting.end(), "the last of 2 attempts to reconnect failed", lost_before=True)
        await until(lambda: js.connection.closed)
        server.start()
        with pytest.raises(ConnectionEnded, match="open another connection"):
            await js.account_info()


async def test_a_connection_that_comes_back_has_all_its_attempts_again(serve: Serve) -> None:
    server = serve("")
    async with connect(ConnectionSettings(servers=server.url, max_reconnects=1_000)) as js:
        session = js.connection._session
        server.kill()
        await until(lambda: session._attempts > 1)
        server.start()
        await until(lambda: js.connection.reconnects == 1)
        await until(lambda: session._attempts == 0)


async def test_a_connection_without_attempts_ends_when_it_is_lost(serve: Serve) -> None:
    server = serve("")
    async with connect(ConnectionSettings(servers=server.url, max_reconnects=0)) as js:
        await js.account_info()
        server.restart()
        await until(lambda: js.connection.closed)
        with pytest.raises(ConnectionEnded, match="max_reconnects is 0"):
            await js.account_info()


async def test_whoever_waits_is_told_that_the_user_is_refused(serve: Serve) -> None:
    monitored = Monitored(serve)
    async with connect(replace(monitored.ada, request_timeout=PATIENT, connect_timeout=1)) as js:
        waiting = Waiting(js)
        await waiting.begin()
        await monitored.users(BOB)
        await until(lambda: js.connection.ended)
        all_said(await waiting.end(), "Authorization Violation", lost_before=True)
