"""A proxy on loopback that delays, resets and half-opens connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

Direction = Literal["up", "down"]
"""up: from the client to the server."""


class Proxy:
    """Listens on one port and forwards to another. Faults affect existing and new connections."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        """Seconds by which all data is delayed, in both directions."""
        self._open = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.heal()

    async def start(self, port: int = 0) -> None:
        """Listen; port 0 takes a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server:
            self._server.close()
        self.reset()
        if self._serving:
            await asyncio.wait(self._serving, timeout=2)

    def heal(self) -> None:
        """End all faults, and forward the data that was kept back."""
        self.delay = 0.0
        for direction in self._open.values():
            direction.set()

    def hold(self, *directions: Direction) -> None:
        """Half-open: accept data in these directions, but do not forward it until :meth:`heal`."""
        for direction in directions:
            self._open[direction].clear()

    def reset(self) -> None:
        """Abort all connections. Data in transit is lost."""
        for writer in self._connections:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        self._connections.add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._connections.discard(writer)
            return
        self._connections.add(up_writer)
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, "up")),
            asyncio.create_task(self._pump(up_reader, writer, "down")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for each in (writer, up_writer):
                each.transport.abort()
                self._connections.discard(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._open[direction].wait()
                writer.write(data)
                await writer.drain()
