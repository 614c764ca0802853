"""A cluster of three nats-servers, for tests of leaders."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, RequestTimeout
from jetstream_client.stream import Stream


class Cluster:
    """Starts the nodes as a context manager, and kills them at the end."""

    def __init__(self, folder: Path, more: str = "") -> None:
        """``more``: lines for the configuration of every node."""
        routes = [free_port() for _ in range(3)]
        self.nodes = [
            NatsServer(
                folder / f"n{number}",
                f'server_name: n{number}\ncluster {{ name: c, listen: "127.0.0.1:{port}", routes: ['
                + ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
                + "] }\n"
                + more,
            )
            for number, port in enumerate(routes)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for node in self.nodes:
            self._stack.callback(node.kill)
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def named(self, name: str) -> NatsServer:
        return self.nodes[int(name.removeprefix("n"))]

    async def follower(self, stream: Stream) -> NatsServer:
        """A node that does not lead the stream, so that its end needs no election."""
        leader = (await stream.info()).raw["cluster"]["leader"]
        return next(node for number, node in enumerate(self.nodes) if f"n{number}" != leader)

    @staticmethod
    def leaves(node: NatsServer) -> None:
        """Let a node leave in lame duck mode: it accepts no connection, and closes those that it has."""
        os.kill(node.pid, signal.SIGUSR2)


async def replicated_stream(
    js: JetStream, name: str = "S", subjects: Sequence[str] = ("S.>",), *, replicas: int = 3
) -> Stream:
    """Return a stream with replicas, and create it as soon as the servers of a new cluster can."""
    config: dict[str, Any] = {"name": name, "subjects": [*subjects], "num_replicas": replicas, "allow_direct": True}
    async with asyncio.timeout(60):
        while True:
            with suppress(ApiError, RequestTimeout):
                return await js.get_or_create_stream(config)
            await asyncio.sleep(0.2)
