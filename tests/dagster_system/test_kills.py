"""The scenarios that are quick enough for every day. `make dagster-kills` repeats all of them."""

from collections.abc import Iterator

import pytest

from tests.dagster_system import scenarios
from tests.dagster_system.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")).running() as world:
        yield world


def test_steps_that_are_killed_at_all_points(world: World) -> None:
    scenarios.killed_at_all_points(world)


def test_an_asset_whose_step_is_killed(world: World) -> None:
    scenarios.asset(world, "entered", "worked", "stored", "settled")


def test_a_blocking_check_that_fails(world: World) -> None:
    scenarios.blocking_check_fails(world)


def test_a_run_that_is_terminated_while_an_output_is_stored(world: World) -> None:
    scenarios.terminated(world, "storing")
