"""OpenLineage's own client with the transport to JetStream, and a real server."""

import json
import os
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import DatasetEvent, Job, JobEvent, Run, RunEvent, RunState, StaticDataset

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.lineage_transport import JetStreamConfig, JetStreamTransport
from jetstream_client.errors import InvalidValue
from tests.airflow_nats_jetstream.test_run_events import stored

PATH = f"{JetStreamTransport.__module__}.{JetStreamTransport.__qualname__}"


def client(**options: Any) -> OpenLineageClient:
    return OpenLineageClient(config={"transport": {"type": PATH, **options}})


def started(name: str = "sales.daily") -> RunEvent:
    job = Job(namespace="airflow/a b", name=name)
    return RunEvent(
        eventTime=datetime.now(UTC).isoformat(), run=Run(str(uuid4())), job=job, eventType=RunState.START, producer="p"
    )


@pytest.fixture
def servers(hook: JetStreamHook) -> str:
    return ",".join(hook.settings.servers)


def test_events_are_messages(hook: JetStreamHook, stream: str, servers: str) -> None:
    lineage = client(servers=servers, subject_prefix=stream, stream=stream, timeout=60)
    event, now = started(), datetime.now(UTC).isoformat()
    lineage.emit(event)
    lineage.emit(event)  # the stream stores it once
    lineage.emit(JobEvent(eventTime=now, job=event.job, producer="p"))
    lineage.emit(DatasetEvent(eventTime=now, dataset=StaticDataset(namespace="nats://a", name="S"), producer="p"))
    assert lineage.close(60)
    found = stored(hook, stream)
    assert [subject for subject, _, _ in found] == [
        "airflow/a%20b.sales%2Edaily.start",
        "airflow/a%20b.sales%2Edaily.job",
        "nats://a.S.dataset",
    ]
    assert found[0][2]["run"]["runId"] == event.run.runId
    assert json.dumps(found).count('"eventType"') == 1


def test_a_process_that_emits_and_ends_at_once(hook: JetStreamHook, stream: str, servers: str) -> None:
    """Airflow's provider emits in a forked process, which ends without cleaning up."""
    lineage = client(servers=servers, subject_prefix=stream, timeout=60)
    child = os.fork()
    if not child:
        try:
            lineage.emit(started())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(stored(hook, stream)) == 1
    lineage.close(0)


def test_without_nats_nothing_is_raised_and_what_is_lost_is_said(caplog: pytest.LogCaptureFixture) -> None:
    lineage = client(servers="nats://127.0.0.1:1", connect_timeout=0.1, timeout=0.1)
    lineage.emit(started())
    assert "1 events of OpenLineage are not stored yet" in caplog.text
    assert not lineage.close(0)
    assert "1 message lost" in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [("sevrers", "nats://a"), ("timeout", -1), ("stream", "a.b"), ("words", "x"), ("max_events", 0)],
)
def test_an_option_that_is_unknown_or_invalid_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=option):
        JetStreamConfig.from_dict({"type": PATH, option: value})


def test_no_secret_is_shown() -> None:
    config = JetStreamConfig.from_dict({"type": PATH, "user": "u", "password": "hidden"})
    assert "hidden" not in repr(config) + str(JetStreamTransport(config)) + repr(vars(config))
