"""Header blocks that any publisher can store, on the real server: every message arrives, on every way to read it."""

import secrets

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from airflow_nats_jetstream.client import ConnectionSettings, connect, direct
from airflow_nats_jetstream.client.protocol import encode_publish
from airflow_nats_jetstream.client.sequences import Sequences
from airflow_nats_jetstream.client.wire import Wire
from demo.nats_server import NatsServer
from tests.handoff.steps import take
from tests.hostile import attack

NAMES = [
    "Status",
    "status",
    "Description",
    "Nats-Msg-Size",
    "Nats-Pending-Messages",
    "Nats-Sequence",
    "Nats-Stream",
    "A",
]
Line = st.builds(
    "{}:{}".format,
    st.sampled_from([*NAMES, " ", "ä", ""]),
    st.sampled_from(["503", "404", " 409", "-5", "x", "9" * 30, "Consumer Deleted", "", "²", "\n", "ä: b"]),
).map(str.encode)
Block = st.one_of(
    st.lists(Line | st.binary(max_size=8), max_size=4).map(lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b"", b""])),
    st.sampled_from(
        [b"NATS/1.0", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 404 No Messages\r\n\r\n", b"NATS/1.0 \xff\r\n\r\n"]
    ),
    # Not one byte: nats-server 2.15.1 ends when it delivers that to a consumer with headers_only (SECURITY.md).
    st.binary(min_size=2, max_size=30),
    st.binary(max_size=20).map(lambda tail: b"NATS/1.0" + tail),
)

# What stopped a reader for good, before anything else is tried.
KNOWN = [
    (b"NATS/1.0", b""),
    (b"NATS/1.0\r\nStatus: 503\r\n\r\n", b""),
    (b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n", b"x"),
    (b"NATS/1.0\r\nNats-Msg-Size: x\r\n\r\n", b""),
    (b"NATS/1.0\r\nNats-Msg-Size: -5\r\n\r\n", b""),
]


async def stored_and_read(server: NatsServer, messages: list[tuple[bytes, bytes]]) -> None:
    connection = ConnectionSettings(servers=server.url, shortest_ack_wait=0.5, ledger=f"test_{secrets.token_hex(4)}")
    async with connect(connection) as js:
        name = f"H{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        with Wire.open(connection) as wire:
            inbox = wire.new_inbox()
            wire.subscribe(inbox)
            wire.send(*(encode_publish(f"{name}.a", inbox, data, block) for block, data in messages))
            answers = 0
            while answers < len(messages):
                answers += len(wire.receive(5))
        info = await stream.info()
        count = info.state["messages"]  # a block that the server refuses is not stored
        whole = Sequences.from_ranges([(1, count)])
        assert count > len(messages) / 2
        for headers_only in (False, True):
            consumer = await stream.create_consumer({"durable_name": f"c{headers_only}", "headers_only": headers_only})
            fetched = await consumer.fetch(count, max_wait=5)
            assert [message.metadata.sequence for message in fetched] == list(whole)
            assert all(message.size >= 0 for message in fetched)
        batches = list(direct.read(connection, name, whole, info.created))
        assert [message.sequence for batch in batches for message in batch] == list(whole)
        (claim,) = await take(stream, max_messages=count)
        assert claim.sequences == whole
        assert type(claim).from_json(claim.to_json()) == claim
        await stream.delete()


async def test_what_any_publisher_can_store_stops_no_reader(nats_server: NatsServer) -> None:
    for message in KNOWN:
        await stored_and_read(nats_server, [message, (b"", b"after")])


@pytest.mark.anyio
async def test_any_header_block_is_read(nats_server: NatsServer) -> None:
    batches: list[list[tuple[bytes, bytes]]] = []

    @seed(attack.SEED)
    @settings(max_examples=max(4, attack.CASES // 5_000), database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(Block, st.sampled_from([b"", b"x"])), min_size=60, max_size=60))
    def collect(batch: list[tuple[bytes, bytes]]) -> None:
        batches.append([*batch, (b"", b"after")])

    collect()
    for batch in batches:
        attack.counted += len(batch)
        await stored_and_read(nats_server, batch)
