"""The steps of the operators' tests: run an operator as Airflow's task runner does, and ask the server."""

import asyncio
import contextvars
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self
from uuid import UUID, uuid4

import pytest
import structlog
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DeleteXCom, ErrorResponse, GetVariable, GetXCom, SetXCom, XComResult
from airflow.sdk.execution_time.context import OutletEventAccessors, set_current_context
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.timeout import timeout

from airflow_nats_jetstream.compat import NEVER_EXPIRE, AirflowTaskTimeout, TaskDeferred
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_client.context import JetStream
from jetstream_client.errors import ConsumerNotFound
from jetstream_client.info import ConsumerInfo
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt, Record
from tests.airflow_versions import deserialize, serialize

CONNECTION = "nats_test"
CONSUMER = "work"
ACK_WAIT = timedelta(seconds=1)


class State:
    """A task state store. Airflow's own store needs its API server: tests/airflow_system uses it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        assert retention == NEVER_EXPIRE  # because a task may be cleared years later
        self.values[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Kept(State):
    """A task state store in which a worker may die at any write."""

    def __init__(self, writes: int = 100) -> None:
        super().__init__()
        self.writes = writes

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:
        assert retention > LONGEST_HOLD
        if not self.writes:
            raise SystemExit("the worker died")
        self.writes -= 1
        self.values[key] = json.loads(json.dumps(value))


class Supervisor:
    """The process to which a task sends its XComs. Airflow's own passes them to its API server: tests/airflow_system
    uses it.

    refuses:  called with each XCom; whatever it raises is what the task gets.
    """

    def __init__(self, refuses: Callable[[SetXCom], None] = lambda _: None) -> None:
        self.refuses = refuses
        self.xcoms: dict[str, Any] = {}
        self.pushes = 0

    def send(self, msg: Any) -> Any:
        if isinstance(msg, GetVariable):
            return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND, detail={})
        if isinstance(msg, GetXCom):
            return XComResult(key=msg.key, value=self.xcoms.get(msg.key))
        if isinstance(msg, SetXCom):
            self.refuses(msg)
            self.pushes += 1
            self.xcoms[msg.key] = deserialize(json.loads(json.dumps(msg.value)))
        elif isinstance(msg, DeleteXCom):
            self.xcoms.pop(msg.key, None)
        return None

    async def asend(self, msg: Any) -> Any:
        return self.send(msg)

    @contextmanager
    def serves(self) -> Iterator[Self]:
        before = getattr(task_runner, "SUPERVISOR_COMMS", None)
        task_runner.SUPERVISOR_COMMS = self  # type: ignore[assignment]
        try:
            yield self
        finally:
            if before is None:
                del task_runner.SUPERVISOR_COMMS
            else:
                task_runner.SUPERVISOR_COMMS = before


def context_of(
    task: BaseOperator,
    *,
    run_id: str = "run",
    try_number: int = 1,
    max_tries: int = 0,
    map_index: int = -1,
    state: State | None = None,
    run_start: datetime | None = None,
    instance: UUID | None = None,
    conf: Mapping[str, Any] | None = None,
    clears: int = 0,
) -> Any:
    """The part of Airflow's context that operators use, with a task instance of the task runner's own class."""
    if not task.has_dag():  # type: ignore[no-untyped-call]
        task.dag = DAG("dag")
    ti = RuntimeTaskInstance.model_construct(
        id=instance or uuid4(),
        dag_id="dag",
        run_id=run_id,
        task_id=task.task_id,
        map_index=map_index,
        try_number=try_number,
        max_tries=max_tries,
        start_date=datetime.now(UTC),
        task=task,
        is_mapped=map_index >= 0,
    )
    return {
        "dag_run": SimpleNamespace(conf=conf or {}, start_date=run_start, run_after=run_start, clear_number=clears),
        "ti": ti,
        "task_instance": ti,
        "task": task,
        "outlet_events": OutletEventAccessors(),
        "task_state_store": state or State(),
    }


def execute(task: BaseOperator, **instance: Any) -> Any:
    """Run a task with the function that Airflow's task runner calls, including time-out and on_kill."""
    return run(task, context_of(task, **instance), task.execute)


def run(task: BaseOperator, context: Any, work: Any, supervisor: Supervisor | None = None) -> Any:
    """Run one process of a task as Airflow's task runner does: ``task.execute``, or a part of ``resume_execution``."""
    runner = getattr(task_runner, "_run_execute_callable", _run_as_in_3_3_0)
    with set_current_context(context), (supervisor or Supervisor()).serves():
        return runner(context=context, execute=work, task=task)


def whole(task: BaseOperator, supervisor: Supervisor | None = None, **instance: Any) -> Supervisor:
    """Run a task with everything that Airflow's task runner does until the task has succeeded."""
    task = task.prepare_for_execution()
    context = context_of(task, **instance)
    ti, log = context["ti"], structlog.get_logger()
    ti._ti_context_from_server = None
    if task.map_index_template:
        context["map_index_template"] = task.map_index_template
    with set_current_context(context), (supervisor or Supervisor()).serves() as used:
        result = task_runner._execute_task(context, ti, log)
        ti.rendered_map_index = task_runner._render_map_index(context, ti, log)
        task_runner._push_xcom_if_needed(result, ti, log)
    return used


def _run_as_in_3_3_0(context: Any, execute: Any, task: BaseOperator) -> Any:
    """The lines of Airflow 3.3.0's ``_execute_task`` that are a separate function since 3.3.1."""
    inside = contextvars.copy_context()
    inside.run(ExecutorSafeguard.tracker.set, task)
    if not task.execution_timeout:
        return inside.run(execute, context=context)
    try:
        with timeout(task.execution_timeout.total_seconds()):  # type: ignore[no-untyped-call]
            return inside.run(execute, context=context)
    except AirflowTaskTimeout:
        task.on_kill()
        raise


def rendered(task: Any, params: Mapping[str, Any], map_index: int = -1, **names: Any) -> Any:
    """The task with its fields rendered, as Airflow does it before it runs: ``{{ params.… }}`` of these, and other
    names of its context. Of a mapped task that with this index."""
    task = task.prepare_for_execution()
    environment = task.dag.get_template_env() if task.has_dag() else None
    context = {**context_of(task, map_index=map_index), "params": params, **names}
    if task.has_dag():
        context["dag"] = task.dag
    task.render_template_fields(context, environment)
    return context["task"]


def deferred(task: BaseOperator, **instance: Any) -> Any:
    """The trigger of a task that defers, as read back from Airflow's database."""
    with pytest.raises(TaskDeferred) as deferring:
        execute(task, **instance)
    path, values = deferring.value.trigger.serialize()
    stored: Any = deserialize(json.loads(json.dumps(serialize(values))))
    return pkgutil.resolve_name(path)(**stored)


def resumed(task: BaseOperator, event: dict[str, Any]) -> Any:
    """What a task returns that resumes with the event of its trigger."""
    return task.resume_execution("resume", {"event": event}, context_of(task))


def publish(hook: JetStreamHook, stream: str, count: int) -> None:
    async def messages(js: JetStream) -> None:
        for number in range(count):
            await js.publish_async(f"{stream}.{number % 3}", b"x" * 10)
        await js.publish_async_complete()

    hook.run(messages)


def sensor(stream: str, **changes: Any) -> JetStreamPullSensor:
    """A sensor that waits in the worker, with short waits."""
    values: dict[str, Any] = {
        "task_id": "claims",
        "stream": stream,
        "consumer": CONSUMER,
        "max_messages": 1_000,
        "gather": timedelta(seconds=0.1),
        "consumer_config": {"ack_wait": ACK_WAIT},
        "deferrable": False,
        "timeout": 60,
        "nats_conn_id": CONNECTION,
    }
    return JetStreamPullSensor(**{**values, **changes})


def claim(hook: JetStreamHook, stream: str, count: int = 10) -> dict[str, Any]:
    """Publish messages, let a sensor claim them, and return the claim that it hands on."""
    publish(hook, stream, count)
    (claim,) = execute(sensor(stream))
    return dict(claim)


def info(hook: JetStreamHook, stream: str) -> ConsumerInfo:
    """The server's INFO of the consumer."""
    return hook.run(lambda js: js.stream(stream).consumer(CONSUMER).info())


async def pulls(hook: JetStreamHook, stream: str) -> bool:
    """Whether a pull request waits at the consumer."""
    try:
        return bool((await asyncio.to_thread(info, hook, stream)).raw["num_waiting"])
    except ConsumerNotFound:
        return False


def record(hook: JetStreamHook, stream: str) -> Record | None:
    """The ledger's record of the consumer."""

    async def read(js: Any) -> Record | None:
        return (await Ledger(js, stream, CONSUMER).read())[0]

    return hook.run(read)


def receipt(hook: JetStreamHook, stream: str, claim_id: str) -> Receipt | None:
    """The ledger's receipt of a claim, or None."""

    async def read(js: Any) -> Receipt | None:
        return await Ledger(js, stream, CONSUMER).receipts.read(claim_id)

    return hook.run(read)
