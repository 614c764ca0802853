"""Three nats-servers from the file that docker/compose.yaml starts them from: a replicated stream loses its leader."""

import asyncio
import json
import os
import secrets
import socket
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import pytest

from demo.service import Service, free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import AuthenticationFailed, JetStreamError, PublishFailed
from jetstream_client.publish import bulk
from jetstream_client.read.direct import read
from jetstream_client.sequences import Sequences
from jetstream_client.wire import attempts

Value = TypeVar("Value")
CONFIG = Path(__file__).parents[2] / "docker" / "nats" / "cluster.conf"
PASSWORD = f"7{secrets.token_hex(12)}"  # begins with a digit, as one of openssl's may


class Node(Service):
    """A server of the three, on 127.0.0.1: its ports and its store are overridden on the command line."""

    def __init__(self, name: str, folder: Path, route: int, routes: list[int]) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.monitor = f"http://127.0.0.1:{(monitor := free_port())}"
        command = [str(Path(sysconfig.get_path("scripts")) / "nats-server"), "--config", str(CONFIG)]
        command += ["--addr", "127.0.0.1", "--port", str(self.port), "--http_port", str(monitor)]
        command += ["--cluster_listen", f"nats://127.0.0.1:{route}", "--no_advertise=true"]
        command += ["--routes", ",".join(f"nats://127.0.0.1:{each}" for each in routes)]
        command += ["--store_dir", str(folder / "store")]
        environment = os.environ | {"SERVER_NAME": name, "NATS_PASSWORD": f'"{PASSWORD}"'}
        super().__init__(name, command, folder=folder, environment=environment)

    def ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    routes = [free_port() for _ in range(3)]
    names = [f"nats-{number}" for number in (1, 2, 3)]
    nodes = {name: Node(name, tmp_path / name, route, routes) for name, route in zip(names, routes, strict=True)}
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()


async def eventually(what: str, probe: Callable[[], Awaitable[Value | None]]) -> Value:
    """The first true value of ``probe``; whatever it raises meanwhile is not yet."""
    last: Exception | None = None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if value := await probe():
                return value
        except JetStreamError as error:
            last = error
        await asyncio.sleep(0.2)
    raise TimeoutError(f"Waited for {what}: {last}")


@pytest.mark.slow
async def test_a_replicated_stream_survives_its_leader(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConnectionSettings(servers=tuple(node.url for node in nodes.values()), user="airflow", password=PASSWORD)
    config = {"name": "R3", "subjects": ["R3"], "num_replicas": 3, "allow_direct": True}
    async with connect(settings) as js:
        await eventually("a leader of JetStream", lambda: js.create_stream(config))
        info = await js.stream("R3").info()
        cluster = (await js.api("STREAM.INFO.R3"))["cluster"]
        assert (cluster["name"], {cluster["leader"], *(each["name"] for each in cluster["replicas"])}) == (
            "jetstream",
            set(nodes),
        )
        leader = nodes[cluster["leader"]]
        # Over another server, which answers itself that nobody listens while there is no leader.
        others = tuple(node.url for node in nodes.values() if node is not leader)

        def progress(count: int) -> None:
            if count > 3_000 and leader.running:
                leader.kill()

        messages = [("R3", b"%d" % number) for number in range(12_000)]
        published = await asyncio.to_thread(
            bulk.publish_all, replace(settings, servers=others), messages, stream="R3", scope="run", progress=progress
        )
        assert not leader.running
        assert published.count == 12_000

        async def follower() -> str | None:
            found = (await js.api("STREAM.INFO.R3"))["cluster"].get("leader")
            return str(found) if found and found != leader.name else None

        second = nodes[await eventually("another leader", follower)]
        wanted = Sequences.from_ranges([(1, 12_000)])
        stored = [each for batch in read(settings, "R3", wanted, info.created) for each in batch]
        assert sorted(int(each.data) for each in stored) == list(range(12_000))
        assert (await js.stream("R3").info()).state["messages"] == 12_000

        second.kill()  # and no majority is left to choose a third
        monkeypatch.setattr(attempts, "RESUMED_WITHIN", 1)
        with pytest.raises(
            PublishFailed, match=r"no stream accepted a message for a minute .*more than half of the servers"
        ) as failed:
            await asyncio.to_thread(bulk.publish_all, replace(settings, servers=others), [("R3", b"more")], stream="R3")
        assert failed.value.stored == 0
        leader.start()
        second.start()

        async def whole() -> bool:
            replicas = (await js.api("STREAM.INFO.R3"))["cluster"]["replicas"]
            return len(replicas) == 2 and all(each["current"] for each in replicas)

        await eventually("three replicas", whole)


async def test_the_password_of_the_environment_is_asked_for(nodes: dict[str, Node]) -> None:
    for wrong in ({}, {"user": "airflow", "password": "wrong"}):
        settings = ConnectionSettings(servers=nodes["nats-2"].url, **wrong)  # type: ignore[arg-type]
        with pytest.raises(AuthenticationFailed):
            async with connect(settings):
                pass


def test_each_server_syncs_what_it_confirms(nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        with urlopen(f"{node.monitor}/varz", timeout=10) as answer:
            assert json.load(answer)["jetstream"]["config"]["sync_always"] is True
