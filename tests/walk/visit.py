"""Visits of the page in headless Chromium, and what a visitor can see, reach and read there."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.walk.browser import FLAGS, chromium

SHOTS = Path(os.environ.get("SHOTS", Path(__file__).parents[2] / "build" / "shots"))
NARROW, WIDE = (360, 740), (1440, 900)
SIZES = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
Theme = Literal["light", "dark"]
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
REFUSED = "Failed to load resource"
"""What Chromium logs for a status of 400 and more."""
expect.set_options(20_000)


@contextmanager
def headless() -> Iterator[Browser]:
    """A browser."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), args=FLAGS)


class Visit:
    """Opens the page in new contexts, and remembers everything that went wrong in them.

    address:  of the page.
    session:  called with the name of a user; returns the value of Airflow's cookie.
    """

    def __init__(self, browser: Browser, address: str, session: Callable[[str], str] | None = None) -> None:
        self._browser = browser
        self.address = address
        self._session = session
        self.errors: list[str] = []

    def __call__(
        self, query: str = "", size: tuple[int, int] = WIDE, theme: Theme = "light", user: str = "admin"
    ) -> Page:
        """Return the page at a query, as soon as its heading is visible."""
        page = self.blank(size, theme, user)
        page.goto(self.address + query)
        expect(page.get_by_role("heading", name="JetStream", level=1)).to_be_visible()
        return page

    def blank(self, size: tuple[int, int] = WIDE, theme: Theme = "light", user: str = "") -> Page:
        """Return an empty page of a user, or of nobody."""
        context = self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,
            reduced_motion="reduce",
            locale="en-US",
            timezone_id="UTC",
        )
        if self._session and user:
            base = self.address.removesuffix("plugin/jetstream")
            context.add_cookies([{"name": "_token", "value": self._session(user), "url": base, "httpOnly": True}])
        page = context.new_page()
        page.on("pageerror", lambda error: self._failed(page, str(error)))
        page.on("console", lambda message: self._failed(page, message.text) if message.type == "error" else None)
        page.add_init_script(f"localStorage.setItem('theme', '{theme}'); globalThis.harmed = 0")
        return page

    def _failed(self, page: Page, error: str) -> None:
        """Remember an error, unless it comes from the form of the auth manager, which is no part of Airflow's UI."""
        if REFUSED not in error and "/auth/login" not in page.url:
            self.errors.append(f"{page.url}: {error}")

    def end(self) -> None:
        """Close the contexts, and fail if a string from outside was executed or anything reported an error."""
        for context in self._browser.contexts:
            harmed = [page.url for page in context.pages if page.evaluate("globalThis.harmed") not in (0, None)]
            context.close()
            assert harmed == [], "a string from outside was executed"
        assert self.errors == [], self.errors


def settled(page: Page) -> None:
    """Wait until the page displays what it asked for."""
    expect(page.get_by_text("Loading…")).to_have_count(0)
    expect(page.get_by_text("as of ")).to_be_visible()


def violations(page: Page) -> list[str]:
    """What axe finds in the page and in its dialogs. The frame around it is Airflow's."""
    found = Axe().run(page, {"include": [["main"], ["[role=alertdialog]"]]}).response["violations"]
    return [f"{each['id']}: {node['html'][:300]} {node['failureSummary']}" for each in found for node in each["nodes"]]


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways, neither the page nor a table in it."""
    within: bool = page.evaluate(
        """[document.documentElement, ...document.querySelectorAll("main, main *")].every(
          (box) => box.scrollWidth <= box.clientWidth || getComputedStyle(box).overflowX === "visible"
            || getComputedStyle(box).clipPath !== "none"
        )"""
    )
    return within


def photograph(page: Page, name: str) -> None:
    """Store a picture for people who want to look, in SHOTS."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def dialog(page: Page) -> Locator:
    return page.get_by_role("alertdialog")


def tab_to(page: Page, name: str, presses: int = 120) -> None:
    """Press Tab until the element with this name or text has the focus."""
    for _ in range(presses):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText || ''")
        if focused.strip() == name:
            return
    pytest.fail(f"Tab does not reach {name!r}")


def unreachable(page: Page) -> list[str]:
    """What a mouse can press in the page, or in its dialog, and Tab does not reach."""
    count = page.evaluate(
        """() => {
          const box = document.querySelector("[role=alertdialog]") ?? document.querySelector("main");
          const found = [...box.querySelectorAll("a, button, input, select, [role=button], [onclick]")];
          globalThis.wanted = found.filter((each) => !each.disabled && each.checkVisibility());
          document.activeElement?.blur();
          return wanted.length;
        }"""
    )
    for _ in range(count + 60):  # Airflow's own navigation comes first
        page.keyboard.press("Tab")
        if page.evaluate("(wanted = wanted.filter((each) => each !== document.activeElement)).length") == 0:
            break
    left: list[str] = page.evaluate("wanted.map((each) => each.outerHTML.slice(0, 200))")
    return left if count else ["nothing can be pressed"]
