"""The hand-off on the real scheduler, triggerer, workers and Spark, also when they are killed.

Each test of a fault asserts that the fault struck, and that in the end every message was settled once.
"""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge
from tests.airflow_system.metrics import Metrics
from tests.airflow_system.run import Run
from tests.jetstream_client.proxy import Proxy


@pytest.fixture
def run(stack: Stack, judge: Judge, tmp_path: Path) -> Run:
    return Run(stack, judge, tmp_path / "gate", 5_000)


def test_publish_claim_process_settle(stack: Stack, judge: Judge, metrics: Metrics) -> None:
    run_id = stack.airflow.trigger("whole")
    stack.airflow.succeeds("whole", run_id, 240)
    published = stack.airflow.xcom("whole", run_id, "publish")
    assert published.items() >= {"stream": "WHOLE", "stored": 2_000, "duplicates": 0, "in_order": True}.items()
    claims = stack.airflow.xcom("whole", run_id, "claims")
    assert [claim["ranges"] for claim in claims] == [[[1, 2_000]]]
    assert stack.airflow.xcom("whole", run_id, "work", map_index=0) == 2_000
    spark = stack.airflow.xcom("whole", run_id, "work", "jetstream_spark", map_index=0)
    assert (spark["application"].partition("-")[0], spark["url"]) == ("local", "")  # for the page; Spark's UI is off
    judge.every_message_settled_once("WHOLE", 2_000)
    tasks = [stack.airflow.task("whole", run_id, "claims", -1), stack.airflow.task("whole", run_id, "work", 0)]
    logs = "\n".join(stack.airflow.log("whole", run_id, task, 1_000) for task in tasks if task)
    told = re.findall(rf"claim {claims[0]['id']} is (\w+)", logs)
    assert told == ["taken", "held", "read", "done", "acknowledged"]  # docs/at-3-am.md
    # From the triggerer, and from workers: docs/monitoring.md.
    counted = {name: count for name, count in metrics.counters.items() if "stream=WHOLE" in name and ".claims." in name}
    of_it = ",stream=WHOLE,consumer=work"
    assert counted == {f"airflow.jetstream.claims.{name}{of_it}": 1 for name in ("taken", "held", "done")}
    assert metrics.counters["airflow.jetstream.messages.published,stream=WHOLE"] == 2_000


@pytest.mark.slow
def test_sparks_process_is_killed_in_the_middle_of_the_job(run: Run, judge: Judge) -> None:
    run.start(tries_with_spark=1)  # to start Spark again proves nothing more
    first = run.at_work()
    folder = judge.out / run.stream / f"attempt={first}"
    until("a partition to be written", lambda: list(folder.glob("_temporary/0/task_*/*.parquet")), 240, every=0.05)
    process = run.process()
    (java,) = [child for child in process.children(recursive=True) if "java" in child.name()]
    java.kill()
    run.open_the_gate()
    run.ends_well()
    assert not list(folder.glob("*.parquet"))  # the attempt that was struck has written no output that counts
    assert run.task().try_number == 2  # type: ignore[union-attr]


def test_the_triggerer_is_killed_between_fetch_and_event(run: Run, stack: Stack, judge: Judge) -> None:
    run.open_the_gate()
    run.waits(least=run.count)
    judge.publish(run.stream, run.count - 1)
    until("the messages to be fetched", lambda: judge.pending(run.stream)[1] == run.count - 1, 240)
    stack.triggerer.kill()
    assert judge.pending(run.stream) == (0, run.count - 1)
    assert judge.tokens(run.id) == {}
    assert run.task("claims", -1).state == "deferred"  # type: ignore[union-attr]
    stack.triggerer.start()
    judge.publish(run.stream, 1)
    run.ends_well()


def test_nats_server_is_killed_between_taking_and_settling(run: Run, stack: Stack, judge: Judge) -> None:
    run.start(per_claim=run.count // 2)
    until("two attempts", lambda: len(run.attempts()) == 2, 240)
    assert all(judge.tokens(run.id).values())
    stack.nats.kill()
    tasks = [task for task in stack.airflow.tasks(run.dag_id, run.id) if task.name.startswith("work")]
    logs = [partial(stack.airflow.log, run.dag_id, run.id, task) for task in tasks]
    until("both to lose their connections", lambda: all("NATS connection lost" in log() for log in logs), 240)
    assert (len(tasks), stack.nats.running) == (2, False)
    stack.nats.start()
    run.open_the_gate()
    run.ends_well()


def test_the_worker_is_killed_between_the_ledgers_done_and_the_acknowledgements(
    run: Run, stack: Stack, judge: Judge
) -> None:
    with Proxy(stack.nats.port, stall_at=b"+ACK\r\n") as proxy:
        stack.airflow.connection("stalling", {"servers": proxy.url, "shortest_ack_wait": 1})
        run.start(nats_conn_id="stalling")
        run.at_work()
        process = run.process()
        supervisor = process.parent()
        assert supervisor
        run.open_the_gate()
        assert proxy.stalled.wait(240)
        os.kill(supervisor.pid, signal.SIGKILL)
        process.kill()
        (receipt,) = judge.done(run.stream).values()
        assert receipt["value"] == run.count
        assert judge.pending(run.stream)[1] == run.count  # nothing is acknowledged
        run.ends_well()
    assert len(run.attempts()) == 1  # the retry found it done and did not work again
    assert run.task().try_number == 2  # type: ignore[union-attr]
    assert stack.airflow.xcom("handoff", run.id, "work", map_index=0) == run.count
