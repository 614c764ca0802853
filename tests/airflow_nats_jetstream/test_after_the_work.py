# ruff: noqa: ARG002, ARG005 - functions and methods that Airflow calls
"""What Airflow does with a task after its work, and what can still fail then, happens before the claim is settled."""

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseOperator, get_current_context, task

from airflow_nats_jetstream.compat import AirflowSkipException
from airflow_nats_jetstream.holding import JetStreamHeld, holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from jetstream_client.errors import InvalidValue
from jetstream_handoff.hold import settle
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    CONSUMER,
    Supervisor,
    claim,
    execute,
    receipt,
    record,
    sensor,
    whole,
)


class Processes(JetStreamProcessOperator):
    """An operator whose author has overridden what Airflow calls after the work."""

    def post_execute(self, context: Any, result: Any = None) -> None:
        raise OSError("no room for the report")


class Works(PythonOperator):
    def post_execute(self, context: Any, result: Any = None) -> None:
        raise OSError("no room for the report")


def processing(value: Any, returned: Any = 7, operator: Any = JetStreamProcessOperator, **changes: Any) -> BaseOperator:
    def work(claim: Any) -> Any:
        return returned

    made: BaseOperator = operator(
        task_id="work", python_callable=work, op_kwargs={"claim": value}, nats_conn_id=CONNECTION, **changes
    )
    return made


def held(value: Any, returned: Any = 7, operator: Any = PythonOperator, **changes: Any) -> BaseOperator:
    made: BaseOperator = holding(operator)(
        task_id="work", claim=value, python_callable=lambda: returned, nats_conn_id=CONNECTION, **changes
    )
    return made


def fails(context: Any, result: Any = None) -> None:
    raise OSError("no room for the report")


def refuses(xcom: Any) -> None:
    raise OSError("the backend refuses this value")


Make = Callable[..., BaseOperator]
BOTH = pytest.mark.parametrize("make", [processing, held])


@BOTH
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"post_execute": fails}, "no room for the report"),
        ({"overridden": True}, "no room for the report"),
        ({"multiple_outputs": True}, "expected dictionary"),
        ({"multiple_outputs": True, "returned": {"a": 1, 2: 3}}, "keys must be strings"),
        ({"backend": refuses}, "the backend refuses this value"),
        ({"map_index_template": "{{ nothing.here }}"}, "'nothing' is undefined"),
    ],
    ids=["hook", "method", "outputs", "keys", "backend", "map index"],
)
def test_what_fails_after_the_work_fails_before_the_claim_is_settled(
    hook: JetStreamHook, stream: str, make: Make, changes: dict[str, Any], says: str
) -> None:
    value, changes = claim(hook, stream), dict(changes)
    supervisor = Supervisor(changes.pop("backend", lambda _: None))
    if changes.pop("overridden", False):
        changes["operator"] = Processes if make is processing else Works
    with DAG("dag") as dag:
        work = make(value, **changes)
    assert work.dag is dag
    with pytest.raises(Exception, match=says):
        whole(work, supervisor, max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    assert record(hook, stream).open[value["id"]].token is None  # type: ignore[union-attr] # it waits for the retry
    assert "return_value" not in supervisor.xcoms
    with pytest.raises(Exception, match=says):
        whole(work, supervisor, try_number=2, max_tries=1)
    assert receipt(hook, stream, value["id"]).state == "failed"  # type: ignore[union-attr]


@BOTH
def test_a_task_over_which_nothing_can_be_mapped_settles_nothing(hook: JetStreamHook, stream: str, make: Make) -> None:
    @task
    def each(number: int) -> None: ...

    value = claim(hook, stream)
    with DAG("dag"):
        work = make(value, 7)
        each.expand(number=work.output)
    with pytest.raises(Exception, match="unmappable return type 'int'"):
        whole(work, max_tries=1)
    assert hook.committed(stream, CONSUMER) == []


@BOTH
def test_a_task_that_is_mapped_over_its_input_and_output(hook: JetStreamHook, stream: str, make: Make) -> None:
    @task
    def each(number: int) -> None: ...

    value = claim(hook, stream)
    with DAG("dag"):
        work = make(value, [1, 2, 3])
        each.expand(number=work.output)
    assert whole(work).xcoms["return_value"] == [1, 2, 3]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.value == [1, 2, 3]


@BOTH
def test_hooks_and_push_happen_once_and_before_settling(hook: JetStreamHook, stream: str, make: Make) -> None:
    value, seen = claim(hook, stream), []

    def after(context: Any, result: Any = None) -> None:
        seen.append((result, hook.committed(stream, CONSUMER)))

    supervisor = Supervisor()
    whole(make(value, {"a": 1, "b": 2}, post_execute=after, multiple_outputs=True), supervisor)
    assert seen == [({"a": 1, "b": 2}, [])]
    assert supervisor.xcoms == {"a": 1, "b": 2, "return_value": {"a": 1, "b": 2}}
    assert supervisor.pushes == 3
    (done,) = hook.committed(stream, CONSUMER)
    assert done.value == {"a": 1, "b": 2}


@BOTH
def test_a_retry_of_a_settled_task_does_what_comes_after_the_work(hook: JetStreamHook, stream: str, make: Make) -> None:
    value, seen = claim(hook, stream), []
    work = make(value, post_execute=lambda context, result=None: seen.append(result))
    whole(work)
    assert whole(work, try_number=2).xcoms["return_value"] == 7
    assert seen == [7, 7]


@BOTH
def test_no_xcom_stays_of_a_claim_that_could_not_be_settled(
    hook: JetStreamHook, stream: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, supervisor = claim(hook, stream), Supervisor()

    async def full(*arguments: Any, **options: Any) -> None:
        assert supervisor.xcoms["return_value"] == {"a": 1}
        raise OSError("the ledger is full")

    monkeypatch.setattr(settle, "settle_done", full)
    with pytest.raises(OSError, match="the ledger is full"):
        whole(make(value, {"a": 1}, multiple_outputs=True), supervisor)
    assert supervisor.xcoms == {}


@BOTH
def test_a_skip_after_the_work_ends_the_claim_like_a_skip_in_it(hook: JetStreamHook, stream: str, make: Make) -> None:
    def after(context: Any, result: Any = None) -> None:
        raise AirflowSkipException("nothing to report")

    with pytest.raises(AirflowSkipException):
        whole(make(claim(hook, stream), post_execute=after))
    assert hook.committed(stream, CONSUMER) == []


def test_the_settle_operator_settles_last(hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JetStreamSettleOperator, "_undone", lambda *_: ({}, False))  # needs Airflow's API server
    value = claim(hook, stream)
    settles = JetStreamSettleOperator(
        task_id="settle", claim=value, value=7, nats_conn_id=CONNECTION, post_execute=fails
    )
    with pytest.raises(OSError, match="no room"):
        whole(settles, max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    assert record(hook, stream).open[value["id"]].token is None  # type: ignore[union-attr]
    with pytest.raises(Exception, match="fewer than 1"):  # it waits for the retry
        execute(sensor(stream, timeout=2.5), run_id="other")


def test_an_operator_that_another_task_executes_leaves_that_task_alone(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def outer() -> str:
        processing(value, 7).execute(get_current_context())
        return "outer"

    assert whole(PythonOperator(task_id="outer", python_callable=outer)).xcoms == {"return_value": "outer"}
    (done,) = hook.committed(stream, CONSUMER)
    assert done.value == 7


def test_a_class_whose_own_code_would_run_after_settling_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"execute='Later'.*python_callable"):

        class Later(JetStreamProcessOperator):
            def execute(self, context: Any) -> Any:
                super().execute(context)
                raise OSError

    with pytest.raises(InvalidValue, match=r"execute='Report'.*holding\(\)"):

        class Report(JetStreamHeld, PythonOperator):
            def execute(self, context: Any, **more: Any) -> Any:
                super().execute(context, **more)
                raise OSError
