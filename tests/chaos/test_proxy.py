"""The proxy does what the strikes ask of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.chaos.proxy import Proxy


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy for a server that sends back what it receives."""

    repeating: set[asyncio.Task[None]] = set()

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        await end(writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        repeating.add(asyncio.create_task(repeat(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1")
    proxy = Proxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    yield proxy
    await proxy.stop()
    server.close()
    await server.wait_closed()
    await asyncio.gather(*repeating)


async def say(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"hello")
    return reader, writer


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_it_forwards_and_delays(proxy: Proxy) -> None:
    reader, writer = await say(proxy)
    assert await reader.read(100) == b"hello"
    proxy.delay = 0.1
    began = time.monotonic()
    writer.write(b"again")
    assert await reader.read(100) == b"again"
    assert time.monotonic() - began >= 0.2
    await end(writer)


@pytest.mark.parametrize("directions", [("up",), ("down",), ("up", "down")])
async def test_half_open_keeps_back_until_it_is_healed(proxy: Proxy, directions: tuple[str, ...]) -> None:
    proxy.hold(*directions)  # type: ignore[arg-type]
    reader, writer = await say(proxy)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(100), 0.2)
    proxy.heal()
    assert await asyncio.wait_for(reader.read(100), 2) == b"hello"
    await end(writer)


async def test_reset_aborts_old_connections_and_not_new_ones(proxy: Proxy) -> None:
    reader, writer = await say(proxy)
    assert await reader.read(100) == b"hello"
    proxy.reset()
    assert await asyncio.wait_for(reader.read(100), 2) == b""
    await end(writer)
    reader, writer = await say(proxy)
    assert await reader.read(100) == b"hello"
    await end(writer)
