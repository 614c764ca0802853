"""Three nodes: the leader of a consumer steps down while it is consumed from. ``leader_dies.py`` kills the leader."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.errors import ApiError, LeadershipChanged, RequestTimeout
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_client.until import until

PULLING = Pulling(max_messages=50, expires=10, heartbeat=2)


async def leader(consumer: Consumer) -> str:
    try:
        return str((await consumer.info()).raw["cluster"].get("leader", ""))
    except (ApiError, RequestTimeout):
        return ""


async def another(consumer: Consumer, than: str) -> bool:
    return await leader(consumer) not in ("", than)


async def test_a_leader_that_steps_down_is_said_and_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        await consume(cluster, dies=False)


async def consume(cluster: Cluster, *, dies: bool) -> None:
    """Consume, with an ordered consumer and with acknowledgements, while the leader steps down, and then ``dies``."""
    async with connect(ConnectionSettings(servers=cluster.url, request_timeout=0.3)) as js:
        stream = await replicated_stream(js, subjects=["S"])
        consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
        with pytest.raises(LeadershipChanged):
            await steps_down_during(lambda: consumer.fetch(1, max_wait=30, heartbeat=5), consumer)

        told: list[Exception] = []
        received: set[int] = set()
        ordered: list[int] = []
        in_order = stream.ordered_consumer()

        async def note(message: Message) -> None:
            await message.double_ack()
            received.add(message.metadata.sequence)

        async def note_in_order(message: Message) -> None:
            ordered.append(message.metadata.sequence)

        async def publish(total: int) -> None:
            await asyncio.to_thread(publish_all, js.settings, [("S", b"")] * 200)
            await until(lambda: len(received) == len(ordered) == total, 60)

        async with (
            consumer.consume(note, PULLING, on_error=told.append),
            in_order.consume(note_in_order, PULLING),
        ):
            await publish(200)
            await steps_down_during(lambda: asyncio.sleep(0), consumer)
            await publish(400)
            assert isinstance(told[0], LeadershipChanged)
            if dies:
                old = await leader(consumer)
                cluster.named(old).kill()
                await until(lambda: another(consumer, old), 60)
                await publish(600)
                await asyncio.to_thread(cluster.named(old).start)
                await until(lambda: whole(stream), 60)
                # An ordered consumer exists on one node only, and is lost with it.
                cluster.named((await in_order.info()).raw["cluster"]["leader"]).kill()
                await publish(800)
        assert ordered == list(range(1, len(received) + 1))
        assert (await consumer.info(patience=10)).pending == 0


async def whole(stream: Stream) -> bool:
    try:
        replicas = (await stream.info()).raw["cluster"]["replicas"]
    except (ApiError, RequestTimeout):
        return False
    return all(replica["current"] for replica in replicas)


async def steps_down_during(work: Callable[[], Coroutine[Any, Any, object]], consumer: Consumer) -> None:
    """Let the leader step down while a pull request waits. One that comes before the new consumer has a leader that
    every node knows reaches nobody, and ends the work: it is begun again."""
    working = asyncio.create_task(work())
    async with asyncio.timeout(60):
        while not await waits(consumer):
            if working.done():
                working.exception()  # expected, so asyncio need not report it
                working = asyncio.create_task(work())
            await asyncio.sleep(0.05)
    old = await leader(consumer)
    await consumer.js.api(f"CONSUMER.LEADER.STEPDOWN.{consumer.stream}.{consumer.name}")
    await until(lambda: another(consumer, old), 60)
    await working


async def waits(consumer: Consumer) -> bool:
    return bool((await consumer.info(patience=10)).raw["num_waiting"])
