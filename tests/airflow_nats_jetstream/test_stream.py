"""Creating, updating, purging and deleting streams; each test asks the server for the result."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.fields import STREAM
from airflow_nats_jetstream.operators.stream import (
    JetStreamCreateStreamOperator,
    JetStreamDeleteStreamOperator,
    JetStreamPurgeOperator,
)
from jetstream_client.errors import ApiError, InvalidValue, StreamNotFound, UpdateRefused
from jetstream_client.info import StreamInfo
from jetstream_handoff.errors import DeletionRefused
from tests.airflow_nats_jetstream.steps import CONNECTION, claim, execute, publish, receipt, rendered


def creation(config: Any) -> JetStreamCreateStreamOperator:
    return JetStreamCreateStreamOperator(task_id="stream", config=config, nats_conn_id=CONNECTION)


def purge(stream: str, **which: Any) -> JetStreamPurgeOperator:
    return JetStreamPurgeOperator(task_id="purge", stream=stream, nats_conn_id=CONNECTION, **which)


def deletion(stream: str, **changes: Any) -> JetStreamDeleteStreamOperator:
    return JetStreamDeleteStreamOperator(task_id="delete", stream=stream, nats_conn_id=CONNECTION, **changes)


def there(hook: JetStreamHook, stream: str) -> StreamInfo:
    return hook.run(lambda js: js.stream(stream).info())


def test_creates_then_changes_only_what_differs(hook: JetStreamHook, stream: str) -> None:
    hook.run(lambda js: js.stream(stream).delete())
    config = {"name": stream, "subjects": [f"{stream}.>"], "max_msgs": 100, "description": "kept"}
    assert execute(creation(config)) == {"stream": stream, "created": True, "changed": []}
    assert execute(creation(config)) == {"stream": stream, "created": False, "changed": []}
    changed = execute(creation({"name": stream, "max_age": timedelta(hours=1)}))
    assert changed == {"stream": stream, "created": False, "changed": ["max_age"]}
    now = there(hook, stream).config
    assert (now["max_age"], now["max_msgs"], now["description"]) == (3_600 * 10**9, 100, "kept")


def test_a_dry_run_shows_the_difference_and_changes_nothing(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    creation({"name": stream, "max_msgs": 7}).dry_run()
    creation({"name": f"{stream}x", "subjects": [f"{stream}x"]}).dry_run()
    said = capsys.readouterr().out
    assert "max_msgs: -1 → 7" in said
    assert f"{stream}x would be created" in said
    assert there(hook, stream).config["max_msgs"] == -1
    with pytest.raises(StreamNotFound):
        there(hook, f"{stream}x")


def test_the_servers_refusal_is_kept(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(ApiError, match="storage type"):
        execute(creation({"name": stream, "storage": "memory"}))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"name": "a.b"}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"subjects": ["a"]}, "name"),
        ({"name": "A", "subjects": "a"}, "list"),
        ({"name": "A", "subjects": ["a..b"]}, "empty token"),
        ({"name": "A", "subjects": ["a.>.b"]}, "last token"),
        ("A", "mapping"),
    ],
)
def test_forbidden_names_and_subjects_are_refused_when_the_dag_is_parsed(config: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        creation(config)


def test_what_is_templated_is_checked_when_it_is_known(hook: JetStreamHook) -> None:
    task = creation({"name": "{{ params.name }}", "subjects": ["{{ params.subject }}"]})
    task.config = {"name": "a b"}
    with pytest.raises(InvalidValue, match="name"):
        execute(task)
    with DAG("dag", schedule=None):
        upstream = creation({"name": "A", "subjects": ["a"]})
        late = JetStreamPurgeOperator(task_id="purge", stream="A", keep=upstream.output)  # type: ignore[arg-type]
    assert late.upstream_task_ids == {"stream"}


@pytest.mark.parametrize(
    ("which", "purged", "left"),
    [
        ({"everything": True}, 9, 0),
        ({"keep": 2}, 7, 2),
        ({"keep": "2"}, 7, 2),
        ({"sequence": 4}, 3, 6),
        ({"subject": "{stream}.0"}, 3, 6),
        ({"subject": "{stream}.0", "keep": 1}, 2, 7),
    ],
)
def test_purges_what_was_asked_for(
    hook: JetStreamHook, stream: str, which: dict[str, Any], purged: int, left: int
) -> None:
    publish(hook, stream, 9)
    which = {name: each.format(stream=stream) if isinstance(each, str) else each for name, each in which.items()}
    assert execute(purge(stream, **which)) == purged
    assert there(hook, stream).state["messages"] == left


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({"sequence": 5, "keep": 5}, "not both"),
        ({"sequence": 0}, "0 would select every message"),
        ({"keep": 0}, "0 would select every message"),
        ({"keep": -1}, "1 or more"),
        ({"keep": "many"}, "whole number"),
        ({}, "everything=True"),
        ({"everything": True, "keep": 5}, "everything"),
        ({"subject": "a..b"}, "empty token"),
    ],
)
def test_a_purge_that_could_surprise_is_refused_when_the_dag_is_parsed(which: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        purge("A", **which)


@pytest.mark.parametrize(
    ("which", "lacks"),
    [
        ({"subject": "{{ params.it }}", "sequence": 4}, "subject"),
        ({"subject": "a", "sequence": "{{ params.it }}"}, "sequence"),
        ({"subject": "a", "keep": "{{ params.it }}"}, "keep"),
    ],
)
def test_a_template_without_a_value_does_not_widen_a_purge(which: dict[str, Any], lacks: str) -> None:
    task = rendered(purge("A", **which), {"it": None})
    for empty in ("None", "", None):  # the last one is the output of another task
        setattr(task, lacks, empty)
        for run in (task.dry_run, lambda: execute(task)):
            with pytest.raises(InvalidValue, match=f"^{lacks}=.*has no value"):
                run()


def test_a_purge_needs_its_stream(hook: JetStreamHook) -> None:
    with pytest.raises(InvalidValue):
        purge("a.b", everything=True)
    with pytest.raises(StreamNotFound):
        execute(purge("NOBODY", everything=True))


FOR_LIFE: dict[str, tuple[dict[str, Any], Any]] = {
    "storage": ({}, "memory"),
    "retention": ({}, "workqueue"),
    "sealed": ({"sealed": True}, False),
    "deny_delete": ({"deny_delete": True}, False),
    "deny_purge": ({"deny_purge": True}, False),
    "mirror": ({"mirror": {"name": "ORIGIN"}, "subjects": None}, {"name": "OTHER"}),
    "allow_msg_ttl": ({"allow_msg_ttl": True}, False),
    "allow_msg_counter": ({}, True),
    "allow_msg_schedules": ({"allow_msg_schedules": True}, False),
    "persist_mode": ({"persist_mode": "async"}, "default"),
}
"""Maps a field to its value at creation and to a value that the server then refuses."""


def test_what_the_server_does_not_change_is_named_with_a_remedy(hook: JetStreamHook, stream: str) -> None:
    """The error names only the field that is refused, not one that the server would change."""
    assert FOR_LIFE.keys() == STREAM.for_life.keys()
    for number, (field, (before, wanted)) in enumerate(FOR_LIFE.items()):
        name = f"{stream}-{number}"
        made = {"name": name, "subjects": [name], **before}

        async def create(js: Any, made: dict[str, Any] = made) -> None:
            await js.create_stream({**made, "sealed": False})
            if made.get("sealed"):  # which no new stream can have
                await js.update_stream(made)

        hook.run(create)
        with pytest.raises(UpdateRefused, match="JetStreamDeleteStreamOperator") as refused:
            execute(creation({"name": name, "description": "new", field: wanted}))
        assert list(refused.value.changes) == [field]
        assert f"stream '{name}' was not changed: " in str(refused.value)
        assert f"{field}: " in str(refused.value)
        assert there(hook, name).config.get("description") is None
        assert execute(deletion(name))["deleted"]


def test_what_the_server_takes_otherwise_changes_nothing_when_run_twice(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value of 0 stands for a default, and durations are shown as people write them."""
    config = {"name": stream, "max_msgs": 0, "num_replicas": 0, "duplicate_window": 0, "max_age": "1h30m"}
    assert execute(creation(config))["changed"] == ["max_age"]
    assert "max_age: 0 → 1h30m" in capsys.readouterr().out
    assert execute(creation(config))["changed"] == []
    capsys.readouterr()
    creation({"name": stream, "max_msgs": 0}).dry_run()
    assert f"stream {stream} is up to date" in capsys.readouterr().out
    assert execute(creation({"name": stream, "max_age": "0"}))["changed"] == ["max_age"]


def test_a_stream_is_deleted_and_deleting_it_again_is_as_wanted(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{stream}x"
    hook.run(lambda js: js.create_stream({"name": name, "subjects": [f"{name}.>"]}))
    publish(hook, name, 3)
    deletion(name).dry_run()
    assert "would be deleted with its 3 messages" in capsys.readouterr().out
    assert there(hook, name).state["messages"] == 3
    assert execute(deletion(name)) == {"stream": name, "deleted": True, "messages": 3, "superseded": []}
    with pytest.raises(StreamNotFound):
        there(hook, name)
    assert execute(deletion(name)) == {"stream": name, "deleted": False, "messages": 0, "superseded": []}
    deletion(name).dry_run()
    assert "does not exist" in capsys.readouterr().out
    with pytest.raises(InvalidValue, match="stream"):
        deletion("a.b")


def test_a_stream_whose_claims_are_open_is_not_deleted(hook: JetStreamHook, stream: str) -> None:
    open_claim = claim(hook, stream)
    for each in (stream, f"KV_{hook.settings.ledger}_claims"):
        with pytest.raises(DeletionRefused, match=open_claim["id"]) as refused:
            execute(deletion(each))
        assert refused.value.claims == (open_claim["id"],)
    assert there(hook, stream).state["messages"] == 10
    gone = execute(deletion(stream, despite_open_claims=True))
    assert gone == {"stream": stream, "deleted": True, "messages": 10, "superseded": [open_claim["id"]]}
    hook.run(lambda js: js.create_stream({"name": stream}))  # for its fixture
    assert receipt(hook, stream, open_claim["id"]).state == "superseded"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({"everything": True}, "8 messages"),
        ({"keep": 2}, "6 messages"),
        ({"sequence": 4}, "2 messages"),
        ({"sequence": 40}, "8 messages"),
        ({"subject": "{stream}.0"}, "3 messages"),
        ({"subject": "{stream}.0", "keep": 1}, "2 messages"),
        ({"subject": "{stream}.0", "sequence": 3}, "at most 1 messages"),
    ],
)
def test_a_dry_purge_counts_what_a_purge_removes(
    hook: JetStreamHook, stream: str, which: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(hook, stream, 9)
    hook.run(lambda js: js.stream(stream).delete_message(2))
    which = {name: each.format(stream=stream) if isinstance(each, str) else each for name, each in which.items()}
    purge(stream, **which).dry_run()
    assert f"stream {stream}: {says} would be purged" in capsys.readouterr().out
    assert there(hook, stream).state["messages"] == 8
    removed = execute(purge(stream, **which))
    assert says == f"{removed} messages" or says.startswith("at most")
