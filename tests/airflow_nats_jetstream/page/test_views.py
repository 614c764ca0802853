"""The answers of the page's API: overview, claims, dead letters, and a typed error if a name is unknown."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from airflow_nats_jetstream.page.letters import Listing
from demo.service import until
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.api_server import RUN, SPARK
from tests.airflow_nats_jetstream.page.world import CONSUMER, HOSTILE, SECRET, STREAM, World


def get(airflow: Airflow, path: str, role: str = "op", status: int = 200) -> Any:
    with airflow.client(role) as client:
        answer = client.get(f"connections/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_overview_names_what_is_stuck(airflow: Airflow, world: World) -> None:
    """A finding names the task and the DAG. If the DAG is paused, to unpause it is the remedy."""
    found = get(airflow, "full/overview")
    (stream,) = found["streams"]
    (consumer,) = stream["consumers"]
    assert (found["id"], found["ledger"], found["version"][:2]) == ("full", "page", "2.")
    assert "" < found["watched_since"] <= found["now"]
    assert (stream["name"], consumer["name"], consumer["exists"]) == (STREAM, CONSUMER, True)
    assert (consumer["open"], consumer["held"], consumer["claimed_messages"]) == (4, 2, 23)
    assert consumer["oldest"]["id"] == world.claims["held"]
    assert (stream["dead_letters"]["exists"], stream["dead_letters"]["count"]) == (True, 20)
    kinds = {each["kind"]: each for each in consumer["findings"]}
    assert {"failing", "dead_letters"} <= kinds.keys()
    assert kinds["dead_letters"]["action"] == "dead_letters"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("past", "start task work of run manual__1, DAG waits_past: depends_on_past is true for this task"),
        ("downstream", "start task work of run manual__1, DAG waits_downstream: The tasks downstream of the previous"),
        ("pool", "start task work of run manual__1, DAG waits_pool: Not scheduling since there are 0 open slots in"),
        ("ended", "Run manual__1 of DAG waits_ended has ended (failed): no task of it has held the claim."),
    ],
)
def test_what_keeps_the_task_of_a_claim_from_running_is_named(
    airflow: Airflow, world: World, name: str, says: str
) -> None:
    claim = world.late_claim(f"WAITS_{name}", f"waits_{name}")

    def finding() -> Any:
        streams = {each["name"]: each for each in get(airflow, "acting/overview")["streams"]}
        findings = streams[f"WAITS_{name}"]["consumers"][0]["findings"] if f"WAITS_{name}" in streams else []
        return next((each for each in findings if each["claim"] == claim.id), None)

    until("the finding", lambda: finding() is not None, 20)
    found = finding()
    assert (found["kind"], found["action"], found["dag"]["dag_id"]) == ("unheld", "release", f"waits_{name}")
    assert says in found["cause"]
    remedy = (
        "release the claim, so that the next sensor takes its" if name == "ended" else "or release the claim to have"
    )
    assert remedy in found["remedy"]


def test_a_connection_of_the_database(airflow: Airflow, world: World) -> None:
    assert get(airflow, "stored/claims")["total"] == 4


def test_claims_are_listed_and_filtered(airflow: Airflow, world: World) -> None:
    listed = get(airflow, "full/claims")
    names = ("held", "mapped", "waiting", "resting")
    assert [each["id"] for each in listed["claims"]] == [world.claims[each] for each in names]
    held, _, waiting, resting = listed["claims"]
    task = {"dag_id": "orders", "run_id": RUN, "task_id": "work", "map_index": 0, "try_number": 2, "state": "running"}
    assert held["holder"]["task"] == {**task, "text": f"orders / {RUN} / work[0]"}
    assert held["taken_by"]["task_id"] == "take"
    assert (held["count"], held["sequences"], held["bytes"] > 0) == (10, "21\u201330", True)
    assert waiting["taken_by"] == "unknown\u202e / run / sensor"  # not a task of this Airflow
    assert (waiting["holder"], resting["taken_by"]["dag_id"]) == (None, "resting")
    for query, wanted in {
        "held=yes": ["held", "mapped"],
        "held=no": ["waiting", "resting"],
        "dag=resting": ["resting"],
        f"stream={STREAM}&consumer={CONSUMER}&limit=1&offset=1": ["mapped"],
        "stream=OTHER": [],
        "consumer=other": [],
        "offset=100": [],
    }.items():
        found = get(airflow, f"full/claims?{query}")
        assert [each["id"] for each in found["claims"]] == [world.claims[each] for each in wanted]


def test_a_held_claim_has_a_timeline_a_holder_and_its_spark(airflow: Airflow, world: World) -> None:
    claim = get(airflow, f"full/claims/{world.claims['held']}?listen=1")
    assert [step["what"] for step in claim["timeline"]] == ["taken", "held"]
    assert (claim["state"], claim["alive"], claim["may_release"], claim["current"]) == ("open", False, True, True)
    assert claim["spark"] == SPARK
    assert (claim["value"], claim["attempt_id"], claim["consumer_info"]["ack_wait"]) == (None, None, 2)


def test_the_address_of_spark_is_checked(airflow: Airflow, world: World) -> None:
    claim = get(airflow, f"full/claims/{world.claims['mapped']}")
    assert claim["spark"] == {"application": "<script>", "url": ""}


def test_claims_that_ended(airflow: Airflow, world: World) -> None:
    done = get(airflow, f"full/claims/{world.claims['done']}")
    assert (done["state"], done["rejected"], done["may_release"]) == ("done", "1\u201320", False)
    assert done["value"] == {"rows": 0, "note": HOSTILE}
    assert [step["what"] for step in done["timeline"]][:3] == ["taken", "held", "done"]
    failed = get(airflow, f"full/claims/{world.claims['failed']}")
    assert (failed["state"], failed["holder"], failed["value"]) == ("failed", None, None)
    assert "no rows" in failed["timeline"][-1]["text"]
    assert failed["overlapping"]  # its messages were taken again


def test_dead_letters_are_paged_without_payloads(airflow: Airflow, world: World) -> None:
    path = f"full/dead-letters/{STREAM}"
    first = Listing(**get(airflow, f"{path}?limit=15"))
    rest = Listing(**get(airflow, f"{path}?limit=15&after={first.next}"))
    assert (first.total, first.complete, rest.next) == (20, True, None)
    letters = first.letters + rest.letters
    assert [each["sequence"] for each in letters] == list(range(1, 21))
    one = letters[0]
    assert (one["subject"], one["consumer"], one["claim"]) == (f"{STREAM}.0", CONSUMER, world.claims["done"])
    assert one["reason"].startswith("<img src=x")
    assert (one["confirmed"], one["size"], one["outcome"]) == (True, 7, None)
    for query in ("consumer=other", "reason=nothing"):
        assert Listing(**get(airflow, f"{path}?{query}")).letters == []


def test_a_payload_is_shown_as_text_or_hex(airflow: Airflow, world: World) -> None:
    text = get(airflow, f"full/dead-letters/{STREAM}/1")
    assert text["data"] == {"form": "text", "shown": "payload", "size": 7, "cut": False}
    assert ["Nats-Dead-Letter-Consumer", CONSUMER] in text["headers"]
    binary = get(airflow, f"full/dead-letters/{STREAM}/2")["data"]
    assert binary == {"form": "hex", "shown": b"payload \xff".hex(" "), "size": 9, "cut": False}


IDS = ["*", "..", "%2e%2e", ">", "x" * 300, "\n", "\x00", "a b", "\u202e", "%", "5f0c9a7be21d", "$KV.>"]


UNKNOWN = ("InvalidValue", "StreamNotFound", "ConsumerNotFound", "UnknownDeadLetter")


@pytest.mark.parametrize("name", IDS, ids=ascii)
def test_unknown_names_get_typed_answers(airflow: Airflow, world: World, name: str) -> None:
    """Nothing of them is a wildcard, a path or a subject; unknown streams have no dead letters."""
    quoted = quote(name, safe="")
    with airflow.client("admin") as client:
        for path, error in {
            f"{quoted}/overview": "UnknownConnection",
            f"full/claims/{quoted}": "UnknownClaim",
            f"full/claims/{quoted}/release/preview": "UnknownClaim",
            f"full/dead-letters/{quoted}": "",
            f"full/dead-letters/{quoted}/1": "",
            f"full/consumers/{quoted}/{CONSUMER}/resume/preview": "",
            f"full/consumers/{STREAM}/{quoted}/resume/preview": "",
        }.items():
            target = httpx.URL(f"{client.base_url}connections/{path}")
            answer = client.send(client.build_request("GET", target))
            if name == "\n" and answer.json() == {"detail": "Not Found"}:
                continue  # at the end of a path, Airflow's router does not find the page
            assert answer.status_code in (200, 404, 422), answer.text
            if answer.status_code == 200:
                assert not Listing(**answer.json()).letters
            elif ".." not in (name, quoted) and answer.json()["error"] != "UnknownPath":
                assert answer.json()["error"] in (error or UNKNOWN)
            assert set(answer.json()) in ({"error", "message"}, set(Listing._fields))


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=1e3", "offset=-1", "offset=x", "held=maybe", f"stream={'x' * 300}"]
)
def test_invalid_parameters(airflow: Airflow, query: str) -> None:
    answer = get(airflow, f"full/claims?{query}", status=422)
    assert answer["error"] == "BadInput"
    assert query.partition("=")[0] in answer["message"]


@pytest.mark.parametrize(
    ("connection", "status", "error"),
    [
        ("nothing", 404, "UnknownConnection"),
        ("elsewhere", 404, "UnknownConnection"),
        ("wrong", 502, "AuthenticationFailed"),
        ("broken", 502, "Unusable"),
    ],
)
def test_a_connection_that_cannot_be_used(airflow: Airflow, connection: str, status: int, error: str) -> None:
    answer = get(airflow, f"{connection}/overview", status=status)
    assert answer["error"] == error
    assert SECRET not in str(answer)


def test_no_ledger(airflow: Airflow) -> None:
    found = get(airflow, "empty/overview")
    assert (found["streams"], [each["kind"] for each in found["findings"]]) == ([], ["ledger"])
    assert get(airflow, "empty/claims")["total"] == 0
    assert get(airflow, "empty/claims/5f0c9a7be21d", status=404)["error"] == "UnknownClaim"


def test_a_missing_permission_is_named(airflow: Airflow, world: World) -> None:
    found = get(airflow, "blind/overview")
    (consumer,) = found["streams"][0]["consumers"]
    findings = [*found["findings"], *consumer["findings"]]
    (denied,) = [each for each in findings if each["kind"] == "permission"]
    assert "$JS.API.CONSUMER" in denied["cause"]
    assert (consumer["exists"], consumer["pending"]) == (None, None)  # both are unknown
    assert {each["current"] for each in get(airflow, "blind/claims")["claims"]} == {True}
    claim = get(airflow, f"blind/claims/{world.claims['held']}")
    assert claim["next"] == "What happens next is unknown, because its consumer could not be read."


def test_no_answer_and_no_log_contains_a_secret(airflow: Airflow, world: World) -> None:
    with airflow.client("admin") as client:
        held = f"/full/claims/{world.claims['held']}"
        for path in ("", "/full/overview", "/blind/overview", "/full/claims", held, "/wrong/overview"):
            assert SECRET not in client.get(f"connections{path}").text
    assert SECRET not in airflow.log.read_text()
