"""A consumer that claims are taken from can neither vanish nor stop delivering, on a server that is restarted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.rules.consumer import check_config
from jetstream_handoff.rules.replicas import fewer
from jetstream_handoff.take.take import Take
from jetstream_handoff.watch.doctor import Scope, examine
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking

LEASE: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=60)}}
EXPLICIT = {"durable_name": CONSUMER, "name": CONSUMER, "ack_policy": "explicit", "ack_wait": 60 * 10**9}


async def test_a_consumer_that_a_restart_would_delete_is_refused(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            stream, _ = await js.create_or_update_stream(
                {"name": "S", "subjects": ["S.>"], "retention": "interest", "allow_direct": True}
            )
            await stream.create_consumer({**EXPLICIT, "mem_storage": True})
            await publish(stream, 10)
            with pytest.raises(ConsumerUnsuitable, match=r"mem_storage=True.*restart.*acknowledgement floor \+ 1"):
                await take(stream, **LEASE)
            assert not (await stream.consumer(CONSUMER).info()).counter, "nothing may be pulled"
            server.kill()
            server.start()
        async with connect(ConnectionSettings(servers=server.url)) as js:
            assert [name async for name in js.stream("S").consumer_names()] == [], "why it is refused"
    finally:
        server.stop()


def test_a_pipeline_that_asks_for_such_a_consumer_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConsumerUnsuitable, match="mem_storage=True"):
        check_config("c", {"mem_storage": True}, max_messages=10)


async def test_a_limit_of_the_stream_that_makes_consumers_vanish_is_named(stream: Stream) -> None:
    """The server writes the stream's limit into each consumer that names none."""
    await stream.update({"consumer_limits": {"inactive_threshold": 3600 * 10**9}})
    with pytest.raises(ConsumerUnsuitable, match=r"inactive_threshold=.*consumer_limits"):
        await take(stream, **LEASE)


async def test_the_doctor_names_a_consumer_in_memory(stream: Stream) -> None:
    await stream.create_consumer({**EXPLICIT, "mem_storage": True})
    sections = await examine(stream.js.settings, Scope(stream=stream.name, consumer=CONSUMER))
    found = [each for each in sections["Streams and consumers"] if each.state == "to do"]
    assert [each.text.partition(":")[0] for each in found] == ["mem_storage=True"]


async def test_a_paused_consumer_is_reported_and_not_refused(stream: Stream) -> None:
    """A pause is how somebody stops a pipeline for a while. It ends, and loses nothing."""
    await take(stream, wait=0.1, **LEASE)
    await stream.consumer(CONSUMER).pause(datetime.now(UTC) + timedelta(hours=1))
    assert await take(stream, wait=0.1, **LEASE) == []
    sections = await examine(stream.js.settings, Scope(stream=stream.name, consumer=CONSUMER))
    (found,) = [each for each in sections["Streams and consumers"] if each.state == "to do"]
    assert found.text.startswith("it is paused until")


async def test_a_consumer_with_fewer_replicas_than_its_stream_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(tmp_path) as cluster:
        async with connect(ConnectionSettings(servers=cluster.url)) as js:
            stream = await replicated_stream(js)
            config = {**LEASE["consumer_config"], "num_replicas": 1}
            work = Take(js, taking(stream, consumer_config=config))
            await work.prepare()
            assert await work.look() == await work.look() == []
            await js.stream("KV_jetstream_claims").update({"num_replicas": 1})
            sections = await examine(js.settings, Scope(stream="S", consumer=CONSUMER))
    advised = [each.what for found in sections.values() for each in found if each.state == "advice"]
    assert advised == ["bucket jetstream_claims, used for stream S", "consumer work of stream S"]
    said = [line.message for line in caplog.records if "replicas" in line.message and line.levelname == "WARNING"]
    assert said == [f"consumer work of stream S: {fewer({'num_replicas': 1}, {'num_replicas': 3})}"]
