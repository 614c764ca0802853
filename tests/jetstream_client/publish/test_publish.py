"""Publishing one message: the content of the stream, and its refusals, according to the raw API."""

import asyncio
import base64
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.context import JetStream
from jetstream_client.names import LONGEST_SUBJECT
from jetstream_client.publish.bulk import publish_all, publish_fast
from jetstream_client.publish.schedule import Schedule
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import decode_headers, encode_publish
from tests.installed_server import has
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import Serve
from tests.jetstream_client.until import until

ALL = {"allow_rollup_hdrs": True, "allow_msg_ttl": True, "allow_msg_schedules": True}


@pytest.fixture
async def name(js: JetStream) -> AsyncIterator[str]:
    """A stream with as many allow_ options as one stream can have."""
    name = f"P{secrets.token_hex(4)}"
    await js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory", **ALL})
    yield name
    await js.api(f"STREAM.DELETE.{name}")


async def stored(js: JetStream, stream: str, sequence: int) -> tuple[str, bytes, dict[str, list[str]]]:
    """Subject, data and headers, as STREAM.MSG.GET has them."""
    message = (await js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
    block = base64.b64decode(message.get("hdrs", ""))
    return message["subject"], base64.b64decode(message.get("data", "")), decode_headers(block)


async def count(js: JetStream, stream: str) -> int:
    return int((await js.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


async def test_a_message_arrives_with_all_its_headers(js: JetStream, name: str) -> None:
    headers = {"Kind": ["a", "b"], "Of": "c"}
    ack = await js.publish(f"{name}.x", b"data", headers=headers, msg_id="one", expected_stream=name)
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == (name, 1, False, "")
    wanted = {"Kind": ["a", "b"], "Of": ["c"], "Nats-Msg-Id": ["one"], "Nats-Expected-Stream": [name]}
    assert await stored(js, name, 1) == (f"{name}.x", b"data", wanted)
    assert headers == {"Kind": ["a", "b"], "Of": "c"}
    again = await js.publish(f"{name}.x", b"data", headers=headers, msg_id="one")
    assert (again.seq, again.duplicate) == (1, True)
    assert await count(js, name) == 1


@pytest.mark.parametrize(
    ("options", "refusal", "code"),
    [
        ({"expected_stream": "OTHER"}, errors.WrongStream, 10060),
        ({"expected_last_sequence": 0}, errors.WrongLastSequence, 10071),
        ({"expected_last_sequence": 3}, errors.WrongLastSequence, 10071),
        ({"expected_last_subject_sequence": 0}, errors.WrongLastSequence, 10071),
        ({"expected_last_subject_sequence": 1, "expected_last_subject": "NAME.*"}, errors.WrongLastSequence, 10071),
        ({"expected_last_msg_id": "one"}, errors.WrongLastMessageId, 10070),
        pytest.param({"increment": 1}, errors.CounterRefused, 10168, marks=pytest.mark.server("2.12")),
        ({"headers": {"Nats-TTL": "soon"}}, errors.TtlRefused, 10165),
        *(
            pytest.param({"schedule": schedule}, errors.ScheduleRefused, code, marks=pytest.mark.server("2.14"))
            for schedule, code in (
                (Schedule("NAME.to", "0 0 25 * * *"), 10189),
                (Schedule("elsewhere", "@hourly"), 10190),
                (Schedule("NAME.to", "@hourly", time_zone="Mars/Base"), 10223),
                (Schedule("NAME.to", "@hourly", source="NAME.to"), 10203),
            )
        ),
    ],
)
async def test_what_is_not_as_expected_is_refused(
    js: JetStream, name: str, options: dict[str, Any], refusal: type[errors.ApiError], code: int
) -> None:
    await js.publish(f"{name}.x", b"1", msg_id="one")
    await js.publish(f"{name}.y", b"2", msg_id="two")
    if subject := options.get("expected_last_subject"):
        options = options | {"expected_last_subject": subject.replace("NAME", name)}
    if schedule := options.get("schedule"):
        target, source = schedule.target.replace("NAME", name), (schedule.source or "").replace("NAME", name) or None
        options = {"schedule": Schedule(target, schedule.when, source=source, time_zone=schedule.time_zone)}
    with pytest.raises(refusal) as refused:
        await js.publish(f"{name}.x", b"" if "increment" in options else b"3", **options)
    assert refused.value.err_code == code
    assert await count(js, name) == 2


async def test_what_is_as_expected_is_stored(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.x", b"1", expected_last_sequence=0)
    await js.publish(f"{name}.y", b"2", expected_last_sequence=1, msg_id="two")
    await js.publish(f"{name}.x", b"3", expected_last_subject_sequence=1, expected_last_msg_id="two")
    await js.publish(f"{name}.z", b"4", expected_last_subject_sequence=0)
    await js.publish(f"{name}.z", b"5", expected_last_subject_sequence=3, expected_last_subject=f"{name}.x")
    await js.publish(f"{name}.a", b"6", expected_last_subject_sequence=5, expected_last_subject=f"{name}.*")
    assert await count(js, name) == 6


async def test_a_rollup_replaces_a_subject_or_the_stream(js: JetStream, name: str) -> None:
    for subject in ("x", "x", "y"):
        await js.publish(f"{name}.{subject}", b"old")
    await js.publish(f"{name}.x", b"new", rollup="sub")
    assert await count(js, name) == 2
    await js.publish(f"{name}.x", b"alone", rollup="all")
    assert await count(js, name) == 1
    assert (await stored(js, name, 5))[1] == b"alone"


async def test_a_ttl_ends_a_message_and_never_keeps_it(js: JetStream, name: str) -> None:
    config = (await js.api(f"STREAM.INFO.{name}"))["config"]
    second = 1_000_000_000
    await js.api(f"STREAM.UPDATE.{name}", {**config, "max_age": second, "duplicate_window": second})
    await js.publish(f"{name}.x", b"stays", ttl="never")
    await js.publish(f"{name}.x", b"goes", ttl=timedelta(seconds=1.5))
    assert (await stored(js, name, 2))[2] == {"Nats-TTL": ["2s"]}
    deadline = time.monotonic() + 20
    while await count(js, name) == 2:
        assert time.monotonic() < deadline
    assert (await stored(js, name, 1))[1] == b"stays"


@pytest.mark.server("2.12")
async def test_a_schedule_publishes_once_later(js: JetStream, name: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1)
    schedule = Schedule(f"{name}.to", at, ttl=timedelta(hours=1))
    await js.publish(f"{name}.later", b"order", headers={"Kind": ["a", "b"]}, schedule=schedule)
    deadline = time.monotonic() + 20
    while (await js.api(f"STREAM.INFO.{name}"))["state"]["last_seq"] < 2:
        assert time.monotonic() < deadline
    subject, data, headers = await stored(js, name, 2)
    assert (subject, data) == (f"{name}.to", b"order")
    assert headers["Kind"] == ["a", "b"]
    assert headers["Nats-TTL"] == ["1h0m0s"] or headers["Nats-TTL"] == ["3600s"]
    assert datetime.now(UTC) >= at
    assert await count(js, name) == 1


@pytest.mark.server("2.14")
async def test_a_schedule_repeats_until_it_is_purged(js: JetStream, name: str) -> None:
    """Each message has the content of the last one of its source."""
    await js.publish(f"{name}.from", b"old")
    await js.publish(f"{name}.from", b"sampled", headers={"Kind": ["a", "b"]})
    every = Schedule(f"{name}.to", timedelta(seconds=1), source=f"{name}.from")
    await js.publish(f"{name}.every", b"its own", schedule=every)

    async def published() -> int:
        info = await js.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.to"})
        return int((info["state"].get("subjects") or {}).get(f"{name}.to", 0))

    async def twice() -> bool:
        return await published() >= 2

    await until(twice, 60)
    assert await js.stream(name).purge(subject=f"{name}.every") == 1
    before = await published()
    message = (await js.api(f"STREAM.MSG.GET.{name}", {"last_by_subj": f"{name}.to"}))["message"]
    assert base64.b64decode(message["data"]) == b"sampled"
    assert decode_headers(base64.b64decode(message["hdrs"]))["Kind"] == ["a", "b"]
    await anyio.sleep(2.5)
    assert await published() == before


@pytest.mark.server("2.14")
async def test_schedules_that_repeat_are_what_the_server_understands(js: JetStream, name: str) -> None:
    for number, schedule in enumerate(
        (
            Schedule(f"{name}.to", timedelta(minutes=5), source=f"{name}.from"),
            Schedule(f"{name}.to", "@hourly", rollup="sub"),
            Schedule(f"{name}.to", "0 30 5 * * mon", time_zone="Europe/Amsterdam", ttl="never"),
        )
    ):
        await js.publish(f"{name}.cron.{number}", b"", schedule=schedule)
    assert (await stored(js, name, 1))[2] == {
        "Nats-Schedule": ["@every 300s"],
        "Nats-Schedule-Target": [f"{name}.to"],
        "Nats-Schedule-Source": [f"{name}.from"],
        "Nats-Rollup": ["sub"],  # the server's own: one schedule a subject
    }
    assert (await stored(js, name, 3))[2]["Nats-Schedule-Time-Zone"] == ["Europe/Amsterdam"]


@pytest.mark.server("2.12")
async def test_a_counter_counts_beyond_what_a_float_holds(js: JetStream) -> None:
    name = f"C{secrets.token_hex(4)}"
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "allow_msg_counter": True}
    await js.api(f"STREAM.CREATE.{name}", {**config, "allow_direct": True})
    try:
        sums = [(await js.publish(f"{name}.x", increment=by)).value for by in (5, -2, 0, 10**20)]
        assert sums == [5, 3, 3, 10**20 + 3]
        assert json.loads((await stored(js, name, 4))[1]) == {"val": str(10**20 + 3)}
        with pytest.raises(errors.CounterRefused) as refused:
            await js.publish(f"{name}.x", b"")
        assert refused.value.err_code == 10169
    finally:
        await js.api(f"STREAM.DELETE.{name}")


async def test_what_a_stream_does_not_allow_has_an_error_of_its_own(js: JetStream) -> None:
    name = f"N{secrets.token_hex(4)}"
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "max_msg_size": 100}
    await js.api(f"STREAM.CREATE.{name}", {**config, "max_msgs": 1, "discard": "new"})
    try:
        schedules = [(errors.ScheduleRefused, 10188, {"schedule": Schedule(f"{name}.y", "@hourly")})]
        refusals: list[tuple[type[errors.ApiError], int, dict[str, Any]]] = [
            (errors.TtlRefused, 10166, {"ttl": timedelta(seconds=5)}),
            *(schedules if has("2.14") else []),
            (errors.MessageTooLarge, 10054, {"headers": {"Long": "x" * 101}}),
        ]
        for refusal, code, options in refusals:
            with pytest.raises(refusal) as refused:
                await js.publish(f"{name}.x", b"", **options)
            assert refused.value.err_code == code
        await js.publish(f"{name}.x")
        with pytest.raises(errors.StoreFailed, match="maximum messages exceeded") as full:
            await js.publish(f"{name}.x")
        assert full.value.err_code == 10077
        await js.api(
            f"STREAM.UPDATE.{name}",
            {**(await js.api(f"STREAM.INFO.{name}"))["config"], "discard": "old", "max_msgs": 1, "sealed": True},
        )
        with pytest.raises(errors.StreamSealed) as sealed:
            await js.publish(f"{name}.x")
        assert sealed.value.err_code == 10109
        assert await count(js, name) == 1
    finally:
        await js.api(f"STREAM.DELETE.{name}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"msg_id": "a", "headers": {"Nats-Msg-Id": "b"}},
            r"headers\['Nats-Msg-Id'\]='b': the option msg_id='a' sets Nats-Msg-Id to 'a'",
        ),
        ({"msg_id": "a", "headers": {"nats-msg-id": "a"}}, r"nats-msg-id.*msg_id"),
        ({"ttl": timedelta(seconds=3), "headers": {"Nats-TTL": ["3s", "4s"]}}, "Nats-TTL.*ttl"),
        ({"schedule": Schedule("a.b", "@hourly"), "headers": {"Nats-Schedule": "@daily"}}, "Nats-Schedule.*schedule"),
        ({"ttl": timedelta(milliseconds=999)}, "ttl"),
        ({"ttl": "forever"}, "ttl"),
        ({"rollup": "subject"}, "rollup"),
        ({"expected_last_sequence": -1}, "expected_last_sequence"),
        ({"expected_last_sequence": True}, "expected_last_sequence"),
        ({"expected_last_subject": "a.*"}, "expected_last_subject_sequence"),
        ({"expected_stream": "a b"}, "stream"),
        ({"msg_id": ""}, "msg_id"),
        ({"msg_id": "a\r\nb: c"}, "line break"),
        ({"increment": 1.5}, "increment"),
        ({"schedule": "@hourly"}, "schedule"),
        ({"reply": "a.b"}, "reply.*the stream's answer"),
        ({"headers": {"A": 1}}, "header"),
    ],
)
async def test_bad_options_are_refused_before_anything_is_sent(
    js: JetStream, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(errors.InvalidValue, match=said):
        await js.publish(f"{name}.x", b"", **options)
    assert await count(js, name) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"when": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"when": timedelta(seconds=0.5)},
        {"when": timedelta(seconds=1.5)},
        {"when": "0 5 * * *"},
        {"when": timedelta(seconds=5), "time_zone": "UTC"},
        {"when": "@hourly", "rollup": "all"},
        {"when": "@hourly", "source": "a.*"},
        {"when": "@hourly", "ttl": timedelta(0)},
        {"when": "@hourly", "target": "a.>"},
    ],
)
def test_schedules_that_the_server_would_refuse(arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidValue, match="schedule"):
        Schedule(**{"target": "a.b"} | arguments)


async def test_larger_than_the_server_takes_with_headers_keeps_the_connection(js: JetStream, name: str) -> None:
    with pytest.raises(errors.InvalidValue, match="max_payload"):
        await js.publish(f"{name}.x", b"x" * (1 << 20), headers={"a": "b"})
    assert (await js.publish(f"{name}.x")).seq == 1


async def test_a_stream_that_comes_late_is_found_by_the_second_attempt(js: JetStream) -> None:
    name = f"L{secrets.token_hex(4)}"
    began = time.monotonic()
    with pytest.raises(errors.NoStreamResponse):
        await js.publish(f"{name}.x")
    assert time.monotonic() - began >= 0.5
    async with asyncio.timeout(60):
        with pytest.raises(errors.NoStreamResponse):
            await js.publish(f"{name}.x", retry_attempts=0, retry_wait=60)
    began = time.monotonic()
    with pytest.raises(errors.NoStreamResponse):
        await js.publish(f"{name}.x", retry_attempts=1, retry_wait=0.8)
    assert time.monotonic() - began >= 0.8

    async def create() -> None:
        await anyio.sleep(0.2)
        await js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})

    async with anyio.create_task_group() as group:
        group.start_soon(create)
        await js.publish(f"{name}.x", retry_attempts=100)
    assert await count(js, name) == 1
    await js.api(f"STREAM.DELETE.{name}")


async def test_a_lost_answer_ends_in_time_and_the_same_id_is_safe(serve: Serve) -> None:
    server = serve("")
    with Proxy(server.port) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url, request_timeout=60)) as js:
            await js.api("STREAM.CREATE.L", {"name": "L", "subjects": ["L.>"]})
            proxy.mute()
            async with asyncio.timeout(60):
                with pytest.raises(errors.RequestTimeout):
                    await js.publish("L.x", b"once", msg_id="one", timeout=0.5)
            proxy.muted = False
            assert (await js.publish("L.x", b"once", msg_id="one")).duplicate
            assert await count(js, "L") == 1


async def one(js: JetStream, subject: str) -> object:
    return await js.publish(subject)


async def awaited(js: JetStream, subject: str) -> object:
    return await (await js.publish_async(subject))


async def atomic(js: JetStream, subject: str) -> object:
    return await js.publish_batch([(subject, b"")])


async def fast(js: JetStream, subject: str) -> object:
    async with js.fast_batch() as batch:
        try:
            await batch.add(subject)
        except errors.InvalidValue:
            await batch.add(subject[:100])
            await batch.commit()
            raise
        return await batch.commit()


async def bulk(js: JetStream, subject: str) -> object:
    return await asyncio.to_thread(publish_all, js.settings, [(subject, b"")], scope="one")


async def bulk_fast(js: JetStream, subject: str) -> object:
    return await asyncio.to_thread(publish_fast, js.settings, [(subject, b"")])


WAYS = [
    one,
    awaited,
    pytest.param(atomic, marks=pytest.mark.server("2.12")),
    pytest.param(fast, marks=pytest.mark.server("2.14")),
    bulk,
    pytest.param(bulk_fast, marks=pytest.mark.server("2.14")),
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_subject_that_no_line_has_room_for_is_refused_and_nothing_is_sent(
    nats_server: NatsServer, way: Callable[[JetStream, str], Awaitable[object]]
) -> None:
    """Server and connection accept the longest subject that is not refused, with the longest reply subject."""
    name = f"L{secrets.token_hex(4)}"
    longest = f"{name}.".ljust(LONGEST_SUBJECT, "x")
    async with connect(ConnectionSettings(servers=nats_server.url, inbox_prefix="I" * 128)) as js:
        allowing: dict[object, dict[str, bool]] = {
            atomic: {"allow_atomic": True},
            fast: {"allow_batched": True},
            bulk_fast: {"allow_batched": True},
        }
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], **allowing.get(way, {})})
        with pytest.raises(
            (errors.InvalidValue, errors.PublishFailed), match="at most 3840 bytes, but this one has 3841"
        ):
            await way(js, longest + "x")
        await way(js, longest)
        assert (await stream.get_message(last_by_subject=longest)).subject == longest
        assert js.connection.reconnects == 0
        await stream.delete()


async def test_a_server_with_shorter_lines_is_not_tried_again(serve: Serve) -> None:
    settings = ConnectionSettings(servers=serve("max_control_line: 1024").url)
    async with connect(settings) as js:
        await js.create_stream({"name": "S", "subjects": ["s.>"]})
    begin = time.monotonic()
    with pytest.raises(errors.ConnectionDenied, match="max_control_line"):
        publish_all(settings, [("s.a", b""), ("s." + 2_000 * "b", b"")], scope="one")
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sequence", [0, -1, True, 1 << 64, 1.5, "1"])
async def test_an_impossible_sequence_is_no_success(
    js: JetStream, way: Callable[[JetStream, str], Awaitable[object]], sequence: object
) -> None:
    """A client that is not a stream answers."""
    subject = f"stranger.{secrets.token_hex(4)}"
    answer = json.dumps({"stream": "S", "seq": sequence}, separators=(",", ":")).encode()
    with Wire.open(js.settings) as wire, ThreadPoolExecutor(1) as threads:
        wire.subscribe(subject)
        wire.api("INFO")  # its answer follows the subscription, which takes effect before it
        stopped = threading.Event()

        def answering() -> None:
            while not stopped.is_set():
                with suppress(errors.RequestTimeout):
                    wire.send(*[encode_publish(each.reply.decode(), "", answer) for each in wire.receive(0.1)])

        threads.submit(answering)
        try:
            with pytest.raises(errors.JetStreamError, match="impossible sequence"):
                await way(js, subject)
        finally:
            stopped.set()
