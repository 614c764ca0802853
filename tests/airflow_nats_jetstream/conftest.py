"""A connection to the run's nats-server under Airflow's own rules, and a fresh stream in it."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import reset_secrets_masker
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_nats_jetstream.hooks import JetStreamHook
from demo.nats_server import NatsServer
from tests.airflow_nats_jetstream.one_run import OneRun
from tests.airflow_nats_jetstream.steps import CONNECTION


def set_connection(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
    """The environment variable for the tests' connection, as a user would set it."""
    connection = {"conn_type": "nats", "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(connection))


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """Forget the masked values of a test after it, as Airflow does in each process of a task: with each new one, all
    are compiled again."""
    yield
    reset_secrets_masker()


@pytest.fixture
def hook(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> JetStreamHook:
    # A separate ledger for each test, because the tests read the content of its buckets.
    ledger = f"test_{secrets.token_hex(4)}"
    set_connection(
        monkeypatch,
        servers=nats_server.url,
        shortest_ack_wait=0.5,
        ledger=ledger,
        console="https://c/{stream}/{consumer}",
    )
    return JetStreamHook(CONNECTION)


@pytest.fixture
def stream(hook: JetStreamHook) -> Iterator[str]:
    """The name of a stream that listens on `<name>.>`."""
    name = f"S{secrets.token_hex(4)}"
    hook.run(lambda js: js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True}))
    yield name
    hook.run(lambda js: js.stream(name).delete())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> OneRun:
    run = OneRun()
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", run)
    monkeypatch.setattr(RuntimeTaskInstance, "xcom_pull", lambda _, task_ids, key: run.pull(task_ids, key))
    monkeypatch.setattr(RuntimeTaskInstance, "xcom_push", lambda _, key, value: run.push(key, value))
    return run
