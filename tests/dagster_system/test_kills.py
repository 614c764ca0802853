"""The scenarios that are quick enough for every day, at the same time. `make dagster-kills` repeats all of them."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import pytest

from tests.dagster_system import scenarios
from tests.dagster_system.world import World

pytestmark = pytest.mark.timeout(900)
Running: TypeAlias = Mapping[str, "Future[None]"]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The scenarios of the selected tests. They have a stream and a job each, so they do not disturb each other."""
    selected = {item.function for item in request.session.items if isinstance(item, pytest.Function)}
    with World(tmp_path_factory.mktemp("world"), ["UNLIMITED"]).running() as world, ThreadPoolExecutor() as pool:
        running = {
            "asset": pool.submit(asset_scenarios, world),
            "check": pool.submit(scenarios.blocking_check_fails, world),
            "run": pool.submit(scenarios.terminated, world, "storing", messages=800),
        }
        if test_steps_that_are_killed_at_all_points in selected:
            running["steps"] = pool.submit(scenarios.drained, world, "DRAIN", *scenarios.POINTS, messages=1200)
        yield running


def asset_scenarios(world: World) -> None:
    scenarios.asset(world, "entered", "storing")
    scenarios.output_refused(world)


@pytest.mark.slow
def test_steps_that_are_killed_at_all_points(running: Running) -> None:
    running["steps"].result()


def test_an_asset_whose_step_is_killed_or_whose_output_is_refused(running: Running) -> None:
    running["asset"].result()


def test_a_blocking_check_that_fails(running: Running) -> None:
    running["check"].result()


def test_a_run_that_is_terminated_while_an_output_is_stored(running: Running) -> None:
    running["run"].result()
