"""Every view of the page on the real `airflow api-server`, in light and dark, narrow and wide, below a base path.

`make walk`; `make test` does not collect this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.walk.hostile import NAME
from tests.walk.visit import SIZES, THEMES, Theme, Visit, fits, photograph, settled, unreachable, violations

if TYPE_CHECKING:
    from tests.airflow_nats_jetstream.page.world import World

VIEWS = {
    "overview": "?connection=full",
    "claims": "?connection=full&view=claims",
    "held": "?connection=full&view=claim&claim={held}",
    "done": "?connection=full&view=claim&claim={done}",
    "failed": "?connection=full&view=claim&claim={failed}",
    "letters": "?connection=full&view=letters",
}
HOSTILE = {name: query.replace("full", "hostile") for name, query in VIEWS.items()} | {
    "unknown": "?connection=hostile&view=claim&claim={unknown}"
}


@SIZES
@THEMES
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_hinders_a_reader(visit: Visit, world: World, view: str, theme: Theme, size: tuple[int, int]) -> None:
    page = visit(VIEWS[view].format(**world.claims), size, theme)
    settled(page)
    photograph(page, f"real-{view}-{theme}-{size[0]}")
    assert violations(page) == []
    assert fits(page)


@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_everything(visit: Visit, world: World, view: str) -> None:
    page = visit(VIEWS[view].format(**world.claims))
    settled(page)
    assert unreachable(page) == []


@SIZES
@pytest.mark.parametrize("view", HOSTILE)
def test_hostile_strings_are_text(
    visit: Visit, hostile_claims: dict[str, str], view: str, size: tuple[int, int]
) -> None:
    """:meth:`Visit.end` fails if one of them was executed."""
    page = visit(HOSTILE[view].format(**hostile_claims), size)
    settled(page)
    if view == "letters":
        for number in range(1, 6):
            page.get_by_role("button", name=f"Content of dead letter {number},").click()
            expect(page.get_by_text("Payload:")).to_be_visible()
    photograph(page, f"hostile-{view}-{size[0]}")
    shown = page.locator("main").inner_text()
    assert not set(shown) & set("\x00\x1b\u202e\u200b")
    assert page.evaluate("document.querySelectorAll('main img, main script, main svg[onload]').length") == 0
    links: list[str] = page.evaluate("[...document.querySelectorAll('main a')].map((link) => link.href)")
    assert {urlsplit(link).netloc for link in links} <= {urlsplit(visit.address).netloc}
    assert violations(page) == []
    assert fits(page)
    assert NAME[:4] in shown
    if view in {"overview", "claims", "held", "done", "failed"}:
        tasks = [link for link in links if "/dags/" in link]
        assert tasks
        assert {urlsplit(link).path.count("/") for link in tasks} <= {4, 8}, "a name is more than one segment of a path"
