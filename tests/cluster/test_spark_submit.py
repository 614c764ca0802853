"""A claim processed by a job on the cluster: judged by the server, by Spark's master, and by what the job wrote."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow import parquet

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSensorTimeout, AirflowTaskTimeout, TaskDeferred
from airflow_nats_jetstream.errors import SparkJobFailed
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.spark_submit import JetStreamSparkSubmitOperator
from airflow_nats_jetstream.spark.master import SparkMaster
from airflow_nats_jetstream.triggers import JetStreamSparkSubmitTrigger
from demo.java import QUICK
from demo.service import until
from jetstream_client import connect
from jetstream_client.errors import StreamNotFound
from tests.airflow_nats_jetstream.steps import CONNECTION, Kept, claim, context_of, execute, info, receipt, run, sensor
from tests.airflow_nats_jetstream.test_sensor import fired
from tests.airflow_versions import deserialize, serialize
from tests.cluster.conftest import Secured
from tests.cluster.standalone import Standalone, command
from tests.dag_file import dag_of

DRIVER = "org.apache.spark.deploy.worker.DriverWrapper"
RUNS = """
import time
from pyspark import SparkConf, SparkContext

SparkContext(conf=SparkConf().set("spark.dynamicAllocation.enabled", "true"))  # an application, and no executors
time.sleep(600)
"""
WAITS = """
import os, sys, time

while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
sys.exit(int(open(sys.argv[1]).read()))
"""


@dataclass
class Scene:
    """A stream with a claim of ten messages, and programs that the cluster's workers find."""

    cluster: Standalone
    hook: JetStreamHook
    stream: str
    folder: Path
    python: Path
    claim: dict[str, Any]

    def task(self, program: str, *arguments: str, **changes: Any) -> JetStreamSparkSubmitOperator:
        application = self.folder / "program.py"
        application.write_text(program)
        values: dict[str, Any] = {
            "task_id": "delays",
            "claim": self.claim,
            "application": str(application),
            "application_args": list(arguments),
            "nats_conn_id": CONNECTION,
        }
        task = JetStreamSparkSubmitOperator(**{**values, **changes})
        self.small(task, {})
        return task

    def small(self, task: Any, secrets: Mapping[str, str]) -> None:
        """As little as Spark does with, and asked for often; with the paths of secrets."""
        task.env_vars = {"PYSPARK_PYTHON": str(self.python), **secrets}
        task.status_poll_interval = timedelta(seconds=0.5)
        options = {"memory": "512m", "extraJavaOptions": QUICK}
        task.conf = {
            **{f"spark.{part}.{name}": value for part in ("driver", "executor") for name, value in options.items()},
            **{f"spark.executorEnv.{name}": value for name, value in secrets.items()},
            "spark.cores.max": 1,
            "spark.sql.codegen.wholeStage": False,  # to compile costs more than there is to do
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.executor.cores": 1,
            "spark.log.level": "ERROR",
            "spark.ui.enabled": False,
        }

    def drivers(self) -> list[psutil.Process]:
        return [each for each in self.cluster.processes() if DRIVER in command(each)]

    @property
    def go(self) -> Path:
        """What the programs wait for; `WAITS` exits with the number in it."""
        return self.folder / "go"

    def jobs(self, state: str = "") -> list[str]:
        """The drivers of this test, as the master has them."""
        found = [each for each in self.cluster.drivers if each["id"] not in self.before and state in each["state"]]
        return sorted(each["id"] for each in found)

    def __post_init__(self) -> None:
        self.before = [each["id"] for each in self.cluster.drivers]

    def deferred(self, task: JetStreamSparkSubmitOperator, **instance: Any) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as deferral:
            execute(task, **{"state": Kept(), **instance})
        return deferral.value


async def departures(secured: Secured, count: int) -> None:
    """The stream of the example, with so many of its messages."""
    async with connect(secured.settings) as js:
        with suppress(StreamNotFound):
            await js.stream("FLIGHTS").delete()  # another test's
        await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        for number in range(count):
            await js.publish("flights.JFK.AA", json.dumps({"carrier": "AA", "flight": number}).encode())


def consumed(secured: Secured) -> tuple[int, int]:
    """What the server says of the example's consumer: unacknowledged messages, and the acknowledgement floor."""

    async def ask() -> tuple[int, int]:
        async with connect(secured.settings) as js:
            found = await js.stream("FLIGHTS").consumer("cluster").info()
            return found.ack_pending, found.floor

    return asyncio.run(ask())


@pytest.fixture
def scene(
    cluster: Standalone, secured: Secured, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    who = {"login": secured.settings.user, "password": secured.settings.password}
    extra = {"servers": secured.settings.servers[0], "shortest_ack_wait": 0.5, "ledger": f"test_{secrets.token_hex(4)}"}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps({"conn_type": "nats", **who, "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(cluster.connection()))
    hook, stream = JetStreamHook(CONNECTION), f"S{secrets.token_hex(4)}"
    hook.run(lambda js: js.create_stream({"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}))
    scene = Scene(cluster, hook, stream, tmp_path, python, claim(hook, stream))
    yield scene
    assert scene.jobs("RUNNING") == []  # each test ends what it began
    hook.run(lambda js: js.stream(stream).delete())


def trigger_of(deferral: TaskDeferred) -> JetStreamSparkSubmitTrigger:
    """As it comes out of the database."""
    path, fields = deferral.trigger.serialize()
    assert path == "airflow_nats_jetstream.triggers.JetStreamSparkSubmitTrigger"
    stored: Any = deserialize(serialize(fields))
    return JetStreamSparkSubmitTrigger(**stored)


def resume(task: Any, deferral: TaskDeferred, event: dict[str, Any], **instance: Any) -> Any:
    kwargs = {**(deferral.kwargs or {}), "event": event}
    return run(task, context_of(task, **instance), partial(task.resume_execution, "resume", kwargs))


async def test_the_example_settles_when_its_job_has_finished(
    scene: Scene, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dags/flights_on_cluster.py, run by Airflow's task runner and a trigger."""
    out = scene.folder / "out"
    monkeypatch.setenv("FLIGHTS_ON_CLUSTER_OUT", str(out))
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"])
    dag = dag_of("flights_on_cluster")
    claims, delays = dag.get_task("claims"), dag.get_task("delays")
    await departures(secured, 10)
    claims.deferrable, claims.gather = False, timedelta(seconds=1)
    (claimed,) = await asyncio.to_thread(execute, claims)
    task = delays.unmap({"claim": claimed})
    (scene.folder / "secret.json").write_text(secured.settings.to_json())
    scene.small(task, {"JETSTREAM_SECRET_NATS_DEFAULT": str(scene.folder / "secret.json")})
    deferral = await asyncio.to_thread(scene.deferred, task)
    watching = asyncio.create_task(fired(trigger_of(deferral)))
    await asyncio.to_thread(until, "a driver", scene.drivers, 120)
    (line,) = {" ".join(command(process)) for process in scene.drivers()}
    assert claimed["id"] in line
    assert str(secured.settings.password) not in line
    event = await watching
    assert event == {"status": "ended", "state": "FINISHED"}
    assert await asyncio.to_thread(consumed, secured) == (10, 0)  # unacknowledged, floor
    answer = await asyncio.to_thread(resume, task, deferral, event)
    assert await asyncio.to_thread(consumed, secured) == (0, 10)
    (written,) = out.iterdir()
    assert {"attempt": written.name.removeprefix("attempt="), "driver": scene.jobs()[0]} == answer
    assert sorted(parquet.read_table(written, partitioning=None)["sequence"].to_pylist()) == list(range(1, 11))
    (kept,) = await asyncio.to_thread(JetStreamHook().committed, "FLIGHTS", "cluster")
    assert (kept.sequences.count, kept.value) == (10, answer)
    assert await asyncio.to_thread(execute, task) == answer  # cleared: nothing is submitted
    assert len(scene.jobs()) == 1


async def test_a_job_that_failed_or_took_too_long_gives_its_messages_back(scene: Scene) -> None:
    scene.go.write_text("3")
    task, state = scene.task(WAITS, str(scene.go)), Kept()
    first: dict[str, Any] = {"try_number": 1, "max_tries": 1}
    last = {**first, "try_number": 2}
    deferral = await asyncio.to_thread(scene.deferred, task, state=state, **first)
    event = await fired(trigger_of(deferral))
    assert event == {"status": "ended", "state": "FAILED"}
    with pytest.raises(SparkJobFailed, match="is in state FAILED"):
        await asyncio.to_thread(resume, task, deferral, event, **first)
    with pytest.raises(AirflowSensorTimeout):  # they wait for the retry
        await asyncio.to_thread(execute, sensor(scene.stream, timeout=2), run_id="other")

    scene.go.unlink()
    deferral = await asyncio.to_thread(scene.deferred, task, state=state, **last)
    trigger = trigger_of(deferral)
    trigger.end = time.time()
    event = await fired(trigger)
    assert event == {"status": "timeout"}
    await asyncio.to_thread(until, "the job's end", lambda: scene.jobs("KILLED"), 60)
    with pytest.raises(AirflowFailException, match="took longer than the task's longest_hold of 1 day"):
        await asyncio.to_thread(resume, task, deferral, event, **last)
    task.execution_timeout = timedelta(seconds=60)
    with pytest.raises(AirflowTaskTimeout):
        await asyncio.to_thread(resume, task, deferral, event, **first)
    with pytest.raises(AirflowSensorTimeout):
        await asyncio.to_thread(execute, sensor(scene.stream, timeout=2), run_id="other")
    with pytest.raises(AirflowTaskTimeout):
        await asyncio.to_thread(resume, task, deferral, event, **last)
    kept = await asyncio.to_thread(receipt, scene.hook, scene.stream, scene.claim["id"])
    assert kept is not None
    assert kept.state == "failed"
    (again,) = await asyncio.to_thread(execute, sensor(scene.stream, timeout=60), run_id="other")
    assert again["count"] == 10


def test_a_retry_watches_the_job_that_runs(scene: Scene) -> None:
    task, state = scene.task(WAITS, str(scene.go)), Kept()
    first = scene.deferred(task, state=state, try_number=1, max_tries=2)
    with pytest.raises(AirflowSensorTimeout):  # the messages have a lease
        execute(sensor(scene.stream, timeout=2), run_id="other")
    second = scene.deferred(task, state=state, try_number=2, max_tries=2)  # nobody heard of the first one's end
    assert trigger_of(first).driver == trigger_of(second).driver
    scene.go.write_text("0")
    until("the job's end", lambda: scene.jobs("FINISHED"), 120)
    answer = execute(task, state=state, try_number=3, max_tries=2)
    assert scene.jobs() == [answer["driver"]]
    assert info(scene.hook, scene.stream).floor == 10


async def test_a_job_whose_id_nobody_heard_is_found_by_its_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    state, cluster = Kept(writes=1), scene.cluster
    with pytest.raises(SystemExit):
        await asyncio.to_thread(execute, scene.task(RUNS), state=state, try_number=1, max_tries=1)
    state.writes = 100
    (unheard,) = state.values.values()
    name = f"delays {unheard['attempt']}"
    await asyncio.to_thread(until, "the application", lambda: name in cluster.applications, 120)
    task, tries = scene.task(RUNS), {"state": state, "try_number": 2, "max_tries": 1}
    deferral = await asyncio.to_thread(scene.deferred, task, **tries)
    assert scene.jobs() == [trigger_of(deferral).driver]
    watching = asyncio.create_task(fired(trigger_of(deferral)))

    # Without the master's page it is not found: another one is submitted, and then the two cannot be told apart.
    state.values["jetstream_spark_job"] = unheard
    connection = cluster.connection()
    del connection["extra"]["webui"]
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    other = scene.task(RUNS)
    second = trigger_of(await asyncio.to_thread(scene.deferred, other, **tries)).driver
    assert scene.jobs() == [trigger_of(deferral).driver, second]
    assert state.values["jetstream_spark_job"]["attempt"] != unheard["attempt"]
    master = SparkMaster(cluster.url, (), cluster.pages[0])
    assert await master.find(name, unheard["since"]) is None

    await asyncio.to_thread(task.on_kill)  # the first
    event = await watching
    assert event == {"status": "ended", "state": "KILLED"}
    with pytest.raises(TaskDeferred) as again:  # it was of an earlier try: this try has another
        await asyncio.to_thread(resume, task, deferral, event, **tries)
    assert trigger_of(again.value).driver == second
    await asyncio.to_thread(other.on_kill)
    event = await fired(trigger_of(again.value))
    with pytest.raises(SparkJobFailed, match="is in state KILLED"):
        await asyncio.to_thread(resume, task, again.value, event, **tries)
    assert scene.jobs("KILLED") == scene.jobs() == [trigger_of(deferral).driver, second]


async def test_a_job_is_killed_when_its_messages_are_somebody_elses(scene: Scene) -> None:
    task = scene.task(WAITS, str(scene.go))
    deferral = await asyncio.to_thread(scene.deferred, task)
    trigger = trigger_of(deferral)
    await trigger._release(trigger.claim, None)  # as if its lease were over
    (taken,) = await asyncio.to_thread(execute, sensor(scene.stream, timeout=60), run_id="other")
    assert taken["count"] == 10
    event = await fired(trigger)
    assert event["status"] == "superseded"
    await asyncio.to_thread(until, "the job's end", lambda: scene.jobs("KILLED"), 60)
    with pytest.raises(AirflowFailException, match="superseded"):
        await asyncio.to_thread(resume, task, deferral, event)
    assert (await asyncio.to_thread(info, scene.hook, scene.stream)).floor == 0
