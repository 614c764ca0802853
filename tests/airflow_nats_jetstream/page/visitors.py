"""Open pages: requests as the page's script sends them, while its tab is visible."""

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from tests.airflow_nats_jetstream.page.airflow import Airflow

PAGES = 60
INTERVALS = {"overview": 5.0, "claims": 5.0, "dead-letters": 15.0}
"""Seconds between two requests of a view that is displayed."""
ELSEWHERE, CONNECTIONS = 30.0, 60.0
"""Seconds between two requests for the overview in the other views, and for the list of connections in each view."""


@dataclass
class Answers:
    """What the pages were answered.

    times:     by the second in which a request began: its view, and the seconds until its answer.
    statuses:  the statuses other than 200.
    """

    times: list[tuple[float, str, float]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def since(self, begun: float) -> list[float]:
        """The seconds until the answers of requests that began at this time or later."""
        return [seconds for at, _, seconds in self.times if at >= begun]

    def of(self, view: str) -> list[float]:
        """The seconds until the answers of a view."""
        return [seconds for _, each, seconds in self.times if each == view]


def quantile(times: Sequence[float], share: float) -> float:
    """Return the time, in milliseconds, within which this share of the requests was answered."""
    return 1_000 * statistics.quantiles(times, n=100, method="inclusive")[round(share * 100) - 1]


def views(claims: Sequence[str]) -> list[str]:
    """The views of sixty pages: half of them the overview, and the others lists with different offsets.

    claims:  the ids of claims. Five pages display one of them each.
    """
    lists = [f"claims?offset={offset}&limit=50{held}" for offset in (0, 50, 100, 450, 900) for held in ("", "&held=no")]
    letters = [f"dead-letters/MANY?after={after}&limit=50" for after in (0, 0, 0, 0, 0, 50, 100, 5_000, 9_000, 9_900)]
    found = [*lists, *lists[:5], *letters, *(f"claims/{claim}" for claim in claims[:5])]
    return [*found, *["overview"] * (PAGES - len(found))]


async def visit(airflow: Airflow, token: str, views: Sequence[str], answers: Answers, stop: asyncio.Event) -> None:
    """Keep pages of the connection ``many`` open until ``stop`` is set.

    token:  the cookie of their user.
    views:  what each page displays.
    """
    base, limits = f"{airflow.client().base_url}", httpx.Limits(max_connections=len(views))
    async with httpx.AsyncClient(base_url=base, cookies={"_token": token}, limits=limits, timeout=30) as client:

        async def repeat(path: str, interval: float, later: float) -> None:
            await asyncio.sleep(later)
            while not stop.is_set():
                began = time.monotonic()
                answer = await client.get(path)
                answers.times.append((began, path.partition("?")[0], time.monotonic() - began))
                if answer.status_code != 200:
                    answers.statuses.append(answer.status_code)
                await wait(stop, interval * random.uniform(0.8, 1.2))  # as `varied` in fault.js

        async with asyncio.TaskGroup() as pages:
            for number, view in enumerate(views):
                kind = view.partition("/")[0].partition("?")[0]
                mine: Mapping[str, float] = {f"connections/many/{view}": INTERVALS[kind], "connections": CONNECTIONS}
                if kind != "overview":
                    mine = {**mine, "connections/many/overview": ELSEWHERE}
                for path, interval in mine.items():
                    pages.create_task(repeat(path, interval, number * 5.0 / len(views)))


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Wait for the time, or until ``stop`` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
