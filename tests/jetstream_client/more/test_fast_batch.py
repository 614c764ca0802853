"""Fast-ingest batches on both connections: after success, the stream has every message."""

import asyncio
import base64
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect, errors
from jetstream_client.context import JetStream
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.bulk import Publishable, publish_fast
from jetstream_client.publish.fast_window import FastWindow
from jetstream_client.publish.message import OutgoingMessage
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.servers import Serve

pytestmark = pytest.mark.server("2.14")


@pytest.fixture
async def name(js: JetStream) -> AsyncIterator[str]:
    name = f"F{secrets.token_hex(4)}"
    config = {"name": name, "subjects": [f"{name}.>"], "allow_batched": True, "max_msg_size": 1_000}
    await js.api(f"STREAM.CREATE.{name}", config)
    yield name
    await js.api(f"STREAM.DELETE.{name}")


async def contents(js: JetStream, stream: str) -> list[bytes]:
    last = (await js.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    answers = [await js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}) for sequence in range(1, last + 1)]
    return [base64.b64decode(answer["message"].get("data", "")) for answer in answers]


Way = Any


@pytest.fixture(params=["wire", "connection"])
def way(request: pytest.FixtureRequest, settings: ConnectionSettings, js: JetStream) -> Way:
    """Publish as one batch over one of the two connections."""

    async def over_wire(messages: Any, **options: Any) -> PubAck:
        return await asyncio.to_thread(publish_fast, settings, messages, **options)

    async def over_connection(messages: Any, **_: Any) -> PubAck:
        async with js.fast_batch() as batch:
            for subject, data, *headers in messages:
                await batch.add(subject, data, headers=headers[0] if headers else None)
            return await batch.commit()

    return over_wire if request.param == "wire" else over_connection


@pytest.mark.parametrize("count", [1, 2, 3, 2_500])
async def test_everything_arrives_in_order(js: JetStream, name: str, way: Way, count: int) -> None:
    ack = await way([(f"{name}.{number % 7}", b"%d" % number) for number in range(count)])
    assert (ack.stream, ack.seq, ack.batch_size) == (name, count, count)
    if count < 100:
        assert await contents(js, name) == [b"%d" % number for number in range(count)]
    else:
        assert (await js.api(f"STREAM.INFO.{name}"))["state"]["messages"] == count
        message = (await js.api(f"STREAM.MSG.GET.{name}", {"seq": 1_700}))["message"]
        assert base64.b64decode(message["data"]) == b"1699"


@pytest.mark.parametrize("at", [0, 1, 700])
async def test_a_refused_message_is_named_and_what_was_before_it_is_stored(
    js: JetStream, name: str, way: Way, at: int
) -> None:
    refused: list[tuple[tuple[Any, ...], type[Exception], int]] = [
        ((f"{name}.x", b"x" * 2_000), errors.MessageTooLarge, 10054),
        ((f"{name}.x", b"", {"Nats-Expected-Last-Subject-Sequence": "9999"}), errors.WrongLastSequence, 10071),
        (("nobody.listens", b""), errors.NoStreamResponse, 0),
    ]
    for bad, cause, code in refused:
        await js.api(f"STREAM.PURGE.{name}")
        messages: list[tuple[Any, ...]] = [(f"{name}.x", b"%d" % number) for number in range(1_000)]
        messages[at] = bad
        with pytest.raises(errors.PublishFailed) as failed:
            await way(messages)
        assert (failed.value.position, failed.value.subject) == (at, bad[0])
        assert isinstance(failed.value.cause, cause)
        assert getattr(failed.value.cause, "err_code", 0) == code
        assert failed.value.stored == (await js.api(f"STREAM.INFO.{name}"))["state"]["messages"] == at


async def test_a_message_that_the_server_counts_and_does_not_store_is_no_success(
    js: JetStream, name: str, way: Way
) -> None:
    messages: list[tuple[Any, ...]] = [(f"{name}.x", b"%d" % number) for number in range(1_000)]
    messages[7] = (f"{name}.x", b"", {"Nats-Expected-Last-Msg-Id": "none"})
    with pytest.raises(errors.PublishFailed) as failed:
        await way(messages)
    assert failed.value.position == 7
    assert isinstance(failed.value.cause, errors.WrongLastMessageId)
    assert failed.value.stored == (await js.api(f"STREAM.INFO.{name}"))["state"]["messages"] > 7
    async with js.fast_batch() as batch:
        with pytest.raises(errors.InvalidValue, match="expected_last_msg_id"):
            await batch.add(f"{name}.x", expected_last_msg_id="one")
        await batch.add(f"{name}.x")
        await batch.commit()


async def test_a_stream_without_them(js: JetStream, name: str, way: Way) -> None:
    await js.api(f"STREAM.CREATE.{name}_N", {"name": f"{name}_N", "subjects": [f"{name}_N"], "storage": "memory"})
    with pytest.raises(errors.PublishFailed) as failed:
        await way([(f"{name}_N", b"1"), (f"{name}_N", b"2")])
    assert isinstance(failed.value.cause, errors.BatchesDisabled)
    assert (failed.value.cause.err_code, failed.value.position, failed.value.stored) == (10205, 0, 0)
    assert (await js.api(f"STREAM.INFO.{name}_N"))["state"]["messages"] == 0
    await js.api(f"STREAM.DELETE.{name}_N")


async def test_each_message_has_options_of_its_own(js: JetStream, name: str) -> None:
    async with js.fast_batch() as batch:
        await batch.add(f"{name}.x", b"1", msg_id="one", headers={"Kind": ["a", "b"]})
        await batch.add(f"{name}.x", b"1", msg_id="one")  # counts, and is not stored again
        await batch.add(f"{name}.y", b"2", expected_stream=name, expected_last_subject_sequence=0)
        assert batch.size == 3
        ack = await batch.commit()
    assert (ack.batch_id, ack.batch_size, bool(batch.id)) == (batch.id, 3, True)
    assert await contents(js, name) == [b"1", b"2"]
    block = base64.b64decode((await js.api(f"STREAM.MSG.GET.{name}", {"seq": 1}))["message"]["hdrs"])
    assert block == b"NATS/1.0\r\nKind: a\r\nKind: b\r\nNats-Msg-Id: one\r\n\r\n"
    async with js.fast_batch() as batch:
        await batch.add(f"{name}.x", b"3")
        await batch.add(f"{name}.x", b"4", expected_stream="OTHER")
        with pytest.raises(errors.PublishFailed) as failed:
            await batch.commit()
    assert isinstance(failed.value.cause, errors.WrongStream)
    assert await contents(js, name) == [b"1", b"2", b"3"]


async def test_ids_stream_and_progress(settings: ConnectionSettings, name: str) -> None:
    messages: list[Publishable] = [(f"{name}.x", b"same")] * 2_000
    reported: list[int] = []
    first = publish_fast(settings, messages, stream=name, scope="run", progress=reported.append)
    assert (first.seq, first.batch_size, reported[-1]) == (2_000, 2_000, 2_000)
    again = publish_fast(settings, messages, stream=name, scope="run")
    assert again.batch_size == 2_000
    assert publish_fast(settings, [*messages, (f"{name}.x", b"new")], scope="run").seq == 2_001
    with pytest.raises(errors.PublishFailed) as failed:
        publish_fast(settings, messages, stream="OTHER")
    assert isinstance(failed.value.cause, errors.WrongStream)
    assert publish_fast(settings, [], stream=name) == PubAck(name, 0)


@pytest.mark.parametrize("at", [0, 1, 5])
async def test_a_message_that_cannot_be_sent_ends_it_before(
    js: JetStream, settings: ConnectionSettings, name: str, at: int
) -> None:
    messages: list[Any] = [(f"{name}.x", b"%d" % number) for number in range(10)]
    messages[at] = (f"{name}.*", b"")
    with pytest.raises(errors.PublishFailed) as failed:
        publish_fast(settings, messages)
    assert (failed.value.position, failed.value.stored) == (at, at)
    assert await contents(js, name) == [b"%d" % number for number in range(at)]
    stop = threading.Event()
    endless = ((f"{name}.x", b"") for _ in itertools.count())
    with pytest.raises(errors.PublishFailed, match="stopped") as stopped:
        publish_fast(settings, endless, progress=lambda count: stop.set() if count else None, stop=stop.is_set)
    assert stopped.value.stored == (await js.api(f"STREAM.INFO.{name}"))["state"]["messages"] - at


async def test_a_lost_message_is_a_gap_and_no_success(js: JetStream, name: str) -> None:
    async with js.fast_batch() as batch:
        for number in range(10):
            if number == 5:
                batch._window.sent += 1  # as if one had been lost
                batch._window.added += 1
                batch._window._subjects[batch._window.added] = f"{name}.x"
            await batch.add(f"{name}.x", b"%d" % number)
        with pytest.raises(errors.BatchGap) as gap:
            await batch.commit()
    assert gap.value.stored == gap.value.position
    assert await contents(js, name) == [b"%d" % number for number in range(gap.value.stored)]


async def test_a_slow_producer_keeps_its_batch(js: JetStream, name: str) -> None:
    async with js.fast_batch() as batch:
        await batch.add(f"{name}.x", b"1")
        await batch.add(f"{name}.x", b"2")
        await batch.ping()
        await batch.add(f"{name}.x", b"3")
        assert (await batch.commit()).batch_size == 3

    async def left() -> None:
        async with js.fast_batch() as batch:
            await batch.add(f"{name}.x", b"4")
            await batch.add(f"{name}.x", b"5")

    with pytest.raises(errors.JetStreamError, match="not committed"):
        await left()


def endless(subject: str) -> Iterator[Publishable]:
    for number in itertools.count():
        yield subject, b"%d" % number


async def test_a_lost_connection_ends_it_and_what_is_said_to_be_stored_is(serve: Serve) -> None:
    server = serve("")
    async with connect(ConnectionSettings(servers=server.url)) as js:
        await js.api("STREAM.CREATE.L", {"name": "L", "subjects": ["L.>"], "allow_batched": True})
        with Proxy(server.port) as proxy:
            through = ConnectionSettings(servers=proxy.url)
            with pytest.raises(errors.PublishFailed) as failed:
                publish_fast(through, endless("L.x"), progress=lambda count: proxy.cut() if count > 3_000 else None)
            assert isinstance(failed.value.cause, errors.ConnectionLost)
            assert 3_000 < failed.value.stored <= (await js.api("STREAM.INFO.L"))["state"]["messages"]
            assert failed.value.position == failed.value.stored
            async with connect(through) as other, other.fast_batch() as batch:
                await batch.add("L.x")
                await batch.add("L.x")
                proxy.mute()
                committing = asyncio.ensure_future(batch.commit())
                await asyncio.sleep(0.2)
                began = time.monotonic()
                proxy.cut()
                with pytest.raises(errors.PublishFailed) as ended:
                    await asyncio.wait_for(committing, 20)
                assert isinstance(ended.value.cause, errors.ConnectionLost)
                assert time.monotonic() - began < 9  # long before 10 s of silence


def window(count: int) -> FastWindow:
    made = FastWindow("_INBOX.a")
    for number in range(count):
        made.add(OutgoingMessage("a.b", b"", position=number))
        made.reply()
    return made


@pytest.mark.parametrize(
    "answers",
    [
        [b"not JSON"],
        [b'{"type":"ack","seq":-1,"msgs":5}'],
        [b'{"type":"gap"}'],
        [b'{"stream":"S","seq":5}'],  # stored outside the batch
        [b'{"stream":"S","seq":5,"batch":"another","count":3}'],
        [b'{"stream":"S","seq":5,"batch":"ID","count":2}'],
        [b'{"stream":"S","seq":5,"batch":"ID","count":4}'],
        [b'{"type":"err","seq":2,"error":{"err_code":10071}}', b'{"stream":"S","seq":5,"batch":"ID","count":3}'],
        [b'{"type":"gap","last_seq":2,"seq":3}', b'{"stream":"S","seq":5,"batch":"ID","count":3}'],
    ],
)
def test_answers_that_are_no_success(answers: list[bytes]) -> None:
    made = window(3)
    for answer in answers:
        try:
            made.on_answer(f"_INBOX.a.{made.id}.500.fail.3.1.$FI", 0, answer.replace(b"ID", made.id.encode()))
        except errors.JetStreamError as error:
            made.give_up(error)
    assert made.failed
    with pytest.raises(errors.PublishFailed):
        made.result()
