"""The main job and the event-driven DAG on the real Airflow. The moments come from Airflow, the ledger and the logs."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.main_job.messages import moment, publish, recreate, wait_for_pull
from benchmarks.main_job.stages import Stage, Task, Timeline, ends
from demo.airflow import TaskInstance
from demo.service import until
from demo.stack import Stack
from jetstream_client import ConnectionSettings

MAIN, ARRIVING = "flight_delays", "flights_arriving"
LONGEST_RUN = 1_800  # seconds
QUIET = 3.0  # seconds after which a sensor that waits no longer uses the processor


@dataclass(frozen=True)
class OnAirflow:
    """The DAGs of one stack, which must have been stored."""

    stack: Stack

    @property
    def settings(self) -> ConnectionSettings:
        return ConnectionSettings(servers=self.stack.nats.url)

    def main_job(self, messages: int, *, waiting: bool) -> Timeline:
        """Run the main job without its publishing: as in production, others have published.

        messages:  how many messages there are.
        waiting:   publish when the sensor waits, and measure from then on. Otherwise publish before the run starts, and
                   measure from then on.
        """
        airflow = self.stack.airflow
        recreate(self.settings)
        shutil.rmtree(self.stack.environment["FLIGHT_DELAYS_OUT"], ignore_errors=True)  # the table of the run before
        if not waiting:
            publish(self.settings, messages)
        airflow.pause(MAIN)
        run = airflow.trigger(MAIN, paused=True)
        for published in ("stream", "publish"):
            airflow.mark(MAIN, run, published, "success")
        begin = time.time()
        airflow.pause(MAIN, False)
        if waiting:
            wait_for_pull(self.settings, "delays")
            time.sleep(QUIET)
            begin = publish(self.settings, messages)
        self._succeeds(MAIN, run)
        taken = self._taken(MAIN, run)
        sensor = [] if waiting else [(Stage.SENSOR, self._started(MAIN, run, "claims"))]
        return Timeline.of(begin, *sensor, (Stage.TAKE, taken), *ends(self._tasks(MAIN, run, "delays")))

    def prepare_arriving(self) -> None:
        """Unpause the event-driven DAG, and have it settle two messages.

        Airflow starts the watcher when it parses the DAG's file again. The first run creates the consumer.
        """
        recreate(self.settings)
        self.stack.airflow.pause(ARRIVING, False)
        for _ in range(2):
            self.arrive()

    def arrive(self) -> Timeline:
        """Publish one message, and measure until the run that it starts has settled it."""
        before = self.stack.airflow.runs(ARRIVING)
        begin = publish(self.settings, 1)
        run = until("a run", lambda: next(iter(self.stack.airflow.runs(ARRIVING).keys() - before.keys()), None), 120)
        self._succeeds(ARRIVING, run)
        until("the last run", lambda: not self._busy(), 120)
        return Timeline.of(
            begin,
            (Stage.NOTICE, max(self.stack.airflow.notified(ARRIVING, run))),
            (Stage.SENSOR, self._started(ARRIVING, run, "claims")),
            (Stage.TAKE, self._taken(ARRIVING, run)),
            *ends(self._tasks(ARRIVING, run, "count_by_carrier")),
        )

    def _busy(self) -> bool:
        running = {"queued", "running"}.intersection(self.stack.airflow.runs(ARRIVING).values())
        return bool(running) or self.stack.airflow.event_waits(ARRIVING)

    def _succeeds(self, dag: str, run: str) -> None:
        state = self.stack.airflow.wait(dag, run, LONGEST_RUN)
        if state != "success":
            failed = [each for each in self.stack.airflow.tasks(dag, run) if each.state == "failed"]
            logs = [self.stack.airflow.log(dag, run, each) for each in failed]
            raise RuntimeError("\n".join([f"the run {run} of {dag} ended as {state}", *logs]))

    def _started(self, dag: str, run: str, task_id: str) -> float:
        task = self.stack.airflow.task(dag, run, task_id)
        assert task is not None
        return started(task)

    def _taken(self, dag: str, run: str) -> float:
        """Return when the last claim was entered in the ledger."""
        claims: list[dict[str, Any]] = self.stack.airflow.xcom(dag, run, "claims")
        return max(moment(claim["taken_at"]) for claim in claims)

    def _tasks(self, dag: str, run: str, task_id: str) -> list[Task]:
        tasks = [each for each in self.stack.airflow.tasks(dag, run) if each.task_id == task_id]
        return [self._task(dag, run, each) for each in tasks]

    def _task(self, dag: str, run: str, task: TaskInstance) -> Task:
        said: dict[str, float] = {}
        for at, message in self.stack.airflow.told(dag, run, task):
            if story := re.match(r"claim \w+ is (held|read|done|acknowledged)\b", message):
                said.setdefault(story[1], at)
        return Task(started(task), said["held"], said.get("read"), said["done"], said["acknowledged"])


def started(task: TaskInstance) -> float:
    assert task.started is not None, f"{task.name} has not started"
    return task.started
