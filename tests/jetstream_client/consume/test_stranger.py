"""Another client answers every request of this account, as a wildcard service or a debugging tool does."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import nats
import pytest
from nats.aio.msg import Msg

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.message import Message
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.errors import ProtocolError
from jetstream_client.stream import Stream
from tests.jetstream_client.until import until


@pytest.fixture
async def stranger(settings: ConnectionSettings) -> AsyncIterator[list[str]]:
    """The subjects of the requests that it has answered."""
    connection = await nats.connect(settings.servers[0])
    answered: list[str] = []

    async def answer(message: Msg) -> None:
        if message.reply and ("MSG.NEXT" in message.subject or message.subject.startswith("$JS.other.")):
            answered.append(message.subject)
            await message.respond(b"ok")

    await connection.subscribe(">", cb=answer)
    await connection.flush()
    yield answered
    await connection.close()


@pytest.mark.parametrize("policy", ["explicit", "none"])
async def test_its_answers_are_ignored_and_counted(
    stream: Stream, stranger: list[str], caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    consumer = await stream.create_consumer({"name": "c", "ack_policy": policy})
    with caplog.at_level(logging.WARNING):
        assert await consumer.fetch(5, max_wait=0.5) == []
        assert stranger == [f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.c"]
        for number in range(30):
            await stream.js.publish(f"{stream.name}.x", b"%d" % number)
        assert [message.data for message in await consumer.fetch(5, max_wait=5)] == [b"0", b"1", b"2", b"3", b"4"]
        async with consumer.pull_metadata(5, expires=5) as pull:
            taken = 0
            while not pull.ended:
                taken += sum(map(len, await pull.receive()))
        assert taken == 5
        async with consumer.messages(Pulling(max_messages=2)) as messages:
            assert [(await anext(messages)).data for _ in range(10)] == [b"%d" % number for number in range(10, 20)]
        read: list[Message] = []

        async def note(message: Message) -> None:
            read.append(message)

        async with consumer.consume(note, Pulling(max_messages=1), ack=policy == "explicit"):
            await until(lambda: len(read) >= 8)  # the reader before may have had two that it did not read
        async with stream.ordered_consumer().messages(Pulling(max_messages=2)) as ordered:
            assert [(await anext(ordered)).metadata.sequence for _ in range(30)] == list(range(1, 31))
    assert len(stranger) > 10
    told = [record.getMessage() for record in caplog.records if "another client" in record.getMessage()]
    assert "has answered 1 request" in told[0]
    assert "has answered 10 requests" in told[1]
    assert len(told) < 4


async def test_an_answer_of_it_to_the_api_is_named(settings: ConnectionSettings, stranger: list[str]) -> None:
    """Here nobody else answers. In reality its answer is sometimes faster than the server's."""
    async with connect(replace(settings, domain="other")) as js:
        with pytest.raises(ProtocolError, match=r"STREAM.INFO.S' is not JSON; another client has probably answered"):
            await js.stream("S").info()
