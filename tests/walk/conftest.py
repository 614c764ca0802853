"""A browser, and the real `airflow api-server` of the page's tests, with claims in every state on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.world import World, made
from tests.walk import hostile
from tests.walk.visit import Visit, headless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Its event loop runs as long as it is open, so the other files of `make walk` could not use one of the session."""
    with headless() as browser:
        yield browser


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("nats")) as world:
        yield world


@pytest.fixture(scope="session")
def hostile_claims(world: World) -> dict[str, str]:
    """The claims of the connection ``hostile``, by their states."""
    return hostile.fill(world)


@pytest.fixture(scope="session")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Airflow below a base path, with the simple auth manager."""
    connections = world.connections()
    stored = {"stored": {**connections["full"], "description": hostile.HOSTILE}}
    server = Airflow(tmp_path_factory.mktemp("airflow"), connections, stored, workers=1)
    server.launch()
    try:
        server.wait_ready(240)
        yield server
    finally:
        server.stop()


@pytest.fixture
def visit(browser: Browser, airflow: Airflow) -> Iterator[Visit]:
    visit = Visit(browser, f"{airflow.url}{airflow.base}/plugin/jetstream", airflow.token)
    yield visit
    visit.end()
