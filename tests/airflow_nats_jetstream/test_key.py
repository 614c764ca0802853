"""Waiting for a key, in the worker and in the triggerer, and writing one. nats-py reads and writes it besides."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.kv import KeyValue

from airflow_nats_jetstream.compat import (
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.key import JetStreamPutKeyOperator
from airflow_nats_jetstream.sensors import JetStreamKeySensor
from airflow_nats_jetstream.triggers import JetStreamKeyTrigger
from demo.nats_server import NatsServer
from jetstream_client.errors import (
    BucketNotFound,
    BucketRecreated,
    ConnectionFailed,
    InvalidValue,
    KeyExists,
    WrongRevision,
)
from jetstream_client.stores.key_value import Key
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import CONNECTION, State, deferred, execute, rendered, resumed
from tests.airflow_nats_jetstream.test_sensor import fired
from tests.jetstream_client.servers import Authority, Nkey, Operator
from tests.jetstream_client.until import until

KEY = "prices/eu.2026"


@pytest.fixture
def bucket() -> str:
    return f"b{secrets.token_hex(4)}"


@asynccontextmanager
async def opened(server: NatsServer, bucket: str, **config: Any) -> AsyncIterator[KeyValue]:
    """The bucket as nats-py sees it, created if it does not exist."""
    client = await nats.connect(server.url)
    try:
        yield await client.jetstream().create_key_value(bucket=bucket, **config)
    finally:
        await client.close()


def by_nats_py(
    server: NatsServer, bucket: str, *actions: Callable[[KeyValue], Coroutine[Any, Any, Any]], **config: Any
) -> list[Any]:
    async def run() -> list[Any]:
        async with opened(server, bucket, **config) as values:
            return [await action(values) for action in actions]

    return asyncio.run(run())


def recreate(hook: JetStreamHook, server: NatsServer, bucket: str) -> None:
    hook.run(lambda js: js.stream(f"KV_{bucket}").delete())
    by_nats_py(server, bucket)


def key(bucket: str, **changes: Any) -> JetStreamKeySensor:
    values: dict[str, Any] = {"bucket": bucket, "key": KEY, "deferrable": False, "poke_interval": 0.1, "timeout": 60}
    return JetStreamKeySensor(task_id="key", nats_conn_id=CONNECTION, **{**values, **changes})


def put(bucket: str, value: Any = "9", **changes: Any) -> JetStreamPutKeyOperator:
    values: dict[str, Any] = {"bucket": bucket, "key": KEY, "value": value}
    return JetStreamPutKeyOperator(task_id="put", nats_conn_id=CONNECTION, **{**values, **changes})


deferring = partial(key, deferrable=True)


async def watched(hook: JetStreamHook, bucket: str, waiting: asyncio.Task[Any]) -> None:
    """Wait until a consumer watches the bucket."""

    async def watchers(js: Any) -> int:
        return int((await js.stream(f"KV_{bucket}").info()).state["consumer_count"])

    while not await asyncio.to_thread(hook.run, watchers):
        assert not waiting.done(), waiting.result()
        await asyncio.sleep(0.05)


def test_it_exists_has_a_value_or_has_changed(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    by_nats_py(nats_server, bucket, lambda kv: kv.put("prices", b"other"))
    with pytest.raises(AirflowSensorTimeout):
        execute(key(bucket, timeout=0))
    with pytest.raises(AirflowRescheduleException):
        execute(key(bucket, mode="reschedule"))
    first, _ = by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b'{"a": 1}'), lambda kv: kv.put("x", b"2"))
    assert execute(key(bucket)) == {"bucket": bucket, "key": KEY, "revision": first}
    assert execute(key(bucket, equals={"a": 1}))["revision"] == first
    assert execute(key(bucket, after=str(first - 1)))["revision"] == first
    for changes in ({"equals": {"a": 2}}, {"after": first}, {"changed": True}):
        with pytest.raises(AirflowSkipException):
            execute(key(bucket, timeout=0, soft_fail=True, **changes))
    by_nats_py(nats_server, bucket, lambda kv: kv.delete(KEY))
    for changes in ({}, {"after": first}, {"equals": ""}):
        with pytest.raises(AirflowSensorTimeout):
            execute(key(bucket, timeout=0, **changes))


def test_a_retry_counts_from_the_first_try(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"1"))
    state = State()
    with pytest.raises(AirflowSensorTimeout):
        execute(key(bucket, changed=True, timeout=0), state=state)
    (second,) = by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"1"))
    assert execute(key(bucket, changed=True), state=state, try_number=2)["revision"] == second
    recreate(hook, nats_server, bucket)
    with pytest.raises(BucketRecreated, match="created again"):
        execute(key(bucket, changed=True), state=state, try_number=3)
    with pytest.raises(AirflowSensorTimeout):
        execute(key(bucket, changed=True, timeout=0), state=state, try_number=4)
    with pytest.raises(InvalidValue, match="highest revision in bucket"):
        execute(key(bucket, after=7))


async def test_the_triggerer_watches(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    """With a history, each entry counts: a value that was replaced before the watch has read it, too."""
    async with opened(nats_server, bucket, history=5) as values:
        await values.put(KEY, b"secret value")
        trigger = await asyncio.to_thread(deferred, deferring(bucket, equals="done"))
        assert b"done" not in json.dumps(trigger.serialize()).encode()  # Airflow's database contains no value
        waiting = asyncio.create_task(fired(trigger))
        await watched(hook, bucket, waiting)
        await values.delete(KEY)
        await values.purge(KEY)
        done = await values.put(KEY, b"done")
        await values.put(KEY, b"next")
        assert resumed(deferring(bucket), await waiting)["revision"] == done
        # A value that is there is found in the worker, and one that is too old is not.
        assert (await asyncio.to_thread(execute, deferring(bucket)))["revision"] == done + 1
        never = await fired(await asyncio.to_thread(deferred, deferring(bucket, after=done + 1, timeout=0)))
        with pytest.raises(AirflowSensorTimeout, match=f"key '{KEY}' of key-value bucket '{bucket}'"):
            resumed(deferring(bucket), never)


def test_who_may_only_watch_a_key_watches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fits already: to request it takes another permission."""
    denied = '{ user: watcher, password: w, permissions: { publish: { deny: "$JS.API.STREAM.MSG.GET.>" } } }'
    server = NatsServer(tmp_path / "nats", f"authorization {{ users: [{{ user: admin, password: a }}, {denied}] }}")
    server.start()
    try:
        at = server.url.replace("nats://", "nats://{}@")

        async def stored() -> int:
            client = await nats.connect(at.format("admin:a"))
            values = await client.jetstream().create_key_value(bucket="b")
            revision = await values.put(KEY, b"1")
            await client.close()
            return revision

        revision = asyncio.run(stored())
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", at.format("watcher:w") + "/?request_timeout=1")
        trigger = deferred(deferring("b"))
        assert asyncio.run(fired(trigger)) == {"status": "entry", "revision": revision}
    finally:
        server.stop()


async def test_a_restarted_triggerer_goes_on(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    """What was written while no triggerer ran is a change; a bucket that was created again meanwhile is an error."""
    async with opened(nats_server, bucket) as values:
        trigger = await asyncio.to_thread(deferred, deferring(bucket, changed=True))
        waiting = asyncio.create_task(fired(trigger))
        await watched(hook, bucket, waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        written = await values.put(KEY, b"1")
    again = JetStreamKeyTrigger(**trigger.serialize()[1])
    assert (await fired(again))["revision"] == written
    await asyncio.to_thread(recreate, hook, nats_server, bucket)
    event = await fired(JetStreamKeyTrigger(**trigger.serialize()[1]))
    with pytest.raises(BucketRecreated, match=bucket):
        resumed(deferring(bucket, soft_fail=True), event)


@pytest.mark.parametrize("again", [False, True])
async def test_a_bucket_that_vanishes_ends_the_watch(
    hook: JetStreamHook, nats_server: NatsServer, bucket: str, again: bool
) -> None:
    async with opened(nats_server, bucket):
        waiting = asyncio.create_task(fired(await asyncio.to_thread(deferred, deferring(bucket))))
        await watched(hook, bucket, waiting)
    if again:
        await asyncio.to_thread(recreate, hook, nats_server, bucket)
    else:
        await asyncio.to_thread(hook.run, lambda js: js.stream(f"KV_{bucket}").delete())
    with pytest.raises((BucketRecreated, BucketNotFound) if again else BucketNotFound, match=bucket):
        resumed(deferring(bucket, soft_fail=True), await waiting)


def test_a_bucket_that_does_not_exist_is_an_error(hook: JetStreamHook, bucket: str) -> None:
    for task in (key(bucket, soft_fail=True), key(bucket, deferrable=True), put(bucket)):
        with pytest.raises(BucketNotFound, match=f"bucket '{bucket}' does not exist.*nats kv add"):
            execute(task)


async def test_a_killed_server_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        set_connection(monkeypatch, servers=server.url)
        hook = JetStreamHook(CONNECTION)
        async with opened(server, bucket):
            waiting = asyncio.create_task(fired(await asyncio.to_thread(deferred, deferring(bucket))))
            await watched(hook, bucket, waiting)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with opened(server, bucket) as values:
            written = await values.put(KEY, b"1")
        assert (await waiting)["revision"] == written
    finally:
        server.stop()


def test_compare_and_set(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    by_nats_py(nats_server, bucket)
    first = execute(put(bucket, {"a": 1}, create=True))
    assert first == {"bucket": bucket, "key": KEY, "revision": first["revision"], "stored": True}
    (entry,) = by_nats_py(nats_server, bucket, lambda kv: kv.get(KEY))
    assert (entry.value, entry.revision) == (b'{"a": 1}', first["revision"])
    # A retry and a clear recognise it; another run does not.
    assert execute(put(bucket, {"a": 1}, create=True), try_number=2) == {**first, "stored": False}
    with pytest.raises(KeyExists, match=f"revision {first['revision']}"):
        execute(put(bucket, {"a": 1}, create=True), run_id="other")
    second = execute(put(bucket, b"2", revision=str(first["revision"])))
    with pytest.raises(WrongRevision, match=f"has revision {second['revision']}"):
        execute(put(bucket, b"3", revision=first["revision"]))
    assert not execute(put(bucket, b"2", revision=first["revision"]))["stored"]
    with pytest.raises(WrongRevision, match="no entry"):
        execute(put(bucket, b"3", key="other", revision=7))
    third = execute(put(bucket, "3"))
    assert third["revision"] == second["revision"] + 1
    by_nats_py(nats_server, bucket, lambda kv: kv.delete(KEY))
    assert execute(put(bucket, {"a": 1}, create=True), run_id="other")["stored"]
    assert execute(put(bucket, "3"))["stored"]  # it was replaced, so a clear writes it again


async def test_an_expired_value_does_not_exist(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    """The server puts a marker in its place, which is an entry with an empty payload (nats.py#966)."""
    second = 10**9
    config = {"max_age": second, "allow_msg_ttl": True, "subject_delete_marker_ttl": 3600 * second}
    async with opened(nats_server, bucket):
        await asyncio.to_thread(hook.run, lambda js: js.stream(f"KV_{bucket}").update(config))
    written = (await asyncio.to_thread(execute, put(bucket, "", create=True)))["revision"]

    async def marked() -> bool:
        last = await asyncio.to_thread(hook.run, Key(bucket, KEY).last)
        return last is not None and last.headers.get("Nats-Marker-Reason") == ["MaxAge"]

    await until(marked)
    for changes in ({}, {"equals": ""}, {"after": written}):
        with pytest.raises(AirflowSensorTimeout):
            await asyncio.to_thread(execute, key(bucket, timeout=0, **changes))
    with pytest.raises(WrongRevision):
        await asyncio.to_thread(execute, put(bucket, "2", revision=written))
    # nats-server#6711: a key can be created again although it has a marker
    assert (await asyncio.to_thread(execute, put(bucket, "3", create=True), run_id="next"))["stored"]


def test_a_write_is_found_in_the_history(hook: JetStreamHook, nats_server: NatsServer, bucket: str) -> None:
    """Another client has written between the try whose answer was lost and its retry."""
    by_nats_py(nats_server, bucket, history=5)
    created = execute(put(bucket, "1", create=True))
    by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"theirs"), history=5)
    assert execute(put(bucket, "1", create=True), try_number=2) == {**created, "stored": False}
    (last,) = by_nats_py(nats_server, bucket, lambda kv: kv.get(KEY), history=5)
    assert last.value == b"theirs"
    updated = execute(put(bucket, "2", revision=last.revision))
    by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"theirs"), history=5)
    assert execute(put(bucket, "2", revision=last.revision), try_number=2) == {**updated, "stored": False}


def test_an_unanswered_write_is_recognised(
    hook: JetStreamHook, nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stores it, and its answer does not arrive."""
    from jetstream_client.context import JetStream
    from jetstream_client.errors import RequestTimeout

    by_nats_py(nats_server, bucket)
    publish = JetStream.publish

    async def unanswered(self: JetStream, *given: Any, **options: Any) -> Any:
        monkeypatch.undo()  # only the first
        set_connection(monkeypatch, servers=nats_server.url)
        await publish(self, *given, **options)
        raise RequestTimeout("the answer was lost")

    monkeypatch.setattr(JetStream, "publish", unanswered)
    written = execute(put(bucket, "1", create=True))
    info = hook.run(Key(bucket, KEY).bucket_info)
    assert (written["revision"], info.state["last_seq"]) == (1, 1)


def test_the_dry_run_writes_nothing(
    hook: JetStreamHook, nats_server: NatsServer, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"1"))
    put(bucket, create=True).dry_run()
    put(bucket, revision=1).dry_run()
    said = capsys.readouterr().out
    assert "the last revision is 1, and the value would be refused" in said
    assert "the last revision is 1, and the value would be written" in said
    assert hook.run(Key(bucket, KEY).bucket_info).state["last_seq"] == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bucket": "a.b"}, r"bucket='a\.b'"),
        ({"key": "a.*"}, r"key='a\.\*'"),
        ({"key": ".a"}, r"key='\.a'"),
        ({"after": "few"}, "after='few'.*whole number"),
        ({"after": 1, "changed": True}, "after=1.*leave one"),
        ({"equals": {1, 2}}, "equals"),
        ({"mode": "reschedule", "deferrable": True}, "mode='reschedule'"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        key(**{"bucket": "a", **changes})


def test_a_condition_without_a_value_is_an_error_and_not_ignored(
    hook: JetStreamHook, nats_server: NatsServer, bucket: str
) -> None:
    """A template whose value is missing renders as ``None``: the write would overwrite, and the wait would end."""
    by_nats_py(nats_server, bucket, lambda kv: kv.put(KEY, b"1"))
    given = "{{ params.seen }}"
    cases: list[tuple[Any, str, list[Any]]] = [
        (put(bucket, revision=given), "revision", ["None", "", None]),
        (key(bucket, after=given), "after", ["None", "", None]),
        (key(bucket, equals=given), "equals", [None]),
    ]
    for given_task, name, values in cases:
        task = rendered(given_task, {"seen": None})
        for value in values:
            setattr(task, name, value)
            with pytest.raises(InvalidValue, match=f"^{name}=.*has no value"):
                execute(task)
    assert hook.run(Key(bucket, KEY).bucket_info).state["last_seq"] == 1


def test_what_is_wrong_with_a_write_is_said_when_the_dag_is_parsed() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bucket": "a b"}, "bucket='a b'"),
        ({"key": ""}, "key=''"),
        ({"revision": 0}, "revision=0.*create=True"),
        ({"revision": 1, "create": True}, "leave one"),
        ({"value": {1}}, "value"),
    ]
    for changes, says in wrong:
        with pytest.raises(InvalidValue, match=says):
            put(**{"bucket": "a", **changes})


async def test_the_hook_gives_nats_pys_own_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str) -> None:
    server = NatsServer(tmp_path, 'authorization { user: u, password: "p w" }')
    server.start()
    try:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{CONNECTION.upper()}",
            json.dumps({"conn_type": "nats", "login": "u", "password": "p w", "extra": {"servers": server.url}}),
        )
        async with JetStreamHook(CONNECTION).nats_py() as js:
            values = await js.create_key_value(bucket=bucket)
            assert await values.put(KEY, b"1") == 1
            store = await js.create_object_store(bucket)
            await store.put("scan", b"x" * 300_000)
            assert (await store.get("scan")).data == b"x" * 300_000
    finally:
        server.stop()
    set_connection(monkeypatch, servers=server.url, connect_timeout=0.5)
    with pytest.raises(ConnectionFailed, match=r"nats-py could not connect.* within 0\.5 s"):
        async with JetStreamHook(CONNECTION).nats_py():
            pass


async def test_nats_py_connects_with_credentials_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, operator = Authority(tmp_path / "ca"), Operator()
    server = NatsServer(tmp_path / "server", operator.config + authority.config("handshake_first: true"))
    server.start()
    try:
        set_connection(
            monkeypatch,
            servers=f"tls://localhost:{server.port}",
            tls_ca=authority.ca.read_text(),
            tls_handshake_first=True,
            creds_secret=operator.credentials(Nkey()).replace("\n", "\r\n"),
        )
        async with JetStreamHook(CONNECTION).nats_py() as js:
            assert (await js.account_info()).streams == 0
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("extra", "field"),
    [({"tls": True}, "tls_handshake_first"), ({"domain": "hub"}, "domain"), ({"api_prefix": "A.API"}, "api_prefix")],
)
async def test_what_nats_py_would_ignore_is_refused(
    extra: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_connection(monkeypatch, servers="nats://127.0.0.1:1", **extra)
    with pytest.raises(InvalidValue, match=f"^{field}="):
        async with JetStreamHook(CONNECTION).nats_py():
            pass
