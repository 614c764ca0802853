"""Streams that copy from or to others: mirrors, sources, republishing, transformed subjects."""

import base64
from typing import Any

import pytest

from jetstream_client.context import JetStream
from jetstream_client.wire.protocol import Reply
from tests.jetstream_client.servers import Ask
from tests.jetstream_client.until import until


async def holds(ask: Ask, stream: str, messages: int) -> dict[str, Any]:
    """The server's state of the stream, once it has so many messages."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        found[:] = [await ask(f"STREAM.INFO.{stream}")]
        return bool(found[0]["state"]["messages"] == messages)

    await until(there, 60)
    return found[0]


async def stored(ask: Ask, stream: str, sequence: int) -> tuple[str, bytes]:
    message = (await ask(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
    return message["subject"], base64.b64decode(message.get("data", ""))


@pytest.mark.server("2.12")
async def test_a_mirror_and_a_source_say_how_far_they_are(js: JetStream, ask: Ask, name: str) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    for subject in ("a", "b", "a"):
        await js.publish(f"{name}.{subject}", subject.encode())
    mirror = await js.create_stream(
        {"name": f"{name}-M", "mirror": {"name": name}, "allow_direct": True, "mirror_direct": True}
    )
    transforms = [{"src": f"{name}.a", "dest": f"only.{name}"}]
    copy = await js.create_stream({"name": f"{name}-C", "sources": [{"name": name, "subject_transforms": transforms}]})
    await holds(ask, mirror.name, 3)
    found = await holds(ask, copy.name, 2)
    info, server = await mirror.info(), await ask(f"STREAM.INFO.{mirror.name}")
    assert info.mirror
    assert (info.mirror["name"], info.mirror["lag"], info.mirror["active"] >= 0) == (name, 0, True)
    assert info.mirror.keys() == server["mirror"].keys()
    [source] = (await copy.info()).sources
    assert (source["name"], source["lag"], source.keys()) == (name, 0, found["sources"][0].keys())
    assert [await stored(ask, copy.name, each) for each in (1, 2)] == [(f"only.{name}", b"a")] * 2
    # After its promotion it continues where the other stream was.
    await mirror.update({"subjects": [f"{mirror.name}.>"]}, remove=["mirror"])
    assert (await js.publish(f"{mirror.name}.own")).seq == 4


@pytest.mark.server("2.14")
async def test_a_source_that_consumes_what_it_takes(js: JetStream, ask: Ask, name: str) -> None:
    """The source is a work queue, read with a durable consumer of the server or of the test (nats-server 2.14)."""
    queue = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "retention": "workqueue"})
    for _ in range(3):
        await js.publish(f"{name}.a")
    await js.create_stream({"name": f"{name}-T", "sources": [{"name": name}]})
    await holds(ask, f"{name}-T", 3)
    await holds(ask, name, 0)
    [consumer] = [info.config async for info in queue.list_consumers()]
    assert consumer["ack_policy"] == "flow_control"
    await js.delete_stream(f"{name}-T")

    own = f"{name}-OWN"
    await js.create_stream({"name": own, "subjects": [f"{own}.>"], "retention": "workqueue"})
    durable: dict[str, Any] = {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": 10**9}
    await js.create_consumer(own, {"durable_name": "mine", "deliver_subject": f"deliver.{own}", **durable})
    source = {"name": own, "consumer": {"name": "mine", "deliver_subject": f"deliver.{own}"}}
    await js.create_stream({"name": f"{own}-T", "sources": [source]})
    await js.publish(f"{own}.a")
    await holds(ask, f"{own}-T", 1)
    await holds(ask, own, 0)
    assert (await ask(f"CONSUMER.NAMES.{own}"))["consumers"] == ["mine"]


async def test_what_is_republished_names_its_place(js: JetStream, ask: Ask, name: str) -> None:
    await js.create_stream(
        {
            "name": name,
            "subjects": [f"{name}.>"],
            "subject_transform": {"src": f"{name}.old.*", "dest": f"{name}.new.{{{{wildcard(1)}}}}"},
            "republish": {"src": f"{name}.>", "dest": f"again.{name}.>", "headers_only": True},
        }
    )
    heard: list[Reply] = []
    async with js.connection.listen(f"again.{name}.>", heard.append):
        await js.publish(f"{name}.old.a", b"data", headers={"Kind": ["x", "y"]})
        await js.publish(f"{name}.old.a", b"more")
        await until(lambda: len(heard) == 2)
    assert await stored(ask, name, 1) == (f"{name}.new.a", b"data")
    server = (await ask(f"STREAM.MSG.GET.{name}", {"seq": 2}))["message"]
    assert heard[0].headers["Kind"] == ["x", "y"]
    assert (heard[1].subject, heard[1].data) == (f"again.{name}.new.a", b"")
    assert heard[1].headers == {
        "Nats-Stream": [name],
        "Nats-Subject": [f"{name}.new.a"],
        "Nats-Sequence": ["2"],
        "Nats-Time-Stamp": [server["time"]],
        "Nats-Last-Sequence": ["1"],
        "Nats-Msg-Size": ["4"],
    }
