"""Objects in a real object store. nats-py reads what is put here, puts what is read here, and lies besides."""

import asyncio
import base64
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.object_store import ObjectStore as Theirs

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    BucketNotFound,
    BucketUnsuitable,
    InvalidValue,
    ObjectDiffers,
    ObjectMissing,
    ObjectUnresolved,
    PublishFailed,
    ReferenceInvalid,
)
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.stores.objects import CHUNK, REPEATS, ObjectStore, referring, resolved
from jetstream_client.stores.reference import Objects, Reference
from jetstream_client.stream import Stream

DATA = secrets.token_bytes(5 * CHUNK + 17)


@pytest.fixture
def bucket() -> str:
    return f"b{secrets.token_hex(4)}"


@asynccontextmanager
async def opened(settings: ConnectionSettings, bucket: str, **config: Any) -> AsyncIterator[Theirs]:
    """The object store as nats-py sees it, created if it does not exist."""
    client = await nats.connect(settings.servers[0])
    try:
        yield await client.jetstream().create_object_store(bucket, **config)
    finally:
        await client.close()


def called(settings: ConnectionSettings, bucket: str, work: Callable[[ObjectStore], Any]) -> Any:
    with ObjectStore(settings, bucket) as store:
        return work(store)


async def state(js: JetStream, bucket: str) -> dict[str, Any]:
    return (await js.stream(f"OBJ_{bucket}").info()).state


@pytest.mark.parametrize("data", [DATA, b"", b"x"], ids=["chunks", "empty", "one byte"])
async def test_nats_py_reads_what_was_put(
    js: JetStream, settings: ConnectionSettings, bucket: str, data: bytes
) -> None:
    async with opened(settings, bucket) as theirs:
        found = await asyncio.to_thread(called, settings, bucket, lambda store: store.put("a/é", data))
        assert found == Reference.of(bucket, "a/é", data)
        info = await theirs.get_info("a/é")
        assert (info.size, info.chunks, info.deleted) == (len(data), -(-len(data) // CHUNK), None or info.deleted)
        assert (await theirs.get("a/é")).data == data
        stored = (await state(js, bucket))["last_seq"]
        await asyncio.to_thread(called, settings, bucket, lambda store: store.put("a/é", data))
        assert (await state(js, bucket))["last_seq"] == stored  # it was there
        await asyncio.to_thread(called, settings, bucket, lambda store: store.put("a/é", b"new"))
        assert (await theirs.get("a/é")).data == b"new"
        assert (await state(js, bucket))["messages"] == 2  # the old chunks are removed


@pytest.mark.parametrize("allow_direct", [True, False])
async def test_what_nats_py_has_put_is_read(
    js: JetStream, settings: ConnectionSettings, bucket: str, allow_direct: bool
) -> None:
    async with opened(settings, bucket) as theirs:
        await js.stream(f"OBJ_{bucket}").update({"allow_direct": allow_direct})
        for name, data in (("scan", DATA), ("empty", b"")):
            await theirs.put(name, data)
            wanted = Reference.of(bucket, name, data)
            assert await asyncio.to_thread(called, settings, bucket, partial(ObjectStore.get, wanted=wanted)) == data


async def refused(settings: ConnectionSettings, wanted: Reference, error: type[ObjectUnresolved], says: str) -> None:
    with pytest.raises(error, match=says):
        await asyncio.to_thread(called, settings, wanted.bucket, lambda store: store.get(wanted))


async def test_an_object_that_is_not_the_one_is_an_error(
    js: JetStream, settings: ConnectionSettings, bucket: str
) -> None:
    async with opened(settings, bucket) as theirs, opened(settings, f"{bucket}o") as others:
        wanted = Reference.of(bucket, "scan", DATA)
        await refused(settings, wanted, ObjectMissing, "'scan' of bucket .* does not exist")
        await theirs.put("scan", DATA[:-1] + b"!")
        await refused(settings, wanted, ObjectDiffers, "another size or digest")
        info = await theirs.put("scan", DATA)
        chunks = f"$O.{bucket}.C.{info.nuid}"

        async def describe(**changes: Any) -> None:
            """Store information about the object that is not true."""
            name = base64.urlsafe_b64encode(b"scan").decode()
            told = json.dumps({**info.as_dict(), **changes}).encode()
            await js.publish(f"$O.{bucket}.M.{name}", told, headers={"Nats-Rollup": "sub"})

        for changes, error, says in (
            ({"chunks": 3}, ObjectDiffers, "its 3 chunks have"),
            ({"chunks": 10**12}, ObjectDiffers, "its 6 chunks have"),
            ({"nuid": "x.>"}, ObjectDiffers, "information is invalid"),
            ({"nuid": "nothing"}, ObjectMissing, "lacks its chunk 1 of 6"),
            ({"options": {"link": {"bucket": f"{bucket}o", "name": "scan"}}}, ReferenceInvalid, "is a link"),
        ):
            await describe(**changes)
            await refused(settings, wanted, error, says)
        await describe()
        first = await js.stream(f"OBJ_{bucket}").get_message(1, next_by_subject=chunks)
        await js.stream(f"OBJ_{bucket}").delete_message(first.sequence)
        await refused(settings, wanted, ObjectMissing, "lacks its chunk 6 of 6")
        await js.publish(chunks, b"?" * CHUNK)
        await refused(settings, wanted, ObjectDiffers, "its content has another digest")  # and the same size
        await theirs.delete("scan")
        await refused(settings, wanted, ObjectMissing, "was deleted")
        assert await others.put("scan", DATA)


async def test_a_bucket_that_does_not_exist_is_no_fault_of_a_message(
    settings: ConnectionSettings, bucket: str, stream: Stream
) -> None:
    for work in (lambda store: store.get(Reference.of(bucket, "a", b"")), lambda store: store.keeps_for(stream.name)):
        with pytest.raises(BucketNotFound, match=f"bucket '{bucket}' does not exist.*nats object add {bucket}"):
            await asyncio.to_thread(called, settings, bucket, work)


@pytest.mark.parametrize(
    ("bucket_config", "stream_config", "says"),
    [
        ({"max_age": 60 * 10**9}, {}, "max_age=60000000000.*without a limit of time"),
        ({"max_age": 60 * 10**9}, {"max_age": 61 * 10**9}, "max_age=60000000000.*could outlive its object"),
        ({"max_msgs": 5}, {}, "max_msgs=5"),
        ({"discard": "old", "max_bytes": 1 << 20}, {}, "discard='old'"),
        ({}, {}, ""),
        ({"max_age": 61 * 10**9}, {"max_age": 61 * 10**9}, ""),
    ],
)
async def test_an_object_is_kept_as_long_as_its_message(  # noqa: PLR0917
    js: JetStream,
    settings: ConnectionSettings,
    stream: Stream,
    bucket: str,
    bucket_config: dict[str, Any],
    stream_config: dict[str, Any],
    says: str,
) -> None:
    async with opened(settings, bucket):
        await js.stream(f"OBJ_{bucket}").update(bucket_config)
        await stream.update(stream_config)

    def check() -> Any:
        return referring(settings, [], bucket, stream=stream.name, scope="s")

    if not says:
        await asyncio.to_thread(check)
        return
    with pytest.raises(BucketUnsuitable, match=f"object store '{bucket}' .*{says}"):
        await asyncio.to_thread(check)


def large(stream: str, count: int = 3) -> list[Any]:
    """Messages of which every second one is larger than the server's max_payload."""
    return [
        (f"{stream}.a", bytes([number]) * ((1 << 20) + number if number % 2 else 10), {"Shop": str(number)})
        for number in range(count)
    ]


def published(settings: ConnectionSettings, stream: str, bucket: str, messages: list[Any], scope: str = "s") -> Any:
    with_references = referring(settings, messages, bucket, stream=stream, scope=scope)
    return publish_all(settings, with_references, stream=stream, scope=scope)


def read(settings: ConnectionSettings, info: Any, objects: Objects) -> tuple[list[bytes], list[str | None]]:
    """The payloads of all messages of a stream, and why some were not read."""
    wanted = Sequences.from_ranges([(1, info.state["last_seq"])])
    batches = direct.read(settings, info.config["name"], wanted, info.created)
    payloads: list[bytes] = []
    reasons: list[str | None] = []
    for batch, why in resolved(settings, batches, objects):
        payloads += batch.data
        reasons += why
    return payloads, reasons


async def test_large_messages_are_published_as_references_and_read(
    js: JetStream, settings: ConnectionSettings, stream: Stream, bucket: str
) -> None:
    await stream.update({"allow_direct": True})
    messages = large(stream.name, 5)
    async with opened(settings, bucket) as theirs:
        assert (await asyncio.to_thread(published, settings, stream.name, bucket, messages)).stored == 5
        # A repetition finds the objects and the messages.
        objects = (await state(js, bucket))["last_seq"]
        assert (await asyncio.to_thread(published, settings, stream.name, bucket, messages)).duplicates == 5
        assert (await state(js, bucket))["last_seq"] == objects
        info = await stream.info()
        payloads, reasons = await asyncio.to_thread(read, settings, info, Objects(bucket))
        assert payloads == [data for _, data, _ in messages]
        assert reasons == [None] * 5
        second = await stream.get_message(2)
        assert second.headers["Shop"] == ["1"]
        assert second.data.startswith(b"object ")
        (name,) = second.headers["Object-Name"]
        assert (await theirs.get(name)).data == messages[1][1]
        # Another bucket, and larger objects, are never read.
        for limited, says in ((Objects(f"{bucket}x"), "names the bucket"), (Objects(bucket, 1 << 20), "at most")):
            if limited.bucket != bucket:
                await js.create_stream({"name": f"OBJ_{limited.bucket}", "subjects": [f"$O.{limited.bucket}.C.>"]})
            payloads, reasons = await asyncio.to_thread(read, settings, info, limited)
            assert [bool(why and says in why) for why in reasons] == [False, True, False, True, False]
            assert payloads[1] == second.data


async def test_one_object_is_not_read_for_many_messages(
    js: JetStream, settings: ConnectionSettings, stream: Stream, bucket: str
) -> None:
    """Who may publish must not make a reader read a large object for each of a thousand small messages."""
    await stream.update({"allow_direct": True})
    async with opened(settings, bucket) as theirs:
        await theirs.put("scan", DATA)
    told = Reference.of(bucket, "scan", DATA).headers
    for _ in range(2 * REPEATS):
        await js.publish(f"{stream.name}.a", b"", headers=told)
    payloads, reasons = await asyncio.to_thread(read, settings, await stream.info(), Objects(bucket))
    assert [why is None for why in reasons] == [True] * REPEATS + [False] * REPEATS
    assert sum(map(len, payloads)) == REPEATS * len(DATA)


async def test_what_would_outlive_its_object_or_look_like_a_reference_is_refused(
    settings: ConnectionSettings, stream: Stream, bucket: str
) -> None:
    await stream.update({"max_age": 60 * 10**9, "allow_msg_ttl": True})
    async with opened(settings, bucket, ttl=60):
        pass
    for headers, says in (({"Nats-TTL": "never"}, "would outlive"), ({"Object-Name": "a"}, "header is that")):
        message = (f"{stream.name}.a", bytes(1 << 20), headers)
        with pytest.raises(PublishFailed, match=says) as failed:
            await asyncio.to_thread(published, settings, stream.name, bucket, [message])
        assert isinstance(failed.value.cause, InvalidValue)


async def test_a_full_object_store_refuses_the_message(
    js: JetStream, settings: ConnectionSettings, stream: Stream, bucket: str
) -> None:
    async with opened(settings, bucket, max_bytes=1 << 20):
        with pytest.raises(PublishFailed, match=r"message 1.*maximum bytes exceeded.*make room"):
            await asyncio.to_thread(published, settings, stream.name, bucket, large(stream.name))
    assert (await stream.info()).state["messages"] == 1


async def test_a_killed_server_interrupts_neither_publishing_nor_reading(mortal: NatsServer, bucket: str) -> None:
    settings = ConnectionSettings(servers=mortal.url)
    async with opened(settings, bucket):
        pass
    name = f"S{bucket}"
    messages = large(name, 24)
    stop = threading.Event()

    def kill_again_and_again() -> None:
        while not stop.wait(0.4):
            mortal.kill()
            mortal.start()

    def run() -> tuple[Any, Any]:
        from jetstream_client.wire.blocking import Wire

        with Wire.open(settings) as wire:
            wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        killer = threading.Thread(target=kill_again_and_again)
        killer.start()
        try:
            stored = published(settings, name, bucket, messages)
        finally:
            stop.set()
            killer.join()
        stop.clear()
        with Wire.open(settings) as wire:
            info = direct.stream_info(wire, name)
        killer = threading.Thread(target=kill_again_and_again)
        killer.start()
        try:
            return stored, read(settings, info, Objects(bucket))
        finally:
            stop.set()
            killer.join()

    stored, (payloads, reasons) = await asyncio.to_thread(run)
    assert stored.count == 24
    assert set(reasons) == {None}
    assert sorted(set(payloads)) == sorted({data for _, data, _ in messages})


PUBLISHER = """
import sys
from jetstream_client import ConnectionSettings
from jetstream_client.stores import objects
from tests.jetstream_client.stores.test_objects import large, published

put, done = objects.ObjectStore._publish, 0
def dying(self, wire, subject, *given):
    global done
    done += 1
    if done == 30:
        print("dying", flush=True)
        sys.stdin.readline()  # until the test kills this process
    put(self, wire, subject, *given)
objects.ObjectStore._publish = dying
url, stream, bucket = sys.argv[1:]
published(ConnectionSettings(servers=url), stream, bucket, large(stream, 8))
"""


async def test_a_killed_publisher_is_repeated(
    js: JetStream, settings: ConnectionSettings, stream: Stream, bucket: str
) -> None:
    """Killed between the chunks of the fourth object; the retry begins anew with this object, and stores each message
    once."""
    await stream.update({"allow_direct": True})
    async with opened(settings, bucket):
        pass
    command = [sys.executable, "-c", PUBLISHER, settings.servers[0], stream.name, bucket]
    root = Path(__file__).parents[3]

    def killed() -> None:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        assert process.stdout
        assert process.stdout.readline() == "dying\n"
        process.kill()
        process.communicate()

    await asyncio.to_thread(killed)
    before = (await stream.info()).state["messages"]
    assert before < 8
    await asyncio.to_thread(published, settings, stream.name, bucket, large(stream.name, 8))
    info = await stream.info()
    assert info.state["messages"] == 8
    payloads, reasons = await asyncio.to_thread(read, settings, info, Objects(bucket))
    assert (sorted(payloads), set(reasons)) == (sorted(data for _, data, _ in large(stream.name, 8)), {None})
