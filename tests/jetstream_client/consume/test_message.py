"""Answers to a message, judged by the consumer's state afterwards."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from jetstream_client.consume.consumer import Consumer
from jetstream_client.consume.message import Message
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    InvalidValue,
    JetStreamError,
    MessageAlreadyAnswered,
    NoMessages,
    NotJetStreamMessage,
)
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import Reply, encode_headers, encode_publish
from tests.jetstream_client.until import until

PAYLOAD = b"hidden-payload"


@pytest.fixture
async def consumer(js: JetStream) -> AsyncIterator[Consumer]:
    name = f"S{secrets.token_hex(4)}"
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    for number in range(4):
        await js.publish(f"{name}.{number}", PAYLOAD)
    yield await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit", "ack_wait": 60 * 10**9})
    await stream.delete()


async def counts(consumer: Consumer) -> tuple[int, int, int]:
    """Acknowledgement floor, delivered and unacknowledged, redelivered."""
    await consumer.js.connection.flush()
    info = await consumer.info()
    return info.floor, info.ack_pending, info.raw["num_redelivered"]


async def has(consumer: Consumer, *wanted: int) -> bool:
    return await counts(consumer) == wanted


async def test_where_a_message_is_from(consumer: Consumer) -> None:
    first, second = await consumer.fetch(2)
    assert (second.subject, second.data, second.headers) == (f"{consumer.stream}.1", PAYLOAD, {})
    meta = second.metadata
    assert (meta.stream, meta.consumer, meta.sequence, meta.consumer_sequence) == (consumer.stream, "c", 2, 2)
    assert (meta.delivered, meta.pending, meta.domain) == (1, 2, "")
    assert first.timestamp <= second.timestamp <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("before", "settled"),
    [
        ("ack", (1, 0, 0)),
        ("double_ack", (1, 0, 0)),
        ("term", (1, 0, 0)),
        ("nak", (0, 1, 0)),
        ("ack_next", (1, 1, 0)),
    ],
)
async def test_a_second_answer_is_an_error_without_the_payload(
    consumer: Consumer, before: str, settled: tuple[int, int, int]
) -> None:
    message = await consumer.next()
    await (consumer.ack_next(message) if before == "ack_next" else getattr(message, before)())
    await until(lambda: has(consumer, *settled))  # the server counts an answer a moment after it has arrived
    for answer in ("ack", "double_ack", "term", "nak", "in_progress", "ack_next"):
        with pytest.raises(MessageAlreadyAnswered, match="message 1 of") as twice:
            await (consumer.ack_next(message) if answer == "ack_next" else getattr(message, answer)())
        assert PAYLOAD.decode() not in f"{twice.value!r} {message!r} {vars(twice.value)}"
    assert await counts(consumer) == settled


async def test_acknowledged_is_acknowledged(consumer: Consumer) -> None:
    first, second = await consumer.fetch(2)
    await first.double_ack()
    assert await counts(consumer) == (1, 1, 0)
    await second.ack()
    await until(lambda: has(consumer, 2, 0, 0))


async def test_refused_comes_again_at_once_or_later(consumer: Consumer) -> None:
    first, second = await consumer.fetch(2)
    await first.nak()
    await second.nak(timedelta(seconds=0.5))
    again = await consumer.fetch(3, max_wait=0.5)
    assert {(message.metadata.sequence, message.metadata.delivered) for message in again} == {(1, 2), (3, 1), (4, 1)}
    later = await consumer.next(max_wait=15)
    assert (later.metadata.sequence, later.metadata.delivered) == (2, 2)


async def test_ended_never_comes_again_and_the_server_says_why(consumer: Consumer) -> None:
    advisories: list[Reply] = []
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{consumer.stream}.c"
    async with consumer.js.connection.listen(subject, advisories.append):
        message = await consumer.next()
        await message.term("not a flight")
        await until(lambda: has(consumer, 1, 0, 0))
        await until(lambda: bool(advisories))
    assert b'"reason":"not a flight"' in advisories[0].data


async def test_a_reason_that_no_message_can_hold_is_refused_and_nothing_is_lost(consumer: Consumer) -> None:
    message = await consumer.next()
    with pytest.raises(InvalidValue, match="max_payload"):
        await message.term("x" * consumer.js.connection.max_payload)
    await message.term("too long")
    await until(lambda: has(consumer, 1, 0, 0))
    assert consumer.js.connection.reconnects == 0


async def test_in_progress_starts_the_time_again(js: JetStream, consumer: Consumer) -> None:
    impatient = {"durable_name": "i", "ack_policy": "explicit", "ack_wait": 10**9, "max_ack_pending": 1}
    working = await js.stream(consumer.stream).create_consumer(impatient)
    message = await working.next()
    again = asyncio.create_task(working.next())
    for _ in range(4):
        await asyncio.sleep(0.3)
        await message.in_progress()
    assert not again.done()
    await message.nak()
    assert (await again).metadata.delivered == 2


async def test_acknowledged_and_the_next_one_in_one_request(consumer: Consumer) -> None:
    message = await consumer.next()
    for number in (2, 3, 4):
        message = await consumer.ack_next(message)
        assert message.metadata.sequence == number
        assert await counts(consumer) == (number - 1, 1, 0)
    with pytest.raises(InvalidValue):
        await consumer.ack_next(message, max_wait=0)
    with pytest.raises(NoMessages):
        await consumer.ack_next(message, max_wait=0.3)
    assert await counts(consumer) == (4, 0, 0)


async def test_a_message_of_another_consumer_is_not_acknowledged(js: JetStream, consumer: Consumer) -> None:
    message = await consumer.next()
    other = await js.stream(consumer.stream).create_consumer({"durable_name": "other", "ack_policy": "explicit"})
    with pytest.raises(
        InvalidValue, match=f"{consumer.stream}/c delivered this message; .* of consumer {consumer.stream}/other"
    ):
        await other.ack_next(message)
    assert not message.answered
    assert await counts(consumer) == (0, 1, 0)


async def test_an_answer_that_failed_can_be_given_again(js: JetStream, consumer: Consumer) -> None:
    stream = js.stream(consumer.stream)
    message = await consumer.next()
    await consumer.delete()
    with pytest.raises(JetStreamError, match=r"message 1 was not confirmed.* consumer 'c' of stream"):
        await message.double_ack()
    await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    await stream.consumer("c").next()
    await message.double_ack()
    assert await counts(consumer) == (1, 0, 0)


async def test_a_header_has_all_its_values(consumer: Consumer) -> None:
    headers = encode_headers({"Trace": ["a", "b", "a"], "trace": "c"})
    with Wire.open(consumer.js.settings) as wire:
        wire.send(encode_publish(f"{consumer.stream}.h", "", b"", headers))
        wire.api("INFO")
    message = (await consumer.fetch(5))[4]
    assert message.headers == {"Trace": ["a", "b", "a"], "trace": ["c"]}


@pytest.mark.parametrize("reply", ["", "_INBOX.a.1", "$JS.ACK.S.c.1.2.3.4"])
async def test_what_no_consumer_delivered_is_no_message(js: JetStream, reply: str) -> None:
    with pytest.raises(NotJetStreamMessage):
        Message(js.connection, Reply("s", reply, 0, "", {}, PAYLOAD))


@pytest.mark.parametrize("tokens", [9, 11, 12])
async def test_the_place_is_read_from_every_form_of_reply(js: JetStream, tokens: int) -> None:
    reply = ".".join(["$JS.ACK", *(["hub", "ABCDEF"] if tokens > 9 else []), "S.c.2.30.31.1763690400000000000.5"])
    meta = Message(js.connection, Reply("s", reply + (".x" if tokens == 12 else ""), 0, "", {}, b"")).metadata
    assert (meta.stream, meta.consumer, meta.delivered, meta.sequence, meta.consumer_sequence) == ("S", "c", 2, 30, 31)
    assert (meta.pending, meta.domain, meta.tokens) == (5, "" if tokens == 9 else "hub", tokens)
