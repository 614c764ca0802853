"""Configurations: every field arrives unchanged, and an update changes the requested fields only."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, Trace, connect
from jetstream_client.config import check_consumer_config, check_stream_config, difference, merge
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, ConsumerCreateFailed, InvalidRequest, InvalidValue, ServerTooOld
from jetstream_client.requirements import COUNTERS, of_config, recorded
from jetstream_client.times import time_nanoseconds
from tests.jetstream_client.servers import Ask, older_program

SECOND = 10**9

STREAM: dict[str, Any] = {
    "description": "orders of all shops",
    "max_consumers": 7,
    "max_msgs": 100,
    "max_bytes": 1 << 20,
    "max_age": 3_601_999_999_999,
    "max_msgs_per_subject": 5,
    "max_msg_size": 1_000,
    "retention": "limits",
    "discard": "new",
    "discard_new_per_subject": True,
    "storage": "memory",
    "num_replicas": 1,
    "no_ack": True,
    "duplicate_window": 1_001_000_001,
    "placement": {"cluster": "here", "tags": ["ssd"]},
    "sealed": False,
    "deny_delete": True,
    "deny_purge": True,
    "allow_rollup_hdrs": False,
    "allow_direct": True,
    "compression": "s2",
    "first_seq": 10,
    "consumer_limits": {"inactive_threshold": 60 * SECOND + 1, "max_ack_pending": 50},
    "metadata": {"team": "blue", "tier": "1"},
    "allow_msg_ttl": True,
}
"""25 fields that are valid together, and together with each of these:"""
STREAM_FIELDS: list[dict[str, Any]] = [
    {"retention": "interest"},
    {"retention": "workqueue"},
    {"allow_rollup_hdrs": True, "subject_delete_marker_ttl": 2 * SECOND, "allow_msg_ttl": True},
    {"republish": {"src": "{}.>", "dest": "again.{}.>", "headers_only": True}},
    {"subject_transform": {"src": "{}.old.>", "dest": "{}.new.>"}},
    {"allow_atomic": True},
    {"allow_batched": True},
    {"allow_msg_counter": True},
    {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
    {"persist_mode": "async"},
    {"sources": [{"name": "ORIGIN", "opt_start_seq": 3, "filter_subject": "origin.a"}]},
    {"sources": [{"name": "ORIGIN", "opt_start_time": "2026-01-01T00:00:00.123456789-05:00"}]},
    {
        "sources": [{"name": "ORIGIN", "subject_transforms": [{"src": "origin.>", "dest": "{}.>"}]}],
    },
    {"sources": [{"name": "FAR", "external": {"api": "$JS.far.API", "deliver": "deliver.far"}}]},
    {"mirror": {"name": "ORIGIN", "filter_subject": "origin.a"}, "subjects": None},
    {"mirror": {"name": "ORIGIN"}, "mirror_direct": True, "allow_direct": True, "subjects": None},
]

CONSUMER: dict[str, Any] = {
    "durable_name": "c",
    "name": "c",
    "description": "sums up",
    "deliver_policy": "by_start_time",
    "opt_start_time": "2026-01-01T00:00:00.123456789-05:00",
    "ack_policy": "explicit",
    "ack_wait": SECOND + 1,
    "max_deliver": 7,
    "backoff": [SECOND + 1, 2_001_000_000],
    "filter_subjects": ["{}.a", "{}.b.*"],
    "replay_policy": "original",
    "sample_freq": "50",
    "max_waiting": 9,
    "max_ack_pending": 99,
    "headers_only": True,
    "max_batch": 10,
    "max_expires": 5 * SECOND + 1,
    "max_bytes": 4_096,
    "inactive_threshold": 3_600 * SECOND + 1,
    "num_replicas": 1,
    "mem_storage": True,
    "metadata": {"team": "blue", "tier": "1"},
    "priority_groups": ["g"],
    "priority_policy": "pinned_client",
    "priority_timeout": 30 * SECOND + 1,
}
"""25 fields that are valid together, and each of these on a separate consumer:"""
CONSUMER_FIELDS: list[dict[str, Any]] = [
    {"deliver_policy": "all"},
    {"deliver_policy": "last"},
    {"deliver_policy": "new"},
    {"deliver_policy": "last_per_subject", "filter_subject": "{}.>"},
    {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    {"ack_policy": "none"},
    {"ack_policy": "all"},
    {"ack_policy": "explicit", "ack_wait": 61_999_999_999},
    {"replay_policy": "instant"},
    {"deliver_subject": "to.{}", "deliver_group": "workers", "rate_limit_bps": 80_000, "ack_policy": "explicit"},
    {"deliver_subject": "to.{}", "flow_control": True, "idle_heartbeat": 5 * SECOND + 1},
    {"pause_until": "2100-01-01T00:00:00Z"},
    {"priority_groups": ["g"], "priority_policy": "overflow"},
    {"priority_groups": ["g"], "priority_policy": "prioritized"},
]


def filled(config: Any, name: str) -> Any:
    """The configuration with the stream's name instead of each ``{}``."""
    if isinstance(config, dict):
        return {field: filled(value, name) for field, value in config.items() if value is not None}
    if isinstance(config, list):
        return [filled(each, name) for each in config]
    return config.replace("{}", name) if isinstance(config, str) else config


def found(config: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The server's values of the wanted fields, without the metadata that it adds."""
    return {field: own(config.get(field)) if field == "metadata" else config.get(field) for field in wanted}


def own(metadata: Any) -> dict[str, str]:
    return {name: value for name, value in metadata.items() if not name.startswith("_nats.")}


@pytest.fixture
async def origin(js: JetStream) -> None:
    await js.create_stream({"name": "ORIGIN", "subjects": ["origin.>"], "allow_direct": True})


@pytest.mark.server("2.14")
async def test_every_stream_field_arrives(js: JetStream, ask: Ask, name: str, origin: None) -> None:
    for number, fields in enumerate([STREAM, *STREAM_FIELDS]):
        each = f"{name}-{number}"
        wanted = filled({"name": each, "subjects": [f"{each}.>"], **fields}, each)
        await js.create_stream(wanted)
        assert found((await ask(f"STREAM.INFO.{each}"))["config"], wanted) == wanted
        await js.delete_stream(each)


@pytest.mark.server("2.14")
async def test_every_consumer_field_arrives(js: JetStream, ask: Ask, name: str) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    for number, fields in enumerate([CONSUMER, *CONSUMER_FIELDS]):
        wanted = filled({"name": f"c{number}"} | fields, name)
        await js.create_consumer(name, wanted)
        assert found((await ask(f"CONSUMER.INFO.{name}.{wanted['name']}"))["config"], wanted) == wanted


async def test_an_update_of_a_stream_changes_one_field(js: JetStream, ask: Ask, name: str) -> None:
    """The stream is created without this client, with fields that it does not know, including nested ones."""
    made = await ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **filled(STREAM, name)})
    assert len(STREAM) > 20
    before = made["config"]
    await js.stream(name).update({"description": "new"})
    assert (await ask(f"STREAM.INFO.{name}"))["config"] == before | {"description": "new"}
    await js.create_or_update_stream({"name": name, "max_age": timedelta(milliseconds=3_600_001)})
    expected = before | {"description": "new", "max_age": 3_600_001_000_000}
    assert (await ask(f"STREAM.INFO.{name}"))["config"] == expected
    # The same holds for nested fields.
    await js.update_stream({"name": name, "consumer_limits": {"max_ack_pending": 60}, "metadata": {"tier": "2"}})
    config = (await ask(f"STREAM.INFO.{name}"))["config"]
    assert config["consumer_limits"] == {"inactive_threshold": 60 * SECOND + 1, "max_ack_pending": 60}
    assert own(config["metadata"]) == {"team": "blue", "tier": "2"}
    # A removed field has its default again.
    await js.stream(name).update({"metadata": {"only": "this"}}, remove=["metadata", "placement", "max_msg_size"])
    config = (await ask(f"STREAM.INFO.{name}"))["config"]
    assert (own(config["metadata"]), config["max_msg_size"], "placement" in config) == ({"only": "this"}, -1, False)
    with pytest.raises(InvalidValue, match="cannot be changed"):
        await js.stream(name).update({"name": "other"})
    with pytest.raises(InvalidValue, match="remove"):
        await js.stream(name).update({}, remove="metadata")


async def test_an_update_of_a_consumer_changes_one_field(js: JetStream, ask: Ask, name: str) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    body = {"stream_name": name, "config": filled(CONSUMER, name), "action": "create"}
    before = (await ask(f"CONSUMER.CREATE.{name}.c", body))["config"]
    assert len(CONSUMER) > 20
    listed = [found(info.config, body["config"]) async for info in js.list_consumers(name)]
    assert listed == [body["config"]]  # times with a negative offset do not end the list
    await js.consumer(name, "c").update({"description": "new"})
    assert (await ask(f"CONSUMER.INFO.{name}.c"))["config"] == before | {"description": "new"}
    await js.create_or_update_consumer(name, {"name": "c", "max_ack_pending": 98, "metadata": {"tier": "2"}})
    config = (await ask(f"CONSUMER.INFO.{name}.c"))["config"]
    assert own(config.pop("metadata")) == {"team": "blue", "tier": "2"}
    del before["metadata"]
    assert config == before | {"description": "new", "max_ack_pending": 98}
    with pytest.raises(ConsumerCreateFailed, match="ack policy can not be updated"):
        await js.consumer(name, "c").update({"ack_policy": "none"})
    with pytest.raises(InvalidValue, match="ignores this field in an update"):
        await js.consumer(name, "c").update({"pause_until": "2100-01-01T00:00:00Z"})
    with pytest.raises(InvalidValue, match="cannot be changed"):
        await js.consumer(name, "c").update({"name": "other"})


def test_what_is_newer_than_this_client_survives() -> None:
    current = {"name": "S", "of_2040": {"a": 1, "b": [{"c": 2}]}, "metadata": {"_nats.ver": "9.0"}}
    assert merge(current, {"max_age": 1, "of_2040": {"a": 3}}) == {
        **current,
        "max_age": 1,
        "of_2040": {"a": 3, "b": [{"c": 2}]},
    }
    assert merge(current, {"of_2040": {"d": 4}}, ["of_2040", "absent"])["of_2040"] == {"d": 4}
    assert merge({"filter_subject": "a"}, {"filter_subjects": ["a", "b"]}) == {"filter_subjects": ["a", "b"]}
    assert merge({"filter_subjects": ["a", "b"]}, {"filter_subject": "a"}) == {"filter_subject": "a"}


async def test_a_pedantic_server_changes_nothing_by_itself(js: JetStream, ask: Ask, name: str) -> None:
    """Otherwise it would shorten the duplicate window to the age, and the consumer's limits to the stream's."""
    config = {"name": name, "subjects": [f"{name}.>"], "max_age": SECOND}
    limits = {"max_ack_pending": 10, "inactive_threshold": 5 * SECOND}
    with pytest.raises(ApiError, match="duplicate window cannot be bigger than max age") as refused:
        await js.create_stream(config, pedantic=True)
    assert refused.value.err_code == 10157
    assert (await ask(f"STREAM.INFO.{name}"))["error"]["err_code"] == 10059
    stream = await js.create_stream({**config, "duplicate_window": SECOND, "consumer_limits": limits}, pedantic=True)
    with pytest.raises(ApiError) as refused:
        await js.create_consumer(name, {"name": "c", "ack_policy": "explicit"}, pedantic=True)
    assert refused.value.err_code == 10157
    assert (await ask(f"CONSUMER.NAMES.{name}"))["total"] == 0
    await stream.create_consumer({"name": "c", "ack_policy": "explicit"})
    assert (await ask(f"CONSUMER.INFO.{name}.c"))["config"]["max_ack_pending"] == 10


@pytest.mark.server("2.12")
async def test_a_mirror_becomes_a_stream(js: JetStream, ask: Ask, name: str, origin: None) -> None:
    mirror = await js.create_stream({"name": name, "mirror": {"name": "ORIGIN"}})
    info = await mirror.info()
    assert info.mirror
    assert info.mirror["name"] == "ORIGIN"
    await mirror.update({"subjects": [f"{name}.>"]}, remove=["mirror"])
    config = (await ask(f"STREAM.INFO.{name}"))["config"]
    assert ("mirror" in config, config["subjects"]) == (False, [f"{name}.>"])


def test_a_domain_is_an_external_api() -> None:
    far = {"api": "$JS.far.API", "deliver": ""}
    config = {"name": "S", "mirror": {"name": "M", "domain": "far"}, "sources": [{"name": "T", "domain": "far"}]}
    wanted = check_stream_config(config)
    assert wanted["mirror"] == {"name": "M", "external": far}
    assert wanted["sources"] == [{"name": "T", "external": far}]
    assert config["mirror"] == {"name": "M", "domain": "far"}  # the caller's configuration is not changed
    for wrong in (
        {"mirror": {"name": "M", "domain": "far", "external": far}},
        {"mirror": {"name": "M", "domain": "f ar"}},
        {"mirror": "M"},
        {"sources": {"name": "M"}},
        {"sources": ["M"]},
    ):
        with pytest.raises(InvalidValue):
            check_stream_config({"name": "S", **wrong})


@pytest.mark.parametrize("field", ["template_owner", "max_messages_per_stream"])
def test_fields_that_jetstream_has_not(field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        check_stream_config({"name": "S", field: 1})


def test_times_and_durations_are_exact() -> None:
    zone = timezone(timedelta(hours=-5))
    wanted = check_consumer_config(
        {"opt_start_time": datetime(2026, 1, 1, 0, 0, 0, 1, zone), "ack_wait": timedelta(milliseconds=1_001)}
    )
    assert wanted["ack_wait"] == 1_001_000_000
    assert time_nanoseconds(wanted["opt_start_time"]) == time_nanoseconds("2026-01-01T05:00:00.000001Z")
    same = {"pause_until": "2026-01-01T00:00:00-05:00", "opt_start_time": "2026-01-01T00:00:00.5-05:00"}
    other = {"pause_until": datetime(2026, 1, 1, 5, tzinfo=UTC), "opt_start_time": "2026-01-01T05:00:00.500Z"}
    assert difference(same, check_consumer_config(other)) == {}


@pytest.mark.server("2.12")
async def test_an_unknown_field_is_named_with_the_server(js: JetStream, ask: Ask, name: str) -> None:
    for config in ({"name": name, "subjects": [name], "no_such": 1}, {"name": name, "max_msgs": "many"}):
        with pytest.raises(InvalidRequest, match=r"(no_such|max_msgs).*nats-server 2\.") as refused:
            await js.create_stream(config)
        assert (refused.value.err_code, refused.value.code) == (10025, 400)
    assert (await ask(f"STREAM.INFO.{name}"))["error"]["err_code"] == 10059


@pytest.mark.parametrize(
    ("version", "stream", "consumer"),
    [
        (
            "2.11.11",
            {
                "allow_atomic": "2.12",
                "allow_msg_counter": "2.12",
                "allow_msg_schedules": "2.12",
                "persist_mode": "2.12",
                "allow_batched": "2.14",
            },
            {"priority_policy": "2.12"},
        )
    ],
)
async def test_a_server_that_is_too_old_is_named_before_anything_is_sent(
    tmp_path: Path, version: str, stream: dict[str, str], consumer: dict[str, str]
) -> None:
    """The server would accept the request and drop the field silently."""
    server = NatsServer(tmp_path, program=older_program(version))
    server.start()
    try:
        sent: list[str] = []
        trace = Trace(lambda event: sent.append(event.subject))
        async with connect(ConnectionSettings(servers=server.url, request_timeout=30), trace=trace) as js:
            for field, since in stream.items():
                with pytest.raises(ServerTooOld, match=rf"{since} or newer is needed for.*{field}.*this is {version}"):
                    await js.create_stream({"name": "S", "subjects": ["s"], field: True})
            made = await js.create_stream({"name": "S", "subjects": ["s"], "allow_msg_ttl": True})
            assert made.cached_info
            assert made.cached_info.config["allow_msg_ttl"]
            for field, since in consumer.items():
                config = {"name": "c", "priority_groups": ["g"], field: "prioritized"}
                with pytest.raises(ServerTooOld, match=rf"{since} or newer is needed for.*{field}.*this is {version}"):
                    await made.create_consumer(config)
                await made.create_consumer({**config, field: "overflow"})
            with pytest.raises(ServerTooOld, match="allow_atomic"):
                await made.update({"allow_atomic": True})
            with pytest.raises(ServerTooOld, match=r"nats-server 2.14 .* sources.consumer, and this"):
                await made.update({"sources": [{"name": "T", "consumer": {"name": "c", "deliver_subject": "d"}}]})
            with pytest.raises(ServerTooOld, match=r"nats-server 2.14 .* ack_policy='flow_control', and this"):
                await made.create_consumer({"name": "d", "ack_policy": "flow_control"})
            mirror = await js.create_stream({"name": "M", "mirror": {"name": "S"}})
            with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* removes mirror, and.*this is 2.11.11"):
                await mirror.update({"subjects": ["m"]}, remove=["mirror"])
            with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* data alone, and.*this is 2.11.11"):
                await made.get_data(1)
            assert {each for each in sent if "INFO" not in each} == {
                "$JS.API.STREAM.CREATE.S",
                "$JS.API.STREAM.CREATE.M",
                "$JS.API.CONSUMER.CREATE.S.c",
            }
    finally:
        server.stop()


@pytest.mark.server("2.12")
async def test_the_level_of_the_jetstream_that_is_asked_decides(tmp_path: Path) -> None:
    """The version of the connected server does not decide, because a domain may be on another server."""
    port = free_port()
    hub = f'server_name: hub, jetstream {{ domain: hub }}, leafnodes {{ listen: "127.0.0.1:{port}" }}'
    remote = f'{{ url: "nats-leaf://127.0.0.1:{port}" }}'
    leaf = f"server_name: leaf, jetstream {{ domain: leaf }}, leafnodes {{ reconnect: 1, remotes: [{remote}] }}"
    older = NatsServer(tmp_path / "hub", hub, program=older_program("2.11.11"))
    newer = NatsServer(tmp_path / "leaf", leaf)
    config = {"name": "S", "allow_atomic": True}
    older.start()
    newer.start()
    try:
        async with connect(ConnectionSettings(servers=newer.url, request_timeout=30)) as js:
            asked: list[str] = []
            there = js.with_options(domain="hub", trace=Trace(lambda event: asked.append(event.subject)))
            await answers(there)
            with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* allow_atomic, and .* with API level 1"):
                await there.create_stream(config)
            assert asked[-1] == "$JS.hub.API.INFO"
            await js.create_stream(config)
        async with connect(ConnectionSettings(servers=older.url, request_timeout=30)) as js:
            with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* allow_atomic, and .* 2.11.11"):
                await js.create_stream(config)
            there = js.with_options(domain="leaf")
            await answers(there)
            stream = await there.create_stream({**config, "name": "T"})
            assert (await stream.info()).config["allow_atomic"]
    finally:
        newer.stop()
        older.stop()


async def answers(js: JetStream) -> None:
    """Wait until the leaf node has found the hub."""
    await js.api("STREAM.NAMES", patience=30)


async def test_what_2_10_does_not_have(tmp_path: Path) -> None:
    """The server would answer a batch with one message and without an end."""
    server = NatsServer(tmp_path, program=older_program("2.10.26"))
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, request_timeout=30)) as js:
            stream = await js.create_stream(
                {"name": "S", "subjects": ["s.>"], "allow_direct": True, "compression": "s2"}
            )
            await stream.create_consumer({"name": "c", "filter_subjects": ["s.a", "s.b"], "inactive_threshold": 10**12})
            for messages in (stream.get_messages(), stream.get_last_messages(["s.>"])):
                with pytest.raises(ServerTooOld, match=r"nats-server 2.11 .* batched direct get, and .* 2.10.26"):
                    await anext(messages)
            with pytest.raises(ServerTooOld, match=r"nats-server 2.11 .* start_time, and this"):
                await stream.get_message(start_time="2026-01-01T00:00:00Z")
            with pytest.raises(ServerTooOld, match=r"nats-server 2.11 .* priority_\w+, and this"):
                await stream.create_consumer({"name": "d", "priority_groups": ["g"], "priority_policy": "overflow"})
            for field in ("allow_msg_ttl", "subject_delete_marker_ttl"):
                with pytest.raises(ServerTooOld, match=rf"nats-server 2.11 .* {field}, and .* 2.10.26"):
                    await stream.update({field: 1})
            with pytest.raises(ServerTooOld, match=r"nats-server 2.11 .* pause_until, and this"):
                await stream.create_consumer({"name": "d", "pause_until": "2100-01-01T00:00:00Z"})
            with pytest.raises(ServerTooOld, match=r"nats-server 2.11 .* pedantic, and this"):
                await js.create_stream({"name": "P"}, pedantic=True)
            consumer = stream.consumer("c")
            for call in (consumer.pause(datetime.now(UTC)), consumer.resume(), consumer.unpin("g")):
                with pytest.raises(ServerTooOld, match=r"nats-server 2.11 or newer .* 2.10.26"):
                    await call
            await js.publish("s.a", b"found")
            assert (await stream.get_message(1, direct=True)).data == b"found"
            assert [name async for name in js.consumer_names("S")] == ["c"]
    finally:
        server.stop()


def test_what_needs_the_newest_server() -> None:
    assert of_config({"allow_atomic": True, "allow_msg_ttl": True, "description": "d"}) == (2, (2, 12), "allow_atomic")
    assert of_config({"sources": [{"name": "M", "consumer": {"name": "c"}}]}) == (4, (2, 14), "sources.consumer")
    assert of_config({"ack_policy": "flow_control"}) == (4, (2, 14), "ack_policy='flow_control'")
    assert of_config({"allow_atomic": False, "max_msgs": 1, "ack_policy": "explicit"}) is None
    for version in ("2.12.0", "2.15.1", "3.0.0-RC.1"):
        COUNTERS.check(version)
    with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* counters, and .* 2.11.11"):
        COUNTERS.check("2.11.11")
    COUNTERS.check_answer({"metadata": {"_nats.level": "2", "_nats.ver": "2.12.0"}})
    with pytest.raises(ServerTooOld, match=r"nats-server 2.12 .* counters, and .* 2.11.11"):
        COUNTERS.check_answer({"metadata": {"_nats.level": "1", "_nats.ver": "2.11.11"}})
    wrong: list[Any] = [None, {}, [], "2", {"_nats.level": "two"}, {"_nats.level": "9" * 5_000}]
    for metadata in wrong:
        with pytest.raises(ServerTooOld, match=r"a server older than 2\.11"):
            COUNTERS.check_answer({"metadata": metadata})
        assert recorded({"metadata": metadata}) == 0
