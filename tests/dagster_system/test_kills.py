"""The scenarios that are quick enough for every day, at the same time. `make dagster-kills` repeats all of them."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import pytest

from tests.dagster_system import scenarios
from tests.dagster_system.world import World

pytestmark = pytest.mark.timeout(900)
Running: TypeAlias = Mapping[str, "Future[None]"]

DAILY: dict[str, Callable[[World], None]] = {
    "an asset's step is killed": lambda world: scenarios.asset(world, "entered", "storing"),
    "a run is terminated while outputs are stored": partial(scenarios.terminated, point="storing", messages=400),
}
SLOW: dict[str, Callable[[World], None]] = {
    "an asset's output is refused": scenarios.output_refused,
    "a blocking check fails": scenarios.blocking_check_fails,
    "steps are killed at all points": lambda world: scenarios.drained(world, "DRAIN", *scenarios.POINTS, messages=1200),
}


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The selected scenarios. Those that share a stream follow each other, and the others run at the same time."""
    selected = {item.callspec.params["name"] for item in request.session.items if isinstance(item, pytest.Function)}
    with (
        World(tmp_path_factory.mktemp("world"), ["UNLIMITED"]).running() as world,
        ThreadPoolExecutor() as pool,
        ThreadPoolExecutor(1) as of_the_asset,
    ):
        yield {
            name: (of_the_asset if "asset" in name else pool).submit(scenario, world)
            for name, scenario in {**DAILY, **SLOW}.items()
            if name in selected
        }


@pytest.mark.parametrize("name", [*DAILY, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_each_message_is_settled_once_although(running: Running, name: str) -> None:
    running[name].result()
