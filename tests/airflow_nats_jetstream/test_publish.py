"""Publishing: each test asks the stream afterwards what it has stored."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pendulum
import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    BatchesDisabled,
    BatchPartlyStored,
    ConnectionLost,
    DuplicatesPossible,
    InvalidValue,
    NoStreamResponse,
    PermissionDenied,
    PublishFailed,
    RequestTimeout,
    StreamNotFound,
    WrongLastMessageId,
    WrongLastSequence,
)
from jetstream_client.publish.options import PublishOptions
from jetstream_client.read.message import StoredMessage
from jetstream_client.wire.blocking import Wire
from tests.airflow_nats_jetstream.steps import CONNECTION, State, execute, publish, rendered
from tests.jetstream_client.until import until


def publishing(stream: str, messages: Any, **changes: Any) -> JetStreamPublishOperator:
    return JetStreamPublishOperator(
        task_id="publish", stream=stream, messages=messages, nats_conn_id=CONNECTION, **changes
    )


def held(hook: JetStreamHook, stream: str) -> int:
    return int(hook.run(lambda js: js.stream(stream).info()).state["messages"])


def stored(hook: JetStreamHook, stream: str, sequence: int) -> StoredMessage:
    return hook.run(lambda js: js.stream(stream).get_message(sequence))


def test_what_a_callable_gives(hook: JetStreamHook, stream: str) -> None:
    def numbers() -> Iterator[tuple[str, bytes]]:
        for number in range(5_000):
            yield f"{stream}.{number % 3}", b"%d" % number

    outcome = execute(publishing(stream, numbers))
    told = {"stream": stream, "stored": 5_000, "duplicates": 0, "first": 1, "last": 5_000, "in_order": True}
    assert outcome == told
    assert held(hook, stream) == 5_000
    assert stored(hook, stream, 5_000).data == b"4999"


def test_a_retry_stores_nothing_twice_and_another_run_does(hook: JetStreamHook, stream: str) -> None:
    messages = [(f"{stream}.a", b"same")] * 3 + [(f"{stream}.a", b"other")]
    assert execute(publishing(stream, messages))["stored"] == 4
    again = execute(publishing(stream, messages), try_number=2)
    assert (again["stored"], again["duplicates"]) == (0, 4)
    assert execute(publishing(stream, messages), run_id="next")["stored"] == 4
    assert held(hook, stream) == 8


def forgotten(hook: JetStreamHook, stream: str) -> None:
    """Let the stream forget the ids of its messages.

    When the window changes, nats-server looks through its ids at once, and sometimes still with the old window: in its
    ``server/stream.go``, ``updateWithAdvisory`` resets the timer before it stores the configuration. So the window is
    changed until the ids are forgotten.
    """
    windows = cycle([timedelta(milliseconds=100), timedelta(milliseconds=101)])
    hook.run(lambda js: js.stream(stream).update({"duplicate_window": next(windows)}))
    sequence = hook.run(lambda js: js.stream(stream).info()).state["last_seq"]
    if not sequence:
        return
    last = stored(hook, stream, sequence)
    known: PublishOptions = {"msg_id": last.headers["Nats-Msg-Id"][0], "expected_last_msg_id": "nobody's"}

    async def forgets(js: JetStream) -> bool:
        await js.stream(stream).update({"duplicate_window": next(windows)})
        await asyncio.sleep(0.2)
        try:
            return not (await js.publish(last.subject, b"", **known)).duplicate
        except WrongLastMessageId:  # because the server checks the id first
            return True

    hook.run(lambda js: until(lambda: forgets(js)))


def test_a_retry_after_the_window_finds_what_is_stored(hook: JetStreamHook, stream: str) -> None:
    """Also after a kill: tests/jetstream_client/publish/test_position.py and tests/airflow_system/test_publish.py."""
    state = State()

    def fails() -> Iterator[tuple[str, bytes]]:
        for number in range(3_000):
            yield f"{stream}.a", b"%d" % number
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        execute(publishing(stream, fails), state=state)
    forgotten(hook, stream)
    before = held(hook, stream)
    assert 0 < before <= 3_000
    messages = [(f"{stream}.a", b"%d" % number) for number in reversed(range(5_000))]
    again = execute(publishing(stream, messages), try_number=2, state=state)
    assert (again["stored"], again["duplicates"], again["in_order"]) == (5_000 - before, before, False)
    assert held(hook, stream) == 5_000
    forgotten(hook, stream)
    cleared = execute(publishing(stream, messages), try_number=3, state=state)
    assert (cleared["stored"], cleared["first"], cleared["last"]) == (0, 1, 5_000)
    assert held(hook, stream) == 5_000


def test_the_position_is_kept_before_the_first_message(hook: JetStreamHook, stream: str) -> None:
    state = State()

    def fails() -> Iterator[tuple[str, bytes]]:
        yield f"{stream}.a", b"1"
        kept.update(state.values)
        raise ValueError("the source broke")

    kept: dict[str, Any] = {}
    with pytest.raises(ValueError, match="the source broke"):
        execute(publishing(stream, fails), state=state)
    created = hook.run(lambda js: js.stream(stream).info()).created
    position = kept[f"jetstream_position_{stream}"]
    assert (position["created"], position["last"]) == (created, 0)


def test_a_first_try_does_not_look(hook: JetStreamHook, stream: str) -> None:
    """Other clients may publish to the stream and purge it before the first message."""

    def disturbed() -> Iterator[tuple[str, bytes]]:
        yield f"{stream}.a", b"1"

    class Late(State):
        def set(self, key: str, value: Any, *, retention: timedelta) -> None:
            super().set(key, value, retention=retention)
            publish(hook, stream, 10)
            hook.run(lambda js: js.stream(stream).purge())

    forgotten(hook, stream)
    assert execute(publishing(stream, disturbed), state=Late())["stored"] == 1
    assert held(hook, stream) == 1


def test_what_cannot_be_found_out_is_refused_or_accepted(hook: JetStreamHook, stream: str) -> None:
    state = State()
    messages = [(f"{stream}.a", b"%d" % number) for number in range(10)]
    execute(publishing(stream, messages), state=state)
    hook.run(lambda js: js.stream(stream).purge(keep=4))
    forgotten(hook, stream)
    with pytest.raises(DuplicatesPossible, match=r"6 of the messages.*accept_duplicates=True"):
        execute(publishing(stream, messages), try_number=2, state=state)
    assert held(hook, stream) == 4
    told = execute(publishing(stream, messages, accept_duplicates=True), try_number=2, state=state)
    assert (told["stored"], told["duplicates"]) == (6, 4)
    assert held(hook, stream) == 10


def test_without_such_a_stream_nothing_is_sent(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(StreamNotFound):
        execute(publishing("NONE", [(f"{stream}.a", b"1")]))
    assert held(hook, stream) == 0


def test_an_account_that_may_only_publish_must_accept_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = 'permissions: { publish: "S.>", subscribe: "_INBOX.>" }'
    users = f"{{user: a, password: a}}, {{user: p, password: p, {may}}}"
    server = NatsServer(tmp_path, f"authorization {{ users: [{users}] }}")
    server.start()
    try:
        with Wire.open(ConnectionSettings(servers=server.url, user="a", password="a")) as wire:
            wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
        extra = {"servers": server.url, "request_timeout": 0.3}
        publisher = {"conn_type": "nats", "login": "p", "password": "p", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(publisher))
        state = State()
        with pytest.raises((RequestTimeout, PermissionDenied), match=r"STREAM\.INFO\.S"):
            execute(publishing("S", [("S.a", b"1")]), state=state)
        told = execute(publishing("S", [("S.a", b"1")], accept_duplicates=True), state=state)
        assert (told["stored"], told["first"], state.values) == (1, 1, {})
    finally:
        server.stop()


def test_every_kind_of_message(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    subject = f"{stream}.x"
    messages = [
        (subject, b"\x00\xff"),
        (subject, "grün"),
        (subject, {"n": 1}, {"Kind": "json"}),
        {"subject": subject, "data": [1, 2], "headers": {"Kind": ["a", "b"]}},
        [subject, None],
    ]
    execute(publishing(stream, messages))
    found = [stored(hook, stream, sequence) for sequence in range(1, 6)]
    assert [each.data for each in found] == [b"\x00\xff", "grün".encode(), b'{"n": 1}', b"[1, 2]", b"null"]
    assert [each.headers.get("Kind") for each in found[2:4]] == [["json"], ["a", "b"]]
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(json.dumps({"subject": subject, "data": number}) + "\n" for number in range(3)) + "\n")
    assert execute(publishing(stream, str(file)))["stored"] == 3
    assert stored(hook, stream, 8).data == b"2"


def test_where_no_stream_listens(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(
        PublishFailed, match=r"message 1 for 'nobody\.x'.*no stream listens.*1 other messages were"
    ) as failure:
        execute(publishing(stream, [(f"{stream}.a", b"1"), ("nobody.x", b"2")]))
    assert isinstance(failure.value.cause, NoStreamResponse)


def test_one_refused_message_is_named_and_the_rest_counted(hook: JetStreamHook, stream: str) -> None:
    hook.run(lambda js: js.stream(stream).update({"max_msg_size": 100}))
    messages = [(f"{stream}.a", b"x" * (500 if number == 20_000 else 5)) for number in range(30_000)]
    with pytest.raises(PublishFailed, match="message size exceeds") as failure:
        execute(publishing(stream, messages))
    assert failure.value.position == 20_000
    assert failure.value.stored == held(hook, stream) >= 20_000


def test_another_streams_subject_is_refused(hook: JetStreamHook, stream: str) -> None:
    hook.run(lambda js: js.create_stream({"name": f"{stream}B", "subjects": [f"{stream}B"]}))
    try:
        with pytest.raises(PublishFailed, match="expected stream"):
            execute(publishing(stream, [(f"{stream}B", b"1")]))
        assert held(hook, f"{stream}B") == 0
    finally:
        hook.run(lambda js: js.stream(f"{stream}B").delete())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (("a..b", b""), "empty token"),
        (("a.*", b""), "must not contain the wildcards"),
        (("a",), "subject, data"),
        ({"subject": "a"}, "subject, data"),
        ("text", "subject, data"),
        (("a", b"", {"Shop": 5}), "headers"),
        (("a", b"", {"Shop": [5]}), "Shop.*must be strings"),
        (("a", b"", {"Shop name": "5"}), "header name must be visible"),
        (("a", b"", {"Shop": "5\nNats-Rollup: all"}), "Shop.*line break"),
        (("a", b"", [("Shop", "5")]), "headers=.*mapping"),
        ({"subject": "a", "data": "1", "headers": {"Shop": None}}, "headers"),
    ],
)
def test_what_is_no_message_is_named_by_its_position(hook: JetStreamHook, stream: str, message: Any, says: str) -> None:
    """When the DAG is parsed if it is literal, and otherwise when the task reads it."""
    messages = [(f"{stream}.a", b"1"), message]
    with pytest.raises(InvalidValue, match=rf"^messages\[1\].*{says}"):
        publishing(stream, messages)
    with pytest.raises(PublishFailed, match=says) as failure:
        execute(publishing(stream, lambda: messages))
    assert (failure.value.position, failure.value.stored) == (1, 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"amount": Decimal("12.30")}, r"data\.amount=Decimal\('12\.30'\): .*type Decimal.*str\(value\)"),
        ({"rows": [{"on": date(2026, 11, 26)}]}, r"data\.rows\[0\]\.on=.*type date.*isoformat"),
        ([1, UUID(int=5)], r"data\[1\]=UUID.*type UUID.*str\(value\)"),
        (datetime(2026, 11, 26, tzinfo=UTC), "data=.*type datetime.*isoformat"),
        ({"took": timedelta(seconds=5)}, r"data\.took=.*total_seconds"),
        ({"a b": {1}}, r"data\['a b'\]=\{1\}.*type set.*sorted"),
        ({"raw": b"x"}, r"data\.raw=b'x'.*type bytes.*base64"),
        ({"rate": float("nan")}, r"data\.rate=nan.*no NaN"),
        ({(1, 2): 3}, r"data\[\(1, 2\)\]=.*a key of JSON is a string"),
        (MappingProxyType({"a": 1}), r"data=.*mappingproxy.*dict\(value\)"),
        ("a\ud800", "data='a.*contains surrogates"),
    ],
    ids=lambda each: None if isinstance(each, str) else type(each).__name__,
)
def test_a_value_that_json_cannot_represent_is_named(hook: JetStreamHook, stream: str, data: Any, says: str) -> None:
    """It was a bare TypeError or UnicodeEncodeError, and NaN was published as something that is not JSON."""
    messages = [(f"{stream}.a", b"1"), (f"{stream}.a", data)]
    with pytest.raises(InvalidValue, match=rf"^messages\[1\]\.{says}"):
        publishing(stream, messages)
    with pytest.raises(PublishFailed, match=f"message 1 .*{says}") as failure:
        execute(publishing(stream, lambda: messages))
    assert (failure.value.position, failure.value.stored, held(hook, stream)) == (1, 1, 1)


def test_a_template_in_a_message_is_checked_when_it_is_rendered(hook: JetStreamHook, stream: str) -> None:
    messages = [("{{ params.subject }}", b""), (f"{stream}.a", b"", {"Shop": "{{ params.shop }}"})]
    task = publishing(stream, messages, ttl="{{ params.ttl }}")
    with pytest.raises(PublishFailed, match=r"^message 1 .*line break"):
        execute(rendered(task, {"subject": f"{stream}.a", "shop": "a\nb", "ttl": "None"}))
    with pytest.raises(InvalidValue, match=r"^messages\[2\]\.subject='a\.\.b'"):
        publishing(stream, [*messages, ("a..b", b"")])


def test_a_value_that_contains_itself_or_is_too_deep_is_refused(hook: JetStreamHook, stream: str) -> None:
    itself: list[Any] = []
    itself.append({"again": itself})
    with pytest.raises(PublishFailed, match=r"data\[0\]\.again=.*contains itself"):
        execute(publishing(stream, lambda: [(f"{stream}.a", itself)]))
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PublishFailed, match=r"data=.*cannot be converted to JSON"):
        execute(publishing(stream, lambda: [(f"{stream}.a", deep)]))


def test_a_value_that_json_cannot_represent_is_named_before_a_batch_is_sent(hook: JetStreamHook, batches: str) -> None:
    messages = [(f"{batches}.a", b"1"), (f"{batches}.a", {"amount": Decimal(1)})]
    with pytest.raises(InvalidValue, match=r"messages\[1\]\.data\.amount=Decimal\('1'\)"):
        execute(publishing(batches, lambda: messages, atomic=True))
    assert held(hook, batches) == 0


def test_an_empty_payload_and_null_are_two_messages(hook: JetStreamHook, stream: str) -> None:
    payloads: list[Any] = ["", b"", None, {}]
    execute(publishing(stream, [(f"{stream}.a", data) for data in payloads]))
    assert [stored(hook, stream, number).data for number in (1, 2, 3, 4)] == [b"", b"", b"null", b"{}"]


def test_a_broken_file_names_its_line(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{{"subject": "{stream}.a", "data": 1}}\n{{"subject": \n')
    with pytest.raises(InvalidValue, match=r"messages\.jsonl:2.*not JSON"):
        execute(publishing(stream, str(file)))
    assert held(hook, stream) == 0  # the whole file is read before the first message goes out
    with pytest.raises(InvalidValue, match="No such file"):
        execute(publishing(stream, str(tmp_path / "absent")))


def test_a_kill_stops_it(hook: JetStreamHook, stream: str) -> None:
    def endless() -> Iterator[tuple[str, bytes]]:
        number = 0
        while True:
            number += 1
            time.sleep(0.0001)
            yield f"{stream}.a", b"%d" % number

    task = publishing(stream, endless)
    threading.Timer(0.5, task.on_kill).start()
    with pytest.raises(PublishFailed, match="stopped") as failure:
        execute(task)
    assert failure.value.stored == held(hook, stream) > 0


def test_what_is_wrong_is_said_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidValue, match="stream"):
        publishing("a b", [])
    once = ((f"a.{number}", b"") for number in range(3))
    with pytest.raises(InvalidValue, match=r"generator.*callable"):  # a retry could not read it again
        publishing("A", once)
    with DAG("dag", schedule=None):
        first = publishing("A", [])
        second = JetStreamPublishOperator(task_id="second", stream="{{ params.stream }}", messages=first.output)  # type: ignore[arg-type]
    assert second.upstream_task_ids == {"publish"}


@pytest.fixture
def batches(hook: JetStreamHook, stream: str) -> str:
    """The stream, with everything enabled that the tests of batches and options need."""
    hook.run(lambda js: js.stream(stream).update({"allow_atomic": True, "allow_msg_ttl": True}))
    return stream


def test_all_of_a_batch_or_none(hook: JetStreamHook, batches: str) -> None:
    state = State()
    messages = [(f"{batches}.{number}", {"number": number}) for number in range(1_000)]
    outcome = execute(publishing(batches, messages, atomic=True, expected_last_sequence=0), state=state)
    told = {"stream": batches, "stored": 1_000, "duplicates": 0, "first": 1, "last": 1_000, "in_order": True}
    assert outcome == told
    assert stored(hook, batches, 1_000).headers["Nats-Batch-Commit"] == ["1"]
    forgotten(hook, batches)
    again = execute(publishing(batches, lambda: messages, atomic=True), try_number=2, state=state)
    assert again == told | {"stored": 0, "duplicates": 1_000}
    with pytest.raises(BatchPartlyStored, match="only 5 of the 6 messages"):
        execute(publishing(batches, [*messages[:5], (f"{batches}.x", "new")], atomic=True), state=state)
    with pytest.raises(WrongLastSequence):
        execute(publishing(batches, messages[:3], atomic=True, expected_last_sequence="7"), run_id="next")
    given = {"atomic": True, "expected_last_sequence": "{{ params.last }}"}
    with pytest.raises(InvalidValue, match=r"^expected_last_sequence='None'.*has no value"):
        execute(rendered(publishing(batches, messages[:3], **given), {"last": None}), run_id="next")
    with pytest.raises(InvalidValue, match=r"a\.\*"):
        execute(publishing(batches, lambda: [*messages[:3], ("a.*", "")], atomic=True), run_id="next")
    assert held(hook, batches) == 1_000


@pytest.mark.parametrize("stores", [True, False])
def test_a_batch_whose_answer_is_lost_is_looked_for(
    hook: JetStreamHook, batches: str, monkeypatch: pytest.MonkeyPatch, stores: bool
) -> None:
    """The task fails only if the batch is not there, and a retry then publishes it."""
    real, state = JetStream.publish_batch, State()

    async def losing(js: JetStream, *arguments: Any, **options: Any) -> Any:
        if stores:
            await real(js, *arguments, **options)
        raise ConnectionLost("the server was killed")

    messages = [(f"{batches}.a", b"%d" % number) for number in range(5)]
    told = {"stream": batches, "stored": 5, "duplicates": 0, "first": 1, "last": 5, "in_order": True}
    with monkeypatch.context() as lossy:
        lossy.setattr(JetStream, "publish_batch", losing)
        if stores:
            assert execute(publishing(batches, messages, atomic=True), state=state) == told
        else:
            with pytest.raises(ConnectionLost):
                execute(publishing(batches, messages, atomic=True), state=state)
    if not stores:
        assert execute(publishing(batches, messages, atomic=True), try_number=2, state=state) == told
    assert held(hook, batches) == 5


def test_a_batch_past_the_limit_is_refused_before_anything_is_sent(hook: JetStreamHook, batches: str) -> None:
    messages = [(f"{batches}.x", b"")] * 1_001
    with pytest.raises(InvalidValue, match=r"messages=.*1000"):
        publishing(batches, messages, atomic=True)
    with pytest.raises(InvalidValue, match="1000"):
        execute(publishing(batches, lambda: messages, atomic=True))
    with pytest.raises(InvalidValue, match="messages=0"):
        publishing(batches, [], atomic=True)
    assert held(hook, batches) == 0


def test_a_stream_without_batches_is_said(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(BatchesDisabled):
        execute(publishing(stream, [(f"{stream}.x", b""), (f"{stream}.y", b"")], atomic=True))
    assert held(hook, stream) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"ttl": timedelta(0)},
        {"ttl": "soon"},
        {"ttl": 5},
        {"headers": {"Nats-Msg-Id": "{{ run_id }}"}},
        {"headers": {"shop": 7}},
        {"headers": {"shop": "a\r\nNats-Rollup: all"}},
        {"headers": "shop: Lyon"},
        {"expected_last_sequence": 5},
        {"atomic": True, "expected_last_sequence": "five"},
    ],
)
def test_options_that_can_be_refused_when_the_dag_is_parsed(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(reversed(changes))):
        publishing("S", [("S.x", b"")], **changes)


@pytest.mark.parametrize("atomic", [False, True])
def test_options_of_single_messages(hook: JetStreamHook, batches: str, tmp_path: Path, atomic: bool) -> None:
    lines = [
        {"subject": f"{batches}.a", "data": "1", "headers": {"Kind": ["x", "y"]}, "msg_id": "mine"},
        {"subject": f"{batches}.b", "data": "2", "ttl": 90, "expected_last_subject_sequence": 0},
    ]
    file = tmp_path / "messages.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert execute(publishing(batches, str(file), ttl="never", atomic=atomic))["stored"] == 2
    first, second = stored(hook, batches, 1).headers, stored(hook, batches, 2).headers
    assert (first["Kind"], first["Nats-Msg-Id"], first["Nats-TTL"]) == (["x", "y"], ["mine"], ["never"])
    assert (second["Nats-TTL"], second["Nats-Expected-Last-Subject-Sequence"]) == (["90s"], ["0"])


@pytest.mark.parametrize("atomic", [False, True])
def test_headers_of_all_messages(hook: JetStreamHook, batches: str, atomic: bool) -> None:
    """Those of a message come first, a value may contain anything but a line break, and another value in a retry does
    not make other messages."""
    state = State()
    messages = [(f"{batches}.a", b"1"), (f"{batches}.a", b"2", {"shop": "Lyon"})]
    given = {"shop": "{{ params.shop }}", "kinds": ["x", "y…"]}
    task = publishing(batches, messages, headers=given, atomic=atomic)
    assert execute(rendered(task, {"shop": "Paris"}), state=state)["stored"] == 2
    found = [stored(hook, batches, number).headers for number in (1, 2)]
    assert [each["shop"] for each in found] == [["Paris"], ["Lyon"]]
    assert [each["kinds"] for each in found] == [["x", "y…"]] * 2
    forgotten(hook, batches)
    task = publishing(batches, messages, headers=given, atomic=atomic)
    again = execute(rendered(task, {"shop": "Nice"}), try_number=2, state=state)
    assert (again["stored"], again["duplicates"], held(hook, batches)) == (0, 2, 2)
    with pytest.raises(InvalidValue, match=r"headers\['shop'\].*line break"):
        execute(rendered(publishing(batches, messages, headers=given, atomic=atomic), {"shop": "a\nb"}), run_id="next")
    assert held(hook, batches) == 2


def test_a_ttl_is_a_duration_or_never(hook: JetStreamHook, batches: str) -> None:
    given = [pendulum.duration(minutes=1), "PT1M", "{{ params.ttl }}"]
    for number, ttl in enumerate(given, 1):
        message = {"subject": f"{batches}.a", "data": str(number)}
        assert execute(rendered(publishing(batches, [message], ttl=ttl), {"ttl": "PT1M"}), run_id="1")["stored"] == 1
        assert stored(hook, batches, number).headers["Nats-TTL"] == ["60s"]
    with pytest.raises(InvalidValue, match="ttl='soon'"):
        execute(rendered(publishing(batches, [message], ttl="{{ params.ttl }}"), {"ttl": "soon"}), run_id="2")
    message["ttl"] = "PT90S"
    assert execute(publishing(batches, [message]), run_id="3")["stored"] == 1
    assert stored(hook, batches, 4).headers["Nats-TTL"] == ["90s"]


@pytest.mark.parametrize(
    ("when", "pattern"),
    [
        ("2100-01-01 01:00+01:00", "@at 2100-01-01T00:00:00.000000000Z"),
        ("{{ data_interval_end }}", "@at 2100-01-01T00:00:00.000000000Z"),
        ("PT5M", "@every 300s"),
        (pendulum.duration(minutes=5), "@every 300s"),
        (pendulum.datetime(2100, 1, 1, 1, tz="Europe/Berlin"), "@at 2100-01-01T00:00:00Z"),
        ("@hourly", "@hourly"),
        ("0 30 5 * * *", "0 30 5 * * *"),
    ],
)
def test_a_message_is_scheduled(hook: JetStreamHook, stream: str, when: Any, pattern: str) -> None:
    """Each form that a line of JSON or another task can contain; the server accepts all of them."""
    hook.run(lambda js: js.stream(stream).update({"allow_msg_schedules": True}))
    message = {"subject": f"{stream}.later", "data": "1", "schedule": {"target": f"{stream}.now", "when": when}}
    end = pendulum.datetime(2100, 1, 1, 5, 30, tz="Asia/Kolkata")
    assert execute(rendered(publishing(stream, [message]), {}, data_interval_end=end))["stored"] == 1
    assert stored(hook, stream, 1).headers["Nats-Schedule"] == [pattern]
    message["schedule"] = {"target": f"{stream}.now", "when": "tomorrow"}
    with pytest.raises(PublishFailed, match=r"schedule\.when='tomorrow'.*cron"):
        execute(publishing(stream, lambda: [message]), run_id="next")


def test_an_option_that_is_wrong_is_the_messages_own(hook: JetStreamHook, batches: str) -> None:
    messages = [(f"{batches}.a", "1"), {"subject": f"{batches}.a", "data": "2", "rollup": "everything"}]
    with pytest.raises(PublishFailed, match="rollup") as failed:
        execute(publishing(batches, lambda: messages))
    assert (failed.value.position, failed.value.stored, held(hook, batches)) == (1, 1, 1)


def test_a_dry_run_counts_and_publishes_nothing(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> Iterator[tuple[str, bytes]]:
        raise AssertionError("it was called")

    publishing(stream, never).dry_run()
    assert f"would publish to stream {stream} the messages that never returns" in capsys.readouterr().out
    publishing(stream, [(f"{stream}.a", "1"), ("elsewhere.b", "2"), (f"{stream}.c", "3")]).dry_run()
    said = capsys.readouterr().out
    assert f"would publish 3 messages to stream {stream}" in said
    assert "does not listen on the subjects of 1 of these messages; the first such subject is elsewhere.b" in said
    with pytest.raises(InvalidValue, match=r"messages\[1\]"):
        publishing(stream, [(f"{stream}.a", "1"), "2"]).dry_run()
    with pytest.raises(InvalidValue, match="1 to 1000 messages"):
        late(stream, 1_001).dry_run()
    with pytest.raises(StreamNotFound):
        publishing(f"{stream}x", []).dry_run()
    assert held(hook, stream) == 0


def late(stream: str, count: int) -> JetStreamPublishOperator:
    """An atomic batch whose size is known only when the task runs, as with the output of another task."""
    task = publishing(stream, "{{ many }}", atomic=True)
    task.messages = [(f"{stream}.a", "1")] * count
    return task
