"""The outbox on a real server that is killed and frozen: the caller never waits, and what is lost is counted."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue, StreamNotFound
from jetstream_client.outbox import MOST_BYTES, Outbox
from jetstream_client.stream import Stream

QUICK: dict[str, Any] = {"connect_timeout": 0.5, "request_timeout": 0.5}


class Counted:
    """What an outbox has reported."""

    def __init__(self) -> None:
        self.published = self.lost = 0

    def __call__(self, published: int, lost: int) -> None:
        self.published += published
        self.lost += lost


def settings(server: NatsServer) -> ConnectionSettings:
    return ConnectionSettings(servers=server.url, **QUICK)


@pytest.fixture
def stream(mortal: NatsServer) -> Iterator[str]:
    """A stream on a server that the test may kill."""

    async def create() -> None:
        async with connect(ConnectionSettings(servers=mortal.url)) as js:
            with suppress(StreamNotFound):
                await js.stream("EVENTS").delete()
            await js.create_stream({"name": "EVENTS", "subjects": ["events.>"]})

    asyncio.run(create())
    yield "EVENTS"
    if mortal.running:
        mortal.thaw()


def stored(server: NatsServer) -> list[str]:
    """The payloads in the stream."""

    async def read() -> list[str]:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            of: Stream = js.stream("EVENTS")
            last = (await of.info()).state["last_seq"]
            return [(await of.get_message(sequence)).data.decode() for sequence in range(1, last + 1)]

    return asyncio.run(read())


def until(true: Any) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def put(outbox: Outbox, first: int, count: int) -> None:
    """Put messages into the outbox."""
    for number in range(first, first + count):
        outbox.put(f"events.{number}", b"%d" % number, f"id-{number}")


def test_messages_arrive_once_and_in_order(mortal: NatsServer, stream: str) -> None:
    counted = Counted()
    outbox = Outbox(lambda: settings(mortal), stream=stream, on_count=counted)
    put(outbox, 0, 300)
    put(outbox, 0, 3)  # the same ids
    until(lambda: not outbox.waiting)
    assert outbox.flush(60) == 0
    outbox.close()
    assert (outbox.published, outbox.lost, counted.published, counted.lost) == (303, 0, 303, 0)
    assert stored(mortal) == [str(number) for number in range(300)]
    assert not outbox.put("events.late", b"", "late")
    assert outbox.lost == 1


def test_a_server_that_is_killed_delays_nobody_and_loses_nothing_that_fits(mortal: NatsServer, stream: str) -> None:
    outbox = Outbox(lambda: settings(mortal))
    put(outbox, 0, 10)
    until(lambda: not outbox.waiting)
    mortal.kill()
    put(outbox, 10, 10)
    until(lambda: outbox._broken)
    assert outbox.flush(3_600) == 10  # returns at once, because nothing answers
    put(outbox, 20, 10)
    mortal.start()
    until(lambda: outbox.published == 30)
    outbox.close()
    assert sorted(map(int, stored(mortal))) == list(range(30))
    assert outbox.lost == 0


def test_a_frozen_server_delays_a_flush_by_its_limit_only(mortal: NatsServer, stream: str) -> None:
    outbox = Outbox(lambda: settings(mortal))
    put(outbox, 0, 1)
    until(lambda: not outbox.waiting)
    mortal.freeze()
    put(outbox, 1, 5)
    assert outbox.flush(0.01) == 5
    mortal.thaw()
    until(lambda: outbox.published == 6)
    outbox.close()


def test_what_does_not_fit_is_lost_and_counted(
    mortal: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    mortal.kill()
    counted = Counted()
    outbox = Outbox(lambda: settings(mortal), most=10, on_count=counted)
    put(outbox, 0, 25)
    assert (outbox.waiting, outbox.lost) == (10, 15)
    outbox.close()
    assert (outbox.waiting, outbox.lost, counted.lost) == (0, 25, 25)
    assert "25 in all" in caplog.text
    mortal.start()
    assert stored(mortal) == []


def test_its_size_in_bytes_is_limited_too() -> None:
    outbox = Outbox(lambda: ConnectionSettings(servers="nats://127.0.0.1:1", **QUICK))
    big = bytes(MOST_BYTES // 2)
    assert [outbox.put("a", big, str(number)) for number in range(3)] == [True, False, False]
    outbox.close()
    assert outbox.lost == 3


def test_one_message_that_is_refused_keeps_no_other_back(
    mortal: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(lambda: settings(mortal))
    outbox.put("events..x", b"", "invalid")
    outbox.put("events.x", b"yes", "valid")
    until(lambda: not outbox.waiting)
    assert (outbox.published, outbox.lost) == (1, 1)
    assert "1 message lost, 1 in all" in caplog.text
    outbox.close()


def test_without_a_stream_they_wait_until_there_is_one(
    mortal: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(lambda: settings(mortal))
    outbox.put("others.x", b"", "early")
    until(lambda: outbox._broken)
    assert "1 message cannot be published yet" in caplog.text

    async def widen() -> None:
        async with connect(settings(mortal)) as js:
            await js.update_stream({"name": stream, "subjects": ["events.>", "others.>"]})

    asyncio.run(widen())
    until(lambda: outbox.published == 1)
    outbox.close()


def test_settings_that_cannot_be_looked_up_are_looked_up_again(
    mortal: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def looked_up() -> ConnectionSettings:
        tries.append(1)
        if len(tries) < 3:
            raise LookupError("hidden secret")
        return settings(mortal)

    outbox = Outbox(looked_up)
    put(outbox, 0, 1)
    until(lambda: outbox.published == 1)
    outbox.close()
    assert "LookupError" in caplog.text
    assert "hidden secret" not in caplog.text


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValue, match="most"):
        Outbox(ConnectionSettings, most=0)
