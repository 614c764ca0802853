"""The triggers of one triggerer share one connection; the tests ask the server how many there are."""

import asyncio
import gc
import json
import os
import secrets
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.triggers import JetStreamHoldTrigger, JetStreamSparkSubmitTrigger, JetStreamTrigger
from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger
from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client.errors import ConsumerNotFound
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, info, publish, record
from tests.airflow_nats_jetstream.test_sensor import fired, trigger_of
from tests.jetstream_client.until import until


class Guarded:
    """A server with one user, whose password changes, and the Airflow connection to it."""

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

    async def is_connected(self, times: int) -> bool:
        return await self.connected() == times

    async def connected_again(self, before: list[dict[str, Any]]) -> bool:
        """There are as many connections as before, and all of them are new."""
        now = await self.connections()
        return len(now) == len(before) and not {each["cid"] for each in now} & {each["cid"] for each in before}

    async def waits(self) -> bool:
        """There is one connection, with a subscription for the pull and one for the answers to requests."""
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
            await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

    JetStreamHook(CONNECTION).run(made)
    return names


async def test_triggers_share_one_connection(guarded: Guarded) -> None:
    names = await asyncio.to_thread(create, 5)
    triggers = [await asyncio.to_thread(trigger_of, name, timeout=120) for name in names]
    waiting = [asyncio.create_task(fired(each)) for each in triggers]

    async def one() -> bool:
        return [each["subscriptions"] for each in await guarded.connections()] == [6]  # five pulls, and the answers

    await until(one)
    waiting[0].cancel()  # the trigger that connected first
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
    await connected(1)  # the remaining trigger keeps the connection
    await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 2)
    # On a busy machine, one of the three messages may have been pulled and not entered yet.
    assert (await noticed).payload["stream"] == name
    await notices.aclose()  # type: ignore[attr-defined]
    await connected(0)


async def test_concurrent_triggers_share_one_lookup_of_their_connection(
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


async def test_the_failed_lookup_of_a_cancelled_trigger_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def missing(conn_id: str) -> Any:
        asked.set()
        await answer.wait()
        raise LookupError(conn_id)

    monkeypatch.setattr(JetStreamHook, "aget_connection", staticmethod(missing))
    asking = asyncio.create_task(JetStreamHook("missing").shared().__aenter__())
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    answer.set()
    await asyncio.sleep(0.05)
    del asking
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_trigger_whose_user_was_revoked_goes_on_with_the_connection_of_now(guarded: Guarded) -> None:
    [name] = await asyncio.to_thread(create, 1)
    waiting = asyncio.create_task(fired(await asyncio.to_thread(trigger_of, name, timeout=120)))
    await until(guarded.waits)
    connections = await guarded.connections()
    guarded.connect("second")
    guarded.rotate("second")
    await until(partial(guarded.connected_again, connections), within=60)
    await asyncio.to_thread(publish, JetStreamHook(CONNECTION), name, 3)
    assert (await waiting)["claims"][0]["count"] == 3


async def test_a_claim_whose_users_password_changes_is_held_on(guarded: Guarded) -> None:
    """By the same attempt: its connection looks up the new password."""
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
    await until(partial(guarded.is_connected, 1))
    before, connections = await token(), await guarded.connections()
    guarded.connect("second")
    guarded.rotate("second")
    await until(partial(guarded.connected_again, connections), within=60)
    assert await token() == before

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
    assert event["type"] == "AuthenticationFailed"
    assert "first" not in event["error"]


async def triggerer_cancels(trigger: JetStreamTrigger, when: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Run a trigger as Airflow's triggerer does and, when it is time, cancel it as after a user's action: again and
    again until it has ended. The triggerer does so every second; here it is more often."""
    runner = TriggerRunner()  # type: ignore[no-untyped-call]
    trigger.task_instance = SimpleNamespace(  # type: ignore[assignment]
        id=uuid4(), dag_id="dag", run_id="run", task_id="task", map_index=-1, try_number=1, context_carrier=None
    )
    runner.triggers[1] = {"name": "trigger", "is_watcher": False, "events": 0}  # type: ignore[typeddict-item]
    task = runner.triggers[1]["task"] = asyncio.create_task(runner.run_trigger(1, trigger))
    await until(when)
    assert not task.done()
    while not task.done():
        runner.to_cancel.append(1)
        await runner.cancel_triggers()  # type: ignore[no-untyped-call]
        yield
        await asyncio.sleep(0.2)
    assert not runner.events


async def test_what_was_pulled_goes_back_however_often_the_trigger_is_cancelled(guarded: Guarded) -> None:
    hook = JetStreamHook(CONNECTION)
    [name] = await asyncio.to_thread(create, 1)
    lease = {"ack_wait": timedelta(minutes=5)}
    trigger = await asyncio.to_thread(trigger_of, name, timeout=120, min_messages=20, consumer_config=lease)
    await asyncio.to_thread(publish, hook, name, 10)

    async def pending() -> int:
        try:
            return (await asyncio.to_thread(info, hook, name)).ack_pending
        except ConsumerNotFound:
            return 0

    async def pulled() -> bool:
        if await pending() != 10:
            return False
        guarded.server.freeze()  # before the first cancellation
        return True

    times = 0
    async for _ in triggerer_cancels(trigger, pulled):
        times += 1
        if times == 5:
            guarded.server.thaw()
    assert times >= 5, "the triggerer waited"

    async def fetch(js: Any) -> int:
        return len(await js.stream(name).consumer(CONSUMER).fetch(10, max_wait=5))

    assert await asyncio.to_thread(hook.run, fetch) == 10


async def test_a_keeper_leaves_its_lease_however_often_the_trigger_is_cancelled(guarded: Guarded) -> None:
    hook = JetStreamHook(CONNECTION)
    [name] = await asyncio.to_thread(create, 1)
    taken = await asyncio.to_thread(claim, hook, name)

    async def token() -> str | None:
        entries = await asyncio.to_thread(record, hook, name)
        assert entries is not None
        return entries.open[taken["id"]].token

    async def held() -> bool:
        if await token() is None:
            return False
        guarded.server.freeze()  # before the first cancellation
        return True

    times = 0
    async for _ in triggerer_cancels(JetStreamHoldTrigger(CONNECTION, taken, time.time() + 240), held):
        times += 1
        if times == 5:
            guarded.server.thaw()
    assert times >= 5, "the triggerer waited"
    assert await token() is None


async def test_a_job_is_killed_and_its_claim_released_however_often_the_trigger_is_cancelled(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark master with much to do, and an Airflow that is slow to say what became of the task."""
    hook = JetStreamHook(CONNECTION)
    [name] = await asyncio.to_thread(create, 1)
    taken = await asyncio.to_thread(claim, hook, name)
    asked: list[str] = []
    killed: list[str] = []
    often = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1]
        except asyncio.IncompleteReadError:  # cancelled before it had sent its request
            writer.close()
            return
        asked.append(path)
        if "/kill/" in path:
            await often.wait()
            killed.append(path.rpartition("/")[2])
        body = json.dumps({"success": True, "driverState": "RUNNING"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    def states(**_: Any) -> dict[str, Any]:
        time.sleep(1)
        return {"run": {"task": "failed"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    async with await asyncio.start_server(answer, "127.0.0.1") as master:
        port = master.sockets[0].getsockname()[1]
        spark = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077, "extra": {"rest-port": port}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(spark))
        trigger = JetStreamSparkSubmitTrigger(CONNECTION, taken, time.time() + 240, "spark_test", "driver-1", 0.2)

        async def watched() -> bool:
            entries = await asyncio.to_thread(record, hook, name)
            return bool(asked and entries and entries.open[taken["id"]].token)

        times = 0
        async for _ in triggerer_cancels(trigger, watched):
            times += 1
            if times > 5:
                often.set()
    assert times > 5, "the triggerer waited"
    assert killed == ["driver-1"]

    async def fetch(js: Any) -> int:
        return len(await js.stream(name).consumer(CONSUMER).fetch(10, max_wait=5))

    assert await asyncio.to_thread(hook.run, fetch) == 10, "released at once"
