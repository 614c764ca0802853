"""The ladder: server, JetStream context, a fresh stream."""

import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import StreamNotFound
from jetstream_client.stream import Stream


@pytest.fixture
def settings(nats_server: NatsServer) -> ConnectionSettings:
    # Each test has a separate ledger, because tests read all entries of the buckets.
    return ConnectionSettings(servers=nats_server.url, shortest_ack_wait=0.5, ledger=f"test_{secrets.token_hex(4)}")


@pytest.fixture
async def js(settings: ConnectionSettings) -> AsyncIterator[JetStream]:
    async with connect(settings) as context:
        yield context


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[Stream]:
    name = f"S{secrets.token_hex(4)}"
    stream, _ = await js.create_or_update_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    yield stream
    for left in (f"DEAD_{name}", f"OTHER_{name}"):
        with suppress(StreamNotFound):
            await js.stream(left).delete()
    await stream.delete()
