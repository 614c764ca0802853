"""A job on a real Spark cluster, submitted by the real scheduler's workers and watched by the real triggerer."""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.service import Service, until
from demo.stack import Stack
from tests.airflow_system.conftest import DAGS, IMPATIENT
from tests.airflow_system.events import frozen
from tests.airflow_system.judge import Judge
from tests.cluster.environment import PROJECT, environment, spark_home
from tests.cluster.standalone import Standalone

COUNT = 40
FOLDER = PROJECT / "build" / "tests" / "submitted"


@pytest.fixture(scope="session")
def cluster(spark_environment: None) -> Iterator[Standalone]:
    """Its workers find their credentials in a file that does not exist yet."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    python = environment(PROJECT / "build" / "tests" / "executors", installed=True)
    known = {"PYSPARK_PYTHON": str(python), "JETSTREAM_SECRET_NATS_DEFAULT": str(FOLDER / "secret.json")}
    cluster = Standalone(FOLDER / "cluster", spark_home(python), known)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def stack(cluster: Standalone) -> Iterator[Stack]:
    dags = FOLDER / "dags"
    dags.mkdir(parents=True)
    for name in ("submitted.py", "submitted_job.py"):
        shutil.copy(DAGS / name, dags)
    stack = Stack(FOLDER / "services", dags, IMPATIENT)
    (FOLDER / "secret.json").write_text(json.dumps({"servers": stack.nats.url}))
    stack.environment["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps(cluster.connection())
    stack.environment["HANDOFF_OUT"] = str(FOLDER / "out")
    with stack:
        stack.airflow.wait_for_dag("submitted")
        yield stack


class Run:
    """One run with a separate stream."""

    def __init__(self, stack: Stack, cluster: Standalone, *, dies: bool = False) -> None:
        self.stack, self.cluster = stack, cluster
        self.judge = Judge(stack.nats.url, FOLDER / "out")
        self.stream = f"S{secrets.token_hex(4)}"
        self.gate = FOLDER / f"gate-{self.stream}"
        self._before = [each["id"] for each in cluster.drivers]
        self.judge.publish(self.stream, COUNT)
        self.id = stack.airflow.trigger("submitted", {"stream": self.stream, "gate": str(self.gate), "dies": dies})

    def state(self) -> str | None:
        task = self.stack.airflow.task("submitted", self.id, "work", 0)
        return task.state if task else None

    def drivers(self, state: str = "") -> list[str]:
        found = [each for each in self.cluster.drivers if each["id"] not in self._before]
        return [each["id"] for each in found if state in each["state"]]

    def written(self) -> list[Path]:
        """The attempts that wrote the messages of this run's stream."""
        found = [file for file in (FOLDER / "out").glob("*/part-*.json") if self.stream in file.read_text()]
        return [file.parent for file in found if (file.parent / "_SUCCESS").exists()]

    def on_page(self) -> dict[str, Any]:
        """Its claim, as the page JetStream shows it."""
        (claim,) = self.stack.airflow.xcom("submitted", self.id, "claims")
        return self.stack.airflow.claim("nats_default", claim["id"])

    def logs(self) -> list[Path]:
        """The log files of its tasks and their triggers."""
        return [file for file in (FOLDER / "services").rglob("*.log") if self.id in str(file)]

    def works(self, jobs: int = 1) -> None:
        """Return when the task is deferred and this many jobs have written what they read."""
        until("the deferral", lambda: self.state() == "deferred", 300, every=0.5)
        until("the job's output", lambda: len(self.written()) == jobs, 300, every=0.5)
        assert self.judge.pending(self.stream) == (0, COUNT)

    def ends_well(self) -> None:
        self.gate.touch()
        self.stack.airflow.succeeds("submitted", self.id, 300)
        assert self.judge.pending(self.stream) == (0, 0)
        assert sorted(self.judge.settled(self.stream)) == list(range(1, COUNT + 1))
        (job,) = self.drivers("FINISHED")
        answer = self.stack.airflow.xcom("submitted", self.id, "work", map_index=0)
        assert answer["driver"] == job
        lines = (FOLDER / "out" / answer["attempt"]).glob("part-*.json")
        rows = [json.loads(line) for file in lines for line in file.read_text().splitlines()]
        assert sorted(row["sequence"] for row in rows) == list(range(1, COUNT + 1))


def test_the_triggerer_dies_while_the_job_runs(stack: Stack, cluster: Standalone) -> None:
    run = Run(stack, cluster)
    run.works()
    spark = stack.airflow.xcom("submitted", run.id, "work", "jetstream_spark", map_index=0)
    assert spark == {"application": run.drivers()[0], "url": cluster.pages[0]}
    until("the page to show the holder", lambda: run.on_page()["spark"] == spark, 60, every=1)
    busy = [task for task in stack.airflow.tasks("submitted", run.id) if task.state == "running"]
    assert busy == []  # no worker waits for it
    stack.triggerer.kill()
    stack.triggerer.start()
    run.ends_well()
    until("the page to show the end", lambda: run.on_page()["state"] == "done", 60, every=1)
    assert run.on_page()["spark"] is None
    assert len(run.drivers()) == 1
    assert stack.airflow.links("submitted", run.id, "work", 0)["Spark master"] == cluster.pages[0]
    logs = [file.read_text(errors="replace") for file in (FOLDER / "services").rglob("*.log")]
    assert logs
    assert not any(cluster.token in log for log in logs)


def test_a_triggerer_that_froze_does_not_kill_what_another_watches(stack: Stack, cluster: Standalone) -> None:
    run = Run(stack, cluster)
    run.works()
    first, (keeper,) = stack.triggerer, run.judge.tokens(run.id).values()
    second = Service("triggerer-2", first.command, folder=first.folder, environment=stack.environment)
    try:
        second.start()
        with frozen(first):
            until("the second to hold", lambda: list(run.judge.tokens(run.id).values()) != [keeper], 240)
        said = "the task is deferred with another trigger"
        until("the first trigger to stop", lambda: any(said in log.read_text() for log in run.logs()), 240, every=1)
        assert run.state() == "deferred"
        run.ends_well()
        assert len(run.drivers()) == 1
    finally:
        second.kill()


def test_a_cleared_task_has_its_job_killed(stack: Stack, cluster: Standalone) -> None:
    run = Run(stack, cluster)
    run.works()
    stack.airflow.clear("submitted", run.id, "work", 0)
    until("the job's end", lambda: run.drivers("KILLED"), 120)
    until("another job", lambda: len(run.drivers()) == 2, 300)
    run.works(jobs=2)
    run.ends_well()


def test_a_marked_task_has_its_job_killed_and_its_messages_come_again(stack: Stack, cluster: Standalone) -> None:
    run = Run(stack, cluster)
    run.works()
    stack.airflow.mark("submitted", run.id, "work", "success", 0)
    until("the job's end", lambda: run.drivers("KILLED"), 120)
    until("the messages", lambda: run.judge.comes_again(run.stream) == COUNT, 120)  # well before the end of the lease
    assert run.judge.settled(run.stream) == []


def test_a_retry_watches_the_job_of_a_worker_that_died(stack: Stack, cluster: Standalone) -> None:
    run = Run(stack, cluster, dies=True)
    until("the job's output", lambda: len(run.written()) == 1, 300, every=0.5)
    run.works()
    task = stack.airflow.task("submitted", run.id, "work", 0)
    assert task is not None
    assert task.try_number == 2
    run.ends_well()
    assert len(run.drivers()) == 1
