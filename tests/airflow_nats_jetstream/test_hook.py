"""The hook: settings from a connection, and the ways to use JetStream from a task."""

import asyncio
import json
import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator, Connection

from airflow_nats_jetstream.airflow_connection import CREDENTIAL_FOLDERS, settings_of
from airflow_nats_jetstream.airflow_version import check_airflow
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.consumer import JetStreamResetConsumerOperator
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.operators.stream import (
    JetStreamCreateStreamOperator,
    JetStreamDeleteStreamOperator,
    JetStreamPurgeOperator,
)
from airflow_nats_jetstream.sensors import JetStreamHoldSensor
from demo.nats_server import NatsServer
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue, JetStreamError, MessagesMissing, StreamNotFound
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff.errors import ClaimInvalid
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, info, record, sensor
from tests.jetstream_client.expiring import reload
from tests.jetstream_client.servers import Nkey, Operator
from tests.jetstream_client.until import until

AT = "2026-11-21T03:00:00Z"
NKEY = Nkey()
CREDENTIALS = Operator().credentials(NKEY)


def connection(extra: dict[str, Any] | None = None, **fields: Any) -> Connection:
    return Connection(conn_id="c", conn_type="nats", extra=json.dumps(extra) if extra else None, **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ConnectionSettings()),
        ({"host": "a"}, ConnectionSettings(servers="nats://a")),
        ({"host": "a", "port": 4333}, ConnectionSettings(servers="nats://a:4333")),
        ({"host": "a,b", "port": 4333}, ConnectionSettings(servers=("nats://a:4333", "nats://b:4333"))),
        ({"port": 4333}, ConnectionSettings(servers="nats://127.0.0.1:4333")),
        ({"host": "a:1,b, ", "port": 4333}, ConnectionSettings(servers=("nats://a:1", "nats://b:4333"))),
        (
            {"port": 7, "extra": {"servers": "tls://a,nats://b:1"}},
            ConnectionSettings(servers=("tls://a:7", "nats://b:1")),
        ),
        ({"host": "::1"}, ConnectionSettings(servers="nats://[::1]")),
        ({"host": "::1", "port": 4333}, ConnectionSettings(servers="nats://[::1]:4333")),
        ({"host": "tls://a", "port": 4333}, ConnectionSettings(servers="tls://a:4333")),
        ({"extra": {"token": 12345}}, ConnectionSettings(token="12345")),
        ({"extra": {"servers": "nats://a:1,nats://b:2"}}, ConnectionSettings(servers=("nats://a:1", "nats://b:2"))),
        ({"login": "u", "password": "p"}, ConnectionSettings(user="u", password="p")),
        ({"extra": {"token": "t", "nkey_secret": "", "tls": None}}, ConnectionSettings(token="t")),
        ({"extra": {"nkey_secret": NKEY.seed}}, ConnectionSettings(nkey_seed=NKEY.seed)),
        ({"extra": {"creds_secret": CREDENTIALS}}, ConnectionSettings(credentials=CREDENTIALS)),
        ({"extra": {"inbox_prefix": "_INBOX_a"}}, ConnectionSettings(inbox_prefix="_INBOX_a")),
        ({"extra": {"tls": "true", "tls_hostname": "h"}}, ConnectionSettings(tls=True, tls_hostname="h")),
        ({"extra": {"tls": "no"}}, ConnectionSettings()),
        ({"extra": {"domain": "hub", "request_timeout": "2"}}, ConnectionSettings(domain="hub", request_timeout=2.0)),
    ],
)
def test_settings_of_a_connection(fields: dict[str, Any], expected: ConnectionSettings) -> None:
    assert settings_of(connection(**fields)) == replace(
        expected, credential_folders=CREDENTIAL_FOLDERS, ledger="airflow"
    )


def test_a_connection_can_name_another_ledger() -> None:
    assert settings_of(connection({"ledger": "team"})).ledger == "team"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"extra": {"tls_cert": "x"}}, "extra='tls_cert'.*tls_certificate"),
        ({"extra": {"tls": "maybe"}}, "true or false"),
        ({"extra": {"connect_timeout": "soon"}}, "seconds"),
        ({"extra": {"token": 5.5}}, "string.*__extra__"),
        ({"extra": {"token": True}}, "string"),
        ({"extra": {"nkey_secret": "hush"}}, "nkey_secret.*58 characters"),
        ({"extra": {"creds_secret": "hush"}}, "creds_secret.*USER JWT"),
        ({"password": "hush"}, "login.*set 'user' and 'password' together"),
        ({"login": "u"}, "password.*set 'user' and 'password' together"),
        ({"login": "u", "password": "p", "extra": {"token": "t"}}, "user and token.*only one of these ways"),
        ({"extra": {"servers": "http://a"}}, "nats://host:port"),
        ({"extra": {"servers": "nats://u:hush@a"}}, "own fields"),
        ({"host": "a", "extra": {"servers": "nats://b"}}, "servers.*host"),
    ],
)
def test_a_connection_that_contradicts_itself_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says) as refusal:
        settings_of(connection(**fields))
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    "console",
    [
        "nats.example.com/{stream}",
        "ftp://nats.example.com/{stream}",
        "https://user:hush@nats.example.com/{stream}",
        "https://nats.example.com/{dag}",
        "https://nats.example.com/{stream.__class__}",
        "https://nats.example.com/{",
        "https:///{stream}",
        "https://[nats",
        7,
    ],
)
def test_a_console_that_is_no_page_is_refused(console: Any) -> None:
    with pytest.raises(InvalidValue, match=r"console=.*https://nats.example.com/streams/\{stream\}") as refusal:
        settings_of(connection({"console": console}))
    assert "hush" not in str(refusal.value)


def test_a_link_names_stream_and_consumer(hook: JetStreamHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are quoted for the address. Without a console, the link leads to the page in Airflow, below its base path.
    Before the stream is known, there is no link."""

    def link(task: BaseOperator) -> str:
        (only,) = task.operator_extra_links
        return only.get_link(task, ti_key=None)  # type: ignore[arg-type]

    reset = JetStreamResetConsumerOperator(task_id="a", stream="S-ü", consumer="c&d", nats_conn_id=CONNECTION)
    create = JetStreamCreateStreamOperator(task_id="b", config={"name": "{{ x }}"}, nats_conn_id=CONNECTION)
    assert (link(reset), link(create)) == ("https://c/S-%C3%BC/c%26d", "")
    set_connection(monkeypatch, servers=hook.settings.servers[0], console="https://c/{stream}?{claim}")
    claim = {"id": "5f0c9a7be21d", "stream": "S", "consumer": "c"}
    held = JetStreamHoldSensor(task_id="c", claim=claim, nats_conn_id=CONNECTION)
    settle = JetStreamSettleOperator(task_id="d", claim=claim, nats_conn_id=CONNECTION)
    assert [link(task) for task in (reset, held, settle)] == ["https://c/S-%C3%BC?", *["https://c/S?5f0c9a7be21d"] * 2]
    set_connection(monkeypatch, servers=hook.settings.servers[0])
    page = f"plugin/jetstream?view={{}}&connection={CONNECTION}&stream=S"
    assert hook.console == ""
    assert link(reset) == f"{page.format('claims')}-%C3%BC&consumer=c%26d"
    assert link(held) == link(settle) == f"{page.format('claim')}&consumer=c&claim=5f0c9a7be21d"
    delete = JetStreamDeleteStreamOperator(task_id="e", stream="S", nats_conn_id=CONNECTION)
    assert (link(delete), link(create)) == (page.format("overview"), "")


def test_the_hooks_domain_replaces_the_connections() -> None:
    there = connection({"domain": "hub"})
    assert settings_of(there, domain="leaf").domain == "leaf"
    elsewhere = settings_of(there, api_prefix="JS.x.API")
    assert (elsewhere.domain, elsewhere.api_prefix) == (None, "JS.x.API")


async def test_an_asynchronous_task_gets_a_context(hook: JetStreamHook) -> None:
    async with hook.context() as js:
        assert (await js.account_info()).streams >= 0
    assert hook.get_conn() == hook.settings


def test_processing_settles_with_its_value(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    with hook.processing(value) as held:
        held.value = held.count
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.attempt_id, done.value) == (held.attempt_id, 10)
    assert info(hook, stream).floor == 10


@pytest.mark.parametrize("how", ["hold", "context", "shared"])
def test_a_token_that_is_replaced_in_the_connection_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A task that holds a claim, and triggers, go on with the new token."""

    def present(token: str) -> str:
        set_connection(monkeypatch, servers=server.url, token=token, shortest_ack_wait=0.5)
        return f"authorization {{ token: {token} }}"

    server = NatsServer(tmp_path, "authorization { token: before1 }")
    server.start()
    hook = JetStreamHook(CONNECTION)
    present("before1")

    async def goes_on(js: JetStream) -> None:
        await until(lambda: js.connection.reconnects == 1)
        await js.account_info()

    async def rotated() -> None:
        async with getattr(hook, how)() as js:
            reload(server, present("after22"))
            await goes_on(js)

    try:
        if how == "hold":
            hook.run(lambda js: js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True}))
            with hook.processing(claim(hook, "S")) as held:
                reload(server, present("after22"))
                held._portal.call(goes_on, held._hold._ledger.js)
                held.value = 7
            assert [receipt.value for receipt in hook.committed("S", CONSUMER)] == [7]
        else:
            asyncio.run(rotated())
    finally:
        server.stop()


def test_a_claim_is_read_without_spark(hook: JetStreamHook, stream: str) -> None:
    """The task that holds a claim reads its messages, and so does work for which another task holds it."""
    value = claim(hook, stream)

    async def another(js: Any) -> None:
        await js.connection.publish(f"{stream}.é", b"another", headers={"Kind": ["a", "b"]})

    hook.run(another)
    (last,) = execute(sensor(stream), run_id="another")
    assert [(each.sequence, each.data) for each in hook.messages(value)] == [(n, b"x" * 10) for n in range(1, 11)]
    with hook.processing(last) as held:
        (message,) = held.messages()
    assert (message.subject, message.headers, message.data) == (f"{stream}.é", {"Kind": ["a", "b"]}, b"another")
    with pytest.raises(ClaimInvalid):
        hook.messages({"id": "x"})
    hook.run(lambda js: js.stream(stream).delete_message(3))
    with pytest.raises(MessagesMissing, match="3"):
        list(hook.messages(value))


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_processing_releases_on_any_error(hook: JetStreamHook, stream: str, error: BaseException) -> None:
    value = claim(hook, stream)
    with pytest.raises(type(error)), hook.processing(value):
        raise error
    assert hook.committed(stream, CONSUMER) == []
    assert record(hook, stream).open[value["id"]].token is None  # type: ignore[union-attr]


def test_an_older_airflow_is_refused_in_one_sentence() -> None:
    check_airflow("3.1.0")
    check_airflow("4.0.0rc1")
    with pytest.raises(ImportError, match=r"needs Apache Airflow 3\.1 or later, but 3\.0\.6 is installed"):
        check_airflow("3.0.6")


def places(error: BaseException) -> list[str]:
    """The functions that a traceback shows, including those of its causes."""
    shown: list[str] = []
    each: BaseException | None = error
    while each is not None:
        shown += [frame.name for frame in traceback.extract_tb(each.__traceback__)]
        each = each.__cause__
    return shown


def test_a_traceback_shows_the_authors_code_and_not_what_carried_the_error(
    hook: JetStreamHook, caplog: pytest.LogCaptureFixture
) -> None:
    async def written_by_the_author(js: JetStream) -> None:
        await js.stream("TYPO").info()

    caplog.set_level(logging.DEBUG, "airflow_nats_jetstream.tracebacks")
    with pytest.raises(StreamNotFound, match=r"'TYPO'.*create it") as error:
        hook.run(written_by_the_author)
    assert places(error.value) == [
        "test_a_traceback_shows_the_authors_code_and_not_what_carried_the_error",
        "written_by_the_author",
    ]
    assert "in decode_answer" in caplog.text  # the complete one


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (lambda: JetStreamPurgeOperator(task_id="t", stream="TYPO", everything=True, nats_conn_id=CONNECTION), None),
        (lambda: sensor("TYPO", deferrable=False), None),
        (lambda: process_nothing("TYPO"), "LedgerUnavailable"),
    ],
)
def test_a_mistyped_name_does_not_fill_the_log(hook: JetStreamHook, work: Any, kind: str | None) -> None:
    operator = work()
    with pytest.raises(JetStreamError) as error:
        execute(operator)
    assert type(error.value).__name__ == (kind or "StreamNotFound")
    shown = places(error.value)
    assert len(shown) < 15
    assert not {"decode_answer", "decode_api_answer", "api", "call", "result", "begin", "info"} & set(shown)


def process_nothing(stream: str) -> JetStreamProcessOperator:
    times = {"stream_created": AT, "consumer_created": AT, "taken_at": AT}
    value = {"v": 1, "id": "5f0c9a7be21d", "stream": stream, "consumer": "c", "ranges": [[1, 2]], "count": 2, **times}
    value |= {"bytes": 2, "consumer_sequence": 2, "ack_prefix": f"$JS.ACK.{stream}.c"}
    return JetStreamProcessOperator(
        task_id="t", python_callable=lambda claim: claim, op_kwargs={"claim": value}, nats_conn_id=CONNECTION
    )
