# SPDX-License-Identifier: Apache-2.0
"""The fixtures for tests of DAGs and Dagster assets on a real nats-server (docs/how-to/test-a-dag.md).

pytest loads this module in every project of the environment, so it imports nothing but pytest: each fixture imports
what it needs.
"""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from airflow_nats_jetstream.hooks import JetStreamHook
    from airflow_nats_jetstream.sensors import JetStreamPullSensor
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client import ConnectionSettings
    from jetstream_client.context import JetStream
    from jetstream_testing.nats_server import NatsServer
    from jetstream_testing.stream import ClaimUnderTest, StreamUnderTest


@pytest.fixture(scope="session")
def jetstream_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server with JetStream on a free port, with a temporary store. It stops after the last test.

    All tests of a session share it, because Spark knows only the connections that existed when it was started. With
    pytest-xdist, each worker has one. Use it directly to kill or restart the server.
    """
    try:
        from jetstream_testing.nats_server import NatsServer
    except ModuleNotFoundError as missing:
        remedy = 'install it with `pip install "airflow-provider-nats-jetstream[testing]"`'
        raise ModuleNotFoundError(f"the fixtures need the package {missing.name}; {remedy}") from None

    server = NatsServer(tmp_path_factory.mktemp("jetstream"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def jetstream_settings(jetstream_server: NatsServer) -> Iterator[ConnectionSettings]:
    """The settings of a connection to the server. After the test, all streams of the server are deleted, so that no
    test sees streams, consumers or claims of another one. All the following fixtures use it."""
    from jetstream_client import ConnectionSettings
    from jetstream_handoff import portal

    settings = ConnectionSettings(servers=jetstream_server.url)
    yield settings

    async def delete(js: JetStream) -> None:
        for name in [name async for name in js.stream_names()]:
            await js.delete_stream(name)

    if not jetstream_server.running:
        jetstream_server.start()  # the test has stopped it, and its streams are stored
    portal.run(settings, delete)


@pytest.fixture
def jetstream_conn_id() -> str:
    """The id of the Airflow connection of ``jetstream_hook``: ``nats_default``. Define a fixture of this name to use
    another one."""
    return "nats_default"


@pytest.fixture
def jetstream_hook(
    jetstream_server: NatsServer,
    jetstream_settings: ConnectionSettings,
    jetstream_conn_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> JetStreamHook:
    """The hook of an Airflow connection to the server, which DAGs find in ``AIRFLOW_CONN_NATS_DEFAULT`` during the
    test."""
    from airflow_nats_jetstream.hooks import JetStreamHook

    # The ledger of the other fixtures, because connections of Airflow have another default.
    extra = {"servers": jetstream_server.url, "ledger": jetstream_settings.ledger}
    monkeypatch.setenv(f"AIRFLOW_CONN_{jetstream_conn_id.upper()}", json.dumps({"conn_type": "nats", "extra": extra}))
    return JetStreamHook(jetstream_conn_id)


@pytest.fixture
def jetstream_resource(jetstream_server: NatsServer, jetstream_settings: ConnectionSettings) -> JetStreamResource:
    """The resource for Dagster, with a connection to the server."""
    from dagster_nats_jetstream.resource import JetStreamResource

    return JetStreamResource(servers=jetstream_server.url, ledger=jetstream_settings.ledger)


@pytest.fixture
def jetstream_stream(jetstream_settings: ConnectionSettings) -> Callable[..., StreamUnderTest]:
    """Call it to create a stream: ``jetstream_stream("ORDERS", ["orders.>"])``, perhaps with other fields of the
    stream's configuration as keywords."""
    from jetstream_client.errors import InvalidValue
    from jetstream_handoff import portal
    from jetstream_testing.stream import StreamUnderTest

    def create(name: str, subjects: Iterable[str], **config: Any) -> StreamUnderTest:
        if isinstance(subjects, str):
            remedy = f"give a list of subjects: [{subjects!r}]"
            raise InvalidValue("subjects", subjects, remedy)
        whole = {"name": name, "subjects": list(subjects), "allow_direct": True, **config}
        portal.run(jetstream_settings, lambda js: js.create_stream(whole))
        return StreamUnderTest(name, jetstream_settings)

    return create


@pytest.fixture
def jetstream_claim(jetstream_stream: Callable[..., StreamUnderTest]) -> Callable[..., ClaimUnderTest]:
    """Call it with messages to get a claim of them: ``jetstream_claim([("orders.north", b"{}")])``. The messages are
    published to a new stream, and taken. ``stream`` and ``consumer`` choose other names than ``TESTED`` and
    ``tested``."""

    def claim(
        messages: Iterable[tuple[Any, ...]], *, stream: str = "TESTED", consumer: str = "tested"
    ) -> ClaimUnderTest:
        given = list(messages)
        tested = jetstream_stream(stream, sorted({message[0] for message in given}))
        tested.publish(given)
        (taken,) = tested.take(consumer)
        return taken

    return claim


@pytest.fixture
def jetstream_claims_of(jetstream_hook: JetStreamHook) -> Callable[..., list[ClaimUnderTest]]:
    """Call it with a ``JetStreamPullSensor`` of a DAG to get the claims that the sensor takes.

    The sensor waits in this process, for at most 10 s. Its templates are not rendered: set the attributes before.
    """
    from jetstream_testing.stream import ClaimUnderTest

    def claims_of(sensor: JetStreamPullSensor) -> list[ClaimUnderTest]:
        sensor.deferrable, sensor.gather, sensor.timeout = False, timedelta(seconds=0.1), 10.0
        names = {"dag_id": sensor.dag_id, "run_id": "test", "task_id": sensor.task_id}
        # A sensor must know for which task instance it takes, and asks whether work of its run has already begun.
        ti = SimpleNamespace(**names, map_index=-1, max_tries=sensor.retries or 0, task=sensor)
        ti.get_task_states = lambda **_: {}
        context: Any = {"ti": ti}
        return [ClaimUnderTest(claim, jetstream_hook.settings) for claim in sensor.execute(context)]

    return claims_of
