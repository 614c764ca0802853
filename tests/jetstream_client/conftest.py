"""Fixtures from servers to settings to a JetStream context."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.stream import Stream
from tests.jetstream_client.servers import Ask, Authority, Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server with a configuration. All servers are stopped at the end."""
    servers: list[NatsServer] = []

    def start(config: str) -> NatsServer:
        server = NatsServer(tmp_path / str(len(servers)), config)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def one_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("mortal"))
    yield server
    server.stop()


@pytest.fixture
def mortal(one_to_kill: NatsServer) -> NatsServer:
    """A server that a test may kill, freeze and start again."""
    if not one_to_kill.running:
        one_to_kill.start()
    return one_to_kill


@pytest.fixture
async def on_mortal(mortal: NatsServer) -> AsyncIterator[JetStream]:
    async with connect(ConnectionSettings(servers=mortal.url)) as context:
        yield context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def settings(nats_server: NatsServer) -> ConnectionSettings:
    return ConnectionSettings(servers=nats_server.url)


@pytest.fixture
async def ask(settings: ConnectionSettings) -> AsyncIterator[Ask]:
    """Ask the server without this client: one raw request of the JetStream API, and its decoded answer."""
    connection = await nats.connect(settings.servers[0])

    async def request(subject: str, body: object = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return json.loads((await connection.request(f"$JS.API.{subject}", data, timeout=30)).data)

    yield request
    await connection.close()


@pytest.fixture
async def js(settings: ConnectionSettings) -> AsyncIterator[JetStream]:
    async with connect(settings) as context:
        yield context


@pytest.fixture
def name() -> str:
    """A stream name that no other test uses."""
    return f"S{secrets.token_hex(4)}"


@pytest.fixture
async def stream(js: JetStream, name: str) -> AsyncIterator[Stream]:
    """A stream that listens on all subjects below its name. A test may delete it."""
    stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"]})
    yield stream
    if name in ((await js.api("STREAM.NAMES"))["streams"] or ()):
        await stream.delete()
