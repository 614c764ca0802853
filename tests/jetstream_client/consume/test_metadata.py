"""The metadata of many deliveries: what the messages say one by one, whatever arrives among them."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.message import Message
from jetstream_client.consume.metadata import Metadata
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import NotJetStreamMessage, ProtocolError
from jetstream_client.stream import Stream
from jetstream_client.wire.parser import Parser
from jetstream_client.wire.protocol import Reply, decode_headers
from jetstream_client.wire.run import Columns, Run
from tests.jetstream_client.steps import forge
from tests.jetstream_client.until import SOON

NINE, ELEVEN = b"$JS.ACK.S.c", b"$JS.ACK.hub.HASHHASH.S.c"
number = st.sampled_from([b"1", b"2", b"30", b"1" * 19, b"9" * 19]) | st.sampled_from(
    [b"0", b"01", b"", b"-1", b"+1", b"1_0", b"1" * 20, b"18446744073709551616", b"x", b"\xff", "²".encode()]
)
usual = st.builds(b"%b.1.%d.%d.1700.5".__mod__, st.tuples(st.just(NINE), st.integers(1, 99), st.integers(1, 99)))
reply = (
    usual
    | st.builds(
        lambda stem, words: b".".join([stem, *words]),
        st.sampled_from([NINE, ELEVEN, b"$JS.ACK.S.d", b"$JS.ACK._.HASHHASH.S.c", b"$JS.ACK..c", b"x$JS.ACK.S.c", b""]),
        st.lists(number, min_size=4, max_size=6),
    )
    | st.sampled_from([b"", b"_INBOX.x", NINE, b"$JS.ACK.\xff.c.1.2.3.4.5"])
)
line = st.sampled_from(
    [b"Nats-Msg-Size: 5", b"Nats-Msg-Size:77 ", b"Nats-Msg-Size: 99999999999", b"Nats-Msg-Size: x", b"Nats-Msg-Size:"]
) | st.sampled_from(
    [b"nats-msg-size: 3", b"A: Nats-Msg-Size: 4", b"Nats-Pin-Id: one", b"Nats-Pin-Id:two", b"traceparent: t", b""]
)
block = st.just(b"") | st.builds(
    lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b"", b""]), st.lists(line, max_size=3)
)
message = st.tuples(reply, block, st.sampled_from([b"", b"data"]))
alike = st.tuples(usual, st.just(b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n"), st.just(b""))


def one_by_one(columns: Columns) -> list[Message]:
    messages = []
    for reply, header, data in zip(columns.replies, columns.headers, columns.data, strict=True):
        arrived = Reply("s", reply.decode("utf-8", "replace"), 0, "", decode_headers(header), data)
        messages.append(Message(None, arrived))  # type: ignore[arg-type] # nothing is sent
    return messages


@settings(max_examples=400, derandomize=True)
@example([(NINE + b".1.2.3.4.5", b"", b"x"), (NINE + b".1.2.3.4.5.6", b"", b"x")])
@example([(NINE + b".1.2.3.4", b"", b"x"), (NINE + b".1.2.3.4.5.6", b"", b"x"), (NINE + b".1.2.3.4.5", b"", b"x")])
@example([(ELEVEN + b".1.2.3.4.5.6", b"", b"")] * 2)
@example([(NINE + b".1.2.3..5", b"", b""), (NINE + b".1.2.3.4.5", b"", b"")])
@example([(b"x" + NINE + b".1.2.3.4.5", b"", b""), (NINE + b".1.2.3.4.5", b"", b"")])
@given(st.lists(alike, min_size=1, max_size=5) | st.lists(message | alike, min_size=1, max_size=3))
def test_it_is_what_the_messages_say_one_by_one(messages: list[tuple[bytes, bytes, bytes]]) -> None:
    replies, headers, data = map(list, zip(*messages, strict=True))
    columns = Columns([b"s"] * len(messages), [1] * len(messages), replies, headers, data)
    found = Metadata.cut(columns)
    try:
        expected = one_by_one(columns)
    except ProtocolError:
        assert found is None
        return
    metas = [each.metadata for each in expected]
    names = {(meta.stream, meta.consumer, meta.domain, meta.account, meta.tokens) for meta in metas}
    if found is None:
        assert len(names) > 1 or metas[0].tokens == 12
        return
    assert len(names) == 1
    assert len(found) == len(messages)
    assert list(found.sequences) == [meta.sequence for meta in metas]
    assert list(found.counters) == [meta.consumer_sequence for meta in metas]
    assert list(found.sizes) == [each.size for each in expected]
    assert list(found.times) == [meta.timestamp for meta in metas]
    assert [bool(first) for first in found.firsts] == [meta.delivered == 1 for meta in metas]
    assert (found.last, found.reply) == (metas[-1], expected[-1].reply)
    assert found.headers == expected[0].headers
    pins = [pin for each in expected for pin in each.headers.get("Nats-Pin-Id", [])[-1:]]
    assert found.pin == "".join(pins[-1:])
    for each in expected:
        alone = Metadata.of(each)
        assert (alone.last, list(alone.sizes), len(alone)) == (each.metadata, [each.size], 1)


def test_what_the_parser_cuts_is_read_at_once() -> None:
    header = b"NATS/1.0\r\nNats-Msg-Size: 300\r\n\r\n"
    text = b"".join(
        b"HMSG a 7 %b.1.%d.%d.1700.%d %d %d\r\n%b\r\n" % (NINE, at, at, 100 - at, len(header), len(header), header)
        for at in range(1, 101)
    )
    (run,) = Parser().cut(text)
    assert isinstance(run, Run)
    columns = run.columns()
    assert columns
    found = Metadata.cut(columns)
    assert found
    assert list(found.sequences) == list(found.counters) == list(range(1, 101))
    assert set(found.sizes) == {300}
    assert found.last.pending == 0


@pytest.fixture
async def consumer(stream: Stream) -> Consumer:
    return await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "headers_only": True})


async def publish(stream: Stream, count: int) -> None:
    await asyncio.gather(*[stream.js.publish(f"{stream.name}.x", b"x" * at) for at in range(1, count + 1)])


async def pulled(consumer: Consumer, count: int, **how: Any) -> list[Metadata]:
    found: list[Metadata] = []
    async with consumer.pull_metadata(count, **how) as pull:
        while not pull.ended:
            found += await pull.receive(SOON)
    return found


def sequences(found: list[Metadata]) -> list[int]:
    return [sequence for each in found for sequence in each.sequences]


async def test_a_pull_receives_metadata(stream: Stream, consumer: Consumer) -> None:
    await publish(stream, 50)
    found = await pulled(consumer, 30)
    assert sequences(found) == [counter for each in found for counter in each.counters] == list(range(1, 31))
    assert sum(size for each in found for size in each.sizes) == sum(range(1, 31))
    assert all(first for each in found for first in each.firsts)
    assert found[-1].last.pending == 20
    await stream.js.connection.answer_all(f"$JS.ACK.{stream.name}.c.1.", sequences(found), ".30.0.0", b"-NAK")
    again = await pulled(consumer, 50)
    assert sorted(sequences(again)) == list(range(1, 51))
    firsts = {sequence for each in again for sequence, first in zip(each.sequences, each.firsts, strict=True) if first}
    assert firsts == set(range(31, 51))


async def test_pulls_on_one_connection_do_not_mix(stream: Stream, consumer: Consumer) -> None:
    other = await stream.create_consumer({"durable_name": "d", "ack_policy": "explicit", "headers_only": True})
    await publish(stream, 500)
    found, others, messages = await asyncio.gather(pulled(consumer, 300), pulled(other, 300), consumer.fetch(200))
    assert sorted(sequences(found) + [message.metadata.sequence for message in messages]) == list(range(1, 501))
    assert sequences(others) == list(range(1, 301))
    assert {each.last.consumer for each in found} == {"c"}
    assert {each.last.consumer for each in others} == {"d"}


async def test_a_group_keeps_its_pin(stream: Stream, settings: ConnectionSettings) -> None:
    config = {"durable_name": "p", "ack_policy": "explicit", "headers_only": True}
    consumer = await stream.create_consumer(
        {**config, "priority_groups": ["g"], "priority_policy": "pinned_client", "priority_timeout": 60 * 10**9}
    )
    await publish(stream, 30)
    group = Priority("g")
    assert len(sequences(await pulled(consumer, 10, priority=group))) == 10
    async with connect(settings) as js:
        elsewhere = js.stream(stream.name).consumer("p")
        async with elsewhere.pull_metadata(10, priority=group, expires=1) as pull:
            assert await pull.receive(0.5) == []
    assert len(sequences(await pulled(consumer, 10, priority=group))) == 10


async def test_what_no_consumer_delivered_ends_a_pull_after_what_came_before(
    stream: Stream, consumer: Consumer
) -> None:
    await publish(stream, 3)
    async with consumer.pull_metadata(100, expires=60) as pull:
        found: list[Metadata] = []
        while len(sequences(found)) < 3:
            found += await pull.receive(SOON)
        assert pull.inbox
        place = f"$JS.ACK.{stream.name}.c.1.9.9.9"
        await forge(stream.js.connection, pull.inbox, f"{place}.0", f"{place}.07", f"{place}.1")
        assert sequences(await pull.receive(SOON)) == [9]
        with pytest.raises(NotJetStreamMessage, match=r"9\.9\.9\.07"):
            await pull.receive(SOON)
        assert sequences(await pull.stop()) == [9]
