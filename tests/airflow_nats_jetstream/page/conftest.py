"""The real application of Airflow in a separate process, two real nats-servers, and claims in every state."""

from collections.abc import Iterator

import pytest

from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.world import World, made


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("page-nats")) as world:
        yield world


@pytest.fixture(scope="session")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Airflow below a base path, with the simple auth manager."""
    connections = world.connections()
    server = Airflow(tmp_path_factory.mktemp("page-airflow"), connections, stored={"stored": connections["full"]})
    server.start()
    yield server
    server.stop()
