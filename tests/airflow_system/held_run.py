"""One run of a DAG in dags/held.py with a separate stream, and what a test observes of it."""

import re
import secrets
from pathlib import Path
from typing import Any

import psutil

from demo.airflow import TaskInstance
from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge

COUNT = 20


class HeldRun:
    """A run that has been started. All messages of its stream are in one claim, unless its DAG says otherwise."""

    def __init__(self, stack: Stack, folder: Path, dag_id: str, **parameters: Any) -> None:
        self.stack = stack
        self.dag_id = dag_id
        self.judge = Judge(stack.nats.url, folder)
        self.stream = f"S{secrets.token_hex(4)}"
        self.gate = folder / f"gate-{self.stream}"
        self.judge.publish(self.stream, COUNT)
        self.id = stack.airflow.trigger(dag_id, {"stream": self.stream, "gate": str(self.gate), **parameters})

    def task(self, task_id: str = "work", map_index: int | None = None) -> TaskInstance | None:
        found = [each for each in self.stack.airflow.tasks(self.dag_id, self.id) if each.task_id == task_id]
        return next((each for each in found if map_index is None or each.map_index == map_index), None)

    @property
    def state(self) -> str | None:
        return task.state if (task := self.task()) else None

    @property
    def tries(self) -> int:
        return task.try_number if (task := self.task()) else 0

    @property
    def index(self) -> int:
        task = self.task()
        assert task
        return task.map_index

    @property
    def jobs(self) -> list[str]:
        """The attempts that began, the oldest first."""
        file = Path(f"{self.gate}.jobs")
        return file.read_text().split() if file.exists() else []

    @property
    def killed(self) -> list[str]:
        """Where the job was killed: in the worker or in the triggerer."""
        file = Path(f"{self.gate}.killed")
        return file.read_text().splitlines() if file.exists() else []

    @property
    def token(self) -> str | None:
        """The token that holds the claim."""
        return next(iter(self.judge.tokens(self.id).values()), None)

    def begun(self, jobs: int = 1, state: str = "running") -> str:
        """Return the newest attempt when this many have begun, and the task is in this state."""
        until(f"job {jobs}", lambda: len(self.jobs) == jobs, 240)
        until(f"the state {state}", lambda: self.state == state, 240)
        return self.jobs[-1]

    def deferred(self, jobs: int = 1, times: int = 1) -> str:
        """Return the newest attempt when its trigger holds the claim, after this many deferrals.

        The scheduler has then heard that the deferred task's process has ended. One that hears so after the trigger
        fired fails the task that it has queued again (Airflow's race, frequent under load).
        """
        attempt = self.begun(jobs, "deferred")
        token = attempt.partition("-")[2]
        key = rf"'work'.*{re.escape(self.id)}.*try_number={token.partition('-')[0]},"
        heard = re.compile(rf"Received executor event with state success .*{key}")
        until("the deferral", lambda: len(heard.findall(self.stack.scheduler.log.read_text())) == times, 240)

        of = f"attempt={token.partition('-')[0]}.log.trigger."

        def held() -> bool:
            """Whether a trigger of this try holds the claim: the newest one, which has not handed it over."""
            logs = [file.read_text(errors="replace") for file in self._files(of)]
            return any(f"is held by attempt {token} again" in log and "is handed over" not in log for log in logs)

        until("the trigger to hold the claim", held, 240)
        return attempt

    def open(self, number: int = 1, content: str = "echo done") -> None:
        """Let the work go on."""
        new = Path(f"{self.gate}.new")
        new.write_text(content)
        new.rename(f"{self.gate}.{number}")

    def closed(self, number: int = 1) -> None:
        Path(f"{self.gate}.{number}").unlink()

    def process(self) -> psutil.Process:
        def running() -> psutil.Process | None:
            task = self.task()
            return self.stack.task_process(task) if task and task.state == "running" else None

        return until("the work's process", running, 240)

    def logs(self, of: str = "") -> str:
        """The logs of the run's tasks and their triggers, or only of files with this in their name."""
        return "\n".join(file.read_text(errors="replace") for file in self._files(of))

    def _files(self, of: str) -> list[Path]:
        return [file for file in self.stack.folder.rglob("*.log") if self.id in str(file) and of in file.name]

    def ends(self, seconds: float = 240) -> str:
        return self.stack.airflow.wait(self.dag_id, self.id, seconds)

    def ends_well(self, attempt: str | None = None) -> dict[str, Any]:
        """Wait for the end, and return the one receipt: every message was settled once, by this attempt."""
        assert self.ends() == "success", self.logs()
        assert self.judge.pending(self.stream) == (0, 0)
        assert self.judge.settled(self.stream) == list(range(1, COUNT + 1))
        done = self.judge.done(self.stream)
        if attempt is not None:
            assert [f"{key}-{each['token']}" for key, each in done.items()] == [attempt]
        return next(iter(done.values()))

    def redelivered(self) -> bool:
        return self.judge.comes_again(self.stream) == COUNT
