"""Header blocks and subjects that any publisher can store, on a real server: every way of reading returns each message
with its headers, and no others."""

import base64
import json
import secrets

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from demo.nats_server import NatsServer
from jetstream_arrow.columns import record_batch
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.position import Position, find
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import header_lines
from tests.hostile import attack
from tests.jetstream_handoff.steps import take

NAMES = [
    "Status",
    "status",
    "Description",
    "Nats-Msg-Size",
    "Nats-Pending-Messages",
    "Nats-Sequence",
    "Nats-Stream",
    "Nats-Time-Stamp",
    "A",
]
Line = st.builds(
    "{}:{}".format,
    st.sampled_from([*NAMES, " ", "ä", ""]),
    st.sampled_from(["503", "404", " 409", "-5", "x", "9" * 30, "Consumer Deleted", "", "²", "\n", "ä: b"]),
).map(str.encode)
# Where a block can be cut, before or after complete lines, or without any.
Line = Line | st.binary(max_size=8) | st.sampled_from([b"", b"junk", b"\r", b"\n", b":", b"tenant: a"])
First = st.sampled_from([b"NATS/1.0", b"NATS/1.0 503", b"NATS/1.0 204 EOB", b"NATS/1.0 404 None", b"", b"junk: a"])
End = st.sampled_from([b"\r\n\r\n", b"\r\n", b"", b"\r", b"\n", b"\r\n\r\n\r\n", b" x", b" XYZ"])
Block = st.one_of(
    st.lists(Line, max_size=4).map(lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b"", b""])),
    # Not one byte: nats-server 2.15.1 crashes when it delivers that to a consumer with headers_only (SECURITY.md).
    st.builds(
        lambda first, lines, end: b"\r\n".join([first, *lines]) + end, First, st.lists(Line, max_size=4), End
    ).filter(lambda block: len(block) > 1),
    st.binary(min_size=2, max_size=30),
    st.binary(max_size=20).map(lambda tail: b"NATS/1.0" + tail),
)
Subject = st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=3).map(
    lambda tokens: b".".join(bytes(byte for byte in token if byte not in b" \t\r\n\0.*>") or b"a" for token in tokens)
)
Message = st.tuples(Subject, Block, st.sampled_from([b"", b"x"]))

ATTACKER, TAIL = b"NATS/1.0\r\ntenant: attacker\r\n", b"NATS/1.0\r\nx: 1\r\n\r\ny: 2\r\n\r\n"
KNOWN = [
    # Cases that stopped a reader for good,
    [b"NATS/1.0"],
    [b"NATS/1.0\r\nStatus: 503\r\n\r\n"],
    [b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n"],
    [b"NATS/1.0\r\nNats-Msg-Size: x\r\n\r\n"],
    [b"NATS/1.0\r\nNats-Msg-Size: -5\r\n\r\n"],
    # a status that the server keeps and completes with its lines,
    [b"NATS/1.0 503"],
    [b"NATS/1.0 503 XYZ"],
    [b"NATS/1.0 100 XYZ"],
    [b"NATS/1.0 409 Consumer Deleted XYZ"],
    [b"", b"NATS/1.0 204 XYZ"],
    [b"", b"NATS/1.0 404 XYZ"],
    # cases that moved headers between rows, and cases that could not become a row.
    [ATTACKER, b"NATS/1.0\r\ntenant: victim\r\n\r\n", TAIL],
    [b"NATS/1.0\r\nA: 1\r\n"],
    [b"NATS/1.0\r\njunk\r\njunk2\r\n\r\n"],
]

Headers = list[tuple[str, list[str]]] | None


def own(block: bytes) -> Headers:
    """The result of parsing a stored block alone, without a line that does not end before the last two bytes, because
    the server overwrites them."""
    lines = block[:-2].split(b"\r\n")[1:-1]
    headers: dict[str, list[str]] = {}
    for name, colon, value in (line.decode("utf-8", "replace").partition(":") for line in lines):
        if colon:
            headers.setdefault(name, []).append(value.strip(" \t\n\v\f\r"))
    return list(headers.items()) if lines else None


def publish(wire: Wire, stream: str, subject: bytes, block: bytes, data: bytes) -> bool:
    """Publish without the client's checks. Returns whether it was stored: the server refuses some blocks."""
    inbox = wire.new_inbox()
    sid = wire.subscribe(inbox)
    line = b"%b.%b %b" % (stream.encode(), subject, inbox.encode())
    if block:
        wire.send(b"HPUB %b %d %d\r\n%b%b\r\n" % (line, len(block), len(block) + len(data), block, data))
    else:
        wire.send(b"PUB %b %d\r\n%b\r\n" % (line, len(data), data))
    answer = json.loads(wire.receive(5)[0].data)
    wire.unsubscribe(sid)
    return "error" not in answer


async def stored_and_read(server: NatsServer, messages: list[tuple[bytes, bytes, bytes]]) -> None:
    connection = ConnectionSettings(servers=server.url, shortest_ack_wait=0.5, ledger=f"test_{secrets.token_hex(4)}")
    async with connect(connection) as js:
        name = f"H{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        with Wire.open(connection) as wire:
            kept = [message for message in messages if publish(wire, name, *message)]
            info, count = await stream.info(), len(kept)
            stored = [wire.api(f"STREAM.MSG.GET.{name}", {"seq": number + 1})["message"] for number in range(count)]
        whole = Sequences.from_ranges([(1, count)])
        subjects = [f"{name}.{subject.decode('utf-8', 'replace')}" for subject, _, _ in kept]
        assert count > len(messages) / 2
        for headers_only in (False, True):
            consumer = await stream.create_consumer({"durable_name": f"c{headers_only}", "headers_only": headers_only})
            fetched = await consumer.fetch(count, max_wait=5)
            assert [message.metadata.sequence for message in fetched] == list(whole)
            assert [message.subject for message in fetched] == subjects
            assert all(message.size >= 0 for message in fetched)
        expected = [own(base64.b64decode(message.get("hdrs", ""))) for message in stored]
        assert [message.sequence async for message in stream.get_messages()] == list(whole)
        for batches in (
            direct.read(connection, name, whole, info.created),
            by_consumer.read(connection, name, whole, info.created),
            by_consumer.read(connection, name, whole, info.created, headers_only=True),
        ):
            joined = RawMessages.joined(list(batches))
            rows = record_batch(joined, name, ["sequence", "subject", "headers", "timestamp"]).to_pydict()
            assert rows["sequence"] == list(whole)
            assert rows["subject"] == subjects
            assert rows["headers"] == expected
        since = Position(name, info.created, 0, info.now)
        for allow_direct in (False, True):
            await stream.update({"allow_direct": allow_direct})
            assert not find(connection, since).unclear
        (claim,) = await take(stream, max_messages=count)
        assert claim.sequences == whole
        assert type(claim).from_json(claim.to_json()) == claim
        await stream.delete()


@pytest.mark.parametrize("blocks", KNOWN, ids=repr)
async def test_what_any_publisher_can_store_stops_no_reader(nats_server: NatsServer, blocks: list[bytes]) -> None:
    await stored_and_read(nats_server, [*((b"a", block, b"") for block in blocks), (b"a", b"", b"after")])


async def test_a_subject_that_is_not_utf_8_stops_no_reader(nats_server: NatsServer) -> None:
    await stored_and_read(nats_server, [(b"\xff", b"", b"x"), *((b"a", b"", b"x") for _ in range(50))])


@pytest.mark.anyio
async def test_any_header_block_is_read(nats_server: NatsServer) -> None:
    batches: list[list[tuple[bytes, bytes, bytes]]] = []

    @seed(attack.SEED)
    @settings(max_examples=max(4, attack.CASES // 2_000), database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(Message, min_size=60, max_size=60))
    def collect(batch: list[tuple[bytes, bytes, bytes]]) -> None:
        batches.append([*batch, (b"a", b"", b"after")])

    collect()
    for batch in batches:
        attack.counted += len(batch)
        await stored_and_read(nats_server, batch)


def headers_of(lines: list[bytes]) -> list[Headers]:
    messages = RawMessages.of(RawMessage(1, b"a", b"1", each, b"") for each in lines)
    batch = record_batch(messages, "S", ["headers"])
    batch.validate(full=True)
    found: list[Headers] = batch.column("headers").to_pylist()
    return found


@attack.attack(st.lists(Block, min_size=1, max_size=6), weight=2)
def test_each_row_has_the_headers_of_its_own_block(blocks: list[bytes]) -> None:
    assert headers_of([header_lines(block[:-2]) for block in blocks]) == [own(block) for block in blocks]


@attack.attack(st.lists(Block | st.binary(max_size=20), min_size=1, max_size=6))
def test_no_row_depends_on_the_others_whatever_the_lines_are(lines: list[bytes]) -> None:
    assert headers_of(lines) == [headers_of([each])[0] for each in lines]
