"""Shared connections: the server shows how many there are, and how long."""

import asyncio
import json
import logging
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import AuthenticationFailed, ConnectionLost, JetStreamError
from jetstream_client.publish.bulk import publish_all
from jetstream_client.shared import _shared, share
from tests.jetstream_client.servers import Serve
from tests.jetstream_client.until import until

CONFIG = """
http: 127.0.0.1:{http}
authorization {{ users: [ {users} ] }}
"""
ADA = "{ user: ada, password: hidden }"
BOB = "{ user: bob, password: b }"


class Monitored:
    """A server that reports its connections, and whose list of users can be changed while it runs."""

    def __init__(self, serve: Serve) -> None:
        self._http = free_port()
        self.server = serve(CONFIG.format(http=self._http, users=f"{ADA}, {BOB}"))
        self.ada = ConnectionSettings(servers=self.server.url, user="ada", password="hidden", connect_timeout=3)
        self.bob = ConnectionSettings(servers=self.server.url, user="bob", password="b")

    async def connected(self) -> int:
        return int((await self._ask("connz"))["num_connections"])

    async def slow_consumers(self) -> int:
        """Number of connections that the server has closed because they read too slowly."""
        return int((await self._ask("varz"))["slow_consumers"])

    async def _ask(self, page: str) -> Any:
        def ask() -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/{page}") as answer:
                return json.load(answer)

        return await asyncio.to_thread(ask)

    async def count(self, number: int) -> None:
        async def equal() -> bool:
            return await self.connected() == number

        await until(equal)

    async def users(self, users: str) -> None:
        loaded = (await self._ask("varz"))["config_load_time"]
        self.server._settings.write_text(CONFIG.format(http=self._http, users=users))
        os.kill(self.server.pid, signal.SIGHUP)

        async def again() -> bool:
            return bool((await self._ask("varz"))["config_load_time"] != loaded)

        await until(again)


@pytest.fixture
def monitored(serve: Serve) -> Monitored:
    return Monitored(serve)


async def test_equal_settings_share_one_connection_that_ends_with_its_last_user(monitored: Monitored) -> None:
    equal = replace(monitored.ada)
    leave = asyncio.Event()

    async def use(settings: ConnectionSettings) -> int:
        async with share(settings) as js:
            await js.account_info()
            await leave.wait()
            return id(js.connection)

    users = [asyncio.create_task(use(settings)) for settings in [monitored.ada, equal] * 10]
    await monitored.count(1)
    async with share(monitored.bob):
        await monitored.count(2)
    await monitored.count(1)
    users[0].cancel()  # the user that opened it leaves first
    await asyncio.wait([users[0]])
    assert await monitored.connected() == 1
    async with share(monitored.ada) as js:
        leave.set()
        assert set(await asyncio.gather(*users[1:])) == {id(js.connection)}
        await js.account_info()
        assert "hidden" not in repr(_shared)
    await monitored.count(0)
    assert not _shared[asyncio.get_running_loop()]


async def test_it_ends_when_all_who_waited_for_it_are_gone() -> None:
    nobody = ConnectionSettings(servers=f"nats://127.0.0.1:{free_port()}", connect_timeout=3600)
    waiting = [asyncio.create_task(share(nobody).__aenter__()) for _ in range(3)]
    await asyncio.sleep(0.1)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert not _shared[asyncio.get_running_loop()]


def test_a_loop_that_ends_first_ends_it_without_a_word(monitored: Monitored, caplog: pytest.LogCaptureFixture) -> None:
    """`airflow dags test` runs a trigger like this: it takes the event, ends the loop, and never cleans up."""
    left = []

    @asynccontextmanager
    async def shared() -> AsyncIterator[JetStream]:  # as the hook's
        async with share(monitored.ada) as js:
            yield js

    async def event() -> None:
        left.append(shared())
        js = await left[0].__aenter__()
        await js.account_info()

    asyncio.run(event())
    asyncio.run(monitored.count(0))
    assert not caplog.records


async def test_who_waits_is_told_why_and_the_next_tries_again(monitored: Monitored) -> None:
    wrong = ConnectionSettings(servers=monitored.server.url, user="ada", password="second")
    for _ in range(2):
        waiting = [asyncio.create_task(share(wrong).__aenter__()) for _ in range(3)]
        await asyncio.wait(waiting)
        assert [type(each.exception()) for each in waiting] == [AuthenticationFailed] * 3
    await monitored.users("{ user: ada, password: second }")
    async with share(wrong) as js:
        await js.account_info()


async def test_one_that_dies_is_replaced(monitored: Monitored) -> None:
    async with share(monitored.ada) as before:
        await monitored.users(BOB)
        await until(lambda: before.connection.ended)
        with pytest.raises(AuthenticationFailed):
            await share(monitored.ada).__aenter__()
        with pytest.raises(ConnectionLost):
            await before.account_info()
        await monitored.users(ADA)
        await until(lambda: before.connection.is_connected)  # for the user that has waited
        async with share(monitored.ada) as after, share(monitored.ada) as same:
            assert after is same
            assert after is not before
            await monitored.count(2)
        await monitored.count(1)
    await monitored.count(0)


async def test_one_that_the_server_ended_is_replaced(monitored: Monitored) -> None:
    async with share(monitored.ada) as before:
        before.connection._session.write(b"WHAT\r\n")  # Unknown Protocol Operation
        with suppress(JetStreamError):
            await before.connection.flush()
        await until(lambda: before.connection.ended)
        async with share(monitored.ada) as after:
            assert after is not before
            await after.account_info()
            await monitored.count(1)
        await monitored.count(0)


async def test_a_lost_one_comes_back_by_itself(mortal: NatsServer) -> None:
    async with share(ConnectionSettings(servers=mortal.url)) as before:
        mortal.kill()
        await until(lambda: not before.connection.is_connected)
        mortal.start()
        async with share(ConnectionSettings(servers=mortal.url)) as js:
            assert js is before
            await until(lambda: js.connection.is_connected)
            await js.account_info()


async def test_what_it_logs_is_not_its_first_users(mortal: NatsServer) -> None:
    """Airflow chooses the log of a trigger by a context variable."""
    user: ContextVar[str] = ContextVar("user")
    seen: set[str] = set()

    class Sees(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            seen.add(user.get("nobody"))

    log, sees = logging.getLogger("jetstream_client.wire.session"), Sees()
    log.addHandler(sees)
    user.set("first")
    try:
        async with share(ConnectionSettings(servers=mortal.url)) as js:
            mortal.kill()
            await until(lambda: not js.connection.is_connected)
            mortal.start()
            await until(lambda: js.connection.is_connected)
    finally:
        log.removeHandler(sees)
    assert seen == {"nobody"}


async def test_all_pulls_on_one_connection_may_be_served_while_nobody_reads(monitored: Monitored) -> None:
    """Together they would get 100 MB; above 64 MB the server closes the connection, and with it every pull."""
    async with share(monitored.ada) as js:
        stream = await js.create_stream({"name": "BUSY", "subjects": ["BUSY"]})
        messages = (("BUSY", b"x" * 4_000) for _ in range(2_000))
        await asyncio.to_thread(publish_all, monitored.ada, messages)
        config = {"ack_policy": "none"}  # nothing delays the server
        consumers = [await stream.create_consumer({"durable_name": f"c{each}", **config}) for each in range(13)]
        fetches = [asyncio.create_task(each.fetch(2_000, max_wait=120)) for each in consumers]
        await until(lambda: js.connection.pulls == len(fetches))
        await js.connection.flush()
        time.sleep(2)  # noqa: ASYNC251 - another trigger blocks the loop
        assert [len(each) for each in await asyncio.gather(*fetches)] == [2_000] * len(fetches)
        assert js.connection.pulls == 0
    assert await monitored.slow_consumers() == 0
