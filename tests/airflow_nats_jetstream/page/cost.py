"""What the page costs: requests to NATS, connections, memory, and time with many claims and dead letters.

`make walk` runs this file for a short time, and `make page` for ten minutes with the variable MINUTES; `make test` does
not collect it.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from demo.service import until
from tests.airflow_nats_jetstream.page.airflow import BASE, Airflow
from tests.airflow_nats_jetstream.page.visitors import PAGES, Answers, quantile, views, visit
from tests.airflow_nats_jetstream.page.world import SECRET, World

MINUTES = float(os.environ.get("MINUTES") or 0.5)
pytestmark = pytest.mark.timeout(300 + 60 * MINUTES)
CLAIMS, LETTERS = 1_000, 10_000
SOON = 50 if MINUTES >= 5 else 500
"""Milliseconds within which 95 % must be answered. `make walk` permits more, because the machine may be busy."""
MIB = 1 << 20
FROZEN = 15.0
"""Seconds for which NATS is frozen."""


@dataclass
class Sample:
    """What was measured at one moment.

    memory:    the resident memory of each process that answers requests, in bytes, by pid.
    worked:    the processor time of each process so far, in seconds, by pid.
    requests:  the number of messages that NATS received from each connection of the page, by the connection's id.
    """

    at: float
    memory: dict[int, int]
    worked: dict[int, float]
    requests: dict[int, int]

    @classmethod
    def now(cls, airflow: Airflow, world: World) -> "Sample":
        processes = airflow.processes()
        memory = {each.pid: each.memory_info().rss for each in processes}
        worked = {each.pid: sum(each.cpu_times()[:2]) for each in processes}
        return cls(time.monotonic(), memory, worked, world.received())


@pytest.fixture(scope="module")
def filled(world: World) -> World:
    world.fill_many(CLAIMS, LETTERS)
    return world


@pytest.fixture(scope="module", params=[1, 2], ids=["1 worker", "2 workers"])
def busy(
    request: pytest.FixtureRequest, filled: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Airflow, int]]:
    """The process `airflow api-server`, with a connection to the ledger that has many claims; and its workers."""
    workers = request.param
    extra = {"servers": filled.nats.url, "ledger": "many"}
    many = {"conn_type": "nats", "login": "all", "password": SECRET, "extra": extra}
    server = Airflow(tmp_path_factory.mktemp("busy"), {"many": many}, stored={}, workers=workers)
    server.start()
    yield server, workers
    server.stop()


def test_sixty_pages(busy: tuple[Airflow, int], filled: World) -> None:
    """Each process sends at most ten requests a second to NATS, answers soon, and needs no more memory in the end."""
    airflow, workers = busy
    samples: list[Sample] = []
    answers = Answers()
    begun = asyncio.run(_measured(airflow, filled, answers, samples))
    _print(workers, answers, samples)
    assert answers.statuses == []
    assert len(samples[-1].requests) == len(samples[-1].memory) == workers
    assert samples[0].requests.keys() == samples[-1].requests.keys()  # each process has kept its connection
    for each in samples[0].requests:
        rate = (samples[-1].requests[each] - samples[0].requests[each]) / (samples[-1].at - samples[0].at)
        assert 0 < rate <= 10
    assert quantile(answers.since(begun), 0.95) < SOON
    if MINUTES >= 5:
        for pid in samples[0].memory:
            early, late = _memory(samples, pid, 1, 3), _memory(samples, pid, MINUTES - 2, MINUTES)
            assert late <= early + max(0.05 * early, 10 * MIB)


async def _measured(airflow: Airflow, world: World, answers: Answers, samples: list[Sample]) -> float:
    """Open the pages, and measure for MINUTES once all processes have counted the dead letters. Returns when the
    measuring began."""
    token = airflow.token("op")
    async with httpx.AsyncClient(base_url=f"{airflow.client().base_url}", cookies={"_token": token}) as client:
        claims = (await client.get("connections/many/claims", timeout=60)).json()["claims"]
    stop = asyncio.Event()
    pages = asyncio.create_task(visit(airflow, token, views([each["id"] for each in claims]), answers, stop))
    await asyncio.sleep(20)  # every process has then counted all dead letters, and has answered every view
    begun = time.monotonic()
    while time.monotonic() < begun + MINUTES * 60 and not pages.done():
        samples.append(await asyncio.to_thread(Sample.now, airflow, world))
        await asyncio.sleep(5)
    samples.append(await asyncio.to_thread(Sample.now, airflow, world))
    stop.set()
    await pages
    return begun


def _memory(samples: list[Sample], pid: int, after: float, before: float) -> float:
    """The median of a process's memory between two minutes."""
    begun = samples[0].at
    return statistics.median(each.memory[pid] for each in samples if after * 60 <= each.at - begun <= before * 60 + 10)


def _print(workers: int, answers: Answers, samples: list[Sample]) -> None:
    """Print a table with a row for each minute, and how long each view took."""
    print(f"\n{PAGES} pages, {CLAIMS:,} claims, {LETTERS:,} dead letters, {workers} worker process(es)")
    print("minute | memory, MiB | processor share | requests to NATS a second | answers | median, 95 %")
    for minute in range(max(1, round(MINUTES))):
        begun = samples[0].at + minute * 60
        part = [each for each in samples if begun <= each.at <= begun + 65]
        first, last = part[0], part[-1]
        took = [seconds for at, _, seconds in answers.times if first.at <= at < last.at]
        length = last.at - first.at
        columns = (
            " ".join(f"{memory / MIB:.1f}" for memory in last.memory.values()),
            " ".join(f"{(worked - first.worked[pid]) / length:.0%}" for pid, worked in last.worked.items()),
            " ".join(f"{(sent - first.requests.get(each, 0)) / length:.1f}" for each, sent in last.requests.items()),
            str(len(took)),
            _shown(took),
        )
        print(" | ".join([str(minute + 1), *columns]))
    for view in sorted({view for _, view, _ in answers.times}):
        times = answers.of(view)
        if len(times) > 20:
            print(f"{view}: {len(times)} answers, {_shown(times)}")


def _shown(times: list[float]) -> str:
    """The median and the 95th percentile."""
    return f"{quantile(times, 0.5):.0f} ms, {quantile(times, 0.95):.0f} ms"


def test_a_frozen_server_slows_no_other_route_down(busy: tuple[Airflow, int], filled: World) -> None:
    """Other routes of Airflow answer as soon as before, while sixty pages wait for NATS."""
    airflow, _ = busy
    routes = [f"{airflow.url}{BASE}/api/v2/{route}" for route in ("version", "monitor/health", "connections")]
    answers = Answers()

    async def measured() -> tuple[list[list[float]], list[list[float]]]:
        token, stop = airflow.token("op"), asyncio.Event()
        pages = asyncio.create_task(visit(airflow, token, views(["0" * 22]), answers, stop))
        async with httpx.AsyncClient(cookies={"_token": token}, timeout=30) as client:
            await asyncio.sleep(5)
            before = await _others(client, routes)
            filled.nats.freeze()
            try:
                during = await _others(client, routes)
            finally:
                filled.nats.thaw()
        stop.set()
        await pages
        return before, during

    before, during = asyncio.run(measured())
    assert 502 in answers.statuses
    for route, usual, frozen in zip(routes, before, during, strict=True):
        worst = f"at most {max(usual) * 1e3:.0f} ms and {max(frozen) * 1e3:.0f} ms"
        print(f"{route}: {_shown(usual)}; with NATS frozen {_shown(frozen)}; {worst}")
        assert quantile(frozen, 0.5) < 1.5 * quantile(usual, 0.5) + 5
        assert quantile(frozen, 0.95) < 1.5 * quantile(usual, 0.95) + 10


async def _others(client: httpx.AsyncClient, routes: list[str]) -> list[list[float]]:
    """Ask each of these routes again and again, and return the seconds until each answer."""
    found: list[list[float]] = [[] for _ in routes]
    end = time.monotonic() + FROZEN
    while time.monotonic() < end:
        for route, times in zip(routes, found, strict=True):
            began = time.monotonic()
            assert (await client.get(route)).status_code == 200
            times.append(time.monotonic() - began)
        await asyncio.sleep(0.05)
    return found


def test_many_claims_and_dead_letters_page_quickly(airflow: Airflow, filled: World) -> None:
    with airflow.client("op") as client:
        letters = "connections/many/dead-letters/MANY?limit=1"
        until("all dead letters to be counted", lambda: client.get(letters).json()["complete"], 30)
        paths = {"claims?offset=900": CLAIMS, "claims?held=no": CLAIMS, "dead-letters/MANY?after=9000": LETTERS}
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
