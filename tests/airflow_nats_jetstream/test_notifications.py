"""JetStreamNotifier on a real server: called as Airflow calls it; the stream shows what was published."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.execution_time.task_runner import _run_task_state_change_callbacks

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.notifications import JetStreamNotifier
from jetstream_client.errors import InvalidValue, NoStreamResponse, WrongStream
from tests.airflow_nats_jetstream.steps import CONNECTION, context_of
from tests.airflow_versions import AsyncCallback
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def notifier(name: str, **changes: Any) -> JetStreamNotifier:
    return JetStreamNotifier(**{"subject": f"{name}.told", "nats_conn_id": CONNECTION, **changes})


def context(state: str | None = "failed", **instance: Any) -> Any:
    """The context of a task's callback."""
    with DAG("dag", schedule=None) as dag:
        task = EmptyOperator(task_id="load")
    values = context_of(task, **instance)
    values["ti"].state = None if state is None else TaskInstanceState(state)
    values["ti"].start_date = None
    return {**values, "dag": dag, "run_id": values["ti"].run_id, "dag_run": SimpleNamespace(clear_number=0)}


def told(hook: JetStreamHook, stream: str) -> list[tuple[str, Any, dict[str, Any]]]:
    """The messages of the stream: subject, message and headers."""

    async def ask(js: Any) -> list[Any]:
        last = (await js.stream(stream).info()).state["last_seq"]
        return [await js.stream(stream).get_message(sequence=sequence) for sequence in range(1, last + 1)]

    return [(each.subject, json.loads(each.data), dict(each.headers)) for each in hook.run(ask)]


def test_a_failure_is_told_once(hook: JetStreamHook, stream: str) -> None:
    tell = notifier(stream)
    task = EmptyOperator(task_id="load", on_retry_callback=tell)
    for _ in range(2):
        _run_task_state_change_callbacks(task, "on_retry_callback", context("up_for_retry"), structlog.get_logger())
    tell(context(None))  # the DAG processor's call for the same try
    tell(context("failed", try_number=2))
    tell(context("failed", run_id="other"))
    about = {"dag_id": "dag", "run_id": "run", "task_id": "load", "map_index": -1, "try_number": 1}
    assert [message for _, message, _ in told(hook, stream)] == [
        {**about, "state": "up_for_retry"},
        {**about, "try_number": 2, "state": "failed"},
        {**about, "run_id": "other", "state": "failed"},
    ]


def test_the_beginning_is_not_taken_for_the_end(hook: JetStreamHook, stream: str) -> None:
    tell = notifier(stream)
    begun = context(None)
    begun["ti"].start_date = "2026-11-21"
    for each in (begun, context("success"), context("skipped"), context("failed")):
        tell(each)
    assert [message["state"] for _, message, _ in told(hook, stream)] == ["running", "success", "skipped", "failed"]


def test_everything_is_rendered_for_each_call(hook: JetStreamHook, stream: str) -> None:
    """One object is called many times, because the DAG processor has one for all tasks of a file."""
    tell = notifier(
        "{{ params.stream }}",
        subject="{{ params.stream }}.{{ ti.task_id }}.{{ ti.state.value }}",
        message={"run": "{{ run_id }}"},
        headers={"Severity": "{{ ti.try_number }}"},
        msg_id="{{ run_id }}",
        stream="{{ params.stream }}",
        nats_conn_id="{{ params.connection }}",
    )
    for run_id in ("first", "second", "second"):
        tell({**context("failed", run_id=run_id), "params": {"stream": stream, "connection": CONNECTION}})
    assert [(subject, message) for subject, message, _ in told(hook, stream)] == [
        (f"{stream}.load.failed", {"run": "first"}),
        (f"{stream}.load.failed", {"run": "second"}),
    ]
    first = told(hook, stream)[0][2]
    assert first.items() >= {"Severity": ["1"], "Nats-Msg-Id": ["first"]}.items()


def test_a_run_that_is_cleared_ends_again(hook: JetStreamHook, stream: str) -> None:
    tell = notifier(stream)
    for cleared in (0, 0, 1):
        tell({**context(), "dag_run": SimpleNamespace(clear_number=cleared), "reason": "task_failure"})
    about = {"dag_id": "dag", "run_id": "run", "reason": "task_failure"}
    assert [message for _, message, _ in told(hook, stream)] == [about, about]


async def test_a_missed_deadline_is_told_in_the_triggerer(hook: JetStreamHook, stream: str) -> None:
    """Call it as airflow.triggers.callback does: the class by its path, with the context as an argument."""
    callback = AsyncCallback(JetStreamNotifier, kwargs={"subject": f"{stream}.late", "nats_conn_id": CONNECTION})
    assert callback.path == "airflow_nats_jetstream.notifications.JetStreamNotifier"
    for deadline in ("a", "a", "b"):
        run = {"dag_id": "dag", "dag_run_id": "run"}
        simple: Any = {"dag_run": run, "deadline": {"id": deadline}}
        await JetStreamNotifier(**callback.kwargs, context=simple)
    async with hook.context() as js:
        assert (await js.stream(stream).info()).state["messages"] == 2
        message = await js.stream(stream).get_message(1)
    assert json.loads(message.data) == {"dag_id": "dag", "run_id": "run"}


def test_what_is_not_stored_is_an_error(hook: JetStreamHook, stream: str) -> None:
    with pytest.raises(NoStreamResponse):
        notifier(stream, subject="nobody.listens")(context())
    with pytest.raises(WrongStream):
        notifier(stream, stream="OTHER")(context())
    with pytest.raises(InvalidValue, match="subject"):
        notifier(stream, subject="{{ run_id }}.>")(context())
    assert told(hook, stream) == []


@pytest.mark.parametrize("wrong", [{"subject": "a..b"}, {"stream": "a.b"}, {"message": {1, 2}}, {"headers": ["a"]}])
def test_what_can_be_known_is_refused_when_the_dag_is_parsed(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        notifier("S", **wrong)


def test_the_pages_example_parses() -> None:
    (example,) = [section for section in sections(PAGE) if "JetStreamNotifier" in section.source]
    page: dict[str, Any] = {}
    exec(example.source, page)
