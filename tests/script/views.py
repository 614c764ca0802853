"""Every view and action of the JetStream page in headless Chromium: by keyboard, in light and dark, narrow and wide.

Airflow's real UI displays the page, and the stand-in answers it. `make walk`; `make test` does not collect this file.
"""

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from demo.service import until
from tests.script import state
from tests.script.standin import StandIn, served
from tests.walk.visit import (
    SIZES,
    THEMES,
    Theme,
    Visit,
    button,
    dialog,
    fits,
    headless,
    photograph,
    settled,
    tab_to,
    unreachable,
    violations,
)

OPEN = f"?view=claim&claim={state.OLD}"
LETTERS = "?view=letters&stream=FLIGHTS"
VIEWS = {
    "overview": "",
    "claims": "?view=claims",
    "claim": OPEN,
    "done": f"?view=claim&claim={state.DONE}",
    "letters": LETTERS,
}
RELEASE = r"connections/[^/]+/claims/[^/]+/release"
OVERVIEW = r"connections/[^/]+/overview"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as browser:
        yield browser


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with served() as standin:
        state.prepare(standin)
        yield standin


@pytest.fixture
def visit(browser: Browser, standin: StandIn) -> Iterator[Visit]:
    visit = Visit(browser, standin.url)
    yield visit
    visit.end()


@SIZES
@THEMES
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_hinders_a_reader(visit: Visit, view: str, theme: Theme, size: tuple[int, int]) -> None:
    page = visit(VIEWS[view], size, theme)
    settled(page)
    photograph(page, f"{view}-{theme}-{size[0]}")
    assert violations(page) == []
    assert fits(page)


@SIZES
@THEMES
def test_nothing_hinders_a_reader_of_a_dialog(visit: Visit, theme: Theme, size: tuple[int, int]) -> None:
    page = visit(OPEN, size, theme)
    button(page, "Release").click()
    expect(dialog(page).get_by_text("redelivered at once")).to_be_visible()
    page.wait_for_timeout(500)  # until the animation has ended: axe would measure contrasts in the middle of it
    photograph(page, f"release-{theme}-{size[0]}")
    assert violations(page) == []


def test_each_finding_stands_once_at_the_top_with_one_button(visit: Visit) -> None:
    page = visit()
    settled(page)
    top = page.get_by_role("region", name="Needs attention (6)")
    expect(top.get_by_text("Error", exact=True)).to_have_count(3)
    expect(page.get_by_text("Resume the consumer if nobody else has paused it on purpose.")).to_have_count(1)
    expect(page.get_by_role("row").filter(has_text="billing").get_by_text("1 finding", exact=True)).to_be_visible()
    paused = top.get_by_role("listitem").filter(has_text="paused until")
    expect(paused).to_contain_text("Consumer billing of stream ORDERS is paused until 2026-11-24 10:00:00.")
    expect(paused.get_by_role("button")).to_have_text(["Resume"])
    letters = top.get_by_role("listitem").filter(has_text="25 dead letters")
    expect(letters).to_contain_text("The newest is message 77, at 2026-11-22 10:40:00: t: yesterday cannot")
    expect(letters).to_contain_text(
        "expected a string like 2026-11-21T03:00:00Z."
    )  # with an offset, as payloads need it
    for cause, label, path in (
        ("Message 451", "Open the task", r"/tasks/process\?try_number=1$"),
        ("DAG ship_orders is paused.", "Open the Dag", "/af/dags/ship_orders$"),
        ("25 dead letters", "See dead letters", "view=letters.*stream=FLIGHTS&consumer=delays$"),
    ):
        link = top.get_by_role("listitem").filter(has_text=cause).get_by_role("link", name=label)
        expect(link).to_have_attribute("href", re.compile(path))
    link = top.get_by_role("link", name="flight_delays / process[3], try 2")
    path = (
        "/af/dags/flight_delays/runs/scheduled__2026-11-22T10%3A40%3A00%2B00%3A00/tasks/process/mapped/3?try_number=2"
    )
    expect(link).to_have_attribute("href", path)


def test_a_healthy_overview_says_so_and_draws_nothing(visit: Visit, standin: StandIn) -> None:
    """No sign of something unknown: neither a line for a backlog that does not change, nor a question mark."""
    of = {**state.overview(), "findings": []}
    gone = {"exists": False, "pending": None, "ack_pending": None, "floor": None, "waiting_pulls": None}
    of["streams"] = [
        {
            **of["streams"][0],
            "consumers": [state.consumer("steady"), state.consumer("gone", open=0, held=0, oldest=None, **gone)],
        }
    ]
    standin.always(OVERVIEW, of)
    page = visit()
    settled(page)
    expect(page.get_by_text("Nothing needs attention")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="gone")).to_contain_text("does not exist")
    expect(page.get_by_role("table").get_by_role("img")).to_have_count(0)
    shown = page.locator("main").inner_text()
    assert "?" not in shown
    assert "unknown" not in shown
    assert violations(page) == []


def test_what_the_next_batch_waits_for_is_in_the_row_of_its_consumer(visit: Visit) -> None:
    page = visit()
    row = page.get_by_role("row").filter(has_text="balances")
    expect(row).to_contain_text(f"12,400 messages wait for 1 of 8 claims: {state.CLAIM}, for 12 min")
    expect(row.get_by_role("link").filter(has_text="process[3]")).to_have_count(1)
    expect(row).to_contain_text("2 stopped keys")
    expect(page.get_by_role("row").filter(has_text="audit")).not_to_contain_text("messages wait")


def test_a_filter_that_matches_nothing_is_in_the_row_of_its_consumer(visit: Visit) -> None:
    page = visit()
    expect(page.get_by_role("row").filter(has_text=state.UNMATCHED)).to_contain_text("invoices")


def places_in(line: Locator) -> list[str]:
    """Where the samples of a plot are drawn, from left to right. Their heights change with the largest value."""
    return [point.partition(",")[0] for point in (line.get_attribute("points") or "").split()]


def test_the_plot_of_a_backlog_grows_while_one_watches(visit: Visit) -> None:
    page = visit()
    plot = page.get_by_role("row").filter(has_text="audit").get_by_role("img")
    line = plot.locator("polyline")
    expect(plot).to_have_attribute("aria-label", re.compile(r"Backlog: [\d,]+ now, \+\d+ in \d+ s, between"))
    before = places_in(line)
    assert len(before) > 1
    page.get_by_role("link", name="One claim").click()
    expect(line).to_have_count(0)
    page.get_by_role("link", name="Overview").click()
    expect(line).to_have_count(1)
    assert places_in(line)[: len(before)] == before, "the history is lost when the view changes"
    until("a longer line", lambda: len(places_in(line)) > len(before), 20)


def asked(standin: StandIn, since: int = 0) -> list[str]:
    return [path for _, path, _ in standin.requests[since:]]


def test_open_claims_are_filtered_and_paged(visit: Visit, standin: StandIn) -> None:
    page = visit("?view=claims")
    expect(page.get_by_text("1\N{EN DASH}50 of 1,000")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(51)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("51\N{EN DASH}100 of 1,000")).to_be_visible()
    page.get_by_label("Held").select_option("yes")
    expect(page.get_by_text("1\N{EN DASH}50 of 334")).to_be_visible()
    page.get_by_label("Consumer").select_option("delays")
    page.get_by_role("textbox", name="Dag").fill("flight_delays")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("dag=flight_delays"))
    chosen = {"limit": ["50"], "consumer": ["delays"], "held": ["yes"], "dag": ["flight_delays"]}
    until("the filtered list", lambda: chosen in [parse_qs(urlsplit(path).query) for path in asked(standin)], 10)
    page.go_back()
    expect(page.get_by_role("textbox", name="Dag")).to_have_value("")


def test_hostile_strings_are_text(visit: Visit) -> None:
    page = visit("?view=claims")
    settled(page)
    expect(page.get_by_text('"><img src=x onerror=').first).to_be_visible()
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    page = visit(LETTERS)
    page.get_by_role("button", name="Content of dead letter 3,").click()
    expect(page.get_by_role("region", name="Payload of dead letter 3")).to_contain_text(
        r"</script>\u202egpj.exe\u0000\u200b"
    )
    page = visit(f"?view=claim&claim={state.DONE}")
    settled(page)
    links: list[str] = page.evaluate("[...document.querySelectorAll('main a')].map((link) => link.href)")
    assert {urlsplit(link).scheme for link in links} == {"http"}


def test_a_payload_is_text_or_hexadecimal_bytes(visit: Visit) -> None:
    page = visit(LETTERS)
    page.get_by_role("button", name="Content of dead letter 1,").click()
    expect(page.get_by_role("region", name="Payload of dead letter 1")).to_have_text('{"carrier": "",\n "delay": -1}')
    page.get_by_role("button", name="Content of dead letter 2,").click()
    expect(page.get_by_role("region", name="Payload of dead letter 2")).to_have_text("00 01 02 ff fe")
    assert violations(page) == []


def test_only_kept_dead_letters_can_be_selected(visit: Visit) -> None:
    """Neither those that were replayed or discarded, nor messages that are no dead letters."""
    page = visit(LETTERS)
    expect(page.get_by_label("Select message 53")).to_be_visible()
    for number, fate in ((4, "replayed"), (5, "discarded"), (6, "not a dead letter")):
        row = page.get_by_role("row").filter(has_text=fate)
        expect(row).to_contain_text(str(50 + number))
        expect(row.get_by_role("checkbox")).to_have_count(0)
        expect(row.get_by_role("button")).to_have_count(0)


def test_previous_leads_to_the_page_before(visit: Visit) -> None:
    page = visit(LETTERS)
    settled(page)
    for first in (101, 151):
        page.get_by_role("link", name="Next").click()
        expect(page.get_by_label(f"Select message {first}")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Select message 151")).to_be_visible()
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_label("Select message 101")).to_be_visible()
    page.goto(f"{visit.address}{LETTERS}&after=100")
    page.get_by_role("link", name="First page").click()
    expect(page.get_by_label("Select message 51")).to_be_visible()


@pytest.mark.parametrize("view", ["overview", "claims", "letters", f"claim&claim={state.OLD}"])
def test_a_name_that_cannot_be_part_of_an_address_is_refused_at_once(visit: Visit, standin: StandIn, view: str) -> None:
    page = visit(f"?view={view}&connection=..")
    expect(page.get_by_role("alert")).to_contain_text("This name cannot be part of an address.")
    expect(page.get_by_text("Loading…")).to_have_count(0)
    assert set(asked(standin)) == {"connections"}


def test_the_first_navigation_keeps_the_focus(visit: Visit) -> None:
    page = visit()
    settled(page)
    tab_to(page, "One claim")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Claim id")).to_be_visible()
    expect(page.get_by_role("link", name="One claim")).to_be_focused()


@pytest.mark.parametrize("view", [*VIEWS, "content"])
def test_tab_reaches_everything(visit: Visit, view: str) -> None:
    page = visit(VIEWS.get(view, LETTERS))
    settled(page)
    if view == "content":
        page.get_by_role("button", name="Content of dead letter 1,").click()
        expect(page.get_by_role("region", name="Payload of dead letter 1")).to_be_visible()
    assert unreachable(page) == []


def test_a_claim_is_released_with_the_keyboard_alone(visit: Visit, standin: StandIn) -> None:
    page = visit(OPEN)
    settled(page)
    tab_to(page, "Release")
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_text("Its 50 messages of stream FLIGHTS are redelivered at once")).to_be_visible()
    expect(button(page, "Cancel")).to_be_focused()
    expect(dialog(page).get_by_role("button", name="Release", exact=True)).to_be_disabled()
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    expect(button(page, "Release")).to_be_focused()
    page.keyboard.press("Enter")
    field = dialog(page).get_by_label(f"Type {state.OLD} to confirm")
    expect(field).to_be_visible()
    field.focus()
    page.keyboard.type("742d00c94f5")
    page.keyboard.press("Enter")
    assert "POST" not in [method for method, _, _ in standin.requests]
    page.keyboard.type("e")
    page.keyboard.press("Enter")
    expect(dialog(page).get_by_text("The claim is released.")).to_be_visible()
    sent = [(path, body) for method, path, body in standin.requests if method == "POST"]
    assert sent == [
        (
            f"connections/{state.CONNECTION}/claims/{state.OLD}/release",
            {"expected": "r1", "despite_alive": False, "despite_unknown": False},
        )
    ]
    standin.always(rf"connections/[^/]+/claims/{state.OLD}", state.done(state.OLD))
    expect(page.locator("main").get_by_text("is settled")).to_be_visible()
    tab_to(page, "Close", 5)
    page.keyboard.press("Enter")
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_role("heading", name="JetStream", level=1)).to_be_focused()  # the button has disappeared


def test_a_refusal_shows_the_new_state_and_needs_a_new_confirmation(visit: Visit, standin: StandIn) -> None:
    page = visit(OPEN)
    button(page, "Release").click()
    dialog(page).get_by_label("to confirm").fill(state.OLD)
    changed = {
        "error": "Changed",
        "message": f"Claim {state.OLD} is held by another attempt by now. Nothing was released.",
    }
    standin.always(RELEASE, changed, 409)
    standin.always(
        f"{RELEASE}/preview", state.preview("It is held by attempt 4-77777777.", revision="r2", dangerous=True)
    )
    dialog(page).get_by_role("button", name="Release", exact=True).click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("is held by another attempt by now")
    expect(dialog(page).get_by_text("It is held by attempt 4-77777777.")).to_be_visible()
    expect(dialog(page).get_by_label("to confirm")).to_have_value("")
    expect(dialog(page).get_by_role("button", name="Release", exact=True)).to_be_disabled()
    standin.always(RELEASE, {"error": "HolderAlive", "message": "Attempt 4-77777777 is alive."}, 409)
    dialog(page).get_by_label("to confirm").fill(state.OLD)
    dialog(page).get_by_role("button", name="Release", exact=True).click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("is alive")
    standin.always(RELEASE, {"text": "Released."})
    dialog(page).get_by_label("to confirm").fill(state.OLD)
    dialog(page).get_by_role("button", name="Release although it is alive").click()
    expect(dialog(page).get_by_text("Released.")).to_be_visible()
    bodies = [body for method, _, body in standin.requests if method == "POST"]
    assert bodies == [
        {"expected": "r1", "despite_alive": False, "despite_unknown": False},
        {"expected": "r2", "despite_alive": False, "despite_unknown": False},
        {"expected": "r2", "despite_alive": True, "despite_unknown": False},
    ]


def pause(page: Page) -> None:
    row = page.get_by_role("row").filter(has_text="punctuality")
    row.get_by_role("button", name="Pause").click()
    dialog(page).get_by_label("Pause it for").select_option("8 hours")


def resume(page: Page) -> None:
    page.get_by_role("region", name="Needs attention").get_by_role("button", name="Resume").click()


def release_all(page: Page) -> None:
    page.get_by_role("textbox", name="Dag").fill("flight_delays")
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Run").fill("manual__1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("dag=flight_delays&run=manual__1"))
    page.get_by_role("button", name="Release all ").click()


def reset(page: Page) -> None:
    page.get_by_role("row").filter(has_text="punctuality").get_by_role("button", name="Reset").click()
    field = dialog(page).get_by_label("Deliver again from this sequence on")
    field.fill("0")
    expect(dialog(page).get_by_text("A sequence is a whole number of at least 1.")).to_be_visible()
    expect(dialog(page).get_by_role("button", name="Reset", exact=True)).to_be_disabled()
    field.fill("17")


def replay(page: Page) -> None:
    page.get_by_label("Select message 51").check()
    page.get_by_label("Select message 52").check()
    button(page, "Replay…").click()
    dialog(page).get_by_label("Include dead letters that the ledger does not confirm").check()


def discard(page: Page) -> None:
    button(page, "Select all 47 on this page").click()
    button(page, "Discard…").click()


@pytest.mark.parametrize(
    ("query", "verb", "begin", "path", "parameters"),
    [
        ("", "Pause", pause, "consumers/FLIGHTS/punctuality/pause", {"until"}),
        ("", "Resume", resume, "consumers/ORDERS/billing/resume", set()),
        (
            "?view=claims",
            "Release all",
            release_all,
            "claims/release_all",
            {"stream", "consumer", "held", "dag", "run", "despite_alive", "despite_unknown"},
        ),
        ("", "Reset", reset, "consumers/FLIGHTS/punctuality/reset", {"sequence"}),
        (LETTERS, "Replay", replay, "dead-letters/FLIGHTS/replay", {"numbers", "unconfirmed"}),
        (LETTERS, "Discard", discard, "dead-letters/FLIGHTS/discard", {"numbers", "unconfirmed"}),
    ],
    ids=["pause", "resume", "release all", "reset", "replay", "discard"],
)
def test_an_action_is_previewed_and_sent_once(
    visit: Visit,
    standin: StandIn,
    *,
    query: str,
    verb: str,
    begin: Callable[[Page], None],
    path: str,
    parameters: set[str],
) -> None:
    page = visit(query)
    begin(page)
    confirm = dialog(page).get_by_role("button", name=verb, exact=True)
    expect(confirm).to_be_enabled()
    previews = [each for each in asked(standin) if "/preview" in each]
    confirm.dblclick(no_wait_after=True)
    expect(dialog(page).get_by_role("button", name="Close").first).to_be_visible()
    ((sent, body),) = [(each, body) for method, each, body in standin.requests if method == "POST"]
    assert sent == f"connections/{state.CONNECTION}/{path}"
    assert set(body) == {"expected", *parameters}
    last = parse_qs(urlsplit(previews[-1]).query)
    assert {
        name: str(value) for name, value in body.items() if name in last and name not in {"numbers", "unconfirmed"}
    } == {name: value for name, (value, *_) in last.items() if name not in {"numbers", "unconfirmed"}}
    assert [str(number) for number in body.get("numbers", [])] == last.get("numbers", [])


def test_users_who_may_not_act_see_no_actions(visit: Visit, standin: StandIn) -> None:
    state.prepare(standin, may_act=False)
    standin.always(r"connections/[^/]+/claims/[0-9a-f]{12}", state.detail(state.OLD, may_release=False))
    for view in VIEWS.values():
        page = visit(view)
        settled(page)
        names = [name.strip() for name in page.locator("main").get_by_role("button").all_inner_texts()]
        assert set(names) <= {"Filter", "Find", "Previous", "Check whether the holder is alive"}, names
        expect(page.locator("main input[type=checkbox]")).to_have_count(0)


def test_the_holder_is_heard_on_demand(visit: Visit, standin: StandIn) -> None:
    page = visit(OPEN)
    settled(page)
    assert not [path for path in asked(standin) if "listen" in path]
    standin.always(rf"connections/[^/]+/claims/{state.OLD}", state.detail(state.OLD, alive=False))
    button(page, "Check whether the holder is alive").click()
    expect(
        page.get_by_role("status").get_by_text(
            "No heartbeat of attempt 3-3aee3f60 arrived within 2 s. It counts as dead."
        )
    ).to_be_visible()
    standin.always(rf"connections/[^/]+/claims/{state.OLD}", state.detail(state.OLD, alive=True))
    button(page, "Check whether the holder is alive").click()
    expect(page.get_by_text("Attempt 3-3aee3f60 is alive: a heartbeat arrived.")).to_be_visible()
    assert [path for path in asked(standin) if path.endswith("?listen=2")]


def test_a_fault_is_explained_and_the_old_numbers_are_marked(visit: Visit, standin: StandIn) -> None:
    page = visit()
    settled(page)
    message = "The server nats.example.com:4222 did not answer within 2 s. Check whether it is running."
    standin.always(OVERVIEW, {"error": "RequestTimeout", "message": message}, 502)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(message)
    expect(alert).to_contain_text("What is displayed below is from ")
    expect(alert).to_contain_text("The page asks again in 10 s.")
    expect(page.get_by_text("as of ")).to_have_count(0)
    expect(page.get_by_role("heading", name="FLIGHTS")).to_be_visible()
    photograph(page, "fault-light-1440")
    assert violations(page) == []
    standin.always(OVERVIEW, state.overview())
    button(page, "Ask now").click()
    expect(alert).to_have_count(0)


def test_an_expired_session_leads_to_the_login(visit: Visit, standin: StandIn) -> None:
    page = visit("?view=claims&held=yes")
    settled(page)
    standin.always("connections.*", {"detail": "Not authenticated"}, 401)
    login = page.get_by_role("link", name="Log in")
    expect(login.first).to_be_visible()
    address = urlsplit(login.first.get_attribute("href") or "")
    assert (address.path, parse_qs(address.query)["next"]) == ("/af/api/v2/auth/login", [page.url])
    expect(page.get_by_role("row")).to_have_count(51)


def test_a_redirect_means_that_the_session_has_expired(visit: Visit) -> None:
    page = visit()
    settled(page)
    page.route(
        "**/overview", lambda route: route.fulfill(status=302, headers={"Location": "https://login.example.com/"})
    )
    expect(page.get_by_role("link", name="Log in")).to_be_visible()


def test_without_a_network_the_page_says_so(visit: Visit, standin: StandIn) -> None:
    page = visit()
    settled(page)
    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("Airflow's api-server did not answer.")
    page.context.set_offline(False)
    button(page, "Ask now").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert standin.requests


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_page_asks_for_nothing(visit: Visit, standin: StandIn) -> None:
    page = visit()
    settled(page)
    page.evaluate(HIDE, True)
    page.wait_for_timeout(300)  # until the request that was on its way is answered
    before = len(standin.requests)
    page.wait_for_timeout(6_000)  # longer than the interval between two requests
    assert asked(standin, before) == []
    page.evaluate(HIDE, False)
    until("a request of the page that is visible again", lambda: asked(standin, before), 3)


def test_a_page_asks_only_for_what_it_displays_once_in_five_seconds(visit: Visit, standin: StandIn) -> None:
    page = visit("?view=claims")
    settled(page)
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="FLIGHTS")).to_be_visible()
    before = len(standin.requests)
    page.wait_for_timeout(11_000)
    asked_for = asked(standin, before)
    assert set(asked_for) == {f"connections/{state.CONNECTION}/overview"}
    assert 2 <= len(asked_for) <= 3


def test_a_claim_that_has_ended_is_seldom_requested(visit: Visit, standin: StandIn) -> None:
    """An open one every five seconds."""
    open_one, ended = visit(OPEN), visit(f"?view=claim&claim={state.DONE}")
    for page in (open_one, ended):
        settled(page)
    paths = [f"connections/{state.CONNECTION}/claims/{each}" for each in (state.OLD, state.DONE)]
    until("two requests for the open claim", lambda: asked(standin).count(paths[0]) == 3, 20)
    assert asked(standin).count(paths[1]) == 1


def test_no_connection_and_no_claims_are_explained(visit: Visit, standin: StandIn) -> None:
    standin.always("connections", {"connections": []})
    expect(visit().get_by_text("There is no connection of type NATS that you may see.")).to_be_visible()
    state.prepare(standin)
    standin.always(OVERVIEW, state.overview() | {"streams": [], "findings": []})
    page = visit()
    expect(page.get_by_text("No claims have been taken with this connection.")).to_be_visible()
    assert violations(page) == []


def test_the_link_of_a_task_opens_its_claim(visit: Visit) -> None:
    page = visit(f"?view=claim&connection={state.CONNECTION}&claim={state.DONE}")
    expect(page.get_by_role("heading", name=f"Claim {state.DONE}")).to_be_visible()
    history = page.get_by_role("list").filter(has_text="Acknowledged").get_by_role("listitem")
    expect(history).to_have_count(4)
    expect(page.get_by_role("region", name="Value that its task returned")).to_contain_text("s3://lake/flights/")
