"""Publishing without waiting: the stream has the messages, and nothing waits forever."""

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.context import JetStream
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.message import OutgoingMessage
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import Serve


@pytest.fixture
async def name(js: JetStream) -> AsyncIterator[str]:
    name = f"A{secrets.token_hex(4)}"
    await js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})
    yield name
    await js.api(f"STREAM.DELETE.{name}")


async def contents(js: JetStream, stream: str) -> list[bytes]:
    last = (await js.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    answers = [await js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}) for sequence in range(1, last + 1)]
    return [base64.b64decode(answer["message"]["data"]) for answer in answers]


async def test_many_are_answered_in_order(js: JetStream, name: str) -> None:
    futures = [await js.publish_async(f"{name}.x", b"%d" % number) for number in range(300)]
    await js.publish_async_complete()
    assert js.publish_async_pending == 0
    assert [future.result().seq for future in futures] == list(range(1, 301))
    assert [future.message.data for future in futures] == await contents(js, name)
    assert (await futures[0]).stream == name


async def test_options_and_headers_arrive_and_a_refusal_is_its_own_futures(js: JetStream, name: str) -> None:
    headers = {"Kind": ["a", "b"]}
    first = await js.publish_async(f"{name}.x", b"1", headers=headers, msg_id="one")
    again = await js.publish_async(f"{name}.x", b"1", headers=headers, msg_id="one")
    wrong = await js.publish_async(f"{name}.x", b"2", expected_last_sequence=7)
    assert (await first).seq == 1
    assert (await again).duplicate
    with pytest.raises(errors.WrongLastSequence):
        await wrong
    assert isinstance(wrong.exception(), errors.WrongLastSequence)
    assert (first.message.subject, first.message.data) == (f"{name}.x", b"1")
    block = base64.b64decode((await js.api(f"STREAM.MSG.GET.{name}", {"seq": 1}))["message"]["hdrs"])
    assert block == b"NATS/1.0\r\nKind: a\r\nKind: b\r\nNats-Msg-Id: one\r\n\r\n"
    assert headers == {"Kind": ["a", "b"]}
    options: dict[str, Any] = {"reply": "a.b"}
    with pytest.raises(errors.InvalidValue, match="reply"):
        await js.publish_async(f"{name}.x", **options)
    assert await contents(js, name) == [b"1"]


async def test_a_stream_that_comes_late_and_none_at_all(js: JetStream) -> None:
    name = f"A{secrets.token_hex(4)}"
    with pytest.raises(errors.NoStreamResponse):
        await (await js.publish_async(f"{name}.x"))
    # Three attempts in half a second: the stream exists before the last one, except on a very slow machine.
    for _ in range(10):
        late = await js.publish_async(f"{name}.x", b"late")
        await js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})
        await asyncio.wait([late])
        found = await contents(js, name)
        await js.api(f"STREAM.DELETE.{name}")
        if not late.exception():
            break
    assert found == [b"late"]


async def test_a_full_window_is_waited_for_or_refused(serve: Serve) -> None:
    server = serve("")
    with Proxy(server.port) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url)) as js:
            await js.api("STREAM.CREATE.F", {"name": "F", "subjects": ["F.>"]})
            await (await js.publish_async("F.x", b"open"))
            proxy.mute()
            for stall in (0.0, 0.3):
                async with js.publisher(max_pending=2, stall_timeout=stall) as publisher:
                    lost = [await publisher.publish("F.x", b"lost") for _ in range(2)]
                    began = time.monotonic()
                    with pytest.raises(errors.TooManyPending):
                        await publisher.publish("F.x", b"refused")
                    assert time.monotonic() - began >= stall
                    assert publisher.pending == 2
                    with pytest.raises(errors.RequestTimeout):
                        await publisher.complete(0.1)
                    for future in lost:
                        future.cancel()
            async with js.publisher(max_pending=2, ack_timeout=0.5) as publisher:
                futures = [await publisher.publish("F.x", b"waited") for _ in range(6)]  # until answers time out
                await publisher.complete()
                assert publisher.pending == 0
                assert all(isinstance(future.exception(), errors.RequestTimeout) for future in futures)
            proxy.muted = False
            await js.publish("F.x", b"last")
    # Unanswered messages were stored nevertheless, refused ones were not.
    async with connect(ConnectionSettings(servers=server.url)) as js:
        assert await contents(js, "F") == [b"open"] + [b"lost"] * 4 + [b"waited"] * 6 + [b"last"]


async def test_the_error_handler_gets_the_message_back(serve: Serve) -> None:
    server = serve("")
    failed: list[tuple[OutgoingMessage, Exception]] = []

    def note(message: OutgoingMessage, error: Exception) -> None:
        failed.append((message, error))
        raise ValueError  # it is logged, and has no other effect

    async with (
        connect(ConnectionSettings(servers=server.url)) as js,
        js.publisher(on_error=note, max_pending=1) as publisher,
    ):
        await js.api("STREAM.CREATE.E", {"name": "E", "subjects": ["E.>"]})
        await publisher.publish("E.x", b"kept", headers={"a": ["1", "2"]}, expected_stream="OTHER")
        await publisher.publish("E.x", b"fine")
        await publisher.complete()
        [(message, error)] = failed
        assert isinstance(error, errors.WrongStream)
        assert (message.subject, message.data, message.headers["a"]) == ("E.x", b"kept", ["1", "2"])
        await js.publish(message.subject, message.data, headers={"a": message.headers["a"]})
        assert await contents(js, "E") == [b"fine", b"kept"]


async def test_a_lost_connection_frees_all_slots_and_publishing_goes_on(serve: Serve) -> None:
    server = serve("")
    with Proxy(server.port) as proxy:
        async with connect(ConnectionSettings(servers=proxy.url)) as js:
            await js.api("STREAM.CREATE.R", {"name": "R", "subjects": ["R.>"]})
            await (await js.publish_async("R.x", b"1", msg_id="1"))
            proxy.mute()
            pending = [await js.publish_async("R.x", b"%d" % number, msg_id=str(number)) for number in (2, 3)]
            await asyncio.sleep(0.2)  # they reach the server
            proxy.cut()
            await js.publish_async_complete(20)  # long before the 30 s that it waits for answers
            assert all(isinstance(future.exception(), errors.ConnectionLost) for future in pending)
            deadline = time.monotonic() + 20
            while True:
                try:
                    again = [await js.publish_async("R.x", b"%d" % number, msg_id=str(number)) for number in (2, 3, 4)]
                    break
                except errors.ConnectionLost:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
            assert [(await future).seq for future in again] == [2, 3, 4]
            assert await contents(js, "R") == [b"1", b"2", b"3", b"4"]
            proxy.mute()
            last = await js.publish_async("R.x", b"5")
    assert isinstance(last.exception(), errors.ConnectionLost)  # closed


async def test_a_cancelled_future_frees_its_slot(serve: Serve) -> None:
    server = serve("")
    async with connect(ConnectionSettings(servers=server.url)) as js, js.publisher(max_pending=1) as publisher:
        await js.api("STREAM.CREATE.N", {"name": "N", "subjects": ["N.>"], "no_ack": True})
        for _ in range(3):
            (await publisher.publish("N.x")).cancel()
        await publisher.complete(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(await publisher.publish("N.x"), 0.1)  # which cancels it
        unanswered = await js.publish_async("N.x")
        with pytest.raises(errors.RequestTimeout, match=r"1 messages have no answer after 0\.1 s"):
            await js.publish_async_complete(0.1)
        unanswered.cancel()
        await js.publish_async_complete()
        while (await js.api("STREAM.INFO.N"))["state"]["messages"] < 5:
            pass


async def test_a_forbidden_subject_is_said(serve: Serve) -> None:
    server = serve(
        'authorization { users: [ { user: "a", password: "b", permissions: { publish: { deny: ["D.no"] } } } ] }'
    )
    async with (
        connect(ConnectionSettings(servers=server.url, user="a", password="b")) as js,
        js.publisher(ack_timeout=0.5) as publisher,
    ):
        await js.api("STREAM.CREATE.D", {"name": "D", "subjects": ["D.>"]})
        denied = await publisher.publish("D.no")
        with pytest.raises(errors.PermissionDenied):
            await denied
        assert (await (await js.publish_async("D.yes"))).seq == 1


async def test_a_refused_message_frees_its_slot_at_once(js: JetStream, name: str) -> None:
    """Nothing runs between the refusal and the next message, which needs the same slot."""
    too_large = b"x" * (js.connection.max_payload + 1)
    async with js.publisher(max_pending=1, stall_timeout=0) as publisher:
        for number in range(1, 4):
            with pytest.raises(errors.InvalidValue, match="max_payload"):
                await publisher.publish(f"{name}.x", too_large)
            assert publisher.pending == 0
            cancelled = await publisher.publish(f"{name}.x", b"cancelled")
            cancelled.cancel()
            assert publisher.pending == 0
            wrong = await publisher.publish(f"{name}.x", b"wrong", expected_stream="OTHER")
            await asyncio.wait([wrong])
            assert isinstance(wrong.exception(), errors.WrongStream)
            fine = await publisher.publish(f"{name}.x", b"fine")
            assert (await fine).seq == 2 * number
    assert await contents(js, name) == [b"cancelled", b"fine"] * 3


async def test_what_is_stored_is_told(js: JetStream, name: str) -> None:
    told: list[tuple[OutgoingMessage, PubAck]] = []
    failed: list[tuple[OutgoingMessage, Exception]] = []

    def note(message: OutgoingMessage, ack: PubAck) -> None:
        told.append((message, ack))
        raise ValueError  # it is logged, and has no other effect

    async with js.publisher(on_ack=note, on_error=lambda *what: failed.append(what)) as publisher:
        futures = [await publisher.publish(f"{name}.x", b"%d" % number) for number in range(5)]
        await publisher.publish(f"{name}.x", b"wrong", expected_stream="OTHER")
        await publisher.complete()
        assert [(message.data, ack.seq) for message, ack in told] == [(b"%d" % each, each + 1) for each in range(5)]
        assert [future.result() for future in futures] == [ack for _, ack in told]
    assert [message.data for message, _ in failed] == [b"wrong"]


async def test_how_often_and_when_it_is_sent_again_where_nobody_listens(js: JetStream) -> None:
    name = f"A{secrets.token_hex(4)}"
    took: list[float] = []
    clock = asyncio.get_running_loop().time
    for attempts, wait in ((0, 20.0), (1, 0.3), (4, 0.0)):
        began = clock()
        future = await js.publish_async(f"{name}.x", retry_attempts=attempts, retry_wait=wait)
        with pytest.raises(errors.NoStreamResponse):
            await future
        took.append(clock() - began)
        assert took[-1] >= attempts * wait
    assert took[0] < 20  # at once
    # The stream is created when the default two attempts would be over.
    late = await js.publish_async(f"{name}.x", b"late", retry_attempts=1_000, retry_wait=0.05)
    await asyncio.sleep(0.8)
    await js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})
    assert (await late).seq == 1
    await js.api(f"STREAM.DELETE.{name}")


async def test_a_publisher_that_was_closed_says_so(serve: Serve) -> None:
    server = serve("")
    told: list[Exception] = []
    async with connect(ConnectionSettings(servers=server.url)) as js:
        await js.api("STREAM.CREATE.C", {"name": "C", "subjects": ["C.>"], "no_ack": True})
        async with js.publisher(max_pending=2, on_error=lambda _, error: told.append(error)) as publisher:
            unanswered = [await publisher.publish("C.x") for _ in range(2)]
            waiting = asyncio.create_task(publisher.publish("C.x", b"never sent"))
            await asyncio.sleep(0)
            await publisher.close()
        for future in unanswered:
            with pytest.raises(
                errors.PublisherClosed, match=r"closed before the stream answered.*may have been stored"
            ):
                await future
        assert [type(each) for each in told] == [errors.PublisherClosed] * 2
        with pytest.raises(errors.PublisherClosed, match="was not sent because the publisher was closed"):
            await waiting
        with pytest.raises(errors.PublisherClosed, match="was not sent because the publisher was closed"):
            await publisher.publish("C.x", b"never sent")
        await publisher.close()
        assert publisher.pending == 0

        # The context's publisher can be closed too, and another one is made when it is needed.
        last = await js.publish_async("C.x")
        await js.publish_async_close()
        assert js.publish_async_pending == 0
        with pytest.raises(errors.PublisherClosed):
            await last
        await js.publish_async_close()
        await js.api("STREAM.UPDATE.C", {"name": "C", "subjects": ["C.>"]})
        assert (await (await js.publish_async("C.x"))).seq == 4
        assert (await js.api("STREAM.INFO.C"))["state"]["messages"] == 4
