"""Streams on a real server: created, changed and purged as requested, without other changes."""

from datetime import timedelta

import pytest

from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ApiError,
    InvalidValue,
    MessageNotFound,
    NoStreamResponse,
    StreamNameInUse,
    StreamNotFound,
)


async def test_an_update_changes_the_asked_field_and_no_other(js: JetStream, name: str) -> None:
    config = {
        "name": name,
        "subjects": [f"{name}.>"],
        "description": "kept",
        "max_age": timedelta(seconds=1, milliseconds=1),
        "max_msgs_per_subject": 5,
        "duplicate_window": timedelta(milliseconds=1001),
        "allow_direct": True,
        "metadata": {"team": "blue"},
        "discard": "new",
    }
    stream, created = await js.create_or_update_stream(config)
    assert created is None
    before = (await stream.info()).config
    assert before["max_age"] == 1_001_000_000
    _, changes = await js.create_or_update_stream({"name": name, "max_msgs": 100})
    assert changes == {"max_msgs": (-1, 100)}
    assert (await stream.info()).config == before | {"max_msgs": 100}
    assert (await js.create_or_update_stream(config))[1] == {}


async def test_creating_another_one_of_the_name_is_an_error(js: JetStream, name: str) -> None:
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    with pytest.raises(StreamNameInUse):
        await js.create_stream({"name": name, "subjects": [f"{name}.other"]})


@pytest.mark.server("2.12")
async def test_what_the_server_refuses_keeps_its_code_and_text(js: JetStream, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        await js.create_stream({"name": name, "subjects": [f"{name}.>"], "no_such_field": 1})
    assert refused.value.err_code == 10025
    with pytest.raises(StreamNotFound):
        await js.stream(name).info()


async def test_purge_returns_the_count(js: JetStream, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    for number in range(10):
        await js.publish(f"{name}.{number % 2}", b"x")
    assert await stream.purge(subject=f"{name}.0") == 5
    assert await stream.purge(sequence=5) == 2  # 2 and 4 remain below it
    assert await stream.purge(keep=2) == 1
    assert (await stream.info()).state["messages"] == 2
    for wrong in ({"sequence": 0}, {"keep": 0}, {"sequence": 1, "keep": 1}, {"subject": "a..b"}):
        with pytest.raises(InvalidValue):
            await stream.purge(**wrong)
    assert (await stream.info()).state["messages"] == 2
    assert await stream.purge() == 2


async def test_stored_messages(js: JetStream, name: str) -> None:
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    ack = await js.publish(f"{name}.a", b"", headers={"X-Kind": "empty"}, msg_id="one")
    again = await js.publish(f"{name}.a", b"", msg_id="one")
    assert (ack.seq, ack.duplicate, again.seq, again.duplicate) == (1, False, 1, True)
    stored = await stream.get_message(1)
    assert (stored.subject, stored.data) == (f"{name}.a", b"")
    assert stored.headers["X-Kind"] == ["empty"]
    with pytest.raises(MessageNotFound):
        await stream.get_message(2)
    with pytest.raises(NoStreamResponse, match="no stream listens"):
        await js.publish("nobody.listens", b"")


@pytest.mark.parametrize("bad", ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "x" * 256, None, 3])
def test_names_that_jetstream_forbids(bad: object) -> None:
    from jetstream_client.config import check_stream_config

    with pytest.raises(InvalidValue):
        check_stream_config({"name": bad})


@pytest.mark.parametrize("bad", ["", ".", "a..b", "a.", "a b", ">.a"])
def test_subjects_that_jetstream_forbids(bad: str) -> None:
    from jetstream_client.config import check_stream_config

    with pytest.raises(InvalidValue):
        check_stream_config({"name": "S", "subjects": [bad]})
