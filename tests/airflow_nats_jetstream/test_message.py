"""Stored messages from a DAG: a message is returned as it was published, and a deleted one is gone from the server."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pendulum
import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import message
from airflow_nats_jetstream.operators.message import JetStreamDeleteMessageOperator, JetStreamGetMessageOperator
from jetstream_client.errors import (
    ApiError,
    InvalidValue,
    JetStreamError,
    MessageDeleteFailed,
    MessageNotFound,
    StreamNotFound,
)
from tests.airflow_nats_jetstream.steps import CONNECTION, execute, publish, rendered

DAY = pendulum.datetime(2026, 1, 1, tz="Europe/Berlin")


def get(stream: str, **which: Any) -> JetStreamGetMessageOperator:
    return JetStreamGetMessageOperator(task_id="get", stream=stream, nats_conn_id=CONNECTION, **which)


def deletion(stream: str, sequence: Any, **changes: Any) -> JetStreamDeleteMessageOperator:
    return JetStreamDeleteMessageOperator(
        task_id="delete", stream=stream, sequence=sequence, nats_conn_id=CONNECTION, **changes
    )


def gaps(hook: JetStreamHook, stream: str) -> tuple[int, list[int]]:
    """The stream's first sequence, and the missing sequences after it."""
    state = hook.run(lambda js: js.stream(stream).info(deleted=True)).state
    return state["first_seq"], state.get("deleted") or []


@pytest.mark.parametrize(
    ("data", "shown", "encoding"),
    [(b"gr\xc3\xbcn", "grün", "utf-8"), (b"", "", "utf-8"), (b"\xff\x00", "/wA=", "base64")],
)
def test_a_message_is_handed_on_as_json(
    hook: JetStreamHook, stream: str, data: bytes, shown: str, encoding: str
) -> None:
    hook.run(lambda js: js.publish(f"{stream}.a", data, headers={"Kind": ["x", "y"]}))
    got = execute(get(stream, sequence=1))
    time = got.pop("time")
    assert abs(datetime.fromisoformat(time[:19] + "+00:00") - datetime.now(UTC)) < timedelta(minutes=5)
    wanted = {"stream": stream, "subject": f"{stream}.a", "sequence": 1, "data": shown, "encoding": encoding}
    assert got == {**wanted, "headers": {"Kind": ["x", "y"]}}
    assert json.loads(json.dumps(got)) == got


@pytest.mark.parametrize(
    ("which", "sequence"),
    [
        ({"sequence": 5}, 5),
        ({"sequence": "{{ params.at }}"}, 4),
        ({"next_by_subject": "{stream}.1"}, 2),
        ({"sequence": 3, "next_by_subject": "{stream}.1"}, 5),
        ({"last_by_subject": "{stream}.*"}, 9),
        ({"last_by_subject": "{{ params.subject }}"}, 7),
        ({"start_time": datetime(2026, 1, 1, tzinfo=UTC)}, 1),
        ({"start_time": "2026-01-01T00:00:00Z", "next_by_subject": "{stream}.2"}, 3),
        ({"start_time": pendulum.datetime(2026, 1, 1, tz="Asia/Kolkata")}, 1),
        ({"start_time": "2026-01-01 05:30+05:30"}, 1),
        ({"start_time": "{{ data_interval_start }}"}, 1),
    ],
)
def test_gets_the_message_that_was_asked_for(
    hook: JetStreamHook, stream: str, which: dict[str, Any], sequence: int, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(hook, stream, 9)
    which = {
        name: str(each).replace("{stream}", stream) if isinstance(each, str) else each for name, each in which.items()
    }
    task = rendered(get(stream, **which), {"at": 4, "subject": f"{stream}.0"}, data_interval_start=DAY)
    assert execute(task)["sequence"] == sequence
    task.dry_run()
    assert f"would get message {sequence} of stream {stream}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({}, "sequence"),
        ({"sequence": 0}, "1 or more"),
        ({"sequence": True}, "1 or more"),
        ({"sequence": "one"}, "1 or more"),
        ({"sequence": 1, "last_by_subject": "a"}, "not both"),
        ({"sequence": 1, "start_time": "2026-01-01T00:00:00Z"}, "not both"),
        ({"next_by_subject": "a..b"}, "empty token"),
        ({"start_time": "2026-01-01"}, "start_time='2026-01-01'.*zone"),
        ({"start_time": "2026-01-01T00:00:00"}, "zone"),
        ({"start_time": "now"}, "zone"),
        ({"stream": "a b", "sequence": 1}, "name"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(which: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        get(**{"stream": "S", **which})
    for sequence in (0, "x", None):
        with pytest.raises(InvalidValue, match="1 or more"):
            deletion("S", sequence)


def test_what_is_not_there_or_too_large_is_an_error(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hook, stream, 1)
    with pytest.raises(MessageNotFound):
        execute(get(stream, sequence=2))
    with pytest.raises(StreamNotFound):
        execute(get(f"{stream}x", sequence=1))
    monkeypatch.setattr(message, "LARGEST_DATA", 9)
    with pytest.raises(JetStreamError, match="10 bytes"):
        execute(get(stream, sequence=1))


@pytest.mark.parametrize("secure", [False, True])
def test_a_message_is_deleted_and_deleting_it_again_is_as_wanted(
    hook: JetStreamHook, stream: str, secure: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(hook, stream, 5)
    deletion(stream, 3).dry_run()
    assert f"would be deleted: {stream}.2, stored" in capsys.readouterr().out
    assert gaps(hook, stream) == (1, [])
    for sequence in (3, 1):  # the second deletion of the first message causes another error
        answer = {"stream": stream, "sequence": sequence, "deleted": True}
        assert execute(deletion(stream, str(sequence), secure=secure)) == answer
        assert execute(deletion(stream, sequence, secure=secure)) == {**answer, "deleted": False}
    assert gaps(hook, stream) == (2, [3])
    deletion(stream, 1).dry_run()
    assert f"message 1 of stream {stream} does not exist" in capsys.readouterr().out


def test_what_cannot_be_deleted_is_an_error(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 5)
    with pytest.raises(ApiError):  # this sequence does not exist yet
        execute(deletion(stream, 6))
    hook.run(lambda js: js.update_stream({"name": stream, "deny_delete": True}))
    with pytest.raises(MessageDeleteFailed):
        execute(deletion(stream, 3))
    assert gaps(hook, stream) == (1, [])
