"""Full storage is no deadlock: the ledger frees its reserve, and acknowledgements make room for it again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import StorageFull
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.reserve import PARTS
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.rules.storage import storage_full
from jetstream_handoff.take.take import Take
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.overview import overview
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking

LEASE: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=60)}}
MOST = 8 << 20
OF_ACCOUNT = f'accounts {{ A {{ jetstream {{ max_file: {MOST} }}, users: [{{ user: "u", password: "p" }}] }} }}'
OF_SERVER = f"jetstream {{ max_file_store: {MOST} }}"


@pytest.fixture(params=[OF_ACCOUNT, OF_SERVER], ids=["account", "server"])
async def limited(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JetStream]:
    """A server on which at most eight MiB can be stored, by the account's limit or by its own."""
    server = NatsServer(tmp_path, request.param)
    server.start()
    settings = ConnectionSettings(servers=server.url)
    if request.param == OF_ACCOUNT:
        settings = replace(settings, user="u", password="p")
    try:
        async with connect(settings) as context:
            yield context
    finally:
        server.stop()


async def work_queue(js: JetStream) -> Stream:
    config = {"name": "S", "subjects": ["S.>"], "retention": "workqueue", "allow_direct": True}
    return (await js.create_or_update_stream(config))[0]


async def fill(stream: Stream, size: int = 100_000) -> None:
    """Publish until the server refuses even a small message."""
    while size:
        try:
            await stream.js.publish(f"{stream.name}.more", b"x" * size)
        except ApiError as refused:
            if not storage_full(refused):
                raise
            size //= 2


async def parts(ledger: Ledger) -> int:
    return int((await ledger.buckets.reserve.stream.info()).state["messages"])


async def test_a_claim_is_settled_and_makes_room_although_storage_is_full(limited: JetStream) -> None:
    js, stream = limited, await work_queue(limited)
    await publish(stream, 20, 100_000)
    (claim,) = await take(stream, **LEASE)
    ledger = Ledger(js, stream.name, CONSUMER)
    await DeadLetters(js, stream.name).ensure()
    assert await parts(ledger) == PARTS
    async with Hold.begin(js, claim, try_number=1) as hold:
        await fill(stream)
        await hold.reject(Sequences.of([3]), "its dead letter needs room, too")
        await hold.settle()
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 0
    assert (await js.stream(f"DEAD_{stream.name}").info()).state["messages"] == 1
    assert await parts(ledger) == PARTS, "the acknowledgements made room for the reserve"
    await stream.js.publish(f"{stream.name}.more", b"x")


async def test_a_backlog_that_fills_the_storage_is_taken_and_worked_off(limited: JetStream) -> None:
    """While a publisher tries to store its messages all the time, and takes all room that it can get."""
    js, stream = limited, await work_queue(limited)
    await Take(js, taking(stream, **LEASE)).prepare()
    await fill(stream)
    stored = refused = 0

    async def publisher() -> None:
        nonlocal stored, refused
        while True:
            try:
                await js.publish(f"{stream.name}.more", b"x" * 1_000)
                stored += 1
            except ApiError:
                refused += 1

    hammers = asyncio.create_task(publisher())
    try:
        for run in range(4):
            (claim,) = await take(stream, f"run {run}", max_messages=15, **LEASE)
            async with Hold.begin(js, claim, try_number=1) as hold:
                await hold.settle()
    finally:
        hammers.cancel()
    assert stored, "there was room for others, too"
    assert refused
    assert len(await Ledger(js, stream.name, CONSUMER).committed()) == 4


async def test_without_a_reserve_the_error_says_what_to_do(limited: JetStream) -> None:
    js, stream = limited, await work_queue(limited)
    await publish(stream, 20)
    (claim,) = await take(stream, **LEASE)
    ledger = Ledger(js, stream.name, CONSUMER)
    async with Hold.begin(js, claim, try_number=1) as hold:
        await ledger.buckets.reserve.stream.delete()
        await fill(stream)
        with pytest.raises(StorageFull, match=r"storage is full.*nothing is lost.*max_file of the account"):
            await hold.settle()
        await stream.purge(subject=f"{stream.name}.more", keep=1)
        await hold.settle()
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 0


async def test_doctor_and_page_say_that_storage_is_full(limited: JetStream) -> None:
    js, stream = limited, await work_queue(limited)
    await publish(stream, 20)
    (claim,) = await take(stream, **LEASE)
    reserve = Ledger(js, stream.name, CONSUMER).buckets.reserve
    assert (await overview(js)).findings == ()
    async with Hold.begin(js, claim, try_number=1) as hold:
        await fill(stream)
        (full,) = [each for each in (await examine(js.settings, Scope()))["Ledger"] if each.state == "to do"]
        assert full.what == f"reserve {reserve.stream.name}"
        assert "storage is full" in full.text
        while await reserve.free():
            pass
        await fill(stream)
        (said,) = [each for each in (await overview(js)).findings if each.level == "error"]
        assert (said.kind, said.text.count(f"0 of {PARTS} parts")) == ("storage", 1)
        await stream.purge(subject=f"{stream.name}.more", keep=1)
        await hold.settle()


async def test_a_stream_that_grows_without_a_limit_is_named(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    name = f"OTHER_{stream.name}"
    config = {"name": name, "subjects": [f"{name}.>"], "retention": "workqueue", "allow_direct": True}
    queue, _ = await stream.js.create_or_update_stream(config)

    async def advised() -> list[str]:
        sections = await examine(stream.js.settings, Scope(stream=name, consumer=CONSUMER))
        return [each.text for each in sections["Streams and consumers"] if "max_bytes" in each.text]

    for _ in range(2):
        await take(queue, wait=0.1, **LEASE)
    said = "it has workqueue retention and no max_bytes"
    assert caplog.text.count(said) == 1, "when its consumer is created"
    assert [text.startswith(said) for text in await advised()] == [True]
    await queue.update({"max_bytes": 1 << 20})
    assert await advised() == []
