"""The pages of lists: where the links to the previous and the next page lead."""

from typing import Any

import pytest

from tests.script.modules import Modules

PLACE = {"view": "letters", "connection": "nats", "stream": "FLIGHTS", "after": 0, "offset": 0}


@pytest.mark.parametrize(
    ("offset", "shown", "total", "text", "previous", "following"),
    [
        (0, 50, 1_000, "1\N{EN DASH}50 of 1,000", None, 50),
        (50, 50, 1_000, "51\N{EN DASH}100 of 1,000", 0, 100),
        (30, 50, 80, "31\N{EN DASH}80 of 80", 0, None),
        (100, 0, 20, "none of 20", 50, None),
        (0, 0, 0, "none of 0", None, None),
    ],
)
def test_pages_of_a_list_with_offsets(
    modules: Modules, *, offset: int, shown: int, total: int, text: str, previous: int | None, following: int | None
) -> None:
    assert modules.call("pages", "range", offset, shown, total) == text
    page = {"limit": 50, "shown": shown, "total": total}
    steps = modules.call("pages", "stepsByOffset", PLACE | {"offset": offset}, page)
    assert led_to(steps, "offset") == (previous, following)


def led_to(steps: Any, name: str) -> tuple[int | None, int | None]:
    """Where the steps lead. Everything else of the place remains."""
    places = [step and step["place"] for step in (steps["previous"], steps["following"])]
    assert all(place is None or place["stream"] == "FLIGHTS" for place in places)
    previous, following = (place and place[name] for place in places)
    return previous, following


def test_each_page_of_dead_letters_leads_back_to_the_one_before(modules: Modules) -> None:
    """The numbers have gaps, so the pages before are those that the user came through."""
    trail = [(0, 61), (61, 130), (130, 205)]
    before: list[int] = []
    for after, following in trail:
        steps = modules.call("pages", "stepsByNumber", PLACE | {"after": after}, following, before)
        assert led_to(steps, "after") == (before[-1] if before else None, following)
        before = steps["following"]["before"]
    back = modules.call("pages", "stepsByNumber", PLACE | {"after": 205}, None, before)
    assert (led_to(back, "after"), back["previous"]["text"]) == ((130, None), "Previous")
    assert back["previous"]["before"] == [0, 61]


def test_a_page_that_was_opened_by_its_address_leads_to_the_first_one(modules: Modules) -> None:
    steps = modules.call("pages", "stepsByNumber", PLACE | {"after": 61}, None, [])
    assert (led_to(steps, "after"), steps["previous"]["text"]) == ((0, None), "First page")


@pytest.mark.parametrize("state", [None, {}, "x", 1, {"before": "1"}, {"before": [1, "2"]}, {"before": [1.5]}])
def test_a_foreign_state_of_the_history_is_ignored(modules: Modules, state: Any) -> None:
    assert modules.call("pages", "pagesBefore", state) == []
    assert modules.call("pages", "pagesBefore", {"before": [0, 61]}) == [0, 61]
