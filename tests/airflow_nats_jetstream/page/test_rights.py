"""Each role requests each route, and other sites request actions."""

import json
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from airflow_nats_jetstream.page import access
from airflow_nats_jetstream.page.tasks import HIDDEN
from demo.service import until
from tests.airflow_nats_jetstream.page.airflow import PARTNER, SAME, Airflow
from tests.airflow_nats_jetstream.page.api_server import RUN
from tests.airflow_nats_jetstream.page.world import CONSUMER, STREAM, World

READ = [
    "overview",
    "claims",
    "claims/{held}",
    f"dead-letters/{STREAM}",
]
CHANGE = [
    f"dead-letters/{STREAM}/1",
    "claims/{held}/release/preview",
    "claims/release_all/preview?dag=resting",
    f"consumers/{STREAM}/{CONSUMER}/pause/preview?until=2999-01-01T00:00:00Z",
    f"consumers/{STREAM}/{CONSUMER}/resume/preview",
    f"consumers/{STREAM}/{CONSUMER}/reset/preview",
    f"dead-letters/{STREAM}/replay/preview?numbers=1",
    f"dead-letters/{STREAM}/discard/preview?numbers=1",
]
ACTIONS: dict[str, dict[str, Any]] = {
    "claims/{held}/release": {},
    "claims/release_all": {"dag": "resting"},
    f"consumers/{STREAM}/{CONSUMER}/pause": {"until": "2999-01-01T00:00:00Z"},
    f"consumers/{STREAM}/{CONSUMER}/resume": {},
    f"consumers/{STREAM}/{CONSUMER}/reset": {},
    f"dead-letters/{STREAM}/replay": {"numbers": [1]},
    f"dead-letters/{STREAM}/discard": {"numbers": [1]},
}
STALE = {"expected": "a revision that no state has"}
ERRORS = {401: "NotLoggedIn", 403: "Forbidden", 409: "Changed"}


@pytest.mark.parametrize(
    ("role", "read", "change"),
    [("", 401, 401), ("viewer", 403, 403), ("user", 403, 403), ("op", 200, 200), ("admin", 200, 200)],
)
def test_roles(airflow: Airflow, world: World, role: str, read: int, change: int) -> None:
    """An action whose preview was made for another state is refused only after the rights were checked."""
    with airflow.client(role) as client:
        assert client.get("connections").status_code == (200 if role else 401)
        for expected, paths in ((read, READ), (change, CHANGE)):
            for path in paths:
                answer = client.get(f"connections/full/{path.format(**world.claims)}")
                assert (path, answer.status_code) == (path, expected), answer.text
                assert expected == 200 or answer.json()["error"] == ERRORS[expected]
                assert answer.headers["cache-control"] == "no-store"
        for path, body in ACTIONS.items():
            answer = client.post(f"connections/full/{path.format(**world.claims)}", json=body | STALE, headers=SAME)
            wanted = 409 if change == 200 else change
            assert (path, answer.status_code) == (path, wanted), answer.text
            assert answer.json()["error"] == ERRORS[wanted]


CLAIMS = [f"claims/{{{name}}}" for name in ("held", "mapped", "waiting", "resting", "done", "failed")]


def test_no_answer_names_a_task_of_a_dag_that_the_user_may_not_see(airflow: Airflow, world: World) -> None:
    """No list, claim, finding, preview or refusal does. All other tasks are named."""
    with airflow.client(PARTNER, headers=SAME) as partner, airflow.client("op") as op:
        for path in [*READ, *CHANGE, *CLAIMS, "claims?dag=orders", "claims?dag=resting"]:
            answer = partner.get(f"connections/full/{path.format(**world.claims)}")
            assert (path, answer.status_code) == (path, 200), answer.text
            assert "orders" not in answer.text, path
        for path, body in ACTIONS.items():
            answer = partner.post(f"connections/full/{path.format(**world.claims)}", json=body | STALE)
            assert (answer.status_code, "orders" in answer.text) == (409, False)

        listed = partner.get("connections/full/claims").json()["claims"]
        assert [each["taken_by"] for each in listed[:2]] == [HIDDEN, HIDDEN]
        assert [each["holder"]["task"] for each in listed[:2]] == [HIDDEN, HIDDEN]
        assert listed[3]["taken_by"]["dag_id"] == "resting"
        held = partner.get(f"connections/full/claims/{world.claims['held']}").json()
        assert [step["task"] for step in held["timeline"]] == [None, None]
        assert held["timeline"][1]["text"] == f"It was held by attempt 2-held of {HIDDEN}, try 2."
        assert (held["spark"], RUN in str(held)) == (None, False)
        assert partner.get(f"connections/full/claims/{world.claims['done']}").json()["value"] is None
        for user, dag, total in ((partner, "orders", 0), (partner, "resting", 1), (op, "orders", 2), (op, "none", 0)):
            assert user.get(f"connections/full/claims?dag={dag}").json()["total"] == total
        hidden, seen = (user.get("connections/full/claims/release_all/preview?dag=orders") for user in (partner, op))
        assert (hidden.json()["error"], "2 open claims" in seen.json()["text"]) == ("NotOpen", True)


def test_a_finding_does_not_name_a_task_of_a_dag_that_the_user_may_not_see(airflow: Airflow, world: World) -> None:
    claim = world.claim("CONCERNS", 3)
    world.hold(claim)
    path = "connections/acting/overview"

    def finding(client: httpx.Client) -> Any:
        streams = {each["name"]: each for each in client.get(path).json()["streams"]}
        findings = streams["CONCERNS"]["consumers"][0]["findings"] if "CONCERNS" in streams else []
        return next((each for each in findings if each["claim"] == claim.id), None)

    with airflow.client(PARTNER) as partner, airflow.client("op") as op:
        until("the finding", lambda: finding(op) is not None, 20)
        assert finding(op)["task"]["task_id"] == "work"
        hidden = finding(partner)
        assert (hidden["task"], hidden["dag"]) == (None, None)
        assert hidden["effect"].endswith(f" It concerns {HIDDEN}.")
        assert "orders" not in partner.get(path).text


def test_connections_are_listed_with_what_the_user_may_do(airflow: Airflow, world: World) -> None:
    """Those of environment variables and of the database; not those of other types."""
    with airflow.client("op") as client, airflow.client("viewer") as viewer:
        listed = client.get("connections").json()["connections"]
        expected = [
            "acting",
            "blind",
            "broken",
            "empty",
            "full",
            "gone",
            "hostile",
            "many",
            "muted",
            "other",
            "stored",
            "wrong",
        ]
        assert [each["id"] for each in listed] == expected
        assert all(each["may_act"] for each in listed)
        assert viewer.get("connections").json() == {"connections": []}


def test_an_environment_connection_needs_the_right_on_its_listed_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow finds it by its id in any case."""

    class OneDenied(SimpleAuthManager):
        def is_authorized_connection(self, *, details: Any = None, **_: Any) -> bool:
            return bool(details.conn_id != "orders")

    monkeypatch.setattr(access, "get_auth_manager", OneDenied)
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", "nats://127.0.0.1")
    for each, allowed in (("orders", False), ("ORDERS", False), ("Orders", False), ("STORED", True)):
        assert access.may("GET", each, None) == allowed, each


ELSEWHERE: dict[str, dict[str, str]] = {
    "a form": {**SAME, "Content-Type": "application/x-www-form-urlencoded"},
    "plain text": {**SAME, "Content-Type": "text/plain"},
    "no type": {**SAME, "Content-Type": ""},
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "a sibling": {"Sec-Fetch-Site": "same-site"},
    "an address typed by the user": {"Sec-Fetch-Site": "none"},
    "a sibling's Origin": {"Origin": "http://other.127.0.0.1"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "another scheme": {"Origin": "https://{host}"},
    "no page": {"Origin": "null"},
    "neither": {},
    "Basic": {"Authorization": "Basic YWRtaW46YWRtaW4="},
    "another site despite Origin": {"Sec-Fetch-Site": "cross-site", "Origin": "http://{host}"},
}


@pytest.mark.parametrize("headers", ELSEWHERE.values(), ids=ELSEWHERE)
def test_an_action_that_another_page_may_have_caused_is_refused(
    airflow: Airflow, world: World, headers: dict[str, str]
) -> None:
    """Even with the administrator's cookie. The claim stays as it was."""
    path = f"connections/full/claims/{world.claims['waiting']}"
    with airflow.client("admin") as client:
        expected = client.get(f"{path}/release/preview").json()["revision"]
        sent = {"Content-Type": "application/json", **headers}
        sent = {name: value.format(host=client.base_url.netloc.decode()) for name, value in sent.items()}
        answer = client.post(f"{path}/release", content=json.dumps({"expected": expected}), headers=sent)
        wrong_type = "Content-Type" in headers
        assert (answer.status_code, answer.json()["error"]) == ((422, "BadInput") if wrong_type else (403, "CrossSite"))
        assert client.get(f"{path}/release/preview").json()["revision"] == expected


def test_the_right_origin_is_enough(airflow: Airflow, world: World) -> None:
    """Browsers send no Sec-Fetch-Site to a plain address of another machine."""
    path = f"connections/full/claims/{world.claims['waiting']}/release"
    with airflow.client("admin") as client:
        answer = client.post(path, json=STALE, headers={"Origin": airflow.url})
        assert answer.json()["error"] == "Changed"


def test_a_wrong_cookie_and_a_bearer_token(airflow: Airflow) -> None:
    with airflow.client() as client:
        client.cookies.set("_token", "no.token.atall")
        answer = client.get("connections")
        assert (answer.status_code, answer.json()["error"]) == (401, "NotLoggedIn")
        client.cookies.clear()
        bearer = {"Authorization": f"Bearer {airflow.token('op')}"}
        assert client.get("connections/full/overview", headers=bearer).status_code == 200


def test_no_documentation_is_served(airflow: Airflow) -> None:
    for path in ("docs", "redoc", "openapi.json", "api/docs", "api/openapi.json", "docs/oauth2-redirect"):
        answer = httpx.get(f"{airflow.url}/air/flow/jetstream/{path}")
        assert (answer.status_code, answer.json()["error"]) == (404, "UnknownPath")
