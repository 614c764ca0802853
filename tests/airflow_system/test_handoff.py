"""The hand-off on the real scheduler, triggerer, workers and Spark; and what becomes of it when they are killed.

Each fault asserts that it struck, and that in the end every message was settled once.
"""

import os
import secrets
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from demo.airflow import TaskInstance
from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge


@pytest.fixture
def judge(stack: Stack) -> Judge:
    return Judge(stack.nats.url, Path(stack.environment["HANDOFF_OUT"]))


@dataclass
class Run:
    """One run of the DAG `handoff` over a stream of its own."""

    stack: Stack
    judge: Judge
    gate: Path
    count: int
    stream: str = field(default_factory=lambda: f"S{secrets.token_hex(4)}")
    id: str = ""

    def start(self, *, tries_with_spark: int, most: int | None = None, per_claim: int | None = None) -> None:
        self.judge.publish(self.stream, self.count)
        parameters = {
            "stream": self.stream,
            "most": most or self.count,
            "per_claim": per_claim or self.count,
            "gate": str(self.gate),
            "tries_with_spark": tries_with_spark,
        }
        self.id = self.stack.airflow.trigger("handoff", parameters)

    def task(self, task_id: str = "work", map_index: int = 0) -> TaskInstance | None:
        return self.stack.airflow.task("handoff", self.id, task_id, map_index)

    def process(self) -> psutil.Process:
        """The process of the first mapped task."""

        def running() -> psutil.Process | None:
            task = self.task()
            return self.stack.task_process(task) if task and task.state == "running" else None

        return until("the work's process", running, 60)

    def attempts(self) -> list[str]:
        """The attempts that have begun to work, in that order."""
        files = sorted(self.gate.parent.glob(f"{self.gate.stem}.*-*"), key=lambda file: file.stat().st_mtime)
        return [file.suffix[1:] for file in files]

    def at_work(self, attempts: int = 1) -> str:
        """The newest attempt, once so many have begun."""
        until(f"attempt {attempts}", lambda: len(self.attempts()) >= attempts, 90)
        return self.attempts()[-1]

    def open_the_gate(self) -> None:
        self.gate.touch()

    def ends_well(self) -> None:
        if self.stack.airflow.wait("handoff", self.id, 120) != "success":
            failed = [task for task in self.stack.airflow.tasks("handoff", self.id) if task.state == "failed"]
            pytest.fail("\n".join(self.stack.airflow.log("handoff", self.id, task) for task in failed))
        self.judge.every_message_settled_once(self.stream, self.count)


@pytest.fixture
def run(stack: Stack, judge: Judge, tmp_path: Path) -> Run:
    return Run(stack, judge, tmp_path / "gate", 5_000)


def test_publish_claim_process_settle(stack: Stack, judge: Judge) -> None:
    run_id = stack.airflow.trigger("whole")
    assert stack.airflow.wait("whole", run_id) == "success"
    published = stack.airflow.xcom("whole", run_id, "publish")
    assert published.items() >= {"stream": "WHOLE", "stored": 2_000, "duplicates": 0, "in_order": True}.items()
    claims = stack.airflow.xcom("whole", run_id, "claims")
    assert [claim["ranges"] for claim in claims] == [[[1, 2_000]]]
    assert stack.airflow.xcom("whole", run_id, "work", map_index=0) == 2_000
    judge.every_message_settled_once("WHOLE", 2_000)


def test_sparks_process_is_killed_in_the_middle_of_the_job(run: Run, judge: Judge) -> None:
    run.start(tries_with_spark=9)
    first = run.at_work()
    folder = judge.out / run.stream / f"attempt={first}"
    until("a partition to be written", lambda: list(folder.glob("_temporary/0/task_*/*.parquet")), 60, every=0.05)
    process = run.process()
    (java,) = [child for child in process.children(recursive=True) if "java" in child.name()]
    java.kill()
    run.open_the_gate()
    run.ends_well()
    assert not list(folder.glob("*.parquet"))  # the attempt that was struck left nothing that counts
    assert run.task().try_number == 2  # type: ignore[union-attr]


def test_the_triggerer_is_killed_between_fetch_and_event(run: Run, stack: Stack, judge: Judge) -> None:
    run.open_the_gate()
    run.start(tries_with_spark=0, most=run.count + 1)  # so that it gathers for 4 s after the last message
    until("the messages to be fetched", lambda: judge.pending(run.stream)[1] == run.count, 60, every=0.02)
    stack.triggerer.kill()
    assert judge.pending(run.stream) == (0, run.count)
    assert judge.tokens(run.id) == {}
    assert run.task("claims", -1).state == "deferred"  # type: ignore[union-attr]
    stack.triggerer.start()
    run.ends_well()


def test_nats_server_is_killed_between_taking_and_settling(run: Run, stack: Stack, judge: Judge) -> None:
    run.start(tries_with_spark=0, per_claim=run.count // 2)
    until("two attempts", lambda: len(run.attempts()) == 2, 90)
    assert all(judge.tokens(run.id).values())
    stack.nats.kill()
    time.sleep(1)
    assert not stack.nats.running
    stack.nats.start()
    run.open_the_gate()
    run.ends_well()


def test_the_worker_is_killed_between_the_ledgers_done_and_the_acknowledgements(
    run: Run, stack: Stack, judge: Judge
) -> None:
    run.count = 100_000  # so that acknowledging takes a while
    run.start(tries_with_spark=0)
    run.at_work()
    process = run.process()
    supervisor = process.parent()
    assert supervisor
    run.open_the_gate()
    until("the receipt", lambda: judge.done(run.stream), 60, every=0.001)
    process.send_signal(signal.SIGSTOP)
    unacknowledged = judge.pending(run.stream)[1]
    os.kill(supervisor.pid, signal.SIGKILL)
    process.kill()
    assert unacknowledged > 0
    (receipt,) = judge.done(run.stream).values()
    assert receipt["value"] == run.count
    run.ends_well()
    assert len(run.attempts()) == 1  # the retry found it done and did not work again
    assert run.task().try_number == 2  # type: ignore[union-attr]
    assert stack.airflow.xcom("handoff", run.id, "work", map_index=0) == run.count


def test_a_user_clears_the_running_task(run: Run, stack: Stack, judge: Judge) -> None:
    run.start(tries_with_spark=1)
    first = run.at_work()
    process = run.process()
    (token,) = judge.tokens(run.id).values()
    assert first.endswith(str(token))
    stack.airflow.clear("handoff", run.id, "work", 0)
    until("the claim to be let go", lambda: list(judge.tokens(run.id).values()) == [None], 15, every=0.05)
    second = run.at_work(attempts=2)
    assert second != first
    assert not process.is_running()
    assert judge.done(run.stream) == {}
    run.open_the_gate()
    run.ends_well()
    (receipt,) = judge.done(run.stream).values()
    assert second.endswith(receipt["token"])
