# ruff: noqa: ARG002, ASYNC110, ASYNC230, ASYNC240 - short waits for files
"""An operator of another provider, as far as a held operator can tell: it knows nothing of claims.

It starts a job, which is a file, and defers until another file appears. Its trigger can kill the job.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_nats_jetstream.compat import AirflowException


class GateTrigger(BaseTrigger):
    """Wait until the file ``<gate>.<round>`` exists; its content is the event."""

    def __init__(self, gate: str, number: int, since: datetime, ends_task: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        assert isinstance(since, datetime)  # read back from Airflow's database as what it was
        self.gate = Path(gate)
        self.number = number
        self.since = since
        self.ends_task = ends_task

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = {"gate": str(self.gate), "number": self.number, "since": self.since, "ends_task": self.ends_task}
        return f"{__name__}.{type(self).__name__}", fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        assert self.task_instance is not None
        opened = Path(f"{self.gate}.{self.number}")
        while not opened.exists():
            await asyncio.sleep(0.05)
        if opened.read_text() == "breaks":
            raise OSError("the trigger breaks")
        if self.ends_task:
            yield TaskSuccessEvent()
        yield TriggerEvent({"said": opened.read_text()})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        await asyncio.sleep(1.5)  # longer than between two cancellations by the triggerer
        with Path(f"{self.gate}.killed").open("a") as killed:
            killed.write("in the triggerer\n")

    async def cleanup(self) -> None:
        Path(f"{self.gate}.cleaned").touch()


class Deferring(BaseOperator):
    """Start a job that writes its output into ``folder``, and defer ``rounds`` times until it has ended."""

    template_fields = ("folder", "gate")
    ui_color = "#123456"

    def __init__(
        self,
        *,
        folder: str,
        gate: str,
        rounds: int = 1,
        ends_task: bool = False,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.folder = folder
        self.gate = gate
        self.rounds = rounds
        self.ends_task = ends_task
        self.deferrable = deferrable

    def execute(self, context: Any) -> Any:
        with Path(f"{self.gate}.jobs").open("a") as jobs:
            jobs.write(f"{self.folder}\n")
        self.wait(1)

    def wait(self, number: int) -> None:
        trigger = GateTrigger(self.gate, number, datetime.now(UTC), self.ends_task)
        self.defer(trigger=trigger, method_name="resume", kwargs={"number": number})

    def resume(self, context: Any, event: dict[str, Any], number: int) -> Any:
        if event["said"] == "dies":
            os.kill(os.getppid(), signal.SIGKILL)  # its supervisor, which would report its death
            os.kill(os.getpid(), signal.SIGKILL)
        if event["said"] == "failed":
            raise AirflowException("the job has failed")
        if number < self.rounds:
            self.wait(number + 1)
        return {"folder": self.folder, "said": event["said"]}

    def on_kill(self) -> None:
        with Path(f"{self.gate}.killed").open("a") as killed:
            killed.write("in the worker\n")
