"""The whole stack, started once for all system tests, with thresholds short enough for tests that kill processes."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from demo.stack import Stack
from tests.airflow_system.judge import Judge
from tests.airflow_system.metrics import Metrics

DAGS = Path(__file__).parent / "dags"
EXAMPLES = Path(__file__).parents[2] / "dags"
RUN_HERE = ("flights_arriving", "flights_to_sql", "orders_to_table")  # flight_delays runs in tests/cluster

# The loggers of code that handles secrets: our packages, their dependencies, and Airflow's own processes.
HEARD = [
    "airflow_nats_jetstream",
    "jetstream_arrow",
    "jetstream_client",
    "jetstream_handoff",
    "jetstream_tables",
    "pyspark_jetstream",
    "nats",
    "py4j",
    "pyspark",
    "asyncio",
    "httpx",
    "httpcore",
]
HEARD += ["airflow.sdk", "airflow.jobs.triggerer_job_runner", "supervisor", "task"]

# With Airflow's defaults, a single kill costs from half a minute (triggerer) to ten minutes (worker and retry).
IMPATIENT = {
    # A watcher of a DAG that is unpaused later starts when its file is parsed again, which here is after an hour.
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
    # DEBUG would show a secret first. Not for all loggers, because tests read the scheduler's log repeatedly.
    "AIRFLOW__LOGGING__NAMESPACE_LEVELS": " ".join(f"{name}=DEBUG" for name in HEARD),
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__JETSTREAM_EVENTS__DAG_RUN_DAG_ID_ALLOWLIST": "eventful",
    "AIRFLOW__JETSTREAM_EVENTS__GRACE": "30",  # the machine may be busy
    "AIRFLOW__JETSTREAM_EVENTS__NATS_CONN_ID": "nats_default",
    "AIRFLOW__JETSTREAM_EVENTS__TASK_INSTANCE_DAG_ID_ALLOWLIST": "eventful",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "1",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # a task fails if the api-server is busy for longer
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}


# Airflow's database refuses the return values of the tasks in this table. Made before anything runs: to change a table
# that is in use disturbs the api-server.
REFUSING = """
create table refused (run_id text, task_id text);
create function refuse() returns trigger language plpgsql as 'begin
    if new.key = ''return_value'' and (new.run_id, new.task_id) in (select run_id, task_id from refused)
        then raise exception ''refused''; end if;
    return new;
end';
create trigger refuse before insert on xcom for each row execute function refuse();
"""


def database(stack: Stack) -> Any:
    """A connection to Airflow's database, in which every statement is a separate transaction."""
    connection = psycopg2.connect(stack.postgres.uri("psycopg2").replace("+psycopg2", ""))
    connection.autocommit = True
    return connection


@pytest.fixture(scope="session")
def metrics() -> Iterator[Metrics]:
    """The metrics that the processes of the stack send."""
    with Metrics() as metrics:
        yield metrics


@pytest.fixture(scope="session")
def stack(metrics: Metrics) -> Iterator[Stack]:
    """nats-server, Postgres and Airflow's four processes, with the DAGs in `dags/` next to this file and examples."""
    # Not below pytest's folder, because every other run of pytest makes it unreadable for the user of Postgres.
    folder = Path(__file__).parents[2] / "build" / "tests" / "stack"
    shutil.rmtree(folder, ignore_errors=True)
    dags = Path(shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__")))
    for example in RUN_HERE:
        shutil.copy(EXAMPLES / f"{example}.py", dags)
    stack = Stack(folder / "services", dags, {**IMPATIENT, **metrics.settings}, parallelism=8)
    console = "https://console.example.com/{stream}/{consumer}"
    extra = {"servers": stack.nats.url, "shortest_ack_wait": 1, "console": console}
    connection = {"conn_type": "nats", "extra": extra}
    stack.environment["AIRFLOW_CONN_NATS_DEFAULT"] = json.dumps(connection)
    stack.environment["HANDOFF_OUT"] = str(folder / "out")
    stack.environment["PYTHONPATH"] = str(Path(__file__).parents[2])  # for the operator of dags/held.py
    stack.environment["PLANTED_EVENTS"] = str(folder / "events")
    stack.environment["FLIGHTS_ARRIVING_OUT"] = str(folder / "arriving")
    stack.environment["FLIGHTS_TO_SQL_OUT"] = str(folder / "sql")
    stack.environment["ORDERS_TO_TABLE_OUT"] = str(folder / "lake")
    with stack:
        with closing(database(stack)) as connection, connection.cursor() as cursor:
            cursor.execute(REFUSING)
        for pool in ("queued", "queued_too_long"):
            stack.airflow.pool(pool, 0)
        for dag_id in (
            "handoff",
            "in_the_worker",
            "paused",
            "hasty",
            "retried",
            "queued",
            "queued_too_long",
            "whole",
            "several",
            "several_skipping",
        ):
            stack.airflow.wait_for_dag(dag_id)
        yield stack


@pytest.fixture
def judge(stack: Stack) -> Judge:
    return Judge(stack.nats.url, Path(stack.environment["HANDOFF_OUT"]))
