"""The context: account, domain, time limits, tracing, streams and consumers, and lists of them."""

import asyncio
import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, RequestSent, ResponseReceived, Trace, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ApiError,
    ApiLevelRequired,
    ConsumerAlreadyExists,
    ConsumerDoesNotExist,
    ConsumerNotFound,
    InvalidStreamConfig,
    InvalidValue,
    JetStreamNotEnabled,
    ListingIncomplete,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    ServerTooOld,
    StreamNameInUse,
    StreamNotFound,
)
from jetstream_client.info import ConsumerInfo
from jetstream_client.listing import Pager
from tests.jetstream_client.servers import PASSWORD, USER, Ask, Serve, older_program


async def test_the_account_loses_nothing(js: JetStream, ask: Ask) -> None:
    account = await js.account_info()
    answer = await ask("INFO")
    assert account.raw.keys() == answer.keys()
    assert account.limits.raw == answer["limits"]
    limits = ("max_memory", "max_storage", "max_streams", "max_consumers")
    assert [getattr(account.limits, each) for each in limits] == [answer["limits"][each] for each in limits]
    assert (account.limits.max_streams, account.limits.max_storage) == (-1, -1)
    assert account.level == answer["api"]["level"] > 0
    assert account.api.keys() == answer["api"].keys()


async def test_what_the_account_uses(serve: Serve) -> None:
    """A separate server, on which nothing else changes."""
    limits = "max_mem: 10M, max_file: 20M, max_streams: 7, max_consumers: 8"
    user = 'users: [{ user: "a", password: "open" }]'
    server = serve(f"accounts {{ A {{ {user}, jetstream {{ {limits} }} }} }}")
    async with connect(ConnectionSettings(servers=server.url, user="a", password="open")) as js:
        await js.create_stream({"name": "F", "subjects": ["f"], "max_bytes": 3_000})
        await js.create_stream({"name": "M", "subjects": ["m"], "storage": "memory", "max_bytes": 2_000})
        await js.create_consumer("F", {"durable_name": "c"})
        await js.create_consumer("F", {"durable_name": "d"})
        await js.create_consumer("M", {"durable_name": "e"})
        await js.publish("f", b"x" * 500)
        await js.publish("m", b"x" * 100)
        account = await js.account_info()
        asked = json.loads((await js.connection.request("$JS.API.INFO")).data)
        used = (account.memory, account.storage, account.streams, account.consumers)
        assert used == (asked["memory"], asked["storage"], 2, 3)
        assert 100 < account.memory < 500 < account.storage
        assert (account.reserved_memory, account.reserved_storage) == (2_000, 3_000)
        assert account.limits.raw == asked["limits"]
        found = account.limits
        most = (found.max_memory, found.max_storage, found.max_streams, found.max_consumers)
        assert most == (10_000_000, 20_000_000, 7, 8)
        assert account.domain == ""
        assert account.api["total"] < asked["api"]["total"]


@pytest.mark.server("2.12")
async def test_an_api_level_can_be_required(js: JetStream, ask: Ask, name: str) -> None:
    """The server that acts must have the level (nats-server 2.12), not the connected server."""
    level = (await ask("INFO"))["api"]["level"]
    await js.api("INFO", headers={"Nats-Required-Api-Level": str(level)})
    with pytest.raises(ApiLevelRequired) as refused:
        await js.api(f"STREAM.CREATE.{name}", {"name": name}, headers={"Nats-Required-Api-Level": str(level + 1)})
    assert (refused.value.code, refused.value.err_code) == (412, 10185)
    assert (await ask(f"STREAM.INFO.{name}"))["error"]["err_code"] == 10059


async def test_domain_prefix_and_time_out(serve: Serve) -> None:
    """Three contexts reach the same JetStream, and one reaches none."""
    server = serve("jetstream { domain: hub }\nping_interval: 60")
    async with connect(ConnectionSettings(servers=server.url)) as js:
        await js.create_stream({"name": "S", "subjects": ["s"]})
        for same in (js.with_options(domain="hub"), js.with_options(api_prefix="$JS.hub.API.")):
            assert [name async for name in same.stream_names()] == ["S"]
            assert (await same.stream("S").info()).domain == "hub"
            assert (await same.account_info()).domain == "hub"
        with pytest.raises(JetStreamNotEnabled):
            await js.with_options(domain="elsewhere").account_info()
        with pytest.raises(InvalidValue, match="not both"):
            js.with_options(domain="hub", api_prefix="$JS.hub.API")
        # A subscriber listens and does not answer.
        async with js.connection.listen("SILENT.INFO", lambda _: None):
            start = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimeout):
                await js.with_options(api_prefix="SILENT", request_timeout=0.1).account_info()
            assert asyncio.get_running_loop().time() - start < js.settings.request_timeout


IMPORTED = """accounts {
    A { jetstream: enabled, users: [{ user: a, password: open }]
        exports: [{ service: "$JS.API.STREAM.>", response: stream }] }
    B { users: [{ user: b, password: open }]
        imports: [{ service: { account: A, subject: "$JS.API.STREAM.>" }, to: "JS.a.API.STREAM.>" }] }
}"""


async def test_a_field_that_an_older_jetstream_of_another_account_drops_is_no_success(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, IMPORTED, program=older_program("2.11.11"))
    server.start()
    try:
        theirs = ConnectionSettings(servers=server.url, user="b", password="open", api_prefix="JS.a.API.")
        async with connect(theirs) as js:
            with pytest.raises(ServerTooOld, match=r"nats-server 2\.12 .* allow_atomic, and this is 2\.11\.11"):
                await js.create_stream({"name": "S", "subjects": ["s"], "allow_atomic": True})
            stream, _ = await js.create_or_update_stream({"name": "S", "description": "d", "allow_msg_ttl": True})
            with pytest.raises(ServerTooOld, match="allow_batched"):
                await stream.update({"allow_batched": True})
    finally:
        server.stop()


@pytest.mark.server("2.12")
async def test_the_jetstream_of_another_account(serve: Serve) -> None:
    """It is imported under another prefix without INFO, so its level is unknown."""
    server = serve(IMPORTED)
    theirs = ConnectionSettings(servers=server.url, user="b", password="open", api_prefix="JS.a.API.")
    async with (
        connect(theirs) as js,
        connect(ConnectionSettings(servers=server.url, user="a", password="open")) as owner,
    ):
        with pytest.raises(JetStreamNotEnabled):
            await js.account_info()
        stream = await js.create_stream({"name": "S", "subjects": ["s"], "allow_atomic": True})
        await owner.publish("s", b"theirs")
        assert (await stream.get_message(1)).data == b"theirs"
        assert [info.config["allow_atomic"] async for info in owner.list_streams()] == [True]
        assert [name async for name in js.stream_names()] == ["S"]


async def test_patience_tries_again(js: JetStream, name: str) -> None:
    """Here nothing answers; a missing leader is handled in the same way."""
    asked: list[RequestSent] = []
    nowhere = js.with_options(api_prefix=f"{name}.NOWHERE", trace=Trace(asked.append))
    for patience, most in ((0.0, 1), (0.5, 60)):
        for info in (nowhere.stream(name).info, nowhere.consumer(name, "c").info):
            asked.clear()
            with pytest.raises(JetStreamNotEnabled):
                await info(patience=patience)
            assert 1 + (patience > 0) <= len(asked) <= most


async def test_requests_are_traced(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(USER)
    sent: list[RequestSent] = []
    received: list[ResponseReceived] = []
    settings = ConnectionSettings(servers=server.url, user="airflow", password=PASSWORD)
    async with connect(settings, trace=Trace(sent.append, received.append)) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["s"], "allow_direct": True})
        await js.publish("s", b"data of the message", headers={"X": "value"})
        await stream.get_message(1, direct=True)
        with pytest.raises(StreamNotFound):
            await js.get_stream("NONE")
        assert [message.sequence async for message in stream.get_messages()] == [1]
        direct = "$JS.API.DIRECT.GET.S"
        subjects = ["$JS.API.STREAM.CREATE.S", direct, "$JS.API.STREAM.INFO.NONE", "$JS.API.INFO", direct]
        assert [event.subject for event in sent] == [event.subject for event in received] == subjects
        assert b'"subjects": ["s"]' in sent[0].data
        assert received[1].data == b"data of the message"
        assert received[1].headers["X"] == ["value"]
        assert b"10059" in received[2].data
        assert [event.status for event in received] == [0, 0, 0, 0, 204]
        assert all(0 < event.seconds < 30 for event in received)
        data = [event.data for event in sent] + [event.data for event in received]
        assert PASSWORD not in f"{sent}{received}{data}"
        assert "data of the message" not in str(received)

        def fail(event: object) -> None:
            raise RuntimeError("the trace's own")

        await js.with_options(trace=Trace(fail, fail)).delete_stream("S")
        assert caplog.text.count("a trace callback failed") == 2
        assert [name async for name in js.stream_names()] == []


async def test_streams_are_made_got_and_deleted(js: JetStream, ask: Ask, name: str) -> None:
    config = {"name": name, "subjects": [f"{name}.>"]}
    for absent in (js.get_stream(name), js.update_stream(config), js.delete_stream(name)):
        with pytest.raises(StreamNotFound):
            await absent
    with pytest.raises(StreamNotFound, match="no stream listens"):
        await js.stream_name_by_subject(f"{name}.a")
    assert js.stream(name).cached_info is None

    made = await js.get_or_create_stream(config)
    assert made.cached_info
    assert made.cached_info.raw["did_create"]
    created = (await ask(f"STREAM.INFO.{name}"))["created"]
    assert made.cached_info.created == created
    with pytest.raises(StreamNameInUse):
        await js.create_stream({**config, "max_msgs": 5})
    got = await js.get_or_create_stream({**config, "max_msgs": 5})
    assert got.cached_info
    assert (got.cached_info.created, got.cached_info.config["max_msgs"]) == (created, -1)

    updated = await js.update_stream({"name": name, "max_msgs": 7})
    assert updated.cached_info
    assert updated.cached_info.config["max_msgs"] == 7
    assert (await ask(f"STREAM.INFO.{name}"))["config"]["max_msgs"] == 7
    await js.update_stream({"name": name}, remove=["max_msgs"])
    assert (await ask(f"STREAM.INFO.{name}"))["config"]["max_msgs"] == -1
    assert (await js.create_or_update_stream({"name": name, "max_msgs": 8}))[1] == {"max_msgs": (-1, 8)}
    assert (await js.create_or_update_stream({"name": name, "max_msgs": 8}))[1] == {}
    assert await js.stream_name_by_subject(f"{name}.a") == name
    assert [each async for each in js.stream_names(subject=f"{name}.a")] == [name]
    assert [each.config["name"] async for each in js.list_streams(subject=f"{name}.>")] == [name]
    assert [each async for each in js.stream_names(subject="nobody.listens")] == []
    await js.delete_stream(name)
    assert (await ask(f"STREAM.INFO.{name}"))["error"]["err_code"] == 10059


async def test_consumers_are_made_got_and_deleted(js: JetStream, ask: Ask, name: str) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{name}.a"}
    for absent in (js.get_consumer(name, "c"), js.update_consumer(name, config), js.delete_consumer(name, "c")):
        with pytest.raises(ConsumerNotFound):
            await absent
    assert (await ask(f"CONSUMER.NAMES.{name}"))["total"] == 0
    assert js.consumer(name, "c").cached_info is None

    made = await js.get_or_create_consumer(name, config)
    created = (await ask(f"CONSUMER.INFO.{name}.c"))["created"]
    assert made.cached_info
    assert made.cached_info.created == created
    fresh, server = (await made.info()).raw, await ask(f"CONSUMER.INFO.{name}.c")
    assert {**fresh, "ts": ""} == {**server, "ts": ""}
    await js.create_consumer(name, config)  # an equal one
    with pytest.raises(ConsumerAlreadyExists):
        await js.create_consumer(name, {**config, "max_ack_pending": 5})
    got = await js.get_or_create_consumer(name, {**config, "max_ack_pending": 5})
    assert got.cached_info
    assert (got.cached_info.created, got.cached_info.config["max_ack_pending"]) == (created, 1000)

    await js.update_consumer(name, {"durable_name": "c", "max_ack_pending": 7})
    found = (await ask(f"CONSUMER.INFO.{name}.c"))["config"]
    assert (found["max_ack_pending"], found["filter_subject"]) == (7, f"{name}.a")
    wanted = {"durable_name": "c", "filter_subjects": [f"{name}.a", f"{name}.b"]}
    assert (await js.create_or_update_consumer(name, wanted))[1] == {
        "filter_subjects": (None, wanted["filter_subjects"])
    }
    assert (await js.create_or_update_consumer(name, wanted))[1] == {}
    found = (await ask(f"CONSUMER.INFO.{name}.c"))["config"]
    assert "filter_subject" not in found
    assert (found["filter_subjects"], found["max_ack_pending"]) == (wanted["filter_subjects"], 7)
    await js.update_consumer(name, {"name": "c", "description": "new"}, remove=["max_ack_pending"])
    found = (await ask(f"CONSUMER.INFO.{name}.c"))["config"]
    assert (found["description"], found["max_ack_pending"]) == ("new", 1000)
    _, changes = await js.create_or_update_consumer(name, {"name": "d", "inactive_threshold": 10**12})
    assert changes is None

    ephemeral = await js.create_consumer(name, {"ack_policy": "none"})
    names = [each async for each in js.consumer_names(name)]
    assert names == (await ask(f"CONSUMER.NAMES.{name}"))["consumers"] == sorted(["c", "d", ephemeral.name])
    assert [each.raw["name"] async for each in js.list_consumers(name)] == names
    await js.delete_consumer(name, "c")
    assert (await ask(f"CONSUMER.INFO.{name}.c"))["error"]["err_code"] == 10014


async def test_a_consumer_is_explicit_unless_the_caller_says_otherwise(js: JetStream, ask: Ask, name: str) -> None:
    """As in nats.go, nats.rs and nats-py: for the server's default, each message is processed when it is sent."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})

    async def policies() -> dict[str, str]:
        infos = (await ask(f"CONSUMER.LIST.{name}"))["consumers"]
        return {info["name"]: info["config"]["ack_policy"] for info in infos}

    await stream.create_consumer({"durable_name": "pulled"})
    await stream.create_consumer({"durable_name": "pushed", "deliver_subject": f"to.{name}"})
    await stream.create_or_update_consumer({"durable_name": "updated"})
    await stream.get_or_create_consumer({"durable_name": "got", "deliver_policy": "new"})
    unnamed = await stream.create_consumer({})
    explicit = dict.fromkeys(("pulled", "pushed", "updated", "got", unnamed.name), "explicit")
    assert await policies() == explicit
    for policy in ("none", "all"):
        await stream.create_consumer({"durable_name": policy, "ack_policy": policy})
    ordered = stream.ordered_consumer()
    await ordered.fetch_no_wait(1)
    assert ordered._consumer
    given = explicit | {"none": "none", "all": "all", ordered._consumer.name: "none"}
    assert await policies() == given

    # The default applies to new consumers: an existing one keeps its policy.
    await stream.update_consumer({"durable_name": "none", "description": "new"})
    assert (await stream.create_or_update_consumer({"durable_name": "all", "description": "new"}))[1] is not None
    assert (await stream.get_or_create_consumer({"durable_name": "none"})).name == "none"
    with pytest.raises(ConsumerAlreadyExists):
        await stream.create_consumer({"durable_name": "none", "description": "new"})
    assert await policies() == given


async def test_a_consumer_without_a_name_is_always_a_new_one(js: JetStream, ask: Ask, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    config = {"inactive_threshold": 10**12, "filter_subject": f"{name}.a"}
    made = [await stream.get_or_create_consumer(config) for _ in range(2)]
    for _ in range(2):
        consumer, changes = await stream.create_or_update_consumer(config)
        assert changes is None
        made.append(consumer)
    names = (await ask(f"CONSUMER.NAMES.{name}"))["consumers"]
    assert sorted(each.name for each in made) == names
    assert len(set(names)) == 4
    with pytest.raises(InvalidValue, match="config\\['name'\\]"):
        await stream.update_consumer(config)


async def test_permissions_can_be_given_for_the_filter_of_a_consumer_without_a_name(serve: Serve) -> None:
    """The request's subject is CONSUMER.CREATE.<stream>.<name>.<filter>: without a name it would have no filter."""
    allow = '["$JS.API.CONSUMER.CREATE.S.*.s.mine", "$JS.API.CONSUMER.MSG.NEXT.S.*", "_INBOX.>"]'
    server = serve(
        "authorization { users: [ { user: a, password: a }, "
        f"{{ user: b, password: b, permissions: {{ publish: {{ allow: {allow} }} }} }} ] }}"
    )
    async with connect(ConnectionSettings(servers=server.url, user="a", password="a")) as js:
        await js.create_stream({"name": "S", "subjects": ["s.*"]})
        await js.publish("s.theirs")
        await js.publish("s.mine")
    settings = ConnectionSettings(servers=server.url, user="b", password="b", request_timeout=0.5)
    async with connect(settings) as js:
        consumer = await js.create_consumer("S", {"filter_subject": "s.mine"})
        assert [message.subject for message in await consumer.fetch_no_wait(9)] == ["s.mine"]
        for config in ({"filter_subject": "s.theirs"}, {}):
            with pytest.raises(PermissionDenied):
                await js.create_consumer("S", config)


async def test_an_update_that_the_server_refuses_says_which(js: JetStream, ask: Ask, name: str) -> None:
    """A default that depended on the old value is not sent with the new value, or it would be refused instead."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    await stream.create_consumer({"durable_name": "pushed", "deliver_subject": f"to.{name}"})
    await stream.create_consumer({"durable_name": "c", "deliver_policy": "by_start_sequence", "opt_start_seq": 3})
    before = [(await ask(f"CONSUMER.INFO.{name}.{each}"))["config"] for each in ("c", "pushed")]
    for change, refusal in (
        ({"durable_name": "pushed", "ack_policy": "none"}, "ack policy can not be updated"),
        ({"durable_name": "pushed", "ack_policy": "none", "max_ack_pending": 5}, "max ack pending"),
        ({"durable_name": "c", "deliver_policy": "all"}, "deliver policy can not be updated"),
        ({"durable_name": "c", "deliver_subject": f"to.{name}"}, "can not update pull consumer to push based"),
    ):
        with pytest.raises(ApiError, match=refusal):
            await stream.update_consumer(change)
    assert before == [(await ask(f"CONSUMER.INFO.{name}.{each}"))["config"] for each in ("c", "pushed")]


async def test_an_update_does_not_keep_what_the_server_derived_from_a_value_that_goes(
    js: JetStream, ask: Ask, name: str
) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    assert (await stream.info()).config["duplicate_window"] == 120 * 10**9
    for seconds in (30, 10):  # shorter than the window, which the server sets: its default, then the previous age
        await stream.update({"max_age": timedelta(seconds=seconds)})
        assert (await ask(f"STREAM.INFO.{name}"))["config"]["duplicate_window"] == seconds * 10**9
    await stream.update({"max_age": timedelta(hours=1), "duplicate_window": timedelta(minutes=5)})
    await stream.update({"max_age": timedelta(minutes=10)})
    assert (await ask(f"STREAM.INFO.{name}"))["config"]["duplicate_window"] == 300 * 10**9
    with pytest.raises(InvalidStreamConfig, match="duplicates window"):  # the requested one
        await stream.update({"max_age": timedelta(minutes=1)})

    consumer = await stream.create_consumer({"durable_name": "c", "backoff": [timedelta(seconds=1)]})
    await consumer.update({}, remove=["backoff"])
    assert (await ask(f"CONSUMER.INFO.{name}.c"))["config"]["ack_wait"] == 30 * 10**9
    await consumer.update({"priority_groups": ["g"], "priority_policy": "pinned_client"})
    assert (await ask(f"CONSUMER.INFO.{name}.c"))["config"]["priority_timeout"] == 120 * 10**9
    await consumer.update({"ack_wait": timedelta(seconds=9)}, remove=["priority_groups", "priority_policy"])
    config = (await ask(f"CONSUMER.INFO.{name}.c"))["config"]
    assert (config["ack_wait"], config.get("priority_timeout")) == (9 * 10**9, None)


async def test_an_update_makes_nothing(js: JetStream, ask: Ask, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if it is deleted between reading and writing."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    consumer = await stream.create_consumer({"durable_name": "c"})
    info = consumer.info

    async def last_info() -> ConsumerInfo:
        found = await info()
        await ask(f"CONSUMER.DELETE.{name}.c")
        return found

    monkeypatch.setattr(consumer, "info", last_info)
    with pytest.raises(ConsumerDoesNotExist):
        await consumer.update({"description": "new"})
    assert (await ask(f"CONSUMER.NAMES.{name}"))["total"] == 0


async def test_who_was_slower_gets_what_is_there(js: JetStream, ask: Ask, name: str) -> None:
    """All of them ask before one has created it, each with another configuration."""
    subjects = [f"{name}.>"]
    streams = await asyncio.gather(
        *(js.get_or_create_stream({"name": name, "subjects": subjects, "max_msgs": each}) for each in range(1, 6))
    )
    consumers = await asyncio.gather(
        *(js.get_or_create_consumer(name, {"durable_name": "c", "max_waiting": each}) for each in range(1, 6))
    )
    stream, consumer = await ask(f"STREAM.INFO.{name}"), await ask(f"CONSUMER.INFO.{name}.c")
    for handles, server in ((streams, stream), (consumers, consumer)):
        for handle in handles:
            assert handle.cached_info
            assert (handle.cached_info.config, handle.cached_info.created) == (server["config"], server["created"])


async def test_lists_are_complete(tmp_path: Path) -> None:
    """There is more than one page of each: 256 states, 1,024 names."""

    def stream(name: str) -> dict[str, Any]:
        return {"name": name, "storage": "memory"}

    def consumer(name: str) -> dict[str, Any]:
        return {"stream_name": "S0000", "config": {"name": name, "inactive_threshold": 10**12}}

    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, request_timeout=60)) as js:
            streams = [f"S{number:04}" for number in range(1_030)]
            consumers = [f"c{number:03}" for number in range(260)]
            await create(js, "STREAM.CREATE", streams[:309], stream)
            await create(js, "CONSUMER.CREATE.S0000", consumers, consumer)
            assert [each.config["name"] async for each in js.list_streams()] == streams[:309]
            assert [each.raw["name"] async for each in js.list_consumers("S0000")] == consumers
            assert [each async for each in js.consumer_names("S0000")] == consumers
            await create(js, "STREAM.CREATE", streams[309:], stream)
            assert [each async for each in js.stream_names()] == streams

            asked: list[RequestSent] = []
            async for _ in js.with_options(trace=Trace(asked.append)).list_streams():
                break
            assert len(asked) == 1  # a page is requested when the previous one has been read
    finally:
        server.stop()


async def create(js: JetStream, request: str, names: list[str], body: Callable[[str], dict[str, Any]]) -> None:
    for start in range(0, len(names), 100):
        await asyncio.gather(*(js.api(f"{request}.{name}", body(name)) for name in names[start : start + 100]))


def test_a_list_that_lacks_something_says_so() -> None:
    """Items that did not answer the server count in the page: 250 items of 256 are not the end of 300."""
    pager = Pager("STREAM.LIST", {"subject": "a.>"})
    streams = [{"config": {"name": f"S{number}"}} for number in range(298)]
    first = {"total": 300, "offset": 0, "limit": 256, "streams": streams[:254], "missing": ["B"], "offline": {"A": "…"}}
    bodies, done = [], []
    for page in (first, {"total": 300, "offset": 256, "limit": 256, "streams": streams[254:]}):
        bodies.append(pager.body())
        pager.take(page, page["streams"])
        done.append(pager.done)
    assert bodies == [{"subject": "a.>", "offset": 0}, {"subject": "a.>", "offset": 256}]
    assert done == [False, True]
    with pytest.raises(ListingIncomplete) as incomplete:
        pager.check()
    assert incomplete.value.names == ["A", "B"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"streams": "S"},
        {"streams": 1},
        {"total": "300"},
        {"limit": 0},
        {"missing": 3, "streams": ["S"]},
        {"offline": "x"},
    ],
)
async def test_a_page_that_leads_nowhere(js: JetStream, name: str, more: dict[str, Any]) -> None:
    """Another client answers on the prefix."""
    answer = json.dumps({"total": 300, "offset": 0, "limit": 256, "streams": [], **more}).encode()
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def read() -> list[str]:
        with pytest.raises(ProtocolError, match=r"STREAM.NAMES is (not a page|an empty page before the end)"):
            async for _ in js.with_options(api_prefix=name).stream_names():
                pass
        return ["ended"]

    async with (
        js.connection.listen(f"{name}.STREAM.NAMES", lambda request: asked.put_nowait(request.reply)),
        asyncio.TaskGroup() as tasks,
    ):
        reading = tasks.create_task(read())
        await js.connection.publish(await asked.get(), answer)
        assert await reading == ["ended"]


@pytest.mark.parametrize(
    ("total", "which", "said"),
    [
        (lambda page: 300 * (page + 2), lambda page: page, "while it was read"),
        (lambda _: 10**18, lambda _: 0, "repeats a page"),
        (lambda page: 256 * (page + 2), lambda page: page % 2, "repeats a page"),
    ],
    ids=["it grows", "the same page", "two pages in turns"],
)
async def test_a_list_that_never_ends(
    js: JetStream, name: str, total: Callable[[int], int], which: Callable[[int], int], said: str
) -> None:
    """Another client answers on the prefix."""
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def answering() -> None:
        for page in itertools.count():
            names = [f"S{which(page)}.{number}" for number in range(256)]
            answer = {"total": total(page), "offset": 256 * page, "limit": 256, "streams": names}
            await js.connection.publish(await asked.get(), json.dumps(answer).encode())

    async with js.connection.listen(f"{name}.STREAM.NAMES", lambda request: asked.put_nowait(request.reply)):
        stranger = asyncio.create_task(answering())
        with pytest.raises(ProtocolError, match=said):
            async for _ in js.with_options(api_prefix=name).stream_names():
                pass
        stranger.cancel()
