"""Consumers from a DAG, on a real server: desired state, deletion, pause and resume, resets."""

import base64
from datetime import UTC, datetime
from typing import Any

import pendulum
import pytest

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.consumer import (
    JetStreamCreateConsumerOperator,
    JetStreamDeleteConsumerOperator,
    JetStreamPauseConsumerOperator,
    JetStreamResetConsumerOperator,
    JetStreamResumeConsumerOperator,
)
from airflow_nats_jetstream.operators.fields import CONSUMER as CONSUMER_FIELDS
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client.errors import ConsumerNotFound, InvalidValue, StreamNotFound, UpdateRefused
from jetstream_handoff.errors import DeletionRefused, HandoffError, LedgerUnavailable, ResetRefused
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    CONSUMER,
    claim,
    execute,
    info,
    publish,
    receipt,
    record,
    rendered,
    sensor,
)


def reset(stream: str, **changes: Any) -> JetStreamResetConsumerOperator:
    values = {"task_id": "reset", "stream": stream, "consumer": CONSUMER, "nats_conn_id": CONNECTION}
    return JetStreamResetConsumerOperator(**{**values, **changes})


def process(value: Any) -> Any:
    def body(claim: HeldClaim) -> int:
        return claim.count

    work = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": value}, nats_conn_id=CONNECTION
    )
    return execute(work)


def test_everything_from_the_sequence_is_processed_again(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jetstream_handoff.repair.reset.QUIET", 0.5)
    done = claim(hook, stream, 10)
    process(done)
    publish(hook, stream, 5)
    (held,) = execute(sensor(stream), run_id="held")
    before = info(hook, stream).raw, record(hook, stream)
    task = reset(stream, sequence="{{ params.sequence }}")
    task.render_template_fields({"params": {"sequence": 4}})
    task.dry_run()
    wanted = {"stream": stream, "consumer": CONSUMER, "sequence": 4, "superseded": [held["id"]]}
    assert str({**wanted, "forgotten": done["ranges"], "pending": 0}) in capsys.readouterr().out
    assert record(hook, stream) == before[1]
    assert info(hook, stream).raw["delivered"] == before[0]["delivered"]

    answer = execute(task)
    assert answer.items() >= {**wanted, "pending": 12}.items()
    assert (info(hook, stream).counter, info(hook, stream).floor) == (0, 3)
    with pytest.raises(AirflowFailException, match="superseded"):
        process(held)
    assert receipt(hook, stream, held["id"]).state == "superseded"  # type: ignore[union-attr]
    (again,) = execute(sensor(stream), run_id="again")
    assert again["ranges"] == [[4, 15]]
    assert process(again) == 12
    assert info(hook, stream).floor == 15


def test_what_is_wrong_is_said_when_the_dag_is_parsed() -> None:
    for changes, says in (
        ({"stream": "a b"}, "stream"),
        ({"consumer": "a.b"}, "consumer"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": "five"}, "sequence"),
        ({"sequence": 1.5}, "sequence"),
    ):
        with pytest.raises(InvalidValue, match=says):
            reset(**{"stream": "S", **changes})  # type: ignore[arg-type]
    reset("{{ params.stream }}", sequence="{{ params.sequence }}")


def test_a_consumer_that_is_not_there(hook: JetStreamHook, stream: str) -> None:
    claim(hook, stream)
    with pytest.raises(ConsumerNotFound):
        execute(reset(stream, consumer="nobody"))
    task = reset(stream, sequence="{{ 1 - 1 }}")
    task.render_template_fields({})
    with pytest.raises(InvalidValue, match="1 or more"):
        execute(task)
    assert info(hook, stream).ack_pending == 10


def creation(stream: str, config: Any) -> JetStreamCreateConsumerOperator:
    return JetStreamCreateConsumerOperator(task_id="consumer", stream=stream, config=config, nats_conn_id=CONNECTION)


def deletion(stream: str, consumer: str = CONSUMER, **changes: Any) -> JetStreamDeleteConsumerOperator:
    values = {"task_id": "delete", "stream": stream, "consumer": consumer, "nats_conn_id": CONNECTION}
    return JetStreamDeleteConsumerOperator(**{**values, **changes})


def test_creates_then_changes_only_what_differs(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"durable_name": CONSUMER, "ack_wait": "90s", "max_deliver": 0, "filter_subject": f"{stream}.a"}
    creation(stream, config).dry_run()
    assert "would be created" in capsys.readouterr().out
    with pytest.raises(ConsumerNotFound):
        info(hook, stream)
    answer = {"stream": stream, "consumer": CONSUMER, "created": True, "changed": []}
    assert execute(creation(stream, config)) == answer
    assert execute(creation(stream, config)) == {**answer, "created": False}
    creation(stream, {"name": CONSUMER, "durable_name": CONSUMER, "ack_wait": "2m"}).dry_run()
    assert "ack_wait: 1m30s → 2m" in capsys.readouterr().out
    assert info(hook, stream).config["ack_wait"] == 90 * 10**9
    changed = execute(creation(stream, {"durable_name": CONSUMER, "ack_wait": "2m", "description": "new"}))
    assert changed == {**answer, "created": False, "changed": ["ack_wait", "description"]}
    assert "ack_wait: 1m30s → 2m" in capsys.readouterr().out
    now = info(hook, stream).config
    assert (now["ack_wait"], now["filter_subject"], now["max_deliver"]) == (120 * 10**9, f"{stream}.a", -1)
    assert now["ack_policy"] == "explicit"  # although the configuration does not name it
    with pytest.raises(StreamNotFound):
        execute(creation(f"{stream}x", config))


@pytest.mark.parametrize("start", [pendulum.datetime(2026, 1, 1, 1, tz="Europe/Berlin"), "{{ data_interval_start }}"])
def test_a_consumer_that_begins_at_a_time_is_made_once(hook: JetStreamHook, stream: str, start: Any) -> None:
    config = {"durable_name": CONSUMER, "deliver_policy": "by_start_time", "opt_start_time": start, "ack_wait": "PT2M"}
    day = pendulum.datetime(2026, 1, 1, 5, 30, tz="Asia/Kolkata")
    made = [execute(rendered(creation(stream, config), {}, data_interval_start=day)) for _ in range(2)]
    assert [(each["created"], each["changed"]) for each in made] == [(True, []), (False, [])]
    now = info(hook, stream).config
    assert (now["opt_start_time"], now["ack_wait"]) == ("2026-01-01T00:00:00Z", 120 * 10**9)
    with pytest.raises(InvalidValue, match=r"config\['opt_start_time'\]=.*zone"):
        creation(stream, {**config, "opt_start_time": "2026-01-01T00:00:00"})


FOR_LIFE: dict[str, tuple[dict[str, Any], Any]] = {
    "deliver_policy": ({}, "last"),
    "mem_storage": ({}, True),
    "opt_start_seq": ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 4),
    "opt_start_time": (
        {"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"},
        "2026-01-02T00:00:00Z",
    ),
    "ack_policy": ({"ack_policy": "explicit"}, "none"),
    "replay_policy": ({}, "original"),
    "idle_heartbeat": ({"deliver_subject": "to.a", "idle_heartbeat": "5s"}, "6s"),
    "flow_control": ({"deliver_subject": "to.a", "idle_heartbeat": "5s", "flow_control": True}, False),
    "deliver_subject": ({}, "to.a"),
    "max_waiting": ({"max_waiting": 9}, 10),
}
"""Maps a field to its value at creation and to a value that the server then refuses."""


def test_what_the_server_does_not_change_is_named_with_a_remedy(hook: JetStreamHook, stream: str) -> None:
    """The error names only the field that is refused, not one that the server would change."""
    assert FOR_LIFE.keys() == CONSUMER_FIELDS.for_life.keys()
    for field, (before, wanted) in FOR_LIFE.items():
        assert execute(creation(stream, {"durable_name": CONSUMER, "ack_policy": "none", **before}))["created"]
        changes = {"durable_name": CONSUMER, "description": "new", field: wanted}
        with pytest.raises(UpdateRefused, match="JetStreamDeleteConsumerOperator") as refused:
            execute(creation(stream, changes))
        assert list(refused.value.changes) == [field]
        assert f"consumer '{CONSUMER}' was not changed: " in str(refused.value)
        assert info(hook, stream).config.get("description") is None
        assert execute(deletion(stream))["deleted"]


def test_a_consumer_whose_claims_are_open_is_not_deleted(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    open_claim = claim(hook, stream)
    with pytest.raises(
        DeletionRefused, match=r"10 messages of consumer 'work', taken by dag / run / claims"
    ) as refused:
        execute(deletion(stream))
    assert refused.value.claims == (open_claim["id"],)
    assert info(hook, stream).ack_pending == 10
    deletion(stream).dry_run()
    assert open_claim["id"] in capsys.readouterr().out
    assert list(record(hook, stream).open) == [open_claim["id"]]  # type: ignore[union-attr]

    answer = {"stream": stream, "consumer": CONSUMER, "deleted": True, "unacknowledged": 10}
    gone = execute(deletion(stream, despite_open_claims=True))
    assert gone == {**answer, "superseded": [open_claim["id"]]}
    with pytest.raises(ConsumerNotFound):
        info(hook, stream)
    with pytest.raises(AirflowFailException, match="claim"):
        process(open_claim)
    assert receipt(hook, stream, open_claim["id"]).state == "superseded"  # type: ignore[union-attr]
    (again,) = execute(sensor(stream), run_id="again")  # nothing is lost: a new consumer delivers all messages
    assert process(again) == 10
    assert execute(deletion(stream)) == {**answer, "unacknowledged": 0, "superseded": []}
    assert execute(deletion(stream)) == {**answer, "deleted": False, "unacknowledged": 0, "superseded": []}


def test_work_that_is_running_loses_its_claim_before_its_consumer_is_deleted(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def work() -> None:
        with hook.processing(value):
            execute(deletion(stream, despite_open_claims=True))

    with pytest.raises(HandoffError):
        work()
    with pytest.raises(ConsumerNotFound):  # nothing was settled
        hook.committed(stream, CONSUMER)


def test_messages_that_only_this_consumer_keeps_are_not_deleted_with_it(hook: JetStreamHook, stream: str) -> None:
    hook.run(lambda js: js.update_stream({"name": stream, "retention": "interest"}))
    execute(creation(stream, {"durable_name": CONSUMER, "ack_policy": "explicit"}))
    publish(hook, stream, 4)
    with pytest.raises(DeletionRefused, match="because 4 of its messages") as refused:
        execute(deletion(stream))
    assert refused.value.unprocessed == 4
    assert hook.run(lambda js: js.stream(stream).info()).state["messages"] == 4
    assert execute(deletion(stream, despite_unprocessed=True))["unacknowledged"] == 4
    assert hook.run(lambda js: js.stream(stream).info()).state["messages"] == 0  # dropped by the server


def test_nothing_is_deleted_while_the_ledger_cannot_be_read(hook: JetStreamHook, stream: str) -> None:
    """An unreadable ledger could contain open claims, so only ``despite_open_claims`` allows the deletion."""
    claim(hook, stream)
    bucket = f"KV_{hook.settings.ledger}_claims"

    key = ".".join(base64.b32encode(name.encode()).rstrip(b"=").decode() for name in (stream, CONSUMER))
    hook.run(lambda js: js.publish(f"$KV.{hook.settings.ledger}_claims.{key}", b"not a record"))
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        execute(deletion(stream))
    assert info(hook, stream).ack_pending == 10
    assert execute(deletion(stream, despite_open_claims=True))["deleted"]
    assert hook.run(lambda js: js.stream(bucket).info()).state["messages"] == 1


def pause(stream: str, **changes: Any) -> JetStreamPauseConsumerOperator:
    values = {"task_id": "pause", "stream": stream, "consumer": CONSUMER, "nats_conn_id": CONNECTION}
    return JetStreamPauseConsumerOperator(**{**values, **changes})


def resume(stream: str) -> JetStreamResumeConsumerOperator:
    return JetStreamResumeConsumerOperator(task_id="r", stream=stream, consumer=CONSUMER, nats_conn_id=CONNECTION)


def test_a_consumer_is_paused_and_resumed(hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A paused consumer delivers nothing, and a second run changes nothing."""
    execute(creation(stream, {"durable_name": CONSUMER, "ack_policy": "explicit"}))
    publish(hook, stream, 3)
    answer = {"stream": stream, "consumer": CONSUMER, "changed": True}
    end = "2100-01-01T00:00:00Z"
    pause(stream, until=end).dry_run()
    assert "is not paused, and would be paused until 2100-01-01T00:00:00+00:00" in capsys.readouterr().out
    assert not info(hook, stream).paused
    year = pendulum.datetime(2100, 1, 1, 5, 30, tz="Asia/Kolkata")
    for until, changed in (
        (end, True),
        (datetime(2100, 1, 1, tzinfo=UTC), False),
        ("{{ params.end }}", False),
        (year, False),
        ("2099-12-31 19:00-05:00", False),
        ("{{ data_interval_end }}", False),
    ):
        task = rendered(pause(stream, until=until), {"end": "2100-01-01T02:00:00+02:00"}, data_interval_end=year)
        assert execute(task) == {**answer, "until": end, "changed": changed}
    assert info(hook, stream).paused
    assert hook.run(lambda js: js.consumer(stream, CONSUMER).fetch(1, max_wait=0.2)) == []

    assert execute(pause(stream, duration="PT1H"))["changed"]
    assert "(was paused until 2100-01-01T00:00:00Z)" in capsys.readouterr().out
    left = info(hook, stream).raw["pause_remaining"]
    assert 0 < left < 3_600 * 10**9
    resume(stream).dry_run()
    assert "is paused until" in capsys.readouterr().out
    assert info(hook, stream).paused
    assert [execute(resume(stream)), execute(resume(stream))] == [answer, {**answer, "changed": False}]
    assert not info(hook, stream).paused
    assert len(hook.run(lambda js: js.consumer(stream, CONSUMER).fetch(3))) == 3


def test_a_pause_that_would_resume_is_refused_when_the_task_runs(hook: JetStreamHook, stream: str) -> None:
    """It is refused only when the task runs, because otherwise a DAG with a time of today would break tomorrow."""
    execute(creation(stream, {"durable_name": CONSUMER}))
    past = pause(stream, until=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidValue, match="JetStreamResumeConsumerOperator"):
        execute(past)
    for wrong, says in (
        ({}, "either 'until' or 'duration'"),
        ({"until": "2100-01-01T00:00:00Z", "duration": "1h"}, "either 'until' or 'duration'"),
        ({"until": "tomorrow"}, "until='tomorrow'.*ISO 8601"),
        ({"until": datetime(2100, 1, 1)}, "zone"),  # noqa: DTZ001 - that is what is wrong
        ({"duration": "a while"}, "24h"),
        ({"duration": "P1M"}, "24h"),
        ({"consumer": "a b", "duration": "1h"}, "consumer"),
    ):
        with pytest.raises(InvalidValue, match=says):
            pause(stream, **wrong)
    with pytest.raises(ConsumerNotFound):
        execute(pause(stream, consumer="nobody", duration="1h"))


def test_a_template_without_a_value_is_no_reset_to_the_first_unacknowledged_message() -> None:
    task = rendered(reset("A", sequence="{{ params.it }}"), {"it": None})
    for empty in ("None", "", None):  # the last one is the output of another task
        task.sequence = empty
        for run in (task.dry_run, lambda: execute(task)):
            with pytest.raises(InvalidValue, match=r"^sequence=.*has no value"):
                run()


def test_a_consumer_without_claims_is_reset_by_the_server(hook: JetStreamHook, stream: str) -> None:
    """Without a ledger, and with one that has no claims of it; unprocessed messages are never skipped."""
    execute(creation(stream, {"durable_name": "other", "ack_policy": "explicit"}))

    async def consume(js: Any) -> None:
        for message in await js.consumer(stream, "other").fetch(3):
            await message.double_ack()

    publish(hook, stream, 3)
    hook.run(consume)
    answer = {"stream": stream, "consumer": "other", "sequence": 2, "superseded": [], "forgotten": [], "pending": 2}
    plain = reset(stream, consumer="other", sequence=2, claims=False)
    plain.dry_run()
    assert hook.run(lambda js: js.consumer(stream, "other").info()).pending == 0
    with pytest.raises(LedgerUnavailable):
        execute(reset(stream, consumer="other", sequence=2))
    assert execute(plain) == answer
    with pytest.raises(InvalidValue, match="would skip"):
        execute(reset(stream, consumer="other", sequence=3, claims=False))
    claim(hook, stream, 1)
    assert execute(plain)["pending"] == 3
    for refused in (reset(stream, claims=False).execute, lambda _: reset(stream, claims=False).dry_run()):
        with pytest.raises(ResetRefused, match="claims=True"):
            refused({})
    assert info(hook, stream).ack_pending > 0
