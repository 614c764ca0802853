"""The ladder: servers, settings, a JetStream context."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from airflow_nats_jetstream.client import ConnectionSettings, connect
from airflow_nats_jetstream.client.context import JetStream
from demo.nats_server import NatsServer
from tests.client.servers import Authority, Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server with a configuration; all are stopped at the end."""
    servers: list[NatsServer] = []

    def start(config: str) -> NatsServer:
        server = NatsServer(tmp_path / str(len(servers)), config)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def settings(nats_server: NatsServer) -> ConnectionSettings:
    return ConnectionSettings(servers=nats_server.url)


@pytest.fixture
async def js(settings: ConnectionSettings) -> AsyncIterator[JetStream]:
    async with connect(settings) as context:
        yield context
