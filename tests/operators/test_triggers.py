"""Triggers of one triggerer on one connection; the server is asked how many there are."""

import asyncio
import json
import os
import secrets
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.triggers import JetStreamHoldTrigger
from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger
from demo.nats_server import NatsServer
from demo.service import free_port
from tests.client.until import until
from tests.operators.steps import CONNECTION, CONSUMER, claim, publish, record
from tests.operators.test_sensor import fired, trigger_of


class Guarded:
    """A server with one user, whose password changes; and the Airflow connection to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._http = free_port()
        self._monkeypatch = monkeypatch
        self.server = NatsServer(folder, self._config("first"))
        self.server.start()
        self.connect("first")

    def _config(self, password: str) -> str:
        return f"http: 127.0.0.1:{self._http}\nauthorization {{ user: ada, password: {password} }}"

    def connect(self, password: str) -> None:
        uri = self.server.url.replace("nats://", f"nats://ada:{password}@")
        options = "shortest_ack_wait=0.5&connect_timeout=5"
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", f"{uri}/?{options}")

    def rotate(self, password: str) -> None:
        self.server._settings.write_text(self._config(password))
        os.kill(self.server.pid, signal.SIGHUP)

    async def connected(self) -> int:
        return len(await self.connections())

    async def waits(self) -> bool:
        """One connection, and on it a pull beside the answers to requests."""
        return [each["subscriptions"] for each in await self.connections()] == [2]

    async def connections(self) -> list[dict[str, Any]]:
        def ask() -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/connz") as answer:
                return json.load(answer)

        return list((await asyncio.to_thread(ask))["connections"])


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path / "nats", monkeypatch)
    yield guarded
    guarded.server.stop()


def create(count: int) -> list[str]:
    names = [f"S{secrets.token_hex(4)}" for _ in range(count)]

    async def made(js: Any) -> None:
        for name in names:
            await js.create_stream({"name": name, "subjects": [f"{name}.>"]})

    JetStreamHook(CONNECTION).run(made)
    return names


async def test_triggers_share_one_connection(guarded: Guarded) -> None:
    names = await asyncio.to_thread(create, 5)
    triggers = [await asyncio.to_thread(trigger_of, name, timeout=120) for name in names]
    waiting = [asyncio.create_task(fired(each)) for each in triggers]

    async def one() -> bool:
        return await guarded.connected() == 1

    await until(one)
    waiting[0].cancel()  # who connected first
    await asyncio.wait([waiting[0]])
    assert await guarded.connected() == 1
    for name in names[1:]:
        await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 3)
    events = await asyncio.gather(*waiting[1:])
    assert [event["claims"][0]["count"] for event in events] == [3] * 4

    async def none() -> bool:
        return await guarded.connected() == 0

    await until(none)


async def test_all_who_wait_outlive_a_lost_connection(guarded: Guarded) -> None:
    names = await asyncio.to_thread(create, 20)
    triggers = [await asyncio.to_thread(trigger_of, name, timeout=240) for name in names]
    waiting = [asyncio.create_task(fired(each)) for each in triggers]

    async def pulling() -> bool:
        return [each["subscriptions"] for each in await guarded.connections()] == [21]

    await until(pulling)
    guarded.server.kill()
    guarded.server.start()
    await until(pulling)
    await asyncio.to_thread(publish_to_each, names)
    events = await asyncio.gather(*waiting)
    assert [event["claims"][0]["count"] for event in events] == [1] * 20


def publish_to_each(names: list[str]) -> None:
    async def publish(js: Any) -> None:
        for name in names:
            await js.publish(f"{name}.a", b"")

    JetStreamHook(CONNECTION).run(publish)


async def test_a_watcher_is_on_the_sensors_connection(guarded: Guarded) -> None:
    [name] = await asyncio.to_thread(create, 1)
    notices = JetStreamNoticeTrigger(name, CONSUMER, poll_interval=0.1, nats_conn_id=CONNECTION).run()
    noticed = asyncio.ensure_future(anext(notices))

    async def connected(count: int) -> None:
        async def equal() -> bool:
            return await guarded.connected() == count

        await until(equal)

    await connected(1)
    waiting = asyncio.create_task(fired(await asyncio.to_thread(trigger_of, name, timeout=120)))
    await until(guarded.waits)
    await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 3)
    await waiting
    await connected(1)  # whoever stays keeps it
    await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 2)
    assert (await noticed).payload["stream"] == name  # of the three, on a busy machine: pulled and not entered yet
    await notices.aclose()  # type: ignore[attr-defined]
    await connected(0)


async def test_who_asks_for_the_connection_while_it_is_asked_for_gets_the_same_answer(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = JetStreamHook.aget_connection

    async def counted(conn_id: str) -> Any:
        asked.append(conn_id)
        return await ask(conn_id)

    monkeypatch.setattr(JetStreamHook, "aget_connection", staticmethod(counted))

    async def version() -> str:
        async with JetStreamHook(CONNECTION).shared() as js:
            return js.connection.server_version

    first = asyncio.create_task(version())
    others = [asyncio.create_task(version()) for _ in range(9)]
    await asyncio.sleep(0)
    first.cancel()  # who asked
    assert len(set(await asyncio.gather(*others))) == 1
    assert asked == [CONNECTION]
    await version()
    assert asked == [CONNECTION] * 2, "an answer is not kept"


async def test_a_trigger_whose_user_was_revoked_goes_on_with_the_connection_of_now(guarded: Guarded) -> None:
    [name] = await asyncio.to_thread(create, 1)
    waiting = asyncio.create_task(fired(await asyncio.to_thread(trigger_of, name, timeout=120)))
    await until(guarded.waits)
    guarded.connect("second")
    guarded.rotate("second")

    async def none() -> bool:
        return await guarded.connected() == 0

    await until(none, within=60)
    await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 3)
    assert (await waiting)["claims"][0]["count"] == 3


async def test_a_claim_whose_users_password_changes_is_held_on(guarded: Guarded) -> None:
    hook = JetStreamHook(CONNECTION)
    [name] = await asyncio.to_thread(create, 1)
    taken = await asyncio.to_thread(claim, hook, name)
    holding = asyncio.create_task(fired(JetStreamHoldTrigger(CONNECTION, taken, time.time() + 240)))

    async def token() -> str | None:
        entries = await asyncio.to_thread(record, hook, name)
        return entries.open[taken["id"]].token if entries else None

    async def held() -> bool:
        return await token() is not None

    await until(held)
    before = await token()
    guarded.connect("second")
    guarded.rotate("second")

    async def none() -> bool:
        return await guarded.connected() == 0

    async def another() -> bool:
        return await token() not in (None, before)

    await until(none, within=60)
    await until(another, within=60)

    def settle() -> None:
        with hook.holding(taken, try_number=1) as held:
            held.settle()

    await asyncio.to_thread(settle)
    assert await holding == {"status": "done"}


async def test_a_trigger_that_may_not_connect_again_says_so(guarded: Guarded) -> None:
    [name] = await asyncio.to_thread(create, 1)
    waiting = asyncio.create_task(fired(await asyncio.to_thread(trigger_of, name, timeout=120)))
    await until(guarded.waits)
    guarded.rotate("second")
    event = await waiting
    assert event["status"] == "error"
    assert "AuthenticationFailed" in event["error"]
    assert "first" not in event["error"]
