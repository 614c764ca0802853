"""Run events of a real Airflow: by configuration alone, and when nats-server is killed during a run."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from demo.service import until
from demo.stack import Stack
from jetstream_client import ConnectionSettings, connect
from tests.airflow_system.metrics import Metrics

STREAM, DAG = "RUN_EVENTS", "eventful"
ENDS = {
    f"{DAG}.running": 1,
    f"{DAG}.group%2Emakes.running": 1,
    f"{DAG}.group%2Emakes.success": 1,
    "@asset.made%20by%20eventful.changed": 1,
    f"{DAG}.waits.running": 1,
    f"{DAG}.waits.success": 1,
    f"{DAG}.fails.running": 2,
    f"{DAG}.fails.up_for_retry": 1,
    f"{DAG}.fails.failed": 1,
    f"{DAG}.failed": 1,
}
"""How often each change happens in a run."""


def events(stack: Stack) -> list[tuple[str, dict[str, Any]]]:
    """The subject and content of each event of the DAG."""

    async def read() -> list[tuple[str, dict[str, Any]]]:
        async with connect(ConnectionSettings(servers=stack.nats.url)) as js:
            stream = js.stream(STREAM)
            last = (await stream.info()).state["last_seq"]
            found = [await stream.get_message(sequence) for sequence in range(1, last + 1)]
            return [(each.subject.removeprefix("airflow."), json.loads(each.data)) for each in found]

    return asyncio.run(read())


def create(stack: Stack) -> None:
    async def created() -> None:
        async with connect(ConnectionSettings(servers=stack.nats.url)) as js:
            await js.create_or_update_stream({"name": STREAM, "subjects": ["airflow.>"], "allow_direct": True})

    asyncio.run(created())


@pytest.mark.slow
def test_every_change_of_a_run_is_in_the_stream_also_when_nats_was_killed(stack: Stack, metrics: Metrics) -> None:
    """It takes two runs of a DAG: one with NATS, and one during which it is killed."""
    create(stack)
    airflow = stack.airflow
    airflow.wait_for_dag(DAG)
    first = airflow.trigger(DAG)
    assert airflow.wait(DAG, first, 240) == "failed"

    def seen(run_id: str) -> Counter[str]:
        found = [(subject, event) for subject, event in events(stack) if subject.startswith((DAG, "@asset.made"))]
        of_run = (event.get("run_id") or event.get("source_run_id") for _, event in found)
        return Counter(subject for (subject, _), run in zip(found, of_run, strict=True) if run == run_id)

    until("every event", lambda: seen(first) == ENDS, 60, every=1)
    failed = next(event for subject, event in events(stack) if subject == f"{DAG}.fails.failed")
    assert (failed["error"], failed["try_number"]) == ("ValueError", 2)
    assert "a secret" not in json.dumps(events(stack))
    assert not metrics.counters["airflow.jetstream.events.lost"]

    second = airflow.trigger(DAG)
    until("a task to run", lambda: (task := airflow.task(DAG, second, "waits")) and task.state == "running", 120)
    stack.nats.kill()
    assert airflow.wait(DAG, second, 240) == "failed"  # no task and no run waits for NATS
    stack.nats.start()
    until("the scheduler's event", lambda: seen(second)[f"{DAG}.failed"] == 1, 120, every=1)  # it was kept in memory
    missing = ENDS.keys() - seen(second).keys()
    assert {each.split(".")[1] for each in missing} <= {"waits", "fails"}  # before them, NATS was there
    lost = sum(ENDS[each] for each in missing)
    assert lost
    until("lost events to be counted", lambda: metrics.counters["airflow.jetstream.events.lost"] >= lost, 60, every=1)
