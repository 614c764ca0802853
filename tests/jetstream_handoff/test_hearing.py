"""Hearing on a real server: what ends a wait, what does not, and what the server sends for it."""

import asyncio
import logging
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from jetstream_handoff.watch.hearing import STORED, Hearing
from tests.jetstream_client.steps import Traffic
from tests.jetstream_client.until import SOON, until
from tests.jetstream_handoff.steps import publish

EVERYTHING = (">",)
LONG = 3_600.0
AUTHORIZATION = """
authorization { users [
  { user: all, password: all }
  { user: deaf, password: deaf, permissions: { subscribe: "_INBOX.>" } }
] }
"""


async def listens(hearing: Hearing, filters: tuple[str, ...] = EVERYTHING) -> None:
    """Wait for the first time, which ends at once, so that what was published before it listened is measured."""
    async with asyncio.timeout(SOON):
        await hearing.wait(LONG, filters, idle=True)


@pytest.mark.parametrize("filters", [EVERYTHING, ("{0}.0", "{0}.1", "{0}.2")])
async def test_a_message_ends_the_wait_and_then_a_wait_is_a_full_one(stream: Stream, filters: tuple[str, ...]) -> None:
    filters = tuple(each.format(stream.name) for each in filters)
    async with Hearing(stream.js, stream.name) as hearing:
        await listens(hearing, filters)
        waiting = asyncio.create_task(hearing.wait(LONG, filters, idle=True))
        await publish(stream, 100)
        async with asyncio.timeout(SOON):
            await waiting
        again = asyncio.create_task(hearing.wait(3 * STORED, filters, idle=True))
        await publish(stream, 100)
        await asyncio.sleep(STORED)
        assert not again.done()  # otherwise many messages would cause as many measurements
        await again
        await listens(hearing, filters)


async def test_the_server_sends_one_message_and_nothing_is_sent_while_none_comes(stream: Stream) -> None:
    async with Hearing(stream.js, stream.name) as hearing:
        await listens(hearing)
        traffic = Traffic(stream.js.connection)
        await hearing.wait(STORED, EVERYTHING, idle=True)
        assert (traffic.sent, traffic.received) == (0, 0)
        await publish(stream, 5_000)
        await stream.js.connection.flush()
        assert traffic.received == 1


async def test_messages_that_wait_are_not_listened_for(stream: Stream) -> None:
    async with Hearing(stream.js, stream.name) as hearing:
        before = set(stream.js.connection._session.subscriptions)
        await hearing.wait(0, EVERYTHING, idle=False)
        assert set(stream.js.connection._session.subscriptions) == before
        await listens(hearing)
        assert set(stream.js.connection._session.subscriptions) > before
    assert set(stream.js.connection._session.subscriptions) == before


async def test_without_the_permission_the_wait_is_a_full_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = NatsServer(tmp_path, AUTHORIZATION)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, user="all", password="all")) as js:
            await js.create_or_update_stream({"name": "ORDERS", "subjects": ["orders.>"]})
            async with (
                connect(ConnectionSettings(servers=server.url, user="deaf", password="deaf")) as deaf,
                Hearing(deaf, "ORDERS") as hearing,
            ):
                for _ in range(2):
                    await hearing.wait(STORED, EVERYTHING, idle=True)
                assert caplog.text.count("cannot be listened to: no permission to subscribe to 'orders.>'") == 1
                await deaf.stream("ORDERS").info()  # nothing else is refused
    finally:
        server.stop()


async def test_a_stream_that_is_a_mirror_cannot_be_heard(stream: Stream) -> None:
    mirror, _ = await stream.js.create_or_update_stream(
        {"name": f"OTHER_{stream.name}", "mirror": {"name": stream.name}}
    )
    before = set(stream.js.connection._session.subscriptions)
    async with Hearing(stream.js, mirror.name) as hearing:
        await hearing.wait(STORED, EVERYTHING, idle=True)
        assert set(stream.js.connection._session.subscriptions) == before


async def test_it_hears_after_the_connection_was_lost(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            stream, _ = await js.create_or_update_stream({"name": "ORDERS", "subjects": ["ORDERS.>"]})
            async with Hearing(js, "ORDERS") as hearing:
                await listens(hearing)
                waiting = asyncio.create_task(hearing.wait(LONG, EVERYTHING, idle=True))
                await asyncio.sleep(0)
                server.kill()
                server.start()
                await until(lambda: js.connection.reconnects == 1 and js.connection.is_connected)
                await publish(stream, 1)
                async with asyncio.timeout(SOON):
                    await waiting
    finally:
        server.stop()
