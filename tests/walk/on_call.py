"""On call, with the page alone: eight faults are planted at the same time. Each is told by its first sentence, and
repaired with what the page names. A repaired fault is gone, and the others stay.

`make walk`; `make test` does not collect this file.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from jetstream_handoff.hold.hold import Hold
from tests.airflow_nats_jetstream.page import test_faults as faults
from tests.airflow_nats_jetstream.page.api_server import RUN
from tests.airflow_nats_jetstream.page.world import ACTED, CONSUMER
from tests.jetstream_handoff.steps import take
from tests.walk.actions import confirm
from tests.walk.visit import THEMES, Theme, Visit, button, fits, photograph, settled, violations

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from tests.airflow_nats_jetstream.page.airflow import Airflow
    from tests.airflow_nats_jetstream.page.world import World

AGAIN = 90_000.0
"""Milliseconds: the page looks again every few seconds, and at permissions and receipts once a minute."""
CAUSES = {
    faults.paused_dag: "DAG resting is paused.",
    faults.failed_sensor: f"Task waits_sensor / {RUN} / take failed after it had taken the claim.",
    faults.poison: "Message 1 of stream CALL_poison fails: ValueError.",
    faults.skipped: "skipped its work, and no sensor pulls.",
    faults.edited: "Consumer work of stream CALL_edited was changed: max_deliver=5.",
    faults.dead_worker: "The worker of attempt 2-dead is dead or cut off.",
}
DELETED = "The bucket gone_claims of the ledger was deleted or lost."
MUTED = "The user of this connection is not permitted to publish on '$KV.muted_claims."


@pytest.fixture(scope="module")
def planted(world: World) -> None:
    for plant in CAUSES:
        plant(world, f"CALL_{plant.__name__}")
    faults.deleted_ledger(world, "CALL_gone")
    faults.forbidden_ledger(world, "CALL_mute")


def found(page: Page, cause: str) -> Locator:
    return page.locator("main").get_by_role("listitem").filter(has_text=cause)


def finding(page: Page, plant: Any) -> Locator:
    """The finding of a planted fault. Other tests of this run have left faults of the same kind on other streams."""
    return found(page, CAUSES[plant]).filter(has_text=f"CALL_{plant.__name__}")


def every(page: Page) -> Page:
    """The page, with all findings."""
    settled(page)
    more = page.get_by_role("button", name="Show all")
    if more.count():
        more.click()
    return page


def work(world: World, stream: str, **changes: Any) -> None:
    """What a run of a healthy DAG does: its sensor takes what waits, and its task settles the claims."""

    async def steps(js: JetStream) -> None:
        for claim in await take(js.stream(stream), "next", **{"wait": 30, "consumer_config": None, **changes}):
            async with Hold.begin(js, claim, try_number=1, holder=faults.TASK) as hold:
                await hold.settle()

    world.run(steps, ledger=ACTED)


def release(page: Page, plant: Any, *, held: bool) -> None:
    """Press the button of a finding, and confirm it."""
    item = finding(page, plant)
    claim = item.get_by_role("link").last.inner_text()
    item.get_by_role("button", name="Release").click()
    confirm(page, "Release", claim if held else "", "was released")


@THEMES
@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.usefixtures("planted")
def test_each_fault_is_told(visit: Visit, width: int, theme: Theme) -> None:
    page = every(visit("?connection=acting", (width, 2_600), theme))
    for plant, cause in CAUSES.items():
        expect(finding(page, plant).locator("strong, [class*=title]").first).to_contain_text(cause, timeout=AGAIN)
    assert violations(page) == []
    assert fits(page)
    photograph(page, f"on-call-{width}-{theme}")
    for connection, cause in (("gone", DELETED), ("muted", MUTED)):
        page = visit(f"?connection={connection}", (width, 900), theme)
        expect(page.locator("main").get_by_role("listitem").first).to_contain_text(cause, timeout=AGAIN)
        assert violations(page) == []
        photograph(page, f"on-call-{connection}-{width}-{theme}")


@pytest.mark.usefixtures("planted")
def test_each_fault_is_repaired_with_what_the_page_names(visit: Visit, airflow: Airflow, world: World) -> None:
    """Its stand has no scheduler, so the runs that the page asks for are those of :func:`work`."""
    page = every(visit("?connection=acting", (1_300, 2_600)))
    left = [*CAUSES]

    def repaired(plant: Any) -> None:
        expect(found(page, f"CALL_{plant.__name__}")).to_have_count(0, timeout=AGAIN)
        left.remove(plant)
        for other in left:
            expect(finding(page, other)).not_to_have_count(0)

    for plant in (faults.dead_worker, faults.failed_sensor):
        release(page, plant, held=plant is faults.dead_worker)
        work(world, f"CALL_{plant.__name__}")
        repaired(plant)

    work(world, "CALL_skipped")  # "Start a run of DAG orders."
    repaired(faults.skipped)

    expect(finding(page, faults.edited)).to_contain_text("nats consumer edit CALL_edited work")
    world.run(lambda js: js.stream("CALL_edited").consumer(CONSUMER).update({"max_deliver": -1}), ledger=ACTED)
    work(world, "CALL_edited", owner=("orders", RUN, "take", -1, 0, ""))
    repaired(faults.edited)

    expect(finding(page, faults.poison).get_by_role("link", name="Open the task")).to_have_attribute(
        "href", f"{airflow.base}/dags/orders/runs/{RUN}/tasks/work/mapped/0?try_number=2"
    )
    work(world, "CALL_poison", max_failures=1)  # "a sensor with max_failures moves a message ... to the dead letters"
    letters = found(page, "Consumer work of stream CALL_poison has 1 dead letter.")
    expect(letters).to_contain_text("ValueError", timeout=AGAIN)
    letters.get_by_role("link", name="See dead letters").click()
    button(page, "Select all 1 on this page").click()
    button(page, "Replay…").click()
    confirm(page, "Replay", done="Published again: 1 dead letter.")
    work(world, "CALL_poison")
    page.goto(f"{visit.address}?connection=acting")
    every(page)
    repaired(faults.poison)

    expect(finding(page, faults.paused_dag).get_by_role("link", name="Open the Dag")).to_have_attribute(
        "href", f"{airflow.base}/dags/resting"
    )
    work(world, "CALL_paused_dag", owner=("resting", RUN, "take", -1, 0, ""))
    repaired(faults.paused_dag)


@pytest.mark.usefixtures("planted")
def test_a_deleted_ledger_is_created_by_the_next_sensor(visit: Visit, world: World) -> None:
    page = visit("?connection=gone")
    expect(found(page, DELETED)).to_contain_text("Restore stream KV_gone_claims from a backup before a sensor runs")
    world.claim("CALL_gone", 1, ledger="gone")
    expect(found(page, DELETED)).to_have_count(0, timeout=AGAIN)
    expect(
        page.locator("section").filter(has_text="CALL_gone").get_by_role("row").filter(has_text=CONSUMER)
    ).to_be_visible()


@pytest.mark.usefixtures("planted")
def test_a_missing_permission_is_granted(visit: Visit, world: World) -> None:
    """It waits for the page's next look at permissions, which are a minute apart."""
    page = visit("?connection=muted")
    expect(found(page, MUTED)).to_contain_text("docs/reference/permissions.md")
    settings = world.nats.folder / "nats-server.conf"
    before = settings.read_text()
    settings.write_text(before.replace("$KV.muted_claims.>", "$KV.nobody.>"))
    os.kill(world.nats.pid, signal.SIGHUP)
    try:
        expect(found(page, MUTED)).to_have_count(0, timeout=AGAIN)
    finally:
        settings.write_text(before)
        os.kill(world.nats.pid, signal.SIGHUP)
