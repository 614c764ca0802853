"""The stack for `make held`: real services, and stand-ins for the services of providers."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.stack import Stack
from tests.airflow_system.conftest import DAGS, IMPATIENT
from tests.held.stand_ins import StandIns

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "build" / "tests" / "held"


@pytest.fixture(scope="session")
def stand_ins() -> Iterator[StandIns]:
    with StandIns() as stand_ins:
        yield stand_ins


@pytest.fixture(scope="session")
def stack(stand_ins: StandIns) -> Iterator[Stack]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    dags = FOLDER / "dags"
    dags.mkdir(parents=True)
    for file in (DAGS / "held.py", *(Path(__file__).parent / "dags").glob("*.py")):
        shutil.copy(file, dags)
    own = {
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # some providers import slowly
        "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False",  # the files of providers do not contain the word
    }
    stack = Stack(FOLDER / "services", dags, IMPATIENT | own, parallelism=8)
    connection = {"conn_type": "nats", "extra": {"servers": stack.nats.url, "shortest_ack_wait": 1}}
    stack.environment["AIRFLOW_CONN_NATS_DEFAULT"] = json.dumps(connection)
    stack.environment["AIRFLOW_CONN_FS_DEFAULT"] = "fs:///"
    stack.environment["PYTHONPATH"] = str(PROJECT)
    stack.environment["HELD_OUT"] = str(FOLDER / "out")
    stack.environment["SPARK_HOME"] = os.environ["SPARK_HOME"]
    stack.environment |= stand_ins.environment
    stack.environment["PATH"] = f"{Path(os.environ['SPARK_HOME']) / 'bin'}:{stack.environment['PATH']}"
    stack.environment["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[1]"})
    socket = stack.postgres.uri("psycopg2").partition("host=")[2]
    postgres = {"conn_type": "postgres", "host": socket, "login": "postgres", "schema": "postgres"}
    stack.environment["AIRFLOW_CONN_POSTGRES_DEFAULT"] = json.dumps(postgres)
    with stack:
        stack.airflow.wait_for_dag("held_deferring")
        yield stack


@pytest.fixture
def folder(stack: Stack) -> Path:
    folder = FOLDER / "gates"
    folder.mkdir(exist_ok=True)
    return folder
