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
        if (text := _read(name)) is not None:
            found = _decoded(text)
            if not isinstance(found, dict) or found.get("digest") != _digest(found.get("value")):
                raise AirflowException(
                    f"somebody has edited the Variable {name}, with {key} of an earlier try of {self._task}. Restore "
                    f"it, or delete it and the Variable {self._list}; the task then begins as if there had been no "
                    "earlier try"
                )
            return found.get("value")
        if name in self._listed()["values"]:
            raise AirflowException(
                f"the Variable {name}, with {key} of an earlier try of {self._task}, cannot be read; a retry reads it "
                f"again. If somebody has deleted it, delete the Variable {self._list} as well; the task then begins as "
                "if there had been no earlier try"
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
        name, now = _name(*self._run, key), datetime.now(UTC).isoformat()
        said = f"NATS JetStream: {key} of {self._task}. Needed as long as it may be retried or cleared."
        _write(name, {"value": value, "digest": _digest(value)}, said)
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
        if self._try <= 1 or not (deleted := self._listed()["forgotten"]):
            return ""
        # Clearing a run that has ended sets a new start, so an earlier try may have stored a value before it; but never
        # before the time from which on the run was allowed to start.
        began = dag_run.run_after if dag_run.clear_number or dag_run.start_date is None else dag_run.start_date
        if deleted < began.astimezone(UTC).isoformat():
            return ""
        return (
            f"Airflow below 3.3 keeps the state of the {KEPT} newest runs of a task, and this run is older: it is not "
            "known any more what an earlier try has done"
        )

    @property
    def _task(self) -> str:
        dag_id, task_id, map_index, run_id = self._run
        return (
            f"task {task_id} of DAG {dag_id}"
            + (f", map index {map_index}" if map_index >= 0 else "")
            + f", run {run_id}"
        )

    def _listed(self) -> Any:
        """The times at which the values were stored that the list contains, and that of the newest one that was
        deleted because there were too many."""
        if (text := _read(self._list)) is None:
            return {"values": {}, "forgotten": ""}
        match _decoded(text):
            case {"values": dict() as values, "forgotten": str() as forgotten}:
                return {"values": values, "forgotten": forgotten}
        raise AirflowException(
            f"somebody has edited the Variable {self._list}, the list of what runs of {self._task} have stored. "
            "Restore it; or delete it, if no run of this task that has ended will be cleared"
        )

    def _list_them(self, values: Mapping[str, str], forgotten: str) -> None:
        dag_id, task_id, *_ = self._run
        said = f"NATS JetStream: the Variables in which task {task_id} of DAG {dag_id} keeps its state."
        _write(self._list, {"values": values, "forgotten": forgotten}, said)


class Upgraded:
    """The state of a task instance that may have begun before Airflow was upgraded to 3.3.

    store:    Airflow's task state store.
    earlier:  the Variables, in which an earlier try has stored what it does not find in ``store``.
    """

    def __init__(self, store: Any, earlier: VariableState) -> None:
        self._store, self._earlier = store, earlier
        self.set, self.forgotten = store.set, earlier.forgotten

    def get(self, key: str) -> Any:
        """Return the value; None if there is none. Raises as :meth:`VariableState.get`."""
        found = self._store.get(key)
        return self._earlier.get(key) if found is None else found

    def delete(self, key: str) -> None:
        """Delete a value wherever it is."""
        self._store.delete(key)
        self._earlier.delete(key)


def _name(*parts: Any) -> str:
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return PREFIX + digest[:_LONGEST]


def _digest(value: Any) -> str:
    """Show whether a value is the one that was stored."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LONGEST]


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _read(name: str) -> str | None:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import GetVariable

    try:
        answer = _checked(_supervisor().send(GetVariable(key=name)))
    except AirflowRuntimeError as error:
        if error.error.error == ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise
    return None if answer.value is None else str(answer.value)


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
