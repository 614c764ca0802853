"""The real application of Airflow in a separate process, two real nats-servers, and claims in every state."""

from collections.abc import Iterator

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.world import ACTED, SECRET, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    port = free_port()
    config = f"""
    http: "127.0.0.1:{port}"
    authorization {{
      users: [
        {{ user: all, password: "{SECRET}" }}
        {{ user: blind, password: "{SECRET}", permissions: {{ publish: {{ deny: "$JS.API.CONSUMER.>" }} }} }}
      ]
    }}
    """
    folder = tmp_path_factory.mktemp("page-nats")
    world = World(NatsServer(folder / "one", config), NatsServer(folder / "other"), f"http://127.0.0.1:{port}")
    world.nats.start()
    world.other.start()
    try:
        world.build()
        yield world
    finally:
        world.nats.stop()
        world.other.stop()


@pytest.fixture(scope="session")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Airflow below a base path, with the simple auth manager."""
    extra = {"servers": world.nats.url, "ledger": "page", "request_timeout": 30}
    full, blind = (
        {"conn_type": "nats", "login": user, "password": SECRET, "extra": extra} for user in ("all", "blind")
    )
    connections = {
        "full": full,
        "acting": {**full, "extra": {**extra, "ledger": ACTED}},
        "blind": blind,
        "empty": {**full, "extra": {**extra, "ledger": "empty"}},
        "many": {**full, "extra": {**extra, "ledger": "many"}},
        "wrong": {**full, "password": "no"},
        "broken": {**full, "extra": {**extra, "token": SECRET}},
        "other": {"conn_type": "nats", "extra": {"servers": world.other.url}},
        "elsewhere": {"conn_type": "http", "host": "example.com"},
    }
    server = Airflow(tmp_path_factory.mktemp("page-airflow"), connections, stored={"stored": full})
    server.start()
    yield server
    server.stop()
