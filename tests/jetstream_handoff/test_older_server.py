"""What older servers show otherwise, on the oldest one that is supported."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ServerTooOld
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import DeletionRefused, DeliveriesGivenUp, Superseded
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair.deletion import delete
from jetstream_handoff.repair.reset import reset
from jetstream_handoff.take.conservation import given_up
from tests.jetstream_client.servers import older_program
from tests.jetstream_handoff.steps import CONSUMER, floor, give_up, publish, rewrite, take

LATE: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("older"), program=older_program("2.11.11"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def stream(older: NatsServer) -> AsyncIterator[Stream]:
    async with connect(ConnectionSettings(servers=older.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        await publish(stream, 10)
        yield stream
        async for name in js.stream_names():
            await js.delete_stream(name)


async def test_a_take_that_creates_a_consumer_says_where_it_begins(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """INFO has 0 as the floor of a consumer that begins at a sequence, until its first message is acknowledged."""
    await take(stream, consumer_config=LATE)
    assert "it begins at sequence 4 (deliver_policy by_start_sequence), and 7 messages wait" in caplog.text


async def test_what_is_before_its_beginning_was_not_delivered(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the sequences 1 to 3 were said to be acknowledged without the ledger."""
    config = {**LATE, "ack_wait": timedelta(seconds=1)}
    consumer = await stream.create_consumer({"durable_name": CONSUMER, "ack_policy": "explicit", **config})
    await consumer.fetch(2, max_wait=5)  # a program that dies
    assert (await consumer.info()).floor == 0
    done = Sequences()
    for run in ("first", "redelivered", "later"):
        if run == "later":
            await publish(stream, 1)
        for claim in await take(stream, run, consumer_config=config):
            done |= claim.sequences
            async with Hold.begin(stream.js, claim, try_number=1) as hold:
                await hold.settle()
    assert done == Sequences.from_ranges([(4, 11)])
    assert not [each.message for each in caplog.records if each.levelno >= logging.ERROR]


async def test_what_the_server_gave_up_begins_there(stream: Stream) -> None:
    await give_up(stream, await take(stream, consumer_config={**LATE, "ack_wait": timedelta(seconds=1)}))
    info = await stream.consumer(CONSUMER).info()
    assert (info.floor, given_up(None, info)) == (0, Sequences.from_ranges([(4, 10)]))


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
async def test_what_the_server_gave_up_is_processed_as_the_error_says(older: NatsServer, retention: str) -> None:
    """The server cannot reset a consumer. Before, the error told to do just that."""
    async with connect(ConnectionSettings(servers=older.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream(
            {"name": "G", "subjects": ["G.>"], "allow_direct": True, "retention": retention}
        )
        await take(stream, wait=0.1)  # on an interest stream, the consumer has to exist first
        await publish(stream, 5)
        (claim,) = await take(stream)
        await give_up(stream, [claim])
        with pytest.raises(DeliveriesGivenUp, match="cannot reset a consumer") as said:
            await take(stream, "run 2")
        with pytest.raises(ServerTooOld, match="upgrade the server, or take from another consumer"):
            await reset(Ledger(js, "G", CONSUMER))
        assert "opt_start_seq=1; in a work queue, delete the consumer, and the next sensor" in str(said.value)
        if retention == "workqueue":
            await delete(js, "G", CONSUMER, despite_open_claims=True)
            (again,) = await take(stream, "run 2")
        else:
            config = {"deliver_policy": "by_start_sequence", "opt_start_seq": said.value.first}
            (again,) = await take(stream, "run 2", consumer="again", consumer_config=config)
        assert again.sequences == claim.sequences
        async with Hold.begin(js, again, try_number=1) as hold:
            await hold.settle()
        await js.delete_stream("G")


async def test_a_consumer_with_given_up_messages_is_not_deleted_from_an_interest_stream(older: NatsServer) -> None:
    """The server counts them neither as pending nor as unacknowledged, and would delete them with the consumer."""
    async with connect(ConnectionSettings(servers=older.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream(
            {"name": "I", "subjects": ["I.>"], "allow_direct": True, "retention": "interest"}
        )
        await take(stream, wait=0.1)
        await publish(stream, 5)
        claims = await take(stream)
        await give_up(stream, claims)
        await rewrite(Ledger(js, "I", CONSUMER), lambda record, _: record and replace(record, open={}))
        assert (await stream.info()).state["messages"] == 5
        with pytest.raises(DeletionRefused, match="5 of its messages have not been acknowledged"):
            await delete(js, "I", CONSUMER)
        await js.delete_stream("I")


async def test_a_restart_is_taken_for_a_new_consumer_and_nothing_is_lost(tmp_path: Path) -> None:
    """Outside a cluster, nats-server 2.11 has another `created` for a consumer after a restart, and 2.12 and 2.14 after
    a restart that follows an update of the consumer."""
    server = NatsServer(tmp_path, program=older_program("2.11.11"))
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, 10)
            (claim,) = await take(stream)
            async with Hold.begin(js, claim, try_number=1) as hold:
                await asyncio.to_thread(server.restart)
                await stream.info(patience=30)
                with pytest.raises(Superseded, match="was recreated, reset or rolled back"):
                    await hold.settle()
            (again,) = await take(stream, "again", wait=5)
            async with Hold.begin(js, again, try_number=1) as hold:
                await hold.settle()
            assert again.sequences == claim.sequences
            assert await floor(stream) == 10
    finally:
        server.stop()
