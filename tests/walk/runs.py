"""What Airflow shows of the example DAGs' runs: the pictures in the README and in docs/quickstart.md.

`make walk`; `make test` does not collect this file.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from demo import report
from demo.stack import Stack
from tests.walk.browser import opened, picture

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "images"
FOLDER = ROOT / "build" / "tests" / "runs"
DELAYS = FOLDER / "flight_delays"


@pytest.fixture
def stack() -> Iterator[Stack]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    folders = {"FLIGHT_DELAYS_OUT": str(DELAYS), "ORDERS_OUT": str(FOLDER / "orders")}
    with Stack(FOLDER / "stack", ROOT / "dags", folders) as stack:
        yield stack


@pytest.mark.timeout(2400)
def test_the_runs_of_the_examples_are_shown(stack: Stack, tmp_path: Path) -> None:
    PICTURES.mkdir(exist_ok=True)
    runs = {}
    for dag in ("orders", "flight_delays"):
        stack.airflow.wait_for_dag(dag, 240)
        runs[dag] = stack.airflow.trigger(dag)
        stack.airflow.succeeds(dag, runs[dag], 900)

    with opened(stack, tmp_path / "profile", 1200, 620) as page:
        page.goto(f"{stack.airflow.url}/dags/orders/runs/{runs['orders']}")
        expect(page.get_by_text("Success").first).to_be_visible()
        page.get_by_label("Show Graph").click()
        picture(page, PICTURES / "orders.png")
        page.set_viewport_size({"width": 1200, "height": 360})
        page.goto(f"{stack.airflow.url}/dags/flight_delays/runs/{runs['flight_delays']}")
        page.get_by_label("Collapse Details Panel").click()
        expect(page.locator(".react-flow").get_by_text("success")).to_have_count(5)
        page.add_style_tag(content=".react-flow__minimap { display: none }")
        page.get_by_label("Fit View").click()
        picture(page, PICTURES / "flight_delays.png")

    counts = asyncio.run(report.counts(stack.nats_url))
    departures = report.Departures(DELAYS)
    assert departures.check == (counts.messages, counts.messages)
    report.draw(departures.delays(), PICTURES / "delays.png")
