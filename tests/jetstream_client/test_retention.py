"""When a message leaves a stream: interest, work queues, limits, markers. The raw API is queried.

The walk-through of docs/how-to/interest-retention.md runs in test_reference.py.
"""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.consume.pull_window import Pulling
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, InvalidStreamConfig, StreamSealed, WorkQueueRefused
from jetstream_client.wire.protocol import Reply
from tests.jetstream_client.servers import Ask
from tests.jetstream_client.until import until

SECOND = timedelta(seconds=1)


async def state(ask: Ask, stream: str) -> tuple[int, int, int]:
    found = (await ask(f"STREAM.INFO.{stream}"))["state"]
    return found["messages"], found["first_seq"], found["last_seq"]


async def test_interest_of_a_late_consumer_and_of_one_that_goes(js: JetStream, ask: Ask, name: str) -> None:
    """A consumer counts as interest in messages that still exist, and not in removed ones."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "retention": "interest"})
    await js.publish(f"{name}.a")
    first = await stream.create_consumer({"durable_name": "first", "ack_policy": "explicit"})
    await js.publish(f"{name}.a")
    late = await stream.create_consumer({"durable_name": "late", "ack_policy": "explicit"})
    assert (await ask(f"CONSUMER.INFO.{name}.late"))["num_pending"] == 1
    for message in await first.fetch(1, max_wait=30):
        await message.double_ack()
    assert await state(ask, name) == (1, 2, 2)
    await late.delete()

    async def empty() -> bool:
        return await state(ask, name) == (0, 3, 2)

    await until(empty)


async def test_deliveries_that_are_used_up_release_nothing(js: JetStream, ask: Ask, name: str) -> None:
    """Contrary to the documentation, the message stays, and no consumer shows it any longer."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "retention": "interest"})
    config = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 1, "ack_wait": timedelta(milliseconds=100)}
    consumer = await stream.create_consumer(config)
    await js.publish(f"{name}.a")
    advisories: list[Reply] = []
    async with js.connection.listen(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{name}.c", advisories.append):
        assert len(await consumer.fetch(1, max_wait=30)) == 1
        while not advisories:
            assert await consumer.fetch(1, max_wait=0.2) == []
    advisory = json.loads(advisories[0].data)
    assert (advisory["stream_seq"], advisory["deliveries"]) == (1, 1)
    info = await ask(f"CONSUMER.INFO.{name}.c")
    assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)
    assert await state(ask, name) == (1, 1, 1)


async def test_a_work_queue_gives_each_message_to_one_consumer(js: JetStream, ask: Ask, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "retention": "workqueue"})
    for subject in ("a", "b", "a"):
        await js.publish(f"{name}.{subject}")
    assert await state(ask, name) == (3, 1, 3)  # kept without a consumer
    worker = await stream.create_consumer(
        {"durable_name": "a", "ack_policy": "explicit", "filter_subject": f"{name}.a"}
    )
    for config, code in (({"ack_policy": "explicit"}, 10099), ({"ack_policy": "none"}, 10084)):
        says = f"consumer 'b' of stream '{name}': .*needs ack_policy 'explicit', .* do not overlap"
        with pytest.raises(WorkQueueRefused, match=says) as refused:
            await stream.create_consumer({"durable_name": "b", **config})
        assert refused.value.err_code == code
    for message in await worker.fetch(2, max_wait=30):
        await message.double_ack()
    assert await state(ask, name) == (1, 2, 3)


async def test_workers_of_one_message_at_a_time_share_a_queue(js: JetStream, ask: Ask, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "retention": "workqueue"})
    await stream.create_consumer({"durable_name": "work", "ack_policy": "explicit"})
    shares: list[list[int]] = [[], [], []]
    most = 0

    async def work(share: list[int]) -> None:
        nonlocal most
        async with js.consumer(name, "work").messages(Pulling(max_messages=1)) as messages:
            async for message in messages:
                most = max(most, (await ask(f"CONSUMER.INFO.{name}.work"))["num_ack_pending"])
                await message.double_ack()
                share.append(message.metadata.sequence)

    async def ready() -> bool:
        return bool((await ask(f"CONSUMER.INFO.{name}.work"))["num_waiting"] == len(shares))

    async def done() -> bool:
        return await state(ask, name) == (0, 31, 30)

    workers = [asyncio.create_task(work(share)) for share in shares]
    await until(ready, 60)
    for _ in range(30):
        await js.publish(f"{name}.a")
    await until(done, 60)
    for worker in workers:
        worker.cancel()
    assert all(shares)
    assert sorted(each for share in shares for each in share) == list(range(1, 31))
    assert most <= 3


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ({"max_msgs": 2}, [3, 4]),
        ({"max_bytes": 250}, [3, 4]),
        ({"max_msgs_per_subject": 1}, [3, 4]),
        ({"max_msgs": 2, "discard": "new"}, [1, 2]),
        ({"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}, [1, 2]),
    ],
    ids=str,
)
async def test_limits(js: JetStream, ask: Ask, name: str, limit: dict[str, Any], left: list[int]) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"], **limit})
    for number in range(4):
        if limit.get("discard") == "new" and number >= 2:
            with pytest.raises(ApiError) as refused:
                await js.publish(f"{name}.{number % 2}", b"x" * 60)
            assert refused.value.err_code == 10077
        else:
            await js.publish(f"{name}.{number % 2}", b"x" * 60)
    messages, first, last = await state(ask, name)
    assert (messages, [first, last]) == (2, left)


async def test_the_age_of_a_subject_leaves_a_marker(js: JetStream, ask: Ask, name: str) -> None:
    """The marker outlives the message by its TTL, and a message's TTL is at least as long."""
    config = {"name": name, "subjects": [f"{name}.>"], "max_age": SECOND, "duplicate_window": SECOND}
    marking = {"subject_delete_marker_ttl": 3600 * SECOND, "allow_rollup_hdrs": True}
    stream = await js.create_stream({**config, **marking, "allow_msg_ttl": True, "allow_direct": True})
    await js.publish(f"{name}.a", b"data")

    async def marked() -> bool:
        return (await state(ask, name))[2] == 2

    await until(marked, 60)
    for direct in (False, True):
        marker = await stream.get_message(last_by_subject=f"{name}.a", direct=direct)
        assert (marker.sequence, marker.data) == (2, b"")
        assert marker.headers["Nats-Marker-Reason"] == ["MaxAge"]
        assert marker.marker == "MaxAge"
        assert marker.headers["Nats-TTL"] == ["1h0m0s"]


async def test_a_sealed_stream_stays_as_it_is(js: JetStream, ask: Ask, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    await js.publish(f"{name}.a")
    await stream.update({"sealed": True})
    with pytest.raises(StreamSealed):
        await js.publish(f"{name}.a")
    with pytest.raises(InvalidStreamConfig):
        await stream.update({"sealed": False})
    config = (await ask(f"STREAM.INFO.{name}"))["config"]
    assert (config["sealed"], config["deny_delete"], config["deny_purge"]) == (True, True, True)
    assert await state(ask, name) == (1, 1, 1)
