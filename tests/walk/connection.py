"""What a person does with a connection in Airflow's UI, in headless Chromium: create, test, mend, test, use.

`make walk`; `make test` does not collect this file. Its pictures are those of docs/reference/connection.md.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from airflow_nats_jetstream.get_provider_info import get_provider_info
from airflow_nats_jetstream.hooks import JetStreamHook
from demo.nats_server import NatsServer
from demo.stack import Stack
from tests.walk.browser import opened, picture

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "reference" / "connection"
FOLDER = ROOT / "build" / "tests" / "walk"
RIGHT, WRONG = "right-3e9", "wrong-3e9"
CONNECTION, DAG = "nats_flights", "flights"
INFO: Any = get_provider_info()
(TYPE,) = INFO["connection-types"]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    server = NatsServer(FOLDER / "nats", f'authorization {{ user: airflow, password: "{RIGHT}" }}')
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stack(server: NatsServer) -> Iterator[Stack]:
    """Airflow with a user who has to log in."""
    with Stack(FOLDER / "stack", Path(__file__).parent / "dags") as stack:
        stack.airflow.wait_for_dag(DAG, 240)
        yield stack


@pytest.fixture
def page(stack: Stack, tmp_path: Path) -> Iterator[Page]:
    with opened(stack, tmp_path / "profile") as page:
        yield page


def create(page: Page, server: NatsServer) -> None:
    """In the form, where every field of ours is seen with its help; with a wrong password."""
    page.get_by_role("button", name="Add Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Connection ID").fill(CONNECTION)
    form.get_by_role("combobox").fill("NATS")
    page.get_by_role("option", name=TYPE["hook-name"], exact=True).click()
    for field, text in TYPE["ui-field-behaviour"]["placeholders"].items():
        label = TYPE["ui-field-behaviour"]["relabeling"][field]
        if field != "port":  # a number, which shows no text
            expect(form.get_by_label(label, exact=True)).to_have_attribute("placeholder", text)
    given = {"Host": "127.0.0.1", "Port": str(server.port), "User": "airflow", "Password": WRONG}
    for label, value in given.items():
        form.get_by_label(label, exact=True).fill(value)
    picture(page, PICTURES / "form.png")
    form.get_by_role("button", name="Extra Fields", exact=True).click()
    for field in TYPE["conn-fields"].values():
        expect(form.get_by_text(field["label"], exact=True)).to_be_visible()
        expect(form.get_by_text(field["description"], exact=True)).to_be_visible()
    form.locator("#element_ledger").fill("flights")  # no label of the UI leads to its extra fields
    page.set_viewport_size({"width": 1000, "height": 2500})
    form.get_by_text("Extra Fields", exact=True).scroll_into_view_if_needed()
    picture(page, PICTURES / "fields.png")
    page.set_viewport_size({"width": 1000, "height": 720})
    form.get_by_role("button", name="Save").click()
    form.wait_for(state="hidden")


def mend(page: Page) -> None:
    page.get_by_role("row").filter(has_text=CONNECTION).get_by_role("button", name="Edit Connection").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Password", exact=True).fill(RIGHT)
    form.get_by_role("button", name="Save").click()
    form.wait_for(state="hidden")


def answer(page: Page, words: str) -> None:
    """Press Test, and wait for an answer with these words."""
    page.get_by_role("row").filter(has_text=CONNECTION).get_by_role("button", name="Test Connection").click()
    expect(page.get_by_text(words)).to_be_visible()


@pytest.mark.timeout(1800)
def test_a_connection_is_created_tested_and_used(
    page: Page, stack: Stack, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    PICTURES.mkdir(exist_ok=True)
    page.goto(f"{stack.airflow.url}/connections")
    create(page, server)
    answer(
        page,
        "the NATS server refused the connection (with user and password): Authorization Violation; correct the user",
    )
    picture(page, PICTURES / "refused.png")
    mend(page)
    answer(page, "nats-server 2.")
    picture(page, PICTURES / "works.png")
    shown = page.content()
    assert RIGHT not in shown
    assert WRONG not in shown

    run_id = stack.airflow.trigger(DAG)
    stack.airflow.succeeds(DAG, run_id, 600)
    page.goto(f"{stack.airflow.url}/dags/{DAG}/runs/{run_id}")
    expect(page.get_by_text("Success").first).to_be_visible()

    # The server is the judge: what the DAG sent through this connection is there.
    own = {"conn_type": "nats", "login": "airflow", "password": RIGHT, "extra": {"servers": server.url}}
    monkeypatch.setenv("AIRFLOW_CONN_JUDGE", json.dumps(own))
    info = JetStreamHook("judge").run(lambda js: js.api("STREAM.INFO.FLIGHTS"))
    assert info["state"]["messages"] == 3
