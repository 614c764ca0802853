"""What the page costs: requests to the server, connections, and time with many claims and dead letters.

`make walk` runs this file; `make test` does not collect it.
"""

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from demo.service import until
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.world import World

SECONDS = 5.0
PAGES = 60


def test_sixty_pages_share_snapshots_and_one_connection(airflow: Airflow, world: World) -> None:
    """Each refreshes the overview and the list of claims twice in five seconds."""
    token = airflow.token("op")

    async def refresh(number: int, client: httpx.AsyncClient) -> list[float]:
        await asyncio.sleep(number * SECONDS / 2 / PAGES)
        times = []
        for _ in range(2):
            for view in ("overview", "claims"):
                began = time.monotonic()
                assert (await client.get(f"connections/full/{view}")).status_code == 200
                times.append(time.monotonic() - began)
            await asyncio.sleep(SECONDS / 2)
        return times

    async def everyone() -> list[float]:
        limits = httpx.Limits(max_connections=PAGES)
        url = str(airflow.client().base_url)
        async with httpx.AsyncClient(base_url=url, cookies={"_token": token}, limits=limits, timeout=30) as client:
            found = await asyncio.gather(*(refresh(number, client) for number in range(PAGES)))
            return [seconds for times in found for seconds in times]

    before, began = world.requests(), time.monotonic()
    times = asyncio.run(everyone())
    rate = (world.requests() - before) / (time.monotonic() - began)
    assert 0 < rate <= 10
    assert statistics.quantiles(times, n=20)[-1] < 0.5
    assert world.connections().count("all") <= 4  # of the connections full, stored, empty and many


def test_many_claims_and_dead_letters_page_quickly(airflow: Airflow, world: World) -> None:
    world.fill_many(claims=1_000, letters=10_000)
    with airflow.client("op") as client:
        letters = "connections/many/dead-letters/MANY?limit=1"
        until("all dead letters to be counted", lambda: client.get(letters).json()["complete"], 30)
        paths = {"claims?offset=900": 1_000, "claims?held=no": 1_000, "dead-letters/MANY?after=9000": 10_000}
        for path, total in paths.items():
            began = time.monotonic()
            answer = client.get(f"connections/many/{path}").json()
            assert time.monotonic() - began < 1
            assert answer["total"] == total


def test_listeners_are_limited(airflow: Airflow, world: World) -> None:
    """Requests for the same holder share a subscription; the number of other holders is limited."""
    with airflow.client("op") as client, ThreadPoolExecutor(12) as pool:
        path = f"connections/full/claims/{world.claims['held']}?listen="
        same = list(pool.map(lambda _: client.get(f"{path}1"), range(12)))
        assert {each.status_code for each in same} == {200}
        different = list(pool.map(lambda number: client.get(f"{path}1.{number}"), range(12)))
        assert {each.status_code for each in different} == {200, 429}
