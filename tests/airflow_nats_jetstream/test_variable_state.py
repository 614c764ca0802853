"""What a task remembers where Airflow has no task state store (below 3.3). tests/airflow_system uses the real one."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import (
    DeleteVariable,
    ErrorResponse,
    GetVariable,
    OKResponse,
    PutVariable,
    VariableResult,
)

from airflow_nats_jetstream.compat import NEVER_EXPIRE, AirflowException, forgotten, task_state
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.variable_state import KEPT, PREFIX, VariableState
from jetstream_client.errors import DuplicatesPossible
from tests.airflow_nats_jetstream.steps import CONNECTION, State, Supervisor, context_of, run
from tests.airflow_nats_jetstream.test_publish import forgotten as forget_ids

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Variables(Supervisor):
    """The process to which a task sends its Variables, which answers as Airflow's own.

    broken:  what it answers to every request, instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.variables: dict[str, PutVariable] = {}
        self.broken: ErrorType | None = None

    def send(self, msg: Any) -> Any:
        if not isinstance(msg, GetVariable | PutVariable | DeleteVariable):
            return super().send(msg)
        if self.broken is not None:
            return ErrorResponse(error=self.broken, detail={})
        if isinstance(msg, PutVariable):
            self.variables[msg.key] = msg
        elif isinstance(msg, DeleteVariable):
            del self.variables[msg.key]  # Airflow's api-server refuses to delete what does not exist
        elif msg.key in self.variables:
            return VariableResult(key=msg.key, value=self.variables[msg.key].value)
        else:
            return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND, detail={})
        return OKResponse(ok=True)


def state_of(run_id: str = "run", **fields: Any) -> VariableState:
    values: dict[str, Any] = {"dag_id": "dag", "task_id": "task", "map_index": -1, "run_id": run_id, "try_number": 1}
    return VariableState(SimpleNamespace(**{**values, **fields}))


def dag_run(start: datetime, *, clears: int = 0, run_after: datetime = LONG_AGO) -> Any:
    return SimpleNamespace(start_date=start, clear_number=clears, run_after=run_after)


def keep(state: Any, value: Any) -> None:
    state.set("key", value, retention=timedelta(days=1))


def test_a_retry_finds_what_its_run_task_and_map_index_have_stored() -> None:
    with Variables().serves() as airflow:
        keep(state_of(), {"sequence": 7})
        assert state_of(try_number=2).get("key") == {"sequence": 7}
        others: list[dict[str, Any]] = [
            {"run_id": "other"},
            {"task_id": "other"},
            {"map_index": 0},
            {"dag_id": "other"},
        ]
        assert [state_of(**other).get("key") for other in others] == [None] * 4
        assert state_of().get("another key") is None
        assert all(name.startswith(PREFIX) and "/" not in name for name in airflow.variables)
        said = {variable.description for variable in airflow.variables.values()}
        assert (
            "NATS JetStream: key of task task of DAG dag, run run. Needed as long as it may be retried or cleared."
            in said
        )
        state_of().delete("key")
        state_of().delete("key")
        assert state_of().get("key") is None


def test_none_is_a_value_like_any_other_in_the_list() -> None:
    with Variables().serves():
        keep(state_of(), None)
        assert state_of().get("key") is None


def test_a_value_that_cannot_be_read_is_an_error_and_not_a_first_try() -> None:
    with Variables().serves() as airflow:
        keep(state_of(), 7)
        airflow.broken = ErrorType.API_SERVER_ERROR
        with pytest.raises(AirflowRuntimeError):
            state_of().get("key")
        with pytest.raises(AirflowRuntimeError):
            keep(state_of(), 8)
        airflow.broken = None
        (name,) = [each for each in airflow.variables if each != state_of()._list]
        del airflow.variables[name]  # or the api-server said so because its database did not answer
        with pytest.raises(
            AirflowException, match=f"the Variable {name}, with key of an earlier try of task task of DAG dag"
        ):
            state_of().get("key")


def test_only_the_newest_values_are_kept_and_an_older_run_hears_that_its_value_may_be_gone() -> None:
    with Variables().serves() as airflow:
        began = datetime.now(UTC)
        for number in range(KEPT + 1):
            keep(state_of(f"run {number}"), number)
        assert len(airflow.variables) == KEPT + 1  # with the list
        assert [state_of(f"run {number}").get("key") for number in (0, 1, KEPT)] == [None, 1, KEPT]
        old, now = dag_run(began), datetime.now(UTC)
        assert "keeps the state of the 100 newest runs" in state_of("run 0", try_number=2).forgotten(old)
        assert state_of("run 0").forgotten(old) == ""  # a first try has stored nothing before
        assert state_of("new", try_number=2).forgotten(dag_run(now)) == ""  # whatever was deleted is older
        # Clearing a run that has ended sets a new start.
        cleared = dag_run(now, clears=1, run_after=began)
        assert "this run is older" in state_of("run 0", try_number=2).forgotten(cleared)
        assert state_of("new", try_number=2).forgotten(dag_run(now, clears=1, run_after=now)) == ""


def test_a_run_that_has_not_stored_anything_has_forgotten_nothing() -> None:
    with Variables().serves():
        assert state_of(try_number=2).forgotten(dag_run(LONG_AGO)) == ""


def test_a_task_without_task_state_store_publishes_each_message_once(hook: JetStreamHook, stream: str) -> None:
    def published(try_number: int, run_id: str = "run", **changes: Any) -> Any:
        messages = [(f"{stream}.a", str(number)) for number in range(3)]
        task = JetStreamPublishOperator(
            task_id="publish", stream=stream, messages=messages, nats_conn_id=CONNECTION, **changes
        )
        context = context_of(task, run_id=run_id, try_number=try_number, run_start=LONG_AGO)
        del context["task_state_store"]
        assert isinstance(task_state(context), VariableState)
        return run(task, context, task.execute, airflow)

    airflow = Variables()
    assert published(1)["stored"] == 3
    assert published(2) == {**published(2), "stored": 0, "duplicates": 3}
    for number in range(KEPT):
        with airflow.serves():
            state_of(f"newer {number}", task_id="publish").set(
                f"jetstream_position_{stream}", {}, retention=timedelta(days=1)
            )
    with pytest.raises(DuplicatesPossible, match="it is not known any more what an earlier try has done"):
        published(3)
    assert hook.run(lambda js: js.stream(stream).info()).state["messages"] == 3
    assert published(3, accept_duplicates=True)["stored"] + 3 >= 3


def test_a_task_that_began_before_an_upgrade_of_airflow_publishes_each_message_once(
    hook: JetStreamHook, stream: str
) -> None:
    """Its first try had no task state store, and its retry has one, which is empty."""
    messages = [(f"{stream}.a", str(number)) for number in range(3)]
    task = JetStreamPublishOperator(task_id="publish", stream=stream, messages=messages, nats_conn_id=CONNECTION)
    airflow, store = Variables(), State()
    before = context_of(task, run_start=LONG_AGO)
    del before["task_state_store"]
    assert run(task, before, task.execute, airflow)["stored"] == 3
    forget_ids(hook, stream)
    for try_number in (2, 3):
        after = context_of(task, try_number=try_number, run_start=LONG_AGO, state=store)
        answer = run(task, after, task.execute, airflow)
        assert (answer["stored"], answer["duplicates"]) == (0, 3)
    assert hook.run(lambda js: js.stream(stream).info()).state["messages"] == 3


def test_the_store_of_a_newer_airflow_comes_before_the_variables_of_an_older_one() -> None:
    with Variables().serves():
        task = JetStreamPublishOperator(task_id="publish", stream="S", messages=[])
        before, after = context_of(task), context_of(task, try_number=2)
        del before["task_state_store"]
        keep(task_state(before), "older")
        now = task_state(after)
        assert now.get("key") == "older"
        now.set("key", "newer", retention=NEVER_EXPIRE)
        assert (now.get("key"), task_state(before).get("key")) == ("newer", "older")
        now.delete("key")
        assert (now.get("key"), task_state(before).get("key")) == (None, None)
        first = context_of(task, state=State())
        assert task_state(first) is first["task_state_store"]  # no try has stored anything before


@pytest.mark.parametrize(
    "edited", ["", "{", "[]", '"text"', '{"value": 8}', '{"value": 8, "digest": "none"}', '{"digest": "none"}', "null"]
)
def test_a_variable_that_somebody_has_edited_is_named(edited: str) -> None:
    with Variables().serves() as airflow:
        keep(state_of(), 7)
        (name,) = [each for each in airflow.variables if each != state_of()._list]
        airflow.variables[name] = airflow.variables[name].model_copy(update={"value": edited})
        with pytest.raises(AirflowException, match=f"somebody has edited the Variable {name}.*delete"):
            state_of().get("key")


@pytest.mark.parametrize("edited", ["{", "[]", '{"values": []}', '{"values": {}}', '{"values": {}, "forgotten": 7}'])
def test_a_list_that_somebody_has_edited_is_named(edited: str) -> None:
    with Variables().serves() as airflow:
        keep(state_of(), 7)
        listed = state_of()._list
        airflow.variables[listed] = airflow.variables[listed].model_copy(update={"value": edited})
        assert state_of().get("key") == 7
        for use in (lambda: state_of().get("other"), lambda: keep(state_of(), 8)):
            with pytest.raises(AirflowException, match=f"somebody has edited the Variable {listed}.*delete"):
                use()


def test_the_task_state_store_forgets_nothing_while_the_run_exists() -> None:
    task = JetStreamPublishOperator(task_id="publish", stream="S", messages=[])
    context = context_of(task)
    assert forgotten(task_state(context), context) == ""
