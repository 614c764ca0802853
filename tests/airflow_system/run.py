"""One run of a test's DAG with a separate stream, and what a test observes of it."""

import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil

from demo.airflow import TaskInstance
from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge


@dataclass
class Run:
    """One run of `dag_id`, a DAG in dags/handoff.py, with `count` messages in a separate stream."""

    stack: Stack
    judge: Judge
    gate: Path
    count: int
    dag_id: str = "handoff"
    stream: str = field(default_factory=lambda: f"S{secrets.token_hex(4)}")
    id: str = ""
    shown: tuple[str, ...] = ("work",)
    """The tasks whose states are observed."""

    def start(self, **parameters: Any) -> Self:
        """Start the run, and publish when the sensor waits."""
        self.waits(**parameters)
        self.judge.publish(self.stream, self.count)
        return self

    def waits(self, **parameters: Any) -> None:
        """Start the run with the DAG's own parameters; by default all messages are in one claim, and Spark is not used.

        Returns when the sensor waits.
        """
        self.judge.publish(self.stream, 0)
        self.claim(self.count, **parameters)
        self.deferred(1)

    def deferred(self, try_number: int) -> None:
        """Return when this try of the sensor waits, and the scheduler has heard that the deferred task's process ended:
        one that hears so after the trigger fired fails the task that it has queued again (Airflow's race, frequent
        under load)."""
        key = f"'claims'.*{re.escape(self.id)}.*try_number={try_number},"
        heard = re.compile(f"Received executor event with state success .*{key}")
        until("the deferral", lambda: heard.search(self.stack.scheduler.log.read_text()), 240)
        until("the sensor to pull", lambda: self.judge.pulls(self.stream), 240)

    def claim(self, count: int, **parameters: Any) -> Self:
        """Start a run for this many messages that the stream already has."""
        own = {"stream": self.stream, "most": count, "per_claim": count, "gate": str(self.gate), "tries_with_spark": 0}
        self.id = self.stack.airflow.trigger(self.dag_id, {**own, **parameters})
        return self

    def another(self) -> Self:
        """A further run for the same stream, not started yet, whose sensor waits in the worker."""
        return replace(self, dag_id="in_the_worker", id="", shown=("work",))

    def task(self, task_id: str = "work", map_index: int = 0) -> TaskInstance | None:
        return self.stack.airflow.task(self.dag_id, self.id, task_id, map_index)

    def state(self, task_id: str = "work", map_index: int = 0) -> str | None:
        """The state of a task; None while it does not exist."""
        task = self.task(task_id, map_index)
        return task.state if task else None

    def states(self) -> str:
        """The states of the shown tasks; before the work exists, that of the sensor."""
        found = {task_id: self.state(task_id) or self.state(task_id, -1) for task_id in self.shown}
        if self.shown != ("work",):
            return ", ".join(f"{task_id} {state}" for task_id, state in found.items())
        return found["work"] or f"claims: {self.state('claims', -1)}"

    def process(self) -> psutil.Process:
        """The process of the first mapped task."""

        def running() -> psutil.Process | None:
            task = self.task()
            return self.stack.task_process(task) if task and task.state == "running" else None

        return until("the work's process", running, 240, every=0.5)

    def attempts(self) -> list[str]:
        """The attempts that have begun to work, in the order in which they began."""
        return [file.suffix[1:] for file in self._marks()]

    def bodies(self) -> int:
        """How many attempts have begun to work on the first message of the stream."""
        return sum(file.read_text() == "1" for file in self._marks())

    def at_work(self, attempts: int = 1) -> str:
        """Wait until this many attempts have begun, and return the newest."""
        until(f"attempt {attempts}", lambda: len(self.attempts()) >= attempts, 240)
        return self.attempts()[-1]

    def open_the_gate(self) -> None:
        self.gate.touch()

    def open_the_other_gate(self) -> None:
        """Let the second task over the same claims begin."""
        self.gate.with_suffix(".again").touch()

    def ends(self) -> str:
        """Wait for the end of the run, and return its state."""
        return self.stack.airflow.wait(self.dag_id, self.id, 180)

    def ends_well(self) -> None:
        self.stack.airflow.succeeds(self.dag_id, self.id, 180)
        self.judge.every_message_settled_once(self.stream, self.count)

    def _marks(self) -> list[Path]:
        return sorted(self.gate.parent.glob(f"{self.gate.stem}.*-*"), key=lambda file: file.stat().st_mtime)
