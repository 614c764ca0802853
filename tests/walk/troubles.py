"""The page on the real `airflow api-server` when something is wrong: NATS is frozen, killed and restarted, there is no
ledger, a permission is missing, a connection is wrong, and there are very many claims and dead letters.

`make walk`; `make test` does not collect this file.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from tests.airflow_nats_jetstream.page.world import SECRET
from tests.walk.visit import NARROW, Visit, button, dialog, fits, photograph, settled, violations

if TYPE_CHECKING:
    from tests.airflow_nats_jetstream.page.world import World

VIEWS = {
    "overview": "",
    "claims": "&view=claims",
    "claim": "&view=claim&claim=0123456789ab",
    "letters": "&view=letters",
}


def requests_of(page: Page) -> list[str]:
    """The paths of the page's requests from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if "/jetstream/api/" in request.url else None)
    return found


@pytest.fixture(scope="module")
def other_claim(world: World) -> str:
    """A claim on the server that is frozen and killed."""
    elsewhere: dict[str, Any] = {"servers": world.other.url, "user": None, "password": None, "ledger": "airflow"}
    return world.claim("ELSEWHERE", 3, **elsewhere).id


@pytest.mark.parametrize("view", VIEWS)
def test_a_frozen_server_is_reported_and_the_page_recovers(
    visit: Visit, world: World, other_claim: str, view: str
) -> None:
    page = visit(f"?connection=other{VIEWS[view]}".replace("0123456789ab", other_claim))
    settled(page)
    world.other.freeze()
    try:
        began = time.monotonic()
        asked = requests_of(page)
        alert = page.locator("main").get_by_role("alert").filter(has_text="What is displayed below is from").first
        expect(alert).to_be_visible(timeout=40_000)
        expect(alert).to_contain_text(re.compile(r"The page asks again in \d+ s\."))
        expect(page.get_by_text("Loading…")).to_have_count(0)
        photograph(page, f"frozen-{view}")
        assert violations(page) == []
        assert len(asked) <= 3 + 2 * (time.monotonic() - began) / 5, "the page repeats its requests too often"
    finally:
        world.other.thaw()
    button(page, "Ask now").first.click()
    expect(page.locator("main").get_by_role("alert").filter(has_text="What is displayed")).to_have_count(
        0, timeout=60_000
    )
    settled(page)


def test_an_action_on_a_frozen_server_is_refused(visit: Visit, world: World, other_claim: str) -> None:
    page = visit(f"?connection=other&view=claim&claim={other_claim}")
    settled(page)
    button(page, "Release").click()
    expect(dialog(page)).to_contain_text("the 3 messages of claim")
    world.other.freeze()
    try:
        dialog(page).get_by_role("button", name="Release", exact=True).click()
        expect(dialog(page).get_by_role("alert")).to_be_visible(timeout=45_000)
        expect(button(page, "Try again")).to_be_visible(timeout=45_000)
        expect(dialog(page).get_by_role("button", name="Release", exact=True)).to_be_disabled()
        photograph(page, "frozen-release")
    finally:
        world.other.thaw()

    def tried_again() -> bool:
        if button(page, "Try again").is_visible():
            button(page, "Try again").click()
        expect(dialog(page)).to_have_attribute("aria-busy", "false")
        return bool(dialog(page).get_by_role("button", name="Release", exact=True).is_enabled())

    deadline = time.monotonic() + 40
    while not tried_again():
        assert time.monotonic() < deadline, dialog(page).inner_text()


def test_a_killed_server_is_reported_until_it_is_back(visit: Visit, world: World, other_claim: str) -> None:
    page = visit("?connection=other")
    settled(page)
    world.other.kill()
    alert = page.locator("main").get_by_role("alert").filter(has_text="What is displayed below is from")
    try:
        expect(alert).to_be_visible(timeout=40_000)
        fresh = visit("?connection=other&view=claims", NARROW)
        expect(fresh.get_by_role("alert")).to_be_visible(timeout=40_000)
        expect(fresh.get_by_text("Loading…")).to_have_count(0)
        assert violations(fresh) == []
        assert fits(fresh)
    finally:
        world.other.start()
    for each in (page, fresh):  # without being asked
        expect(each.locator("main").get_by_role("alert").filter(has_text="asks again")).to_have_count(0, timeout=90_000)
        settled(each)  # its tabs and filters, too, which come from another request than the list
    expect(fresh.get_by_role("link", name=other_claim)).to_be_visible()


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("overview", "No claims have been taken with this connection."),
        ("claims", "No open claim matches."),
        ("claim", "The ledger has no claim '0123456789ab'"),
        ("letters", "There is no stream with claims, so there are no dead letters."),
    ],
)
def test_without_a_ledger_each_view_says_so(visit: Visit, view: str, says: str) -> None:
    page = visit(f"?connection=empty{VIEWS[view]}")
    settled(page)
    expect(page.get_by_text(says)).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize(
    ("connection", "says"),
    [
        ("wrong", "Authorization Violation"),
        ("broken", "cannot be used: "),
        ("absent", "Airflow has no connection 'absent' of type nats"),
        ("elsewhere", "Airflow has no connection 'elsewhere' of type nats"),
        ("..", "This name cannot be part of an address."),
        ("a b", "Airflow has no connection 'a b' of type nats"),
    ],
)
@pytest.mark.parametrize("view", VIEWS)
def test_a_connection_that_does_not_work(visit: Visit, view: str, connection: str, says: str) -> None:
    page = visit(f"?connection={connection}{VIEWS[view]}")
    expect(page.locator("main").get_by_role("alert").first).to_contain_text(says)
    expect(page.get_by_text("Loading…")).to_have_count(0)
    assert violations(page) == []
    assert SECRET not in page.content()


@pytest.mark.parametrize("view", VIEWS)
def test_a_missing_permission_is_named(visit: Visit, world: World, view: str) -> None:
    page = visit(f"?connection=blind{VIEWS[view]}".replace("0123456789ab", world.claims["held"]))
    settled(page)
    if view == "overview":
        found = page.get_by_role("region", name="Needs attention")
        expect(found).to_contain_text(re.compile(r"not permitted to publish on '?\$JS\.API\.CONSUMER"))
    elif view == "claim":
        expect(page.get_by_text("unknown, because its consumer could not be read.")).to_be_visible()
    else:
        expect(page.get_by_role("row").nth(1)).to_be_visible()
    for wrong in ("does not exist", "cannot be settled"):
        expect(page.get_by_text(wrong)).to_have_count(0)
    photograph(page, f"blind-{view}")
    assert violations(page) == []
    assert SECRET not in page.content()


@pytest.fixture(scope="module")
def many(world: World) -> None:
    world.fill_many(claims=1_000, letters=10_000)


@pytest.mark.usefixtures("many")
def test_a_thousand_open_claims(visit: Visit) -> None:
    page = visit("?connection=many&view=claims")
    expect(page.get_by_text("1\N{EN DASH}50 of 1,000")).to_be_visible()
    expect(page.get_by_role("link", name="Open claims (1,000)")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("51\N{EN DASH}100 of 1,000")).to_be_visible()
    page.goto(f"{visit.address}?connection=many&view=claims&offset=950")
    expect(page.get_by_text("951\N{EN DASH}1,000 of 1,000")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(51)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    assert violations(page) == []
    page.goto(f"{visit.address}?connection=many&view=claims&offset=1000")
    expect(page.get_by_text("This page of the list is empty by now.")).to_be_visible()


@pytest.mark.usefixtures("many")
def test_ten_thousand_dead_letters(visit: Visit) -> None:
    page = visit("?connection=many&view=letters&stream=MANY")
    expect(page.get_by_text("10,000 dead letters in this stream")).to_be_visible(timeout=90_000)
    expect(page.get_by_text("at least")).to_have_count(0, timeout=60_000)
    for first in (51, 101):
        page.get_by_role("link", name="Next").click()
        expect(page.get_by_label(f"Select message {first}", exact=True)).to_be_visible()
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_label("Select message 51", exact=True)).to_be_visible()
    page.get_by_role("textbox", name="Reason contains").fill("reason 3")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Select message 3", exact=True)).to_be_visible()
    expect(page.get_by_label("Select message 4", exact=True)).to_have_count(0)
    page.goto(f"{visit.address}?connection=many&view=letters&stream=MANY&after=9950")
    expect(page.get_by_label("Select message 10000", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    button(page, "Select all 50 on this page").click()
    button(page, "Discard…").click()
    expect(dialog(page)).to_contain_text("50 dead letters")
    assert violations(page) == []


@pytest.mark.usefixtures("many")
def test_the_overview_of_many(visit: Visit) -> None:
    page = visit("?connection=many")
    expect(page.get_by_role("row", name=re.compile("^work"))).to_contain_text("1,000")
    assert violations(page) == []
    assert fits(page)
