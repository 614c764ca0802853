"""What each role may see and do on the real `airflow api-server`: administrator, operator, viewer, and people who are
not logged in. Also sessions that end while the page is open.

`make walk`; `make test` does not collect this file. `make fab` runs it with FAB's auth manager.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.walk.troubles import requests_of
from tests.walk.visit import Visit, button, dialog, photograph, settled, violations

if TYPE_CHECKING:
    from tests.airflow_nats_jetstream.page.airflow import Airflow
    from tests.airflow_nats_jetstream.page.world import World

VIEWS = ("overview", "claims", "claim&claim={held}", "letters")
FORBIDDEN = "You may not read the connection 'full'; ask an administrator of Airflow for that right."


def log_in(page: Page, airflow: Airflow, user: str) -> None:
    """Fill in Airflow's own form."""
    page.get_by_label("Username").or_(page.locator("#username")).fill(user)
    page.locator("input[type=password]").fill(airflow.password)
    page.locator("button[type=submit], input[type=submit]").or_(
        page.get_by_role("button", name="Sign in")
    ).first.click()


@pytest.mark.parametrize("user", ["admin", "op"])
def test_people_who_may_change_connections(visit: Visit, airflow: Airflow, world: World, user: str) -> None:
    """They log in, find the page in Airflow's navigation, and can act."""
    page = visit.blank()
    page.goto(f"{airflow.url}{airflow.base}/")
    log_in(page, airflow, user)
    page.get_by_role("button", name="Browse").or_(page.get_by_text("Browse", exact=True)).first.click()
    page.get_by_role("menuitem", name="JetStream").click()
    expect(page).to_have_url(re.compile("/plugin/jetstream"))
    settled(page)
    expect(page.get_by_label("Connection")).to_be_visible()
    page.get_by_label("Connection").select_option("full")
    expect(page.get_by_role("row").filter(has_text="work").get_by_role("button", name="Pause")).to_be_visible()
    photograph(page, f"role-{user}")
    button(page, "Reset").first.click()
    expect(dialog(page)).to_contain_text("delivers all messages of stream")
    button(page, "Cancel").click()
    page.get_by_role("navigation", name="Views of this page").get_by_role("link", name="Dead letters").click()
    page.get_by_role("button", name="Content of dead letter 1,").click()
    expect(page.get_by_role("region", name="Payload of dead letter 1")).to_be_visible()


@pytest.mark.parametrize("user", ["viewer", "user"])
@pytest.mark.parametrize("view", VIEWS)
def test_people_who_may_not_see_connections(visit: Visit, world: World, user: str, view: str) -> None:
    page = visit("", user=user)
    expect(page.get_by_text("There is no connection of type NATS that you may see.")).to_be_visible()
    page.goto(f"{visit.address}?connection=full&view={view}".format(**world.claims))
    expect(page.locator("main").get_by_role("alert").first).to_contain_text(FORBIDDEN)
    expect(page.get_by_text("Loading…")).to_have_count(0)
    expect(page.locator("main").get_by_role("row")).to_have_count(0)
    names = [name.strip() for name in page.locator("main").get_by_role("button").all_inner_texts()]
    assert set(names) <= {"Ask now", "Filter", "Find"}, names
    assert violations(page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_people_who_are_not_logged_in(visit: Visit, airflow: Airflow, world: World, view: str) -> None:
    """They come to the login, and from there to the view that they wanted."""
    page = visit.blank()
    wanted = f"{visit.address}?connection=full&view={view}".format(**world.claims)
    page.goto(wanted)
    expect(page).to_have_url(re.compile("/login"))
    log_in(page, airflow, "op")
    expect(page.get_by_role("heading", name="JetStream", level=1)).to_be_visible()
    assert parse_qs(urlsplit(page.url).query) == parse_qs(urlsplit(wanted).query)
    settled(page)


def logged_out(page: Page) -> None:
    """Log out in another tab."""
    tab = page.context.new_page()
    tab.goto(page.url.replace("plugin/jetstream", "api/v2/auth/logout"))
    tab.close()


def without_cookie(page: Page) -> None:
    page.context.clear_cookies(name="_token")


def with_an_invalid_cookie(page: Page) -> None:
    for each in page.context.cookies():
        if each["name"] == "_token":
            invalid = "ey.no.token"
            page.context.add_cookies(
                [{"name": each["name"], "value": invalid, "domain": each["domain"], "path": each["path"]}]
            )


ENDS = (logged_out, without_cookie, with_an_invalid_cookie)


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_ends_while_the_page_is_open(visit: Visit, airflow: Airflow, world: World, end: object) -> None:
    """The page says so, keeps what it displays, asks for nothing more, and leads to the login and back."""
    page = visit("?connection=full&view=claims&held=yes", user="op")
    settled(page)
    expect(page.get_by_role("row")).to_have_count(3)
    assert callable(end)
    end(page)
    login = page.locator("main").get_by_role("link", name="Log in").first
    expect(login).to_be_visible()
    expect(page.locator("main").get_by_role("alert").first).to_contain_text("Your session has expired. Log in again.")
    expect(page.get_by_role("row")).to_have_count(3)
    photograph(page, f"expired-{getattr(end, '__name__', '')}")
    page.wait_for_timeout(2_000)  # the other requests of the page are refused, too
    asked = requests_of(page)
    page.wait_for_timeout(11_000)  # two intervals between requests
    assert asked == []
    login.click()
    log_in(page, airflow, "op")
    expect(page.get_by_role("heading", name="JetStream", level=1)).to_be_visible()
    assert parse_qs(urlsplit(page.url).query) == {"connection": ["full"], "view": ["claims"], "held": ["yes"]}
    expect(page.get_by_role("row")).to_have_count(3)


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_ends_while_a_dialog_is_open(visit: Visit, world: World, end: object) -> None:
    page = visit(f"?connection=full&view=claim&claim={world.claims['waiting']}", user="op")
    settled(page)
    button(page, "Release").click()
    confirm = dialog(page).get_by_role("button", name="Release", exact=True)
    expect(confirm).to_be_enabled()
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")  # no other request is refused first
    assert callable(end)
    end(page)
    confirm.click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("Your session has expired. Log in again.")
    expect(dialog(page).get_by_role("link", name="Log in")).to_be_visible()
    expect(confirm).to_be_disabled()
