"""A stream's state and stored messages, read, deleted and purged (FEATURES, section 4), judged by the server."""

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, Trace, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    DirectGetDisabled,
    InvalidValue,
    MessageDeleteFailed,
    MessageNotFound,
    ProtocolError,
    PurgeFailed,
    RequestTimeout,
    SequenceNotFound,
    StreamNotFound,
    TooManyResults,
)
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import stored
from jetstream_client.stream import Stream
from jetstream_client.trace import ResponseReceived
from jetstream_client.wire.protocol import Reply
from tests.installed_server import has
from tests.jetstream_client.servers import Ask


@pytest.fixture
async def stream(js: JetStream, name: str) -> Stream:
    """Ten messages on ``<name>.0``, ``.1`` and ``.2`` in turn. The fifth is empty, and the others have headers."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    for number in range(10):
        headers = {"Nats-Subject": "its own", "X": f"{number}"} if number != 4 else None
        await js.publish(f"{name}.{number % 3}", b"" if number == 4 else b"data %d" % number, headers=headers)
    return stream


@pytest.mark.parametrize("direct", [False, True])
async def test_one_message(stream: Stream, ask: Ask, direct: bool) -> None:
    """Each way to select a message, compared with the server's raw answer."""
    name = stream.name
    time = (await ask(f"STREAM.MSG.GET.{name}", {"seq": 7}))["message"]["time"]
    for choice, body in [
        ({"sequence": 3}, {"seq": 3}),
        ({"sequence": 5}, {"seq": 5}),
        ({"sequence": 3, "next_by_subject": f"{name}.0"}, {"seq": 3, "next_by_subj": f"{name}.0"}),
        ({"next_by_subject": f"{name}.2"}, {"next_by_subj": f"{name}.2"}),
        ({"last_by_subject": f"{name}.1"}, {"last_by_subj": f"{name}.1"}),
        ({"last_by_subject": f"{name}.*"}, {"last_by_subj": f"{name}.*"}),
        ({"start_time": time}, {"start_time": time}),
        ({"start_time": datetime.fromisoformat(time)}, {"seq": 7}),  # truncated: not later than the message
    ]:
        message = await stream.get_message(**choice, direct=direct)  # type: ignore[arg-type]
        server = (await ask(f"STREAM.MSG.GET.{name}", body))["message"]
        assert (message.sequence, message.subject) == (server["seq"], server["subject"])
        assert message.data == base64.b64decode(server.get("data", ""))
        number = message.sequence - 1
        assert message.headers == ({} if number == 4 else {"Nats-Subject": ["its own"], "X": [f"{number}"]})
        assert datetime.fromisoformat(message.time) == datetime.fromisoformat(server["time"])
    for nothing in ({"sequence": 11}, {"last_by_subject": "x"}, {"start_time": datetime(2100, 1, 1, tzinfo=UTC)}):
        with pytest.raises(MessageNotFound):
            await stream.get_message(**nothing, direct=direct)
    for wrong in (
        {},
        {"sequence": 0},
        {"sequence": True},
        {"sequence": 1, "last_by_subject": "x"},
        {"sequence": 1, "start_time": time},
        {"next_by_subject": "a..b"},
        {"start_time": "yesterday"},
    ):
        with pytest.raises(InvalidValue):
            await stream.get_message(**wrong, direct=direct)


@pytest.mark.server("2.12")
async def test_the_data_alone(stream: Stream, ask: Ask) -> None:
    name = stream.name
    for choice, body in [
        ({"sequence": 3}, {"seq": 3}),
        ({"sequence": 5}, {"seq": 5}),  # empty
        ({"next_by_subject": f"{name}.2"}, {"next_by_subj": f"{name}.2"}),
        ({"last_by_subject": f"{name}.1"}, {"last_by_subj": f"{name}.1"}),
    ]:
        server = (await ask(f"STREAM.MSG.GET.{name}", body))["message"]
        assert await stream.get_data(**choice) == base64.b64decode(server.get("data", ""))  # type: ignore[arg-type]
    answers: list[ResponseReceived] = []
    trace = Trace(response_received=answers.append)
    traced = stream.js.with_options(trace=trace).stream(name)
    await traced.get_data(3)
    await traced.get_data(last_by_subject=f"{name}.1")
    assert [answer.headers for answer in answers if ".DIRECT." in answer.subject] == [{}, {}]
    with pytest.raises(MessageNotFound):
        await stream.get_data(11)
    with pytest.raises(InvalidValue):
        await stream.get_data()


async def test_direct_gets_where_there_are_none(stream: Stream) -> None:
    await stream.update({"allow_direct": False})
    with pytest.raises(DirectGetDisabled, match="allow_direct=true"):
        await stream.get_message(1, direct=True)
    with pytest.raises(DirectGetDisabled):
        await listed(stream.get_messages())
    if has("2.12"):
        with pytest.raises(DirectGetDisabled):
            await stream.get_data(1)
    with pytest.raises(StreamNotFound):
        await stream.js.stream("NONE").get_message(1, direct=True)


async def listed(messages: Any) -> list[int]:
    return [message.sequence async for message in messages]


async def test_many_messages(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "BATCH", 4)  # several pages
    await stream.delete_message(6)
    name = stream.name
    everything = [1, 2, 3, 4, 5, 7, 8, 9, 10]
    time = (await stream.get_message(8)).time
    assert await listed(stream.get_messages()) == everything
    assert await listed(stream.get_messages(3, count=6)) == everything[2:8]
    assert await listed(stream.get_messages(next_by_subject=f"{name}.0")) == [1, 4, 7, 10]
    assert await listed(stream.get_messages(start_time=time)) == [8, 9, 10]
    assert await listed(stream.get_messages(11)) == []
    assert [message.data async for message in stream.get_messages(4, count=2)] == [b"data 3", b""]
    assert await listed(stream.get_last_messages([f"{name}.*"])) == [8, 9, 10]
    assert await listed(stream.get_last_messages([f"{name}.0", f"{name}.1"], up_to_sequence=7)) == [5, 7]
    assert await listed(stream.get_last_messages([f"{name}.>"], up_to_time=time)) in ([5, 7], [3, 5, 7])
    assert await listed(stream.get_last_messages(["nobody"])) == []
    for subjects in ([], ["a..b"]):
        with pytest.raises(InvalidValue):
            stream.get_last_messages(subjects)
    with pytest.raises(InvalidValue):
        stream.get_last_messages(["a"], up_to_sequence=1, up_to_time=time)
    with pytest.raises(InvalidValue):
        stream.get_messages(count=0)


async def test_last_messages_are_of_one_moment_over_all_pages(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BATCH", 100)
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    await asyncio.to_thread(publish_all, js.settings, [(f"{name}.{number:04}", b"") for number in range(1_024)])
    sequences = []
    async for message in stream.get_last_messages([f"{name}.>"]):
        sequences.append(message.sequence)
        if message.sequence == 50:
            await js.publish(f"{name}.0900", b"later")
    assert sequences == list(range(1, 1_025))
    await js.publish(f"{name}.more")
    with pytest.raises(TooManyResults):
        await listed(stream.get_last_messages([f"{name}.>"]))


@pytest.mark.parametrize("lost", [4, 10])
async def test_what_was_lost_on_its_way_is_not_silent(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """One message of the ten, or the last, is lost on its way, as if the connection had broken and been restored."""
    inbox = stream.js.connection.inbox

    def leaking(deliver: Callable[[Reply], None]) -> Any:
        def leak(reply: Reply) -> None:
            if reply.headers.get("Nats-Sequence") != [str(lost)]:
                deliver(reply)

        return inbox(leak)

    monkeypatch.setattr(stream.js.connection, "inbox", leaking)
    monkeypatch.setattr(stored, "BATCH", 3)
    returned: list[int] = []

    async def read_all() -> None:
        async for message in stream.get_messages():
            returned.append(message.sequence)  # noqa: PERF401 - an exception keeps what has been appended

    with pytest.raises(ConnectionLost, match="lost on the way from the server") as ended:
        await read_all()
    assert ended.value.last_sequence == len(returned) == lost - 1  # from there on, a reader can continue


@pytest.mark.parametrize(("sequence", "before"), [("4", "0"), ("9", "x"), ("-1", "0")])
async def test_a_batch_that_is_none(js: JetStream, name: str, sequence: str, before: str) -> None:
    """Another client's answer, here with a lower sequence or without one, is an error at once."""
    headers = {"Nats-Sequence": sequence, "Nats-Last-Sequence": before, "Nats-Subject": "s", "Nats-Time-Stamp": "t"}
    asked: asyncio.Queue[str] = asyncio.Queue()
    async with (
        js.connection.listen(f"{name}.DIRECT.GET.S", lambda request: asked.put_nowait(request.reply)),
        asyncio.TaskGroup() as tasks,
    ):
        messages = js.with_options(api_prefix=name).stream("S").get_messages(5)
        getting = tasks.create_task(refused(messages))
        await js.connection.publish(await asked.get(), b"x", headers=headers)
        assert await getting is ProtocolError


async def refused(messages: Any) -> type[BaseException]:
    with pytest.raises(ProtocolError) as error:
        await listed(messages)
    return error.type


async def test_a_batch_of_a_server_that_is_gone(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, request_timeout=0.5)) as js:
            stream = js.stream("S")
            async with js.connection.listen("$JS.API.DIRECT.GET.S", lambda _: None):
                with pytest.raises(RequestTimeout, match=r"DIRECT.GET.S"):
                    await listed(stream.get_messages())
    finally:
        server.stop()


async def test_deleting(stream: Stream, ask: Ask, nats_server: NatsServer) -> None:
    """A plain deletion leaves the bytes in the block's file, and a secure deletion overwrites them."""
    sent: list[bytes] = []
    await (
        stream.js.with_options(trace=Trace(lambda event: sent.append(event.data))).stream(stream.name).delete_message(2)
    )
    assert sent == [b'{"seq": 2, "no_erase": true}']
    await stream.secure_delete_message(4)
    state = (await ask(f"STREAM.INFO.{stream.name}", {"deleted_details": True}))["state"]
    assert (state["messages"], state["deleted"]) == (8, [2, 4])
    assert (await stream.info(deleted=True)).state["deleted"] == [2, 4]
    assert "deleted" not in (await stream.info()).state
    blocks = b"".join(path.read_bytes() for path in nats_server.store.glob(f"**/{stream.name}/msgs/*.blk"))
    assert (b"data 1" in blocks, b"data 3" in blocks, b"data 5" in blocks) == (True, False, True)
    for delete in (stream.delete_message, stream.secure_delete_message):
        with pytest.raises(SequenceNotFound, match="sequence 2 not found"):
            await delete(2)
        with pytest.raises(MessageDeleteFailed):
            await delete(99)
        for wrong in (0, -1, True, "3"):
            with pytest.raises(InvalidValue):
                await delete(wrong)  # type: ignore[arg-type]
    await stream.update({"deny_delete": True, "deny_purge": True})
    with pytest.raises(MessageDeleteFailed, match="not permitted"):
        await stream.delete_message(1)
    with pytest.raises(PurgeFailed, match="not permitted"):
        await stream.purge()
    assert (await ask(f"STREAM.INFO.{stream.name}"))["state"]["messages"] == 8


async def test_purging(stream: Stream, ask: Ask) -> None:
    async def left() -> int:
        messages: int = (await ask(f"STREAM.INFO.{stream.name}"))["state"]["messages"]
        return messages

    assert (await stream.purge(subject=f"{stream.name}.0", sequence=5), await left()) == (2, 8)  # 1 and 4
    assert (await stream.purge(subject=f"{stream.name}.0", keep=1), await left()) == (1, 7)  # 7, not 10
    assert (await stream.purge(sequence=6), await left()) == (3, 4)  # 2, 3, 5
    assert (await stream.purge(keep=3), await left()) == (1, 3)
    assert (await stream.purge(subject="nobody"), await left()) == (0, 3)
    assert (await stream.purge(), await left()) == (3, 0)


async def test_info(stream: Stream, ask: Ask) -> None:
    name = stream.name
    info = await stream.info(subjects_filter=f"{name}.*")
    server = await ask(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.*"})
    later = await stream.info()
    assert datetime.fromisoformat(info.now) < datetime.fromisoformat(server["ts"]) < datetime.fromisoformat(later.now)
    assert info.state == server["state"]
    assert info.state["subjects"] == {f"{name}.0": 4, f"{name}.1": 3, f"{name}.2": 3}
    assert {"first_ts", "last_ts", "num_subjects", "consumer_count"} <= info.state.keys()
    assert info.cluster["leader"] == server["cluster"]["leader"]
    assert (info.mirror, info.sources, info.created) == (None, [], server["created"])
    assert (await stream.info(subjects_filter="nobody")).state["subjects"] == {}
    await stream.js.publish(f"{name}.0")
    assert stream.cached_info
    assert stream.cached_info.state["messages"] == 10
    assert (await stream.info()).state["messages"] == 11
    assert stream.cached_info.state["messages"] == 11
    with pytest.raises(InvalidValue):
        await stream.info(subjects_filter="a..b")


async def test_subjects_of_all_pages(js: JetStream, name: str) -> None:
    """The server sends 100,000 at a time."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.*"], "storage": "memory"})
    await asyncio.to_thread(publish_all, js.settings, [(f"{name}.{number}", b"") for number in range(100_002)])
    info = await js.with_options(request_timeout=60).stream(name).info(subjects_filter=">")
    assert info.state["subjects"] == {f"{name}.{number}": 1 for number in range(100_002)}
    await stream.delete()


def test_an_answer_that_is_no_message() -> None:
    for headers in ({}, {"Nats-Sequence": ["x"], "Nats-Subject": ["s"], "Nats-Time-Stamp": [""]}):
        with pytest.raises(ProtocolError):
            stored.direct_message(Reply("", "", 0, "", headers, b""))


async def test_other_statuses_keep_their_words(stream: Stream) -> None:
    with pytest.raises(ApiError) as refused:
        await stored.request_direct(stream, {"seq": 1, "last_by_subj": "*"})
    assert (type(refused.value).__name__, refused.value.code) == ("BadRequest", 408)
