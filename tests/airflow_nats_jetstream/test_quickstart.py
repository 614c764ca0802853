"""docs/quickstart.md, "If it goes wrong": each quoted message is the one that its mistake causes."""

import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator, jetstream_task
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_handoff.moment import Moment
from jetstream_handoff.take.deliveries import Deliveries
from jetstream_handoff.take.gather import Batch, LeaseOver
from tests.airflow_nats_jetstream.steps import execute

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
ORDERS = {"name": "ORDERS", "subjects": ["orders.>"]}


def quoted(heading: str) -> str:
    """The message under this heading, on one line."""
    block = re.search(r"```text\n(.*?)```", PAGE.read_text().partition(f"### {heading}\n")[2], re.DOTALL)
    assert block
    return " ".join(block[1].split())


@pytest.fixture
def hook(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[JetStreamHook]:
    """The connection of the page, and its stream, which does not allow direct get."""
    extra = {"servers": nats_server.url, "ledger": f"test_{secrets.token_hex(4)}"}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps({"conn_type": "nats", "extra": extra}))
    hook = JetStreamHook()
    hook.run(lambda js: js.create_stream(ORDERS))
    yield hook
    hook.run(lambda js: js.delete_stream("ORDERS"))


def test_a_stream_without_direct_get(hook: JetStreamHook) -> None:
    sensor = JetStreamPullSensor(task_id="claims", stream="ORDERS", consumer="revenue", deferrable=False)
    with pytest.raises(JetStreamError) as failed:
        execute(sensor)
    assert str(failed.value) == quoted("The stream does not allow direct get")


def test_a_function_without_a_claim() -> None:
    def revenue(messages: Any) -> None: ...

    with pytest.raises(InvalidValue) as failed:
        jetstream_task(revenue)
    assert str(failed.value) == quoted("The function has no parameter `claim`")


def test_a_forgotten_expand(hook: JetStreamHook) -> None:
    def revenue(claim: Any) -> None: ...

    task = JetStreamProcessOperator(task_id="revenue", python_callable=revenue, op_args=[[{"id": "5f0c9a7be21d"}]])
    with pytest.raises(AirflowFailException) as failed:
        execute(task)
    assert str(failed.value) == quoted("`.expand` is missing")


def test_a_wrong_address(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    extra = {"servers": f"nats://127.0.0.1:{port}", "connect_timeout": 1}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps({"conn_type": "nats", "extra": extra}))
    with pytest.raises(JetStreamError) as failed:
        execute(JetStreamCreateStreamOperator(task_id="stream", config=ORDERS))
    message = str(failed.value).replace(port, "4223").replace("within 1 s", "within 10 s")
    assert message == quoted("The address of the server is wrong")


def test_a_busy_machine() -> None:
    batch = Batch(Deliveries(), since=Moment(0, 0), began=0, ack_wait=60)
    with pytest.raises(LeaseOver) as late:
        batch.check(Moment(46, 0))
    assert quoted("The machine is busy").endswith(str(late.value))
