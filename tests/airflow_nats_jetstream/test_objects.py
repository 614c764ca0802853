"""Publishing payloads above ``max_payload`` with the operator, and reading them in a task."""

import base64
import json
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.to_table import JetStreamToTableOperator
from jetstream_client.errors import BucketNotFound, BucketUnsuitable, InvalidValue, PublishFailed
from jetstream_client.stores.objects import ObjectStore
from tests.airflow_nats_jetstream.steps import CONNECTION, State, execute, rendered, sensor

LARGE = {"text": "x" * (1 << 20)}


@pytest.fixture
def bucket(hook: JetStreamHook) -> str:
    name = f"b{secrets.token_hex(4)}"
    subjects = [f"$O.{name}.C.>", f"$O.{name}.M.>"]
    config = {"name": f"OBJ_{name}", "subjects": subjects, "allow_rollup_hdrs": True, "discard": "new"}
    hook.run(lambda js: js.create_stream({**config, "allow_direct": True}))
    return name


def publishing(stream: str, **changes: Any) -> JetStreamPublishOperator:
    messages = [(f"{stream}.a", "small"), {"subject": f"{stream}.a", "data": LARGE, "headers": {"Shop": "Lyon"}}]
    return JetStreamPublishOperator(
        **{"task_id": "publish", "stream": stream, "messages": messages, "nats_conn_id": CONNECTION, **changes}
    )


@pytest.mark.parametrize("atomic", [False, True])
def test_large_messages_become_references(hook: JetStreamHook, stream: str, bucket: str, atomic: bool) -> None:
    hook.run(lambda js: js.stream(stream).update({"allow_atomic": True}))
    with pytest.raises((PublishFailed, InvalidValue), match="max_payload"):
        execute(publishing(stream, atomic=atomic), run_id="refused")
    hook.run(lambda js: js.stream(stream).purge())
    state = State()
    for stored in (2, 0):  # a retry finds the messages, and the object
        outcome = execute(publishing(stream, objects=bucket, atomic=atomic), state=state)
        assert (outcome["stored"], outcome["duplicates"]) == (stored, 2 - stored)
    assert hook.run(lambda js: js.stream(f"OBJ_{bucket}").info(subjects_filter=f"$O.{bucket}.M.>")).state["subjects"]
    (claim,) = execute(sensor(stream))
    first, second = hook.messages(claim, objects=bucket)
    assert (first.data, json.loads(second.data), second.headers["Shop"]) == (b"small", LARGE, ["Lyon"])
    with hook.processing(claim) as held:
        assert [len(each.data) for each in held.messages(objects=bucket)] == [5, len(json.dumps(LARGE))]


def test_a_table_gets_the_contents_of_objects(hook: JetStreamHook, stream: str, bucket: str, tmp_path: Path) -> None:
    """Of two claims: between them, an object was deleted, and one was replaced by another content."""
    state = State()
    messages = [(f"{stream}.a", {"text": letter * (1 << 20)}) for letter in "abcd"]
    execute(publishing(stream, messages=messages, objects=bucket), state=state)
    all_at_once = {"min_messages": 4, "consumer_config": {"ack_wait": timedelta(minutes=1)}}
    claim, later = execute(sensor(stream, messages_per_claim=2, **all_at_once))
    given: dict[str, Any] = {"table": {"type": "delta", "uri": str(tmp_path / "scans")}, "nats_conn_id": CONNECTION}
    given |= {"schema": "text STRING", "objects": "{{ params.bucket }}", "max_object_size": "{{ params.most }}"}

    def written(claim: dict[str, Any], bucket: str, most: int | None = None, **instance: Any) -> dict[str, Any]:
        task = JetStreamToTableOperator(task_id="table", claim=claim, **given)
        return dict(execute(rendered(task, {"bucket": bucket, "most": most}), **instance))

    with pytest.raises(BucketNotFound, match="'nowhere' does not exist"):
        written(claim, "nowhere", 5, max_tries=1)
    assert written(claim, bucket, try_number=2, max_tries=1)["rows"] == 2
    deleted, replaced = (each.headers["Object-Name"][0] for each in hook.messages(later))
    with ObjectStore(hook.settings, bucket) as store:
        store.put(replaced, b"something else")
    subject = f"$O.{bucket}.M.{base64.urlsafe_b64encode(deleted.encode()).decode()}"
    hook.run(lambda js: js.stream(f"OBJ_{bucket}").purge(subject=subject))
    found = written(later, bucket)
    assert (found["rows"], found["malformed"]) == (0, 2)
    assert len(deltalake.DeltaTable(str(tmp_path / "scans")).to_pyarrow_table()) == 2
    assert hook.run(lambda js: js.stream(f"DEAD_{stream}").info()).state["messages"] == 2
    # A clear of the publishing task finds its messages, and puts back what they refer to.
    assert execute(publishing(stream, messages=messages, objects=bucket), state=state, try_number=2)["stored"] == 0
    assert [json.loads(each.data)["text"][:1] for each in hook.messages(later, objects=bucket)] == ["c", "d"]


def test_the_object_store_is_checked_before_anything_is_sent(hook: JetStreamHook, stream: str, bucket: str) -> None:
    with pytest.raises(BucketNotFound, match="nats object add"):
        execute(publishing(stream, objects="nowhere"))
    hook.run(lambda js: js.stream(f"OBJ_{bucket}").update({"max_age": 60 * 10**9}))
    with pytest.raises(BucketUnsuitable, match="max_age"):
        execute(publishing(stream, objects=bucket))
    assert hook.run(lambda js: js.stream(stream).info()).state["last_seq"] == 0
    with pytest.raises(InvalidValue, match=r"objects='a\.b'"):
        publishing(stream, objects="a.b")
