"""Operators of providers in their locked versions, held on the real Airflow: `make held`.

Postgres and Spark are real. The other services are the stand-ins of stand_ins.py.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

import pytest

from demo.stack import Stack
from tests.airflow_system.conftest import database
from tests.airflow_system.held_run import HeldRun
from tests.held.conftest import FOLDER
from tests.held.stand_ins import StandIns

WITH_STAND_INS = {
    "http": "http",
    "http_deferred": "http",
    "databricks": "databricks",
    "databricks_deferred": "databricks",
    "kubernetes": "kubernetes",
    "kubernetes_deferred": "kubernetes",
    "emr": "aws",
    "glue": "aws",
    "livy": "livy",
    "livy_deferred": "livy",
}
LAST = {"airbyte": None, "jenkins": "jenkins"}
"""Tried when everything else was written. A sync of Airbyte has no parameters, so nothing in it names the attempt."""


def settles_after_its_job(stack: Stack, folder: Path, stand_ins: StandIns, dag_id: str, service: str | None) -> None:
    stack.airflow.wait_for_dag(dag_id, 240)
    run = HeldRun(stack, folder, dag_id)
    receipt = run.ends_well()
    (claim_id,) = run.judge.done(run.stream)
    attempt = f"{claim_id}-{receipt['token']}"
    if service is not None:
        # Airflow's scheduler may have failed a try, but the attempt that settled has one job.
        (job,) = [each for each in stand_ins.services[service].jobs if attempt in json.dumps(each.body)]
        assert not job.running
        assert job.ends < time.time()


@pytest.mark.timeout(1200)
def test_a_claim_is_settled_when_the_job_has_ended(stack: Stack, folder: Path, stand_ins: StandIns) -> None:
    errors = []
    with ThreadPoolExecutor(3) as pool:
        runs = {
            pool.submit(settles_after_its_job, stack, folder, stand_ins, dag_id, service): dag_id
            for dag_id, service in {**WITH_STAND_INS, **LAST}.items()
            if dag_id in os.environ.get("EVENTS", dag_id).split()
        }
        for done in as_completed(runs):
            if error := done.exception():
                error.add_note(runs[done])
                errors.append(error)
            print(runs[done], "failed" if error else "passed", flush=True)  # noqa: T201 - progress
    if errors:
        raise BaseExceptionGroup("not every operator was held", errors)


def test_a_query_is_held_on_a_real_postgres(stack: Stack, folder: Path) -> None:
    with closing(database(stack)) as connection, connection.cursor() as cursor:
        cursor.execute("create table if not exists held (attempt text, messages int)")
        stack.airflow.wait_for_dag("sql", 240)
        run = HeldRun(stack, folder, "sql")
        receipt = run.ends_well()
        (claim_id,) = run.judge.done(run.stream)
        cursor.execute("select messages from held where attempt = %s", [f"{claim_id}-{receipt['token']}"])
        assert cursor.fetchall() == [(20,)]
        assert receipt["value"] == [[f"{claim_id}-{receipt['token']}"]]


def test_spark_submit_reads_the_claim_with_a_real_spark(stack: Stack, folder: Path) -> None:
    stack.airflow.wait_for_dag("spark_submit", 240)
    run = HeldRun(stack, folder, "spark_submit")
    receipt = run.ends_well()
    (claim_id,) = run.judge.done(run.stream)
    written = FOLDER / "out" / f"{claim_id}-{receipt['token']}"
    rows = [json.loads(line) for file in written.glob("part-*.json") for line in file.read_text().splitlines()]
    assert sorted(row["sequence"] for row in rows) == list(range(1, 21))
