"""A headless Chromium with a new profile, logged in to the Airflow of a stack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from demo.stack import USER, Stack

PATIENCE = 120_000.0
"""Milliseconds, for a busy machine."""
FLAGS = [
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """The path of the browser. The test fails without one."""
    for name in (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"):
        if name and (program := shutil.which(name)):
            return program
    pytest.fail("Chromium is needed (apt-get install chromium), or its path as CHROMIUM")


@contextmanager
def opened(stack: Stack, profile: Path, width: int = 1000, height: int = 720) -> Iterator[Page]:
    """A page of Airflow's UI, logged in."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=chromium(),
            args=FLAGS,
            headless=True,
            viewport={"width": width, "height": height},
            locale="en-US",
            color_scheme="light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE)
        expect.set_options(PATIENCE)
        (page,) = context.pages
        page.goto(stack.airflow.url)
        page.get_by_label("Username").fill(USER)
        page.locator("input[type=password]").fill(stack.password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: "login" not in url)
        yield page
        context.close()


def picture(page: Page, path: Path) -> None:
    page.wait_for_timeout(1_000)  # until animations have ended
    page.screenshot(path=path)
