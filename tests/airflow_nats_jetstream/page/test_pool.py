"""The page's connections to a real nats-server: shared, limited, closed when idle, replaced when they ended."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from airflow_nats_jetstream.page.errors import Busy
from airflow_nats_jetstream.page.pool import Limits, Pool
from airflow_nats_jetstream.page.shared import SharedResults
from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import ConnectionFailed

SHORT = Limits(most=2, idle=0.2, settings=0.2, shared=0.2, refused=0.2, answer=2.0, listeners=2)


class Lookups:
    """Settings by connection id, and how often they were looked up."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.count = 0

    async def __call__(self, connection_id: str) -> ConnectionSettings:
        self.count += 1
        if connection_id == "unknown":
            raise LookupError(connection_id)
        return replace(self.settings, name=connection_id)


@pytest.fixture
def lookups(nats_server: NatsServer) -> Lookups:
    return Lookups(ConnectionSettings(servers=nats_server.url))


async def until(probe: Any) -> None:
    async with asyncio.timeout(10):
        while not probe():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)


async def name(js: JetStream) -> str:
    return js.settings.name


async def test_concurrent_users_share_one_connection_and_one_answer(lookups: Lookups) -> None:
    pool = Pool(lookups, replace(SHORT, idle=10))
    asked = 0

    async def question(js: JetStream) -> int:
        nonlocal asked
        asked += 1
        await js.connection.flush()
        return id(js)

    async def ask() -> int:
        async with pool.use("a") as line:
            return await line.ask("question", question)

    answers = await asyncio.gather(*(ask() for _ in range(50)))
    assert (len(set(answers)), asked, lookups.count) == (1, 1, 1)
    await asyncio.sleep(SHORT.shared + 0.05)
    assert (await ask(), asked) == (answers[0], 2)
    await pool.close()


async def test_an_answer_of_many_requests_is_shared_for_longer(lookups: Lookups) -> None:
    pool = Pool(lookups, replace(SHORT, rate=10))
    asked = 0

    async def question(js: JetStream) -> None:
        nonlocal asked
        asked += 1
        for _ in range(10):
            await js.account_info()

    async with pool.use("a") as line:
        await line.ask("question", question)
        await asyncio.sleep(SHORT.shared * 2)
        await line.ask("question", question)
        assert asked == 1
        line.changed()
        await line.ask("question", question)
        assert asked == 2
    await pool.close()


async def test_a_cancelled_user_takes_the_answer_from_nobody(lookups: Lookups) -> None:
    pool = Pool(lookups, SHORT)
    begun, go = asyncio.Event(), asyncio.Event()

    async def question(js: JetStream) -> str:
        begun.set()
        await go.wait()
        return js.settings.name

    async def ask() -> str:
        async with pool.use("a") as line:
            return await line.ask("question", question)

    first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
    await begun.wait()
    first.cancel()
    await asyncio.wait([first])
    go.set()
    assert await second == "a"
    await pool.close()


async def test_an_idle_connection_is_closed_and_one_in_use_is_not(lookups: Lookups) -> None:
    pool = Pool(lookups, SHORT)
    async with pool.use("a") as line:
        js = await line.js()
        await asyncio.sleep(SHORT.idle * 2)
        assert not js.connection.closed
    await until(lambda: js.connection.closed)
    async with pool.use("a") as line:
        assert await line.ask("name", name) == "a"
    await pool.close()


async def test_changed_settings_replace_the_connection(lookups: Lookups) -> None:
    """Users of the older connection keep it to the end of their block."""
    pool = Pool(lookups, replace(SHORT, idle=10))
    async with pool.use("a") as line:
        before = await line.js()
        lookups.settings = replace(lookups.settings, ledger="other")
        await asyncio.sleep(SHORT.settings + 0.05)
        async with pool.use("a") as newer:
            assert (await newer.js()).settings.ledger == "other"
        assert not before.connection.closed
    await until(lambda: before.connection.closed)
    await pool.close()


async def test_there_are_never_too_many_connections(lookups: Lookups) -> None:
    """The connection that was idle for longest is closed for a new one. If all are in use, the new one is refused."""
    pool = Pool(lookups, replace(SHORT, idle=10))
    async with pool.use("a") as line:
        first = await line.js()
    async with pool.use("b"), pool.use("c"):
        await until(lambda: first.connection.closed)
        with pytest.raises(Busy):
            async with pool.use("d"):
                pass
    await pool.close()


async def test_refusals_are_repeated_for_a_while(lookups: Lookups) -> None:
    pool = Pool(lookups, SHORT)
    for _ in range(5):
        with pytest.raises(LookupError):
            async with pool.use("unknown"):
                pass
    assert lookups.count == 1
    port = free_port()
    lookups.settings = ConnectionSettings(servers=f"nats://127.0.0.1:{port}", connect_timeout=0.1)
    for _ in range(5):
        with pytest.raises(ConnectionFailed):
            async with pool.use("a") as line:
                await line.js()
    assert lookups.count == 2
    await asyncio.sleep(SHORT.refused + 0.05)
    with pytest.raises(ConnectionFailed):
        async with pool.use("a") as line:
            await line.js()
    assert lookups.count == 3
    await pool.close()


async def test_an_answer_takes_no_longer_than_allowed(lookups: Lookups) -> None:
    pool = Pool(lookups, replace(SHORT, answer=0.1))
    async with pool.use("a") as line:
        with pytest.raises(TimeoutError):
            await line.ask("never", lambda _: asyncio.Event().wait())
    await pool.close()


async def test_questions_are_limited(lookups: Lookups) -> None:
    """Those that must wait are answered in the end."""
    pool = Pool(lookups, replace(SHORT, at_once=3))
    asking: list[int] = []
    most = 0

    async def question(js: JetStream) -> None:
        nonlocal most
        asking.append(1)
        most = max(most, len(asking))
        await js.connection.flush()
        asking.pop()

    async with pool.use("a") as line:
        await asyncio.gather(*(line.ask(number, question) for number in range(20)))
    assert most == 3
    await pool.close()


async def test_listeners_are_limited(lookups: Lookups) -> None:
    pool = Pool(lookups, SHORT)
    heard = asyncio.Event()
    async with pool.use("a") as line:
        listening = [asyncio.create_task(line.listen(each, lambda _: heard.wait(), within=5)) for each in "abba"]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await line.listen("c", lambda _: heard.wait(), within=5)
        heard.set()
        assert await asyncio.gather(*listening) == [True] * 4
    await pool.close()


async def test_results_are_bounded() -> None:
    results = SharedResults(most=3)
    for number in range(10):
        await results.get(number, lambda: asyncio.sleep(0), within=1, keep=lambda: 60)
    assert len(results._entries) == 3


async def test_results_are_dropped_when_they_expire() -> None:
    results = SharedResults(refused=0.01)

    async def fail() -> None:
        raise LookupError

    for number in range(10):
        await results.get(number, lambda: asyncio.sleep(0), within=1, keep=lambda: 0.01)
    with pytest.raises(LookupError):
        await results.get("failed", fail, within=1, keep=lambda: 60)
    await asyncio.sleep(0.02)
    await results.get("newest", lambda: asyncio.sleep(0), within=1, keep=lambda: 60)
    assert set(results._entries) == {"newest"}
