"""Creating, updating and purging streams; the server is asked what became of it."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.client.errors import ApiError, InvalidValue, StreamNotFound
from airflow_nats_jetstream.client.stream import StreamInfo
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator, JetStreamPurgeOperator
from tests.operators.steps import CONNECTION, execute, publish


def creation(config: Any) -> JetStreamCreateStreamOperator:
    return JetStreamCreateStreamOperator(task_id="stream", config=config, nats_conn_id=CONNECTION)


def purge(stream: str, **which: Any) -> JetStreamPurgeOperator:
    return JetStreamPurgeOperator(task_id="purge", stream=stream, nats_conn_id=CONNECTION, **which)


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
        ({"sequence": 0}, "0 for everything"),
        ({"keep": 0}, "0 for everything"),
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


def test_a_purge_needs_its_stream(hook: JetStreamHook) -> None:
    with pytest.raises(InvalidValue):
        purge("a.b", everything=True)
    with pytest.raises(StreamNotFound):
        execute(purge("NOBODY", everything=True))
