"""The actions of the page: previews, refusals, effects on the real server, and the audit log."""

import json
from typing import Any

import httpx
import pytest

from airflow_nats_jetstream.page.letters import Listing
from tests.airflow_nats_jetstream.page.airflow import BASE, SAME, Airflow
from tests.airflow_nats_jetstream.page.world import CONSUMER, STREAM, World


@pytest.fixture
def client(airflow: Airflow) -> Any:
    with airflow.client("op") as client:
        client.headers.update(SAME)
        yield client


def act(client: httpx.Client, path: str, query: str = "", **body: Any) -> httpx.Response:
    """Preview an action, and carry it out."""
    preview = client.get(f"{path}/preview{query}")
    assert preview.status_code == 200, preview.text
    return client.post(path, json={"expected": preview.json()["revision"], **body})


def log(airflow: Airflow, event: str) -> list[dict[str, Any]]:
    """The newest rows of Airflow's audit log for an event, as Airflow's own API shows them."""
    with airflow.client("admin") as client:
        url = f"{airflow.url}{BASE}/api/v2/eventLogs?event={event}&order_by=-event_log_id"
        rows = client.get(url).raise_for_status().json()["event_logs"]
    return [{"owner": row["owner"], **json.loads(row["extra"])} for row in rows]


def test_a_claim_without_a_holder_is_released(airflow: Airflow, world: World, client: httpx.Client) -> None:
    claim = world.claim("RELEASED", 3)
    path = f"connections/acting/claims/{claim.id}/release"
    preview = client.get(f"{path}/preview").json()
    assert preview["text"].startswith(f"The next sensor that pulls receives the 3 messages of claim {claim.id} again.")
    assert not preview["dangerous"]
    done = client.post(path, json={"expected": preview["revision"]})
    assert (done.status_code, "was released" in done.json()["text"]) == (200, True)
    row, *_ = log(airflow, "jetstream_release")
    assert (row["owner"], row["claim_id"], row["connection_id"], row["outcome"]) == ("op", claim.id, "acting", "done")
    again = client.post(path, json={"expected": preview["revision"]})
    assert (again.status_code, again.json()["error"]) == (409, "Changed")
    timeline = client.get(f"connections/acting/claims/{claim.id}").json()["timeline"]
    assert [step["what"] for step in timeline] == ["taken", "released"]


def test_a_dead_holder_is_heard_for_and_its_claim_released(world: World, client: httpx.Client) -> None:
    claim = world.claim("DEAD", 3)
    world.hold(claim)
    path = f"connections/acting/claims/{claim.id}/release"
    preview = client.get(f"{path}/preview").json()
    assert (preview["dangerous"], 0 < preview["silence"] < 2) == (True, True)
    assert act(client, path).status_code == 200


def test_a_living_holder_keeps_its_claim_unless_that_is_confirmed(
    airflow: Airflow, world: World, client: httpx.Client
) -> None:
    claim = world.claim("ALIVE", 3)
    with world.holding(claim):
        path = f"connections/acting/claims/{claim.id}/release"
        refused = act(client, path)
        assert (refused.status_code, refused.json()["error"]) == (409, "HolderAlive")
        assert client.get(f"connections/acting/claims/{claim.id}?listen=2").json()["alive"] is True
        assert act(client, path, despite_alive=True).status_code == 200
    rows = log(airflow, "jetstream_release")[:4]
    assert [row["outcome"] for row in rows] == ["done", "began", "refused", "began"]
    assert (rows[0]["despite_alive"], rows[2]["error"], rows[2]["claim_id"]) == (True, "HolderAlive", claim.id)
    assert rows[3]["text"].startswith(f"The next sensor that pulls receives the 3 messages of claim {claim.id} again.")


def test_all_claims_of_a_consumer_are_released(airflow: Airflow, world: World, client: httpx.Client) -> None:
    claim = world.claim("ALL", 3)
    path = "connections/acting/claims/release_all"
    chosen = {"stream": "ALL", "consumer": CONSUMER}
    preview = client.get(f"{path}/preview", params=chosen).json()
    assert preview["text"].startswith("This releases 1 open claim with 3 messages of consumer work of stream ALL.")
    done = client.post(path, json={"expected": preview["revision"], **chosen})
    assert done.json()["text"] == "Released: 1 claim. The next sensors that pull receive the 3 messages again."
    row, *_ = log(airflow, "jetstream_release_all")
    assert (row["owner"], row["stream"], row["consumer"], row["outcome"]) == ("op", "ALL", CONSUMER, "done")
    timeline = client.get(f"connections/acting/claims/{claim.id}").json()["timeline"]
    assert [step["what"] for step in timeline] == ["taken", "released"]
    everything = client.get(f"{path}/preview", params={"held": "no"}).json()
    assert (everything["error"], "choose a DAG" in everything["message"]) == ("BadInput", True)
    missing = client.get(f"{path}/preview", params={"dag": "orders", "run": "missing"}).json()
    assert missing["error"] == "NotOpen"


def test_a_claim_that_changed_since_the_preview_is_not_released(
    airflow: Airflow, world: World, client: httpx.Client
) -> None:
    claim = world.claim("CHANGED", 3)
    path = f"connections/acting/claims/{claim.id}/release"
    before = client.get(f"{path}/preview").json()["revision"]
    world.hold(claim)
    refused = client.post(path, json={"expected": before, "despite_alive": True})
    assert (refused.status_code, refused.json()["error"]) == (409, "Changed")
    world.settle(claim)
    ended = client.post(path, json={"expected": before})
    assert (ended.status_code, ended.json()["error"]) == (409, "NotOpen")
    assert [row["error"] for row in log(airflow, "jetstream_release")[:2]] == ["NotOpen", "Changed"]


def test_a_consumer_is_paused_resumed_and_reset(airflow: Airflow, world: World, client: httpx.Client) -> None:
    world.claim("PAUSED", 2)
    path = f"connections/acting/consumers/PAUSED/{CONSUMER}"
    until = "2999-01-31T12:00:00Z"
    assert act(client, f"{path}/pause", f"?until={until}", until=until).status_code == 200
    assert client.post(f"{path}/resume", json={"expected": "old"}).json()["error"] == "Changed"
    consumer = world.consumer("PAUSED")
    assert consumer.paused
    assert act(client, f"{path}/resume").status_code == 200
    assert not world.consumer("PAUSED").paused
    preview = client.get(f"{path}/reset/preview").json()
    assert preview["dangerous"]
    assert "This supersedes 1 open claim:" in preview["text"]
    done = client.post(f"{path}/reset", json={"expected": preview["revision"]})
    assert "was reset to sequence 1" in done.json()["text"]
    for event in ("jetstream_pause", "jetstream_resume", "jetstream_reset"):
        assert (log(airflow, event)[0]["outcome"], log(airflow, event)[0]["stream"]) == ("done", "PAUSED")


@pytest.mark.parametrize("until", ["yesterday", "2001-01-01T00:00:00Z", "2999-01-01T00:00:00", "9" * 60, ""])
def test_a_pause_needs_a_time_in_the_future(world: World, client: httpx.Client, until: str) -> None:
    path = f"connections/acting/consumers/{STREAM}/{CONSUMER}/pause"
    assert client.get(f"{path}/preview", params={"until": until}).json()["error"] == "BadInput"
    assert client.post(path, json={"expected": "", "until": until}).json()["error"] == "BadInput"


def test_dead_letters_are_replayed_and_discarded(airflow: Airflow, world: World, client: httpx.Client) -> None:
    world.claim("LETTERS", 6, rejected=True)
    path = "connections/acting/dead-letters/LETTERS"
    numbers = [each["number"] for each in Listing(**client.get(path).json()).letters]
    query = "?" + "&".join(f"numbers={number}" for number in numbers[:2])
    preview = client.get(f"{path}/replay/preview{query}").json()
    assert preview["text"].startswith("This publishes 2 dead letters (")
    replayed = client.post(f"{path}/replay", json={"expected": preview["revision"], "numbers": numbers[:2]})
    assert replayed.json()["text"] == "Published again: 2 dead letters."
    again = client.post(f"{path}/replay", json={"expected": preview["revision"], "numbers": numbers[:2]})
    assert (again.status_code, again.json()["error"]) == (409, "Changed")
    discarded = act(client, f"{path}/discard", f"?numbers={numbers[2]}", numbers=[numbers[2]])
    assert discarded.json()["text"] == "Deleted: 1 dead letter."
    left = Listing(**client.get(path).json())
    assert left.total == 3
    outcomes = sorted(each["outcome"] or "" for each in left.letters)
    assert outcomes == ["", "", "", "discarded", "replayed", "replayed"]
    assert log(airflow, "jetstream_discard")[0]["numbers"] == [numbers[2]]


def test_an_action_that_fails_halfway(airflow: Airflow, world: World, client: httpx.Client) -> None:
    """The audit log does not call it refused, and the user is told that a part may have been done."""
    world.claim("HALFWAY", 4, rejected=True)
    world.limit("HALFWAY", 5)
    path = "connections/acting/dead-letters/HALFWAY"
    numbers = [each["number"] for each in Listing(**client.get(path).json()).letters]
    query = "?" + "&".join(f"numbers={number}" for number in numbers)
    failed = act(client, f"{path}/replay", query, numbers=numbers)
    assert (failed.status_code, failed.json()["error"]) == (502, "Unfinished")
    assert "may have been carried out in part" in failed.json()["message"]
    assert "maximum messages exceeded" in failed.json()["message"]
    outcomes = [each["outcome"] for each in Listing(**client.get(path).json()).letters]
    assert sorted(outcomes, key=str) == [None, None, None, "replayed"]
    end, began, *_ = log(airflow, "jetstream_replay")
    assert (began["outcome"], began["numbers"], began["text"][:30]) == (
        "began",
        numbers,
        "This publishes 4 dead letters ",
    )
    assert (end["outcome"], end["error"], end["stream"]) == ("failed, perhaps in part", "Unfinished", "HALFWAY")


BODIES = ["", "[]", "{", "null", '{"numbers": [1], "expected": 1}', '{"expected": "x"}', "[" * 5_000, " " * 70_000]
BODIES += [
    f'{{"expected": "x", "numbers": {numbers}}}' for numbers in ("[]", '["1"]', "[0]", "[9e99]", list(range(1, 102)))
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_an_invalid_body(world: World, client: httpx.Client, body: str) -> None:
    answer = client.post(
        f"connections/acting/dead-letters/{STREAM}/discard", content=body, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]) == (422, "BadInput"), answer.text


def test_refusals_for_lack_of_rights_are_in_the_audit_log(airflow: Airflow, world: World) -> None:
    with airflow.client("viewer", headers=SAME) as viewer:
        viewer.post(f"connections/acting/consumers/{STREAM}/{CONSUMER}/resume", json={"expected": ""})
    row, *_ = log(airflow, "jetstream_resume")
    assert (row["owner"], row["outcome"], row["error"], row["stream"]) == ("viewer", "refused", "Forbidden", STREAM)
