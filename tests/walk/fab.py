"""The page with FAB's auth manager: in Airflow's UI as in roles.py, each route as each role, and a role that may read
connections and not change them, which the simple auth manager does not have.

`make fab` runs this file in a separate environment with `apache-airflow-providers-fab`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.airflow_nats_jetstream.page import test_rights
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.walk import roles
from tests.walk.visit import Visit, fits, photograph, settled, unreachable, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.airflow_nats_jetstream.page.world import World

MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"


@pytest.fixture(scope="module")
def airflow(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    connections = world.connections()
    stored = {"stored": connections["full"]}
    server = Airflow(tmp_path_factory.mktemp("fab"), connections, stored, manager=MANAGER, workers=1)
    server.launch()
    try:
        server.wait_ready(300)
        yield server
    finally:
        server.stop()


test_roles = test_rights.test_roles
test_other_pages = test_rights.test_an_action_that_another_page_may_have_caused_is_refused
test_tokens = test_rights.test_a_wrong_cookie_and_a_bearer_token
test_connections = test_rights.test_connections_are_listed_with_what_the_user_may_do
test_people_who_may_change_connections = roles.test_people_who_may_change_connections
test_people_who_are_not_logged_in = roles.test_people_who_are_not_logged_in
test_a_session_that_ends_while_the_page_is_open = roles.test_a_session_that_ends_while_the_page_is_open
test_a_session_that_ends_while_a_dialog_is_open = roles.test_a_session_that_ends_while_a_dialog_is_open


@pytest.mark.parametrize("user", ["viewer", "user"])
def test_people_who_may_not_see_plugins(visit: Visit, user: str) -> None:
    """With FAB, Airflow itself hides the pages of all plugins from them."""
    page = visit.blank(user=user)
    page.goto(f"{visit.address}?connection=full")
    expect(page.get_by_text("Page Not Found.")).to_be_visible()
    expect(page.locator("main[aria-label=JetStream]")).to_have_count(0)


@pytest.mark.parametrize("view", roles.VIEWS)
def test_people_who_may_read_connections_and_not_change_them(visit: Visit, world: World, view: str) -> None:
    """They see everything but payloads, actions, and what belongs to DAGs that they may not see."""
    page = visit(f"?connection=full&view={view}".format(**world.claims), user="reader")
    settled(page)
    photograph(page, f"reader-{view.partition('&')[0]}")
    names = {name.strip() for name in page.locator("main").get_by_role("button").all_inner_texts()}
    assert names <= {"Filter", "Find", "Previous", "Next", "Check whether the holder is alive"}
    expect(page.locator("main").get_by_role("checkbox")).to_have_count(0)
    links: list[str] = page.evaluate("[...document.querySelectorAll('main a')].map((link) => link.href)")
    assert not [link for link in links if "/dags/" in link]
    assert violations(page) == []
    assert fits(page)
    assert unreachable(page) == []
