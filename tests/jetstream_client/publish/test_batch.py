"""Atomic batches: the stream has all of a batch or nothing, with the reason."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.context import JetStream
from jetstream_client.wire.protocol import decode_headers
from tests.installed_server import has
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import Serve

pytestmark = pytest.mark.server("2.12")


@pytest.fixture
async def name(js: JetStream) -> AsyncIterator[str]:
    name = f"B{secrets.token_hex(4)}"
    config = {"name": name, "subjects": [f"{name}.>"], "allow_atomic": True, "allow_msg_ttl": True}
    await js.api(f"STREAM.CREATE.{name}", {**config, "max_msg_size": 1_000})
    yield name
    await js.api(f"STREAM.DELETE.{name}")


async def count(js: JetStream, stream: str) -> int:
    return int((await js.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


async def stored(js: JetStream, stream: str, sequence: int) -> tuple[str, bytes, dict[str, list[str]]]:
    message = (await js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
    block = base64.b64decode(message.get("hdrs", ""))
    return message["subject"], base64.b64decode(message.get("data", "")), decode_headers(block)


async def test_nothing_is_stored_until_all_of_it_is(js: JetStream, name: str) -> None:
    async with js.batch("run-7") as batch:
        await batch.add(f"{name}.a", b"1", headers={"Kind": ["x", "y"]}, expected_last_sequence=0)
        await batch.add(f"{name}.b", b"2", msg_id="two", ttl=timedelta(hours=1))
        await batch.add(f"{name}.a", b"3")
        assert await count(js, name) == 0
        ack = await batch.commit()
    assert (ack.stream, ack.seq, ack.batch_id, ack.batch_size) == (name, 3, "run-7", 3)
    assert [await stored(js, name, sequence) for sequence in (1, 2, 3)] == [
        (f"{name}.a", b"1", {"Kind": ["x", "y"], "Nats-Expected-Last-Sequence": ["0"]} | _batch(1)),
        (f"{name}.b", b"2", {"Nats-Msg-Id": ["two"], "Nats-TTL": ["3600s"]} | _batch(2)),
        (f"{name}.a", b"3", _batch(3) | {"Nats-Batch-Commit": ["1"]}),
    ]


def _batch(number: int) -> dict[str, list[str]]:
    return {"Nats-Batch-Id": ["run-7"], "Nats-Batch-Sequence": [str(number)]}


async def test_a_thousand_and_no_more(js: JetStream, name: str) -> None:
    ack = await js.publish_batch([(f"{name}.x", b"%d" % number) for number in range(1_000)], expected_stream=name)
    assert (ack.seq, ack.batch_size) == (1_000, 1_000)
    with pytest.raises(errors.InvalidValue, match="1000"):
        await js.publish_batch((f"{name}.x", b"") for _ in range(1_001))
    async with js.batch(max_messages=2) as batch:
        await batch.add(f"{name}.x")
        await batch.add(f"{name}.x")
        with pytest.raises(errors.InvalidValue, match="at most 2"):
            await batch.add(f"{name}.x")
        batch.discard()
    # With a higher max_messages than the server's, the server's refusal is raised.
    with pytest.raises(errors.BatchTooLarge) as refused:
        await js.publish_batch([(f"{name}.x", b"")] * 1_001, max_messages=2_000)
    assert refused.value.err_code == 10199
    assert await count(js, name) == 1_000


async def test_one_wrong_message_stores_nothing(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.x", b"before", msg_id="known")
    with pytest.raises(errors.WrongLastSequence):
        await js.publish_batch([(f"{name}.x", b"1"), (f"{name}.x", b"2")], expected_last_sequence=0)
    with pytest.raises(errors.WrongStream):
        await js.publish_batch([(f"{name}.x", b"1")], expected_stream="OTHER")
    with pytest.raises(errors.BatchDuplicate):
        await js.publish_batch([(f"{name}.x", b"1"), (f"{name}.x", b"2", {"Nats-Msg-Id": "known"})])
    with pytest.raises(errors.MessageTooLarge) as large:
        await js.publish_batch([(f"{name}.x", b"1"), (f"{name}.x", b"2" * 1_001), (f"{name}.x", b"3")])
    assert "message 2 of batch" in large.value.__notes__[0]
    with pytest.raises(errors.NoStreamResponse, match=r"nobody\.listens"):
        await js.publish_batch([(f"{name}.x", b"1"), ("nobody.listens", b"2"), (f"{name}.x", b"3")])
    for bad in [("a b", b""), (f"{name}.x", "text"), (f"{name}.x",), (f"{name}.x", b"", {"Nats-Batch-Id": "other"})]:
        messages: list[Any] = [(f"{name}.x", b"1"), bad]
        with pytest.raises(errors.InvalidValue):
            await js.publish_batch(messages)
    with pytest.raises(errors.InvalidValue):
        await js.publish_batch([])
    assert await count(js, name) == 1
    assert (await js.publish_batch([(f"{name}.x", b"1"), (f"{name}.x", b"2")], expected_last_sequence=1)).seq == 3


async def test_what_a_batch_cannot_expect(js: JetStream, name: str) -> None:
    async with js.batch() as batch:
        await batch.add(f"{name}.x", expected_last_subject_sequence=0)
        with pytest.raises(errors.InvalidValue, match="expected_last_sequence"):
            await batch.add(f"{name}.x", expected_last_sequence=0)
        with pytest.raises(errors.InvalidValue, match="10177"):
            await batch.add(f"{name}.x", expected_last_msg_id="a")
        assert (await batch.commit()).batch_size == 1  # the refused message is not in it
        with pytest.raises(errors.InvalidValue, match="committed"):
            await batch.add(f"{name}.x")
    for batch_id in ("", "x" * 65, "a b", "a.b"):
        with pytest.raises(errors.InvalidValue, match="batch_id"):
            await js.publish_batch([(f"{name}.x", b"")], batch_id=batch_id)


async def test_a_batch_that_is_left_is_not_stored_and_not_silent(js: JetStream, name: str) -> None:
    with pytest.raises(errors.JetStreamError, match="neither committed nor discarded"):
        async with js.batch() as batch:
            await batch.add(f"{name}.x")

    async def fails() -> None:
        async with js.batch() as batch:
            await batch.add(f"{name}.x")
            await batch.add(f"{name}.x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await count(js, name) == 0


async def test_a_stream_without_them_and_too_many_at_once(js: JetStream, name: str) -> None:
    config = {"name": f"{name}_N", "subjects": [f"{name}_N"], "storage": "memory"}
    await js.api(f"STREAM.CREATE.{name}_N", config)
    with pytest.raises(errors.BatchesDisabled) as disabled:
        await js.publish_batch([(f"{name}_N", b""), (f"{name}_N", b"")])
    assert disabled.value.err_code == 10174
    await js.api(f"STREAM.DELETE.{name}_N")
    for _ in range(50):
        async with js.batch() as batch:
            await batch.add(f"{name}.x")
            await batch.add(f"{name}.x")  # this sends the first one
            batch.discard()
    kind, code = (errors.TooManyBatches, 10210) if has("2.14") else (errors.BatchIncomplete, 10176)
    with pytest.raises(kind) as refused:
        await js.publish_batch([(f"{name}.x", b""), (f"{name}.x", b"")])
    assert refused.value.err_code == code


async def test_a_lost_message_is_noticed(js: JetStream, name: str) -> None:
    async with js.batch() as batch:
        for _ in range(3):
            await batch.add(f"{name}.x")
        batch._subjects.append(f"{name}.x")  # as if one had been sent
        with pytest.raises(errors.BatchIncomplete):
            await batch.commit()
        batch.discard()
    assert await count(js, name) == 0


async def test_a_lost_answer_to_the_commit_and_its_repetition(serve: Serve) -> None:
    server = serve("")
    messages = [("L.x", b"%d" % number, {"Nats-Msg-Id": str(number)}) for number in range(3)]
    with Proxy(server.port) as proxy:
        settings = ConnectionSettings(servers=proxy.url)
        async with connect(settings) as js, js.batch() as batch:
            await js.api("STREAM.CREATE.L", {"name": "L", "subjects": ["L.>"], "allow_atomic": True})
            for subject, data, headers in messages:
                await batch.add(subject, data, headers=headers)
            proxy.mute()
            with pytest.raises(errors.RequestTimeout):
                await batch.commit(timeout=0.5)
            with pytest.raises(errors.RequestTimeout):
                await batch.commit()
            batch.discard()
        proxy.cut()
        async with connect(settings) as js:
            with pytest.raises(errors.BatchDuplicate):  # so all of it is stored
                await js.publish_batch(messages)
            assert await count(js, "L") == 3
        async with connect(ConnectionSettings(servers=proxy.url, request_timeout=60)) as js:
            assert await count(js, "L") == 3
            async with asyncio.timeout(60), js.batch() as batch:
                await batch.add("L.x")
                proxy.mute()
                for unanswered in (batch.commit(timeout=0.2), js.publish_batch([("L.x", b"")], timeout=0.2)):
                    with pytest.raises(errors.RequestTimeout):
                        await unanswered
                batch.discard()


async def test_a_lost_connection_ends_a_batch_at_once(serve: Serve) -> None:
    server = serve("")
    with Proxy(server.port) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url)) as js, js.batch() as batch:
            await js.api("STREAM.CREATE.L", {"name": "L", "subjects": ["L.>"], "allow_atomic": True})
            await batch.add("L.x")
            await batch.add("L.x")
            proxy.mute()
            committing = asyncio.ensure_future(batch.commit(timeout=60))
            await asyncio.sleep(0.2)
            proxy.cut()
            with pytest.raises(errors.ConnectionLost):
                await asyncio.wait_for(committing, 20)
            batch.discard()
    async with connect(ConnectionSettings(servers=server.url)) as js:
        assert await count(js, "L") in (0, 2)
