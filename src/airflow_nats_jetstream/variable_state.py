# SPDX-License-Identifier: Apache-2.0
"""What a task remembers over its retries, in an Airflow without task state store (below 3.3): Airflow Variables.

An XCom is deleted when a retry begins, and a task may write Variables without a further permission. There is one
Variable for each value of a task instance, and one for each task that lists the newest of them, because nobody else
deletes them: a task keeps the values of its ``KEPT`` newest runs.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

KEPT = 100
"""How many values of a task, with the same map index, are kept. Those of its newest runs are among them."""
PREFIX = "jetstream_state_"  # must not change, because Airflow's database has these keys
_LONGEST = 32  # characters of a hash


class VariableState:
    """The state of a task instance in Airflow's Variables, with the interface of Airflow's task state store.

    The supervisor is asked directly, because ``Variable.get`` takes an error of the api-server for a missing Variable,
    and ``Variable.set`` only logs an error.

    ti:  the task instance.
    """

    def __init__(self, ti: Any) -> None:
        map_index = -1 if ti.map_index is None else ti.map_index
        self._run: tuple[Any, ...] = (ti.dag_id, ti.task_id, map_index, ti.run_id)
        self._list = _name(*self._run[:3])
        self._try = ti.try_number

    def get(self, key: str) -> Any:
        """Return the value; None if there is none.

        Airflow's api-server answers "not found" also if its database cannot be read, so the list is asked as well.

        Raises:
            AirflowException, AirflowRuntimeError: the value cannot be read.
        """
        name = _name(*self._run, key)
        if (found := _read(name)) is not None:
            return found["value"]
        if name in self._listed()["values"]:
            raise AirflowException(
                f"the Variable {name}, with {key} of an earlier try, cannot be read; a retry reads it again. If "
                f"somebody has deleted it, delete the Variable {self._list} as well"
            )
        return None

    def set(self, key: str, value: Any, *, retention: timedelta) -> None:  # noqa: ARG002 - as in the task state store
        """Store a value, and delete the oldest values of the task.

        key:        the name of the value.
        value:      a JSON value.
        retention:  not used: the number of values is limited, and not their age.

        Raises:
            AirflowRuntimeError: Airflow's api-server could not store it.
        """
        dag_id, task_id, map_index, run_id = self._run
        task = f"task {task_id} of DAG {dag_id}" + (f", map index {map_index}" if map_index >= 0 else "")
        name, now = _name(*self._run, key), datetime.now(UTC).isoformat()
        said = f"NATS JetStream: {key} of {task}, run {run_id}. Needed as long as it may be retried or cleared."
        _write(name, {"value": value}, said)
        listed = self._listed()
        values = {**listed["values"], name: now}
        ordered = sorted(values, key=values.__getitem__)
        oldest = ordered[:-KEPT]
        kept = {each: values[each] for each in ordered[-KEPT:]}
        self._list_them(kept, max([listed["forgotten"], *(values[each] for each in oldest)]))
        for each in oldest:
            _delete(each)

    def delete(self, key: str) -> None:
        """Delete a value. Deleting one that does not exist succeeds."""
        name, listed = _name(*self._run, key), self._listed()
        if listed["values"].pop(name, None) is not None:
            self._list_them(listed["values"], listed["forgotten"])
            _delete(name)

    def forgotten(self, dag_run: Any) -> str:
        """Return why the state of this task instance may have been deleted; empty if it was not.

        dag_run:  the run, as in Airflow's context.
        """
        # Clearing a run that has ended sets a new start, so an earlier try may have stored a value before it; but never
        # before the time from which on the run was allowed to start.
        began = dag_run.run_after if dag_run.clear_number or dag_run.start_date is None else dag_run.start_date
        if self._try <= 1 or self._listed()["forgotten"] < began.astimezone(UTC).isoformat():
            return ""
        return (
            f"Airflow below 3.3 keeps the state of the {KEPT} newest runs of a task, and this run is older: it is not "
            "known any more what an earlier try has done"
        )

    def _listed(self) -> Any:
        """The times at which the values were stored that the list contains, and that of the newest one that was
        deleted because there were too many."""
        return _read(self._list) or {"values": {}, "forgotten": ""}

    def _list_them(self, values: Mapping[str, str], forgotten: str) -> None:
        dag_id, task_id, *_ = self._run
        said = f"NATS JetStream: the Variables in which task {task_id} of DAG {dag_id} keeps its state."
        _write(self._list, {"values": values, "forgotten": forgotten}, said)


def _name(*parts: Any) -> str:
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return PREFIX + digest[:_LONGEST]


def _read(name: str) -> Any:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import GetVariable

    try:
        answer = _checked(_supervisor().send(GetVariable(key=name)))
    except AirflowRuntimeError as error:
        if error.error.error == ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise
    return None if answer.value is None else json.loads(answer.value)


def _write(name: str, value: Any, description: str) -> None:
    from airflow.sdk.execution_time.comms import PutVariable

    _checked(_supervisor().send(PutVariable(key=name, value=json.dumps(value), description=description)))


def _delete(name: str) -> None:
    from airflow.sdk.execution_time.comms import DeleteVariable

    _checked(_supervisor().send(DeleteVariable(key=name)))


def _checked(answer: Any) -> Any:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import ErrorResponse

    if isinstance(answer, ErrorResponse):
        raise AirflowRuntimeError(answer)
    return answer


def _supervisor() -> Any:
    from airflow.sdk.execution_time import task_runner

    return task_runner.SUPERVISOR_COMMS
