"""Addresses that the page builds from names that anybody can choose."""

import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script.modules import Modules

TASK = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 2}


@settings(max_examples=200)
@given(names=st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_each_name_is_one_segment_of_a_path_or_there_is_no_path(modules: Modules, names: list[str]) -> None:
    path = modules.call("places", "path", *names)
    if any(name in {"", ".", ".."} for name in names):
        assert path is None
    else:
        assert [unquote(part) for part in path.split("/")] == names
        assert urlsplit(f"http://here/{path}").path == f"/{path}"


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800"])
def test_a_name_that_cannot_be_a_segment_gives_no_path(modules: Modules, name: str) -> None:
    assert modules.call("places", "path", "a", name) is None


def test_a_query_leaves_out_what_is_empty_and_repeats_lists(modules: Modules) -> None:
    given = {"stream": "A&B=C", "consumer": "", "offset": 0, "numbers": [1, 2], "unconfirmed": False, "sequence": None}
    assert modules.call("places", "query", given) == "?stream=A%26B%3DC&numbers=1&numbers=2"
    assert modules.call("places", "query", {}) == ""
    assert modules.call("places", "query", {"dag": "\ud800"}) == "?dag=%EF%BF%BD"


PLACE = {
    "view": "claims",
    "connection": "nats/prod?",
    "stream": "FLIGHTS",
    "consumer": "délais",
    "claim": "",
    "held": "yes",
    "run": "manual__2026-11-21",
    "dag": "a b",
    "reason": "",
    "offset": 50,
    "after": 0,
}


def test_a_place_survives_its_query(modules: Modules) -> None:
    found = parse_qs(modules.call("places", "queryOf", PLACE)[1:])
    parameters = {name: value for name, (value,) in found.items()}
    assert read(modules, parameters) == PLACE


def read(modules: Modules, parameters: dict[str, str]) -> Any:
    return modules.evaluate(f"require('./places.js').placeOf((name) => ({json.dumps(parameters)})[name] ?? null)")


@pytest.mark.parametrize("parameters", [{}, {"view": "x", "held": "maybe", "offset": "-1", "after": "1e9"}])
def test_an_unknown_place_is_the_overview(modules: Modules, parameters: dict[str, str]) -> None:
    place = read(modules, parameters)
    assert (place["view"], place["held"], place["offset"], place["after"]) == ("overview", "", 0, 0)


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({}, "/dags/d/runs/r/tasks/t?try_number=2"),
        ({"map_index": 3, "try_number": None}, "/dags/d/runs/r/tasks/t/mapped/3"),
        ({"dag_id": "a/b?c#d"}, "/dags/a%2Fb%3Fc%23d/runs/r/tasks/t?try_number=2"),
        (
            {"run_id": "manual__2026-11-22T10:42:14+00:00"},
            "/dags/d/runs/manual__2026-11-22T10%3A42%3A14%2B00%3A00/tasks/t?try_number=2",
        ),
        ({"dag_id": ".."}, None),
    ],
)
def test_a_task_has_a_path_if_its_names_allow_it(modules: Modules, changed: dict[str, Any], path: str | None) -> None:
    assert modules.call("places", "taskPath", TASK | changed) == path


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("http://spark-master:8080/app/?appId=app-2026", True),
        ("https://[::1]:4040", True),
        ("HTTPS://spark.example.com/history#1", True),
        ("javascript:alert(1)", False),
        (" https://spark.example.com", False),
        ("data:text/html,x", False),
        ("//spark.example.com", False),
        ("https://user@evil.example.com/", False),
        ("https://spark.example.com\\@evil.example.com", False),
        ("https://spark.example.com/\u202egpj", False),
        ("https://spark.example.com/a b", False),
        ("https://", False),
        ("file:///etc/passwd", False),
    ],
)
def test_only_plain_web_addresses_become_links(modules: Modules, address: str, safe: bool) -> None:
    assert modules.call("places", "webAddress", address) == (address if safe else None)


def test_the_login_page_leads_back(modules: Modules) -> None:
    here = "http://localhost:8080/af/plugin/jetstream?view=claims&offset=50"
    address = urlsplit(modules.call("places", "loginAddress", "http://localhost:8080/af", here))
    assert (address.path, parse_qs(address.query)) == ("/af/api/v2/auth/login", {"next": [here]})
