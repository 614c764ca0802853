"""Every action of the page on the real `airflow api-server`: what the dialog says, what is refused, and what the server
and the ledger show afterwards.

`make walk`; `make test` does not collect this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.airflow_nats_jetstream.page.world import CONSUMER
from tests.walk.visit import (
    SIZES,
    THEMES,
    Theme,
    Visit,
    button,
    dialog,
    photograph,
    settled,
    tab_to,
    unreachable,
    violations,
)

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim
    from tests.airflow_nats_jetstream.page.world import World


def claim_page(visit: Visit, claim: Claim) -> Page:
    page = visit(f"?connection=acting&view=claim&claim={claim.id}")
    expect(page.get_by_role("heading", name=f"Claim {claim.id}")).to_be_visible()
    return page


def letters_page(visit: Visit, stream: str) -> Page:
    page = visit(f"?connection=acting&view=letters&stream={stream}")
    expect(page.get_by_role("checkbox").first).to_be_visible()
    return page


def section(page: Page, stream: str) -> Locator:
    """What the overview shows of a stream."""
    return page.locator("section").filter(has=page.get_by_role("heading", name=stream, exact=True))


def confirm(page: Page, verb: str, typed: str = "", done: str = "") -> None:
    """Confirm the open dialog, wait until it says what was done, and close it."""
    if typed:
        dialog(page).get_by_label("to confirm").fill(typed)
    dialog(page).get_by_role("button", name=verb, exact=True).click()
    expect(dialog(page)).to_contain_text(done, timeout=45_000)
    expect(dialog(page).get_by_role("alert")).to_have_count(0)
    dialog(page).get_by_role("button").filter(has_text="Close").click()
    expect(dialog(page)).to_have_count(0)


def test_a_claim_is_released_with_the_keyboard_alone(visit: Visit, world: World) -> None:
    claim = world.claim("KEYS", 3)
    world.hold(claim)
    page = claim_page(visit, claim)
    tab_to(page, "Release")
    page.keyboard.press("Enter")
    expect(dialog(page)).to_contain_text(
        f"The next sensor that pulls receives the 3 messages of claim {claim.id} again."
    )
    expect(button(page, "Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(button(page, "Release")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_label("to confirm")).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    field = dialog(page).get_by_label(f"Type {claim.id} to confirm")
    for _ in range(10):
        if field.evaluate("(field) => field === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.type(claim.id)
    page.keyboard.press("Enter")
    expect(dialog(page)).to_contain_text(
        f"Claim {claim.id} was released: the next sensor that pulls receives its 3 messages again."
    )
    assert world.holder(claim) is None


def test_the_claim_of_a_living_holder_needs_a_second_confirmation(visit: Visit, world: World) -> None:
    claim = world.claim("LIVING", 3)
    with world.holding(claim):
        page = claim_page(visit, claim)
        button(page, "Check whether the holder is alive").click()
        expect(page.get_by_role("status").filter(has_text="is alive: a heartbeat arrived.")).to_be_visible()
        button(page, "Release").click()
        dialog(page).get_by_label("to confirm").fill(claim.id)
        dialog(page).get_by_role("button", name="Release", exact=True).click()
        expect(dialog(page).get_by_role("alert")).to_contain_text("is alive: a heartbeat has just arrived")
        assert world.holder(claim)
        dialog(page).get_by_label("to confirm").fill(claim.id)
        dialog(page).get_by_role("button", name="Release although it is alive").click()
        expect(dialog(page)).to_contain_text("was released")
        assert world.holder(claim) is None


def test_all_claims_of_a_consumer_are_released(visit: Visit, world: World) -> None:
    """A dead worker's claim, too: the page listens for it first."""
    claim = world.claim("EVERY", 3)
    world.hold(claim)
    page = visit("?connection=acting&view=claims&stream=EVERY")
    expect(page.get_by_role("link", name=claim.id)).to_be_visible()
    expect(button(page, "Release all 1")).to_have_count(0)  # only the claims of a consumer, or of a DAG
    page.get_by_label("Consumer").select_option(CONSUMER)
    button(page, "Release all 1").click()
    expect(dialog(page)).to_contain_text("This releases 1 open claim with 3 messages of consumer work of stream EVERY.")
    confirm(
        page, "Release all", CONSUMER, "Released: 1 claim. The next sensors that pull receive the 3 messages again."
    )
    assert world.holder(claim) is None


def test_a_claim_that_is_settled_while_one_looks_at_it(visit: Visit, world: World) -> None:
    """The page says so by itself, and refuses what was prepared before."""
    claim = world.claim("SETTLED", 3)
    world.hold(claim)
    page = claim_page(visit, claim)
    main = page.locator("main")
    expect(main.get_by_text("open", exact=True)).to_be_visible()
    button(page, "Release").click()
    dialog(page).get_by_label("to confirm").fill(claim.id)
    world.settle(claim)
    expect(main.get_by_text("done", exact=True)).to_be_visible()
    expect(main.get_by_text("Acknowledged")).to_be_visible()
    expect(main.get_by_text(re.compile("is settled|has been settled|It is done"))).to_be_visible()
    dialog(page).get_by_role("button", name="Release", exact=True).click()
    expect(dialog(page).get_by_role("alert")).to_contain_text(re.compile("is not open|has ended|changed"))
    expect(dialog(page).get_by_role("button", name="Release", exact=True)).to_be_disabled()
    button(page, "Cancel").click()
    expect(button(page, "Release")).to_have_count(0)


def test_a_claim_that_another_attempt_took_over_is_not_released(visit: Visit, world: World) -> None:
    claim = world.claim("TAKEN_OVER", 3)
    page = claim_page(visit, claim)
    button(page, "Release").click()
    expect(dialog(page)).to_contain_text("No attempt holds it.")
    world.hold(claim)
    dialog(page).get_by_role("button", name="Release", exact=True).click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("changed in the meantime")
    expect(dialog(page)).to_contain_text("Attempt 2-dead holds it")
    assert world.holder(claim) == "2-dead"


def test_a_consumer_is_paused_and_resumed(visit: Visit, world: World) -> None:
    world.claim("PAUSED", 2)
    page = visit("?connection=acting")
    row = section(page, "PAUSED")
    row.get_by_role("button", name="Pause").click()
    dialog(page).get_by_label("Pause it for").select_option("8 hours")
    confirm(page, "Pause", done="Consumer work is paused until")
    info = world.consumer("PAUSED")
    assert info.paused
    until = datetime.fromisoformat(info.config["pause_until"])
    assert timedelta(hours=7.9) < until - datetime.now(UTC) < timedelta(hours=8)
    expect(row.get_by_text("paused until").first).to_be_visible()
    row.get_by_role("button", name="Resume").first.click()
    confirm(page, "Resume", done="Consumer work delivers again.")
    assert not world.consumer("PAUSED").paused
    expect(row.get_by_role("button", name="Pause")).to_be_visible()


def test_a_consumer_is_reset(visit: Visit, world: World) -> None:
    """Its open claim is superseded, and its page says so."""
    claim = world.claim("RESET", 4)
    page = visit("?connection=acting")
    section(page, "RESET").get_by_role("button", name="Reset").click()
    field = dialog(page).get_by_label("Deliver again from this sequence on")
    field.fill("2")
    expect(dialog(page).get_by_role("alert")).to_contain_text("this would skip unprocessed messages; give 1 or less.")
    field.fill("1")
    expect(dialog(page)).to_contain_text("from sequence 1 on")
    confirm(page, "Reset", typed=CONSUMER, done="was reset to sequence 1")
    info = world.consumer("RESET")
    assert (info.pending, info.ack_pending) == (4, 0)
    page.goto(f"{visit.address}?connection=acting&view=claim&claim={claim.id}")
    expect(page.locator("main").get_by_text("superseded", exact=True)).to_be_visible()


def test_dead_letters_are_replayed_and_discarded(visit: Visit, world: World) -> None:
    world.claim("SEVERAL", 6, rejected=True)
    page = letters_page(visit, "SEVERAL")
    for sequence in (1, 2):
        page.get_by_label(f"Select message {sequence}").check()
    button(page, "Replay…").click()
    expect(dialog(page)).to_contain_text("2 dead letters (")
    confirm(page, "Replay", done="Published again: 2 dead letters.")
    expect(page.get_by_role("row").filter(has_text="replayed")).to_have_count(2)
    assert world.consumer("SEVERAL").pending == 2
    button(page, "Select all 4 on this page").click()
    button(page, "Discard…").click()
    confirm(page, "Discard", typed="SEVERAL", done="Deleted: 4 dead letters.")
    expect(page.get_by_role("row").filter(has_text="discarded")).to_have_count(4)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    assert world.consumer("SEVERAL").pending == 2


def test_dead_letters_that_somebody_else_has_replayed_are_refused(visit: Visit, world: World) -> None:
    world.claim("TWICE", 2, rejected=True)
    pages = [letters_page(visit, "TWICE") for _ in range(2)]
    for page in pages:
        page.get_by_label("Select message 1").check()
        button(page, "Replay…").click()
        expect(dialog(page)).to_contain_text("1 dead letter (")
    confirm(pages[0], "Replay", done="Published again:")
    dialog(pages[1]).get_by_role("button", name="Replay", exact=True).click()
    expect(dialog(pages[1]).get_by_role("alert")).to_contain_text("nothing was done", ignore_case=True)
    assert world.consumer("TWICE").pending == 1


def on_claim(visit: Visit, world: World, size: tuple[int, int], theme: Theme) -> Page:
    claim = world.claim("DIALOGS", 2)
    world.hold(claim)
    return visit(f"?connection=acting&view=claim&claim={claim.id}", size, theme)


def on_letters(visit: Visit, world: World, size: tuple[int, int], theme: Theme) -> Page:
    world.claim("DIALOGS", 2, rejected=True)
    page = visit("?connection=acting&view=letters&stream=DIALOGS", size, theme)
    page.get_by_role("checkbox").first.check()
    return page


def on_consumer(visit: Visit, world: World, size: tuple[int, int], theme: Theme) -> Page:
    world.claim("DIALOGS", 2)
    return visit("?connection=acting", size, theme)


def on_paused_consumer(visit: Visit, world: World, size: tuple[int, int], theme: Theme) -> Page:
    world.claim("RESTING", 2)
    later = datetime.now(UTC) + timedelta(hours=1)
    world.run(lambda js: js.stream("RESTING").consumer(CONSUMER).pause(later))
    return visit("?connection=acting", size, theme)


@SIZES
@THEMES
@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (on_claim, "Release"),
        (on_consumer, "Pause"),
        (on_paused_consumer, "Resume"),
        (on_consumer, "Reset"),
        (on_letters, "Replay…"),
        (on_letters, "Discard…"),
    ],
)
def test_nothing_hinders_a_reader_of_a_dialog(
    visit: Visit,
    world: World,
    *,
    begin: Callable[[Visit, World, tuple[int, int], Theme], Page],
    name: str,
    theme: Theme,
    size: tuple[int, int],
) -> None:
    page = begin(visit, world, size, theme)
    settled(page)
    page.get_by_role("button", name=name, exact=True).first.click()
    expect(dialog(page)).to_have_attribute("aria-busy", "false")
    page.wait_for_timeout(500)  # until the animation has ended: axe would measure contrasts in the middle of it
    photograph(page, f"real-{name.rstrip('…').lower()}-{theme}-{size[0]}")
    assert violations(page) == []
    assert unreachable(page) == []
