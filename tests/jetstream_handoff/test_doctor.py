"""The doctor finds faults that are planted in real parts, names each with what to do, and changes nothing."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_nats_jetstream.command_line import main
from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.stream import Stream
from jetstream_client.wire.protocol import Reply
from jetstream_handoff.errors import DeadLettersUnsuitable
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.bucket import bucket_config
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.repair.release import release
from jetstream_handoff.rules.roles import ROLES, Place, needs
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.watch import doctor, inspection
from jetstream_handoff.watch.backlog import AWAITING_TASK
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.findings import Finding
from jetstream_handoff.watch.versions import check_versions
from tests.chaos.proxy import Proxy as SlowProxy
from tests.installed_server import again
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import PASSWORD, TOKEN, USER, frozen, older_program
from tests.jetstream_handoff.access import API_PREFIX, SHIPPED, Access
from tests.jetstream_handoff.steps import CONSUMER, publish, rewrite, take

Serve = Callable[..., NatsServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server with a configuration; all are stopped at the end."""
    servers: list[NatsServer] = []

    def start(config: str = "", **options: Any) -> NatsServer:
        servers.append(NatsServer(tmp_path / str(len(servers)), config, **options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    access = Access(tmp_path / "access")
    access.server.start()
    yield access
    access.server.stop()


async def find(settings: ConnectionSettings, **scope: Any) -> dict[str, list[Finding]]:
    return await examine(settings, Scope(**scope))


def to_do(sections: dict[str, list[Finding]]) -> list[str]:
    return [f"{each.what}: {each.text}" for found in sections.values() for each in found if each.state == "to do"]


async def only(settings: ConnectionSettings, **scope: Any) -> str:
    """The one thing that is to do."""
    (found,) = to_do(await find(settings, **scope))
    return found


def run(*arguments: str) -> tuple[int, str]:
    """The exit code of the command, and everything that it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["doctor", *arguments])
    return code, out.getvalue() + err.getvalue()


async def run_on(stream: Stream, *arguments: str) -> tuple[int, str]:
    where = ["--server", str(stream.js.settings.servers[0]), "--ledger", stream.js.settings.ledger]
    return await asyncio.to_thread(run, *where, "--stream", stream.name, *arguments)


async def prepared(stream: Stream, **changes: Any) -> None:
    """A consumer as the sensor creates it, and a ledger in which one claim was settled."""
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config={"ack_wait": timedelta(seconds=60)}, **changes)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()


async def test_where_all_is_well_each_line_says_so(stream: Stream) -> None:
    await prepared(stream)
    code, printed = await run_on(stream)
    lines = printed.splitlines()
    assert code == 0, printed
    assert lines[-1] == "Nothing to do. Advice: 1 (marked with ~)."
    found = [line for line in lines if line.startswith(("  ", "! ", "- "))]
    assert all(re.match(r"  .+: fine( \(.+\))?$", line) for line in found), printed
    (advised,) = [line for line in lines if line.startswith("~ ")]
    assert advised.startswith(f"~ stream {stream.name}: it has num_replicas=1: its messages are lost with the disk")
    for what in (
        r"airflow-provider-nats-jetstream [\d.]+",
        rf"Python {re.escape(sys.version.split()[0])}",
        r"apache-airflow [\d.]+",
        r"cryptography [\d.]+",
        r"pyspark [\d.]+",
        r"pyarrow [\d.]+",
        r"nats-server [\d.]+",
        r"nats://127.0.0.1:\d+: fine \(no authentication, without TLS, round trip [\d.]+ ms\)",
        "JetStream: fine",
        rf"bucket {stream.js.settings.ledger}_claims",
        rf"bucket {stream.js.settings.ledger}_receipts",
        rf"reserve KV_{stream.js.settings.ledger}_reserve: fine \(a write was stored\)",
        rf"consumer {CONSUMER} of stream {stream.name}: fine$",
        "sensor: fine",
        "processor: fine",
        "clock: fine",
        rf"consumer {CONSUMER} of stream {stream.name}: fine \(open claims: 0\)",
        rf"{re.escape(sys.executable)}: fine",
    ):
        assert any(re.match(f"  {what}", line) for line in found), what
    code, printed = await run_on(stream, "--json")
    answer = json.loads(printed)
    assert (code, answer["to_do"]) == (0, 0)
    assert {each["state"] for found in answer["sections"].values() for each in found} == {"fine", "advice"}


async def test_what_is_not_there_yet_is_nothing_to_do(settings: ConnectionSettings, stream: Stream) -> None:
    sections = await find(settings)
    assert to_do(sections) == []
    assert "they do not exist yet; the first take creates them" in sections["Ledger"][0].text
    assert sections["Streams and consumers"][0].state == "not checked"
    sections = await find(settings, stream=stream.name)
    assert to_do(sections) == []
    assert [each.what for each in sections["Streams and consumers"]] == [f"stream {stream.name}"]


async def test_what_was_named_and_does_not_exist(settings: ConnectionSettings, stream: Stream) -> None:
    assert "stream not found" in await only(settings, stream="TYPO")
    missing = await only(settings, stream=stream.name, consumer="typo")
    assert missing.startswith(f"consumer typo of stream {stream.name}: consumer 'typo' of stream")
    assert "check its name" in missing
    assert "correct the name, or also name its stream" in await only(settings, consumer="typo")


# Planted faults: the connection


async def test_no_server(settings: ConnectionSettings) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    sections = await find(replace(settings, servers=url, connect_timeout=0.5))
    (found,) = to_do(sections)
    assert found.startswith(f"{url}: no NATS server accepted a connection at {url} within 0.5 s")
    assert "correct the addresses and ports" in found
    assert {each.text for title in sections if title != "Connection" for each in sections[title]} == {
        "there is no connection"
    }


async def test_a_wrong_password(serve: Serve) -> None:
    server = serve(USER)
    found = await only(ConnectionSettings(servers=server.url, user="airflow", password="hidden-other"))
    assert (
        "the NATS server refused the connection (with user and password): authorization violation" in found.lower()
        or ("correct the user or the password" in found)
    )
    assert "correct the user or the password" in found
    assert to_do(await find(ConnectionSettings(servers=server.url, user="airflow", password=PASSWORD))) == []


async def test_an_account_without_jetstream(serve: Serve) -> None:
    server = serve("accounts { A { users: [{ user: a, password: b }] }, J { jetstream: enabled } }")
    sections = await find(ConnectionSettings(servers=server.url, user="a", password="b"))
    (found,) = to_do(sections)
    assert found.startswith("JetStream: JetStream is not enabled for the account of this user")
    assert "enable it on the server" in found
    assert sections["Ledger"] == [Finding("everything", "not checked", "JetStream does not answer")]


async def test_an_inbox_that_may_not_be_subscribed_to(access: Access) -> None:
    found = await only(replace(access.settings("sensor"), inbox_prefix="_INBOX"), roles=("sensor",))
    assert "inbox: no permission to subscribe to" in found
    assert "or set inbox_prefix" in found


@pytest.mark.parametrize("moment", ["before connecting", "after connecting"])
async def test_a_frozen_server_ends_it_in_bounded_time(
    serve: Serve, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SECTION", 4)
    server = serve()
    settings = ConnectionSettings(servers=server.url, connect_timeout=1, request_timeout=1)
    began = time.monotonic()
    if moment == "before connecting":
        with frozen(server):
            sections = await find(settings)
        assert "no NATS server accepted a connection" in to_do(sections)[0]
    else:
        with Proxy(server.port, stall_at=b"STREAM.INFO.KV_") as proxy:
            sections = await find(replace(settings, servers=proxy.url))
        assert [each.state for each in sections["JetStream"]] == ["fine"] * 3
        assert "the server may be frozen or overloaded" in to_do(sections)[0]
        assert sections["Clock"] == [Finding("everything", "not checked", "the server no longer answers")]
    assert time.monotonic() - began < 45
    assert len(to_do(sections)) == 1


async def test_what_a_slow_connection_does_not_reach_is_not_checked(
    stream: Stream, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SECTION", 0.4)
    await prepared(stream)
    proxy = SlowProxy(nats_server.port)
    proxy.delay = 0.05
    await proxy.start()
    try:
        settings = replace(stream.js.settings, servers=f"nats://127.0.0.1:{proxy.port}")
        for scope, remedy in (
            ({}, "name one stream with --stream and one consumer with --consumer"),
            (
                {"stream": stream.name, "consumer": CONSUMER},
                "run this closer to the server, because a round trip takes ",
            ),
        ):
            sections = await find(settings, **scope)
            assert to_do(sections) == []
            rest = sections["Ledger"][-1]
            assert (rest.what, rest.state) in [("the rest", "not checked"), ("everything", "not checked")]
            assert rest.text.startswith(f"the time ran out after 0.4 s, although the server answers; {remedy}")
    finally:
        await proxy.stop()


async def test_a_look_up_without_an_answer_is_not_taken_for_a_frozen_server(
    stream: Stream, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SECTION", 3)
    monkeypatch.setattr(doctor, "ANSWER", 1.5)

    def to_nobody(data: bytes) -> bytes:
        """Lead the answers to STREAM.INFO astray."""
        return re.sub(rb'(MSG \S+)\S( \d+ \d+\r\n\{"type":"io\.nats\.jetstream\.api\.v1\.stream_info)', rb"\1~\2", data)

    await prepared(stream)
    with Proxy(nats_server.port, altered=to_nobody) as proxy:
        sections = await find(replace(stream.js.settings, servers=proxy.url))
    (found,) = to_do(sections)
    assert re.match(
        r"ledger: no answer for [2-9] s; the server itself answers; run `nats server report jetstream` to find", found
    )
    assert sections["Open claims"][0].state == "fine"


async def test_a_long_timeout_of_the_connection_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CONNECT", 1)
    server = serve()
    began = time.monotonic()
    with frozen(server):
        assert to_do(await find(ConnectionSettings(servers=server.url, connect_timeout=3600)))
    assert time.monotonic() - began < 30


async def test_a_server_that_is_too_old(serve: Serve) -> None:
    server = serve(program=older_program("2.10.26"))
    (found,) = to_do(await find(ConnectionSettings(servers=server.url)))
    assert found.startswith("nats-server 2.10.26: nats-server 2.11 or newer is needed for batched direct get")
    assert "upgrade the server" in found


@pytest.mark.server("2.12")
async def test_a_server_that_is_older_than_a_configuration(tmp_path: Path) -> None:
    servers = [NatsServer(tmp_path)]
    servers += [NatsServer(tmp_path, program=older_program(version)) for version in ("2.11.11", "2.10.26")]
    config = {"name": "S", "subjects": ["s"], "allow_direct": True, "allow_atomic": True}
    found = []
    for server in servers:
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url)
            async with connect(settings) as js:
                if server is servers[0]:
                    await js.create_stream(config)
            found.append([each for each in to_do(await find(settings, stream="S")) if each.startswith("stream S: ")])
        finally:
            server.stop()
    assert found[0] == []
    assert "stream is offline" in found[1][0]
    assert "`nats stream info S`" in found[1][0]
    newer = "it was configured on a newer nats-server (API level 2), and this one (2.10.26, API level 0) ignores"
    assert newer in found[2][0]
    assert "upgrade the server" in found[2][0]


# Planted faults: streams, consumers, the ledger


async def test_a_stream_without_direct_get(stream: Stream) -> None:
    await prepared(stream)
    await stream.update({"allow_direct": False})
    code, printed = await run_on(stream)
    assert code == 1
    (found,) = [line for line in printed.splitlines() if line.startswith("! ")]
    assert found.startswith(f"! stream {stream.name}: stream {stream.name!r} does not allow direct get")
    assert "allow_direct=true" in found
    assert printed.splitlines()[-1] == "To do: 1 (marked with !). Advice: 1 (marked with ~)."


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"ack_policy": "none"}, "ack_policy='none': it must be 'explicit'"),
        ({"ack_wait": timedelta(milliseconds=100)}, "0.1 s are shorter than a failover may take"),
        ({"max_deliver": 5}, "max_deliver=5: it must be -1"),
    ],
)
async def test_a_consumer_that_breaks_a_rule(stream: Stream, config: dict[str, Any], words: str) -> None:
    wanted = {"durable_name": "c", "name": "c", "ack_policy": "explicit", "ack_wait": timedelta(seconds=60)}
    await stream.create_consumer(wanted | config)
    found = [each for each in to_do(await find(stream.js.settings, stream=stream.name, consumer="c")) if words in each]
    assert found
    assert found[0].startswith(f"consumer c of stream {stream.name}: {next(iter(config))}=")
    assert "To change the consumer" in found[0]


async def test_each_broken_rule_has_its_line(stream: Stream) -> None:
    await stream.create_consumer(
        {"durable_name": "c", "name": "c", "max_deliver": 5, "ack_wait": timedelta(seconds=0.1)}
    )
    assert len(to_do(await find(stream.js.settings, stream=stream.name, consumer="c"))) == 2


async def test_a_dead_letter_stream_that_breaks_a_rule(stream: Stream) -> None:
    await stream.js.create_stream({"name": f"DEAD_{stream.name}", "subjects": [f"dead.{stream.name}.>"]})
    found = await only(stream.js.settings, stream=stream.name)
    assert DeadLettersUnsuitable(f"DEAD_{stream.name}", "max_msgs_per_subject", -1, "it must be 1").args[0] in found


async def test_a_ledger_that_forgets(stream: Stream) -> None:
    await prepared(stream)
    bucket = f"{stream.js.settings.ledger}_claims"
    await stream.js.update_stream({"name": f"KV_{bucket}", "max_age": timedelta(days=1)})
    found = await only(stream.js.settings)
    assert found.startswith(f"bucket {bucket}: the ledger's bucket {bucket!r} cannot be used because of max_age=")
    assert f"Change this field of the stream KV_{bucket}" in found


async def test_receipts_that_are_missing_while_claims_are_open(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    bucket = f"{stream.js.settings.ledger}_receipts"
    await stream.js.delete_stream(f"KV_{bucket}")
    found = await only(stream.js.settings)
    assert found.startswith(f"bucket {bucket}: the ledger's bucket {bucket!r} does not exist")
    assert "The first take creates it" in found


async def test_a_ledger_without_room(settings: ConnectionSettings, js: JetStream) -> None:
    for name in Buckets(js).names:
        await js.create_stream({**bucket_config(name, 1, timedelta(0)), "max_bytes": 2_000})
    await js.publish(f"$KV.{settings.ledger}_receipts.S.C.5f0c9a7be21d", b"x" * 1_900)
    found = await only(settings)
    assert f"bucket {settings.ledger}_receipts: 1,9" in found
    assert f"raise max_bytes of its stream KV_{settings.ledger}_receipts" in found


async def test_a_record_that_somebody_else_wrote(stream: Stream) -> None:
    await prepared(stream)
    record, _ = Ledger(stream.js, stream.name, CONSUMER).subjects
    await stream.js.publish(record, b"{}")
    found = await only(stream.js.settings)
    assert found.startswith(f"record of consumer {CONSUMER} of stream {stream.name}: the ledger's record of consumer")
    assert "cannot be read" in found


# Planted faults: permissions


def taking(consumer: str) -> Taking:
    return Taking(
        stream="FLIGHTS",
        consumer=consumer,
        owner=("dag", "run", "sensor", -1, 1),
        max_messages=100,
        max_failures=3,
        gather=timedelta(seconds=0.1),
        consumer_config={"ack_wait": timedelta(seconds=1), "max_ack_pending": 10_000},
    )


async def set_up(access: Access) -> None:
    async with connect(access.settings("admin")) as js:
        await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        work = Take(js, taking("delays"))
        await work.prepare()
        await js.publish("flights.ua", b"")
        assert await work.take(5)
        work.handed_on()


@pytest.mark.parametrize("role", ROLES)
async def test_the_least_privilege_of_a_role_is_enough(access: Access, role: str) -> None:
    await set_up(access)
    scope = Scope("FLIGHTS", "delays", (role,), "flights.ua")
    sections = await examine(access.settings(role), scope)
    assert to_do(sections) == []
    assert [(each.what, each.state) for each in sections["Permissions"]] == [(role, "fine")]
    async with connect(access.settings("admin")) as js:
        assert (await js.stream("FLIGHTS").info()).state["messages"] == 1  # what a publisher sends is stored nowhere


@pytest.mark.parametrize("role", ["sensor", "processor"])
@pytest.mark.parametrize(
    "subject",
    [
        "$JS.ACK.FLIGHTS.delays.>",
        "$KV.airflow_claims.IZGESR2IKRJQ.MRSWYYLZOM",
        "$KV.airflow_receipts.IZGESR2IKRJQ.MRSWYYLZOM.*",
        "$JS.API.STREAM.MSG.GET.KV_airflow_receipts",
        "$JS.API.CONSUMER.INFO.FLIGHTS.delays",
    ],
)
async def test_a_permission_that_is_missing(access: Access, role: str, subject: str) -> None:
    await set_up(access)
    access.without(role, subject)
    found = await only(access.settings(role), roles=(role,))
    assert found.startswith(f"{role}: no permission to publish on {subject!r}; grant this permission")


async def test_a_subject_that_may_not_be_published_on(access: Access) -> None:
    await set_up(access)
    scope: dict[str, Any] = {"roles": ("publisher",), "stream": "FLIGHTS"}
    found = await only(access.settings("publisher"), **scope, subject="elsewhere")
    assert found.startswith("publisher: no permission to publish on 'elsewhere'; grant this permission")
    sections = await find(access.settings("publisher"), **scope)
    assert (to_do(sections), sections["Permissions"][0].state) == ([], "not checked")


async def test_a_ledger_that_may_not_be_looked_at(access: Access) -> None:
    await set_up(access)
    access.without("sensor", "$JS.API.STREAM.INFO.KV_airflow_claims")
    found = await only(access.settings("sensor"), roles=("sensor",))
    assert found.startswith("ledger: no permission to publish on '$JS.API.STREAM.INFO.KV_airflow_claims'")


async def test_the_consumers_of_other_users_are_theirs(access: Access) -> None:
    await set_up(access)
    async with connect(access.settings("admin")) as js:
        work = Take(js, taking("audit"))
        await work.prepare()
        assert await work.take(5)
        work.handed_on()
    sections = await find(access.settings("sensor"), roles=("sensor",))
    assert to_do(sections) == []
    assert [each.what for each in sections["Open claims"] if each.state == "not checked"] == [
        "consumer audit of stream FLIGHTS"
    ]
    named = await find(access.settings("sensor"), roles=("sensor",), stream="FLIGHTS", consumer="audit")
    assert "'$JS.API.CONSUMER.INFO.FLIGHTS.audit'" in to_do(named)[0]


def test_the_roles_need_what_the_shipped_configuration_permits() -> None:
    ledger = ("airflow_claims", "airflow_receipts", "DEAD_FLIGHTS", "$JS.ACK.FLIGHTS.delays")
    subjects = (
        "$KV.airflow_claims.IZGESR2IKRJQ.MRSWYYLZOM",
        "$KV.airflow_receipts.IZGESR2IKRJQ.MRSWYYLZOM.5f0c9a7be21d",
    )
    reserve = ("KV_airflow_reserve", "$KV.airflow_reserve.0")
    for role in ROLES:
        _, _, text = SHIPPED.partition(f"user: {role},")
        permitted = {*re.findall(r'"([^"]+)"', text[text.index("publish: [") : text.index("]")])}
        prefix = API_PREFIX if role in ("publisher", "reader") else "$JS.API"
        wanted = {each.allow for each in needs(role, Place(prefix, "FLIGHTS", "delays", *ledger, *subjects, *reserve))}
        assert wanted == permitted - {"flights.>"}, role


async def test_each_permission_is_looked_up_once(access: Access) -> None:
    await set_up(access)
    asked: Counter[str] = Counter()

    def heard(message: Reply) -> None:
        if message.data == b"?":
            asked[message.subject] += 1

    async with connect(access.settings("admin")) as js, js.connection.listen("$JS.API.>", heard):
        sections = await find(access.settings("admin"), roles=("setup", "sensor", "processor"))
        await js.connection.flush()
    assert [each.state for each in sections["Permissions"]] == ["fine"] * 3
    assert asked["$JS.API.CONSUMER.INFO.FLIGHTS.delays"]
    assert {*asked.values()} == {1}


async def state_of(js: JetStream) -> dict[str, Any]:
    """Everything that the server holds."""
    found: dict[str, Any] = {}
    async for info in js.list_streams():
        name = info.config["name"]
        found[name] = (info.config, info.state)
        async for consumer in js.stream(name).list_consumers():
            found[f"{name}.{consumer.config['name']}"] = {**consumer.raw, "ts": ""}
    return found


async def test_nothing_is_changed(access: Access) -> None:
    await set_up(access)
    async with connect(access.settings("admin")) as js:
        heard: list[str] = []
        async with js.connection.listen("flights.>", lambda reply: heard.append(reply.subject)):
            before = await state_of(js)
            sections = await find(
                access.settings("admin"), stream="FLIGHTS", consumer="delays", subject="flights.ua", roles=ROLES
            )
            assert to_do(sections) == []
            await js.connection.flush()
            after = await state_of(js)
            (config, state), (same, written) = (each.pop("KV_airflow_reserve") for each in (before, after))
            assert (config, state["messages"], state["bytes"]) == (same, written["messages"], written["bytes"])
            assert after == before
            assert heard == []


# Planted faults: the clock, claims, Spark's Python


@pytest.mark.parametrize(
    ("year", "words"), [(b"2020", "ahead of the server's clock"), (b"2120", "behind the server's clock")]
)
async def test_clocks_that_differ(stream: Stream, nats_server: NatsServer, year: bytes, words: str) -> None:
    def of_another_year(data: bytes) -> bytes:
        return re.sub(rb'"ts":"[0-9]{4}', b'"ts":"' + year, data)

    with Proxy(nats_server.port, altered=of_another_year) as proxy:
        found = await only(replace(stream.js.settings, servers=proxy.url), stream=stream.name)
    assert re.match(rf"clock: it is [0-9]{{9,}} s {words}; synchronise both", found)


async def older(stream: Stream, by: timedelta) -> str:
    """Change when the one open claim was entered; its id."""

    def change(record: Record | None, _: object) -> Record | None:
        assert record
        ((claim_id, entry),) = record.open.items()
        at = datetime.fromisoformat(entry.at[:19] + "+00:00") - by
        return replace(record, open={claim_id: replace(entry, at=at.strftime("%Y-%m-%dT%H:%M:%SZ"))})

    record = await rewrite(Ledger(stream.js, stream.name, CONSUMER), change)
    assert record
    return next(iter(record.open))


async def test_a_claim_that_nobody_holds(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    assert to_do(await find(stream.js.settings)) == []
    claim_id = await older(stream, AWAITING_TASK)
    found = await only(stream.js.settings)
    assert found.startswith(
        f"claim {claim_id} of consumer {CONSUMER} of stream {stream.name}, 10 messages: no attempt holds it"
    )
    assert "It was taken by dag / run / sensor" in found
    assert "its task does not run (check whether its run is queued or was ended), or run" in found
    assert f"`python -m jetstream_handoff release {claim_id}`" in found


async def test_a_claim_that_the_floor_has_passed_is_not_to_be_released(stream: Stream) -> None:
    """Another client has acknowledged its messages, so that no release would have them redelivered."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await ledger.locate()
    await older(stream, AWAITING_TASK)
    record, _ = await ledger.read()
    assert record
    await answers.acknowledge(ledger, answers.Delivered.of(record, claim.sequences, claim.consumer_sequence))
    (found,) = [each for each in to_do(await find(stream.js.settings)) if claim.id in each]
    assert "it is not settled, but the server will not deliver its messages again" in found
    assert again(1) in found
    assert "release" not in found


async def test_a_claim_that_was_released_and_that_nobody_takes(stream: Stream) -> None:
    """It waits for a run, not for its task, and was released already."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    (seen,) = await inspection.open_claims(stream.js)
    await release(stream.js, seen)
    found = await only(stream.js.settings)
    assert found.startswith(f"claim {claim.id} of consumer {CONSUMER} of stream {stream.name}, 10 messages: It was rel")
    assert found.endswith("its task can still hold it. Start a run that takes from this consumer")
    await take(stream, "run 2")
    assert to_do(await find(stream.js.settings)) == []


async def test_a_claim_that_is_held_for_days(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await older(stream, timedelta(hours=23))
        assert to_do(await find(stream.js.settings)) == []
        await older(stream, timedelta(days=2))
        found = await only(stream.js.settings)
    assert f"attempt {hold.token} holds it, and it was taken at" in found
    assert f"`python -m jetstream_handoff claim {claim.id} --listen " in found


async def test_a_claim_whose_consumer_was_deleted(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    await stream.consumer(CONSUMER).delete()
    found = await only(stream.js.settings)
    assert "its consumer does not exist" in found
    assert "Start a run that takes from this consumer" in found


async def test_sparks_python_without_what_it_needs(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepared(stream)
    subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    bare = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for python, words in (
        (bare, "it cannot import pyspark, pyarrow, pyspark_jetstream; install the missing packages there"),
        (str(tmp_path / "none"), "no such program was found"),
        ("false", "it did not start as a Python interpreter"),
    ):
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        code, printed = await run_on(stream)
        assert code == 1
        (found,) = [line for line in printed.splitlines() if line.startswith("! ")]
        assert words in found
        assert f"set PYSPARK_PYTHON={sys.executable}" in found


async def test_sparks_python_of_another_version(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepared(stream)
    python = tmp_path / "python3"
    python.write_text(
        """#!/bin/sh\necho '{"python": "3.9", "pyspark": null, "pyarrow": null, "pyspark_jetstream": null}'\n"""
    )
    python.chmod(0o755)
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    code, printed = await run_on(stream)
    assert code == 1
    ours = "{}.{}".format(*sys.version_info[:2])
    assert f"! python3 ({python}): it is Python 3.9, which Spark refuses if the driver has {ours}" in printed


# What it prints


async def test_no_secret_is_printed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = "SUAOUWFXMQFZ2W7KZ4XKZ4CBPQEV5FVN3YIXTXNO3F7SZ2ZDDRQWDF5YRU"
    credentials = tmp_path / "a.creds"
    credentials.write_text(f"------BEGIN USER NKEY SEED------\n{seed}\n")
    with_user, with_token = serve(USER), serve(TOKEN)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    monkeypatch.setenv("PYSPARK_PYTHON", "none")  # which is soon found out
    connections: dict[str, dict[str, Any]] = {
        "right": {"login": "airflow", "password": PASSWORD, "extra": {"servers": with_user.url}},
        "wrong": {"login": "airflow", "password": f"x{PASSWORD}", "extra": {"servers": with_user.url}},
        "token": {"extra": {"servers": with_token.url, "token": PASSWORD}},
        "both": {"login": "airflow", "password": PASSWORD, "extra": {"servers": with_user.url, "token": PASSWORD}},
        "seed": {"extra": {"servers": with_user.url, "nkey_secret": f"{seed}{PASSWORD}"}},
        "address": {"host": f"nats://airflow:{PASSWORD}@127.0.0.1"},
    }
    said = {}
    for name, fields in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "nats", **fields}))
        said[name] = await asyncio.to_thread(run, "--conn-id", name)
        said[f"{name} as JSON"] = await asyncio.to_thread(run, "--conn-id", name, "--json")
    said["a password in an address"] = await asyncio.to_thread(run, "--server", f"nats://airflow:{PASSWORD}@127.0.0.1")
    said["credentials"] = await asyncio.to_thread(run, "--server", with_user.url, "--credentials", str(credentials))
    said["no file"] = await asyncio.to_thread(run, "--server", with_user.url, "--credentials", PASSWORD)
    elsewhere = capfd.readouterr()
    for name, (code, printed) in said.items():
        assert code == 1, name
        assert PASSWORD not in printed, name
        assert seed not in printed, name
    assert PASSWORD not in elsewhere.out + elsewhere.err
    assert "user and password" in said["right"][1]
    assert "correct the user or the password" in said["wrong"][1]
    assert "set only one of these ways to authenticate" in said["both"][1]


def distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    """The metadata of an installed distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]))


def test_versions_are_compared_with_what_the_distribution_requires(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["Requires-Python: >=99.1", "Provides-Extra: many", "Provides-Extra: some", "Provides-Extra: without"]
    lines += ["Requires-Dist: anyio; extra == 'without'", "Requires-Dist: mypy; extra == 'many'"]
    lines += ["Requires-Dist: somewhere>=3; extra == 'many'", "Requires-Dist: uv; extra == 'many'"]
    lines += ["Requires-Dist: pytest<9999,>=1.0", "Requires-Dist: ruff>=9999.1", "Requires-Dist: nowhere>=2"]
    lines += ["Requires-Dist: somewhere>=3; extra == 'some'", "Requires-Dist: anyio<1; extra == 'some'"]
    distribution(tmp_path, "ours", "1.0", *lines)
    monkeypatch.syspath_prepend(tmp_path)
    found = list(check_versions("ours", ("pytest", "ruff", "nowhere", "somewhere", "anyio")))
    assert [each.state for each in found] == ["fine", "to do", "fine", "to do", "to do", "not checked", "to do"]
    assert [each.text for each in found[3:]] == [
        ">=9999.1 is required; run pip install 'ruff>=9999.1'",
        "it is not installed; run pip install 'nowhere>=2'",
        "it is not installed; where it is needed, pip install 'ours[some]' installs it",
        "<1 is required; run pip install 'anyio<1'",
    ]
    assert [each.state for each in check_versions("none-of-that-name", ())] == ["not checked"]


def test_requirements_may_have_every_form_of_python_packaging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    distribution(tmp_path, "pre", "2.0rc1")
    distribution(tmp_path, "odd", "1.2-vendor-3")
    forms = {
        "pytest": "pytest~=0.1",
        "ruff": "ruff!=9999",
        "import-linter": "Import_Linter >= 9999",
        "mypy": "mypy>=9999; python_version < '3'\nRequires-Dist: mypy>=1",
        "pre": "pre>=2.0",
        "odd": "odd>=1",
        "missing": "missing; extra == 'none' or extra == 'some'",
    }
    lines = [f"Requires-Dist: {form}" for form in forms.values()]
    distribution(tmp_path, "ours", "1.0", "Requires-Python: ~=3.0", "Provides-Extra: some", *lines)
    monkeypatch.syspath_prepend(tmp_path)
    _, _, *found = check_versions("ours", forms)
    assert dict(zip(forms, (each.state for each in found), strict=True)) == {
        "pytest": "to do",
        "ruff": "fine",
        "import-linter": "to do",
        "mypy": "fine",
        "pre": "to do",
        "odd": "not checked",
        "missing": "not checked",
    }
    assert "pip install 'ours[some]'" in found[-1].text


def test_airflow_is_not_loaded_for_a_server(settings: ConnectionSettings) -> None:
    code = (
        "import sys; from airflow_nats_jetstream.command_line import main\n"
        f"main(['doctor', '--server', '{settings.servers[0]}', '--ledger', '{settings.ledger}'])\n"
        "assert not {name.partition('.')[0] for name in sys.modules} & {'airflow'}"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
