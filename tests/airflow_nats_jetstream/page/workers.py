"""Two worker processes of `airflow api-server`: an action that one of them previews and the other one carries out.

`make page` runs this file; `make test` does not collect it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from airflow_nats_jetstream.page.letters import Listing
from demo.service import until
from jetstream_client.context import JetStream
from tests.airflow_nats_jetstream.page.airflow import SAME, Airflow
from tests.airflow_nats_jetstream.page.world import ACTED, CONSUMER, SECRET, World
from tests.jetstream_handoff.steps import take

REFUSALS = {"Changed", "ResetRefused", "ReplayRefused", "Superseded"}
"""What the slower of two users may be told."""


class Two:
    """A client of each of the two worker processes, with a connection that stays open."""

    def __init__(self, airflow: Airflow) -> None:
        self._airflow = airflow
        self._clients: dict[int, httpx.Client] = {}
        until("a connection to each worker", self._connect, 60)
        self.first, self.second = self._clients.values()

    def _connect(self) -> bool:
        client = self._airflow.client("op", headers=SAME)
        with client.stream("GET", "connections") as answer:
            port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
            (worker,) = (each.pid for each in self._airflow.processes() if port in _peers(each))
            answer.read()
        if self._clients.setdefault(worker, client) is not client:
            client.close()
        return len(self._clients) == 2

    def act(self, path: str, query: str = "", **body: Any) -> httpx.Response:
        """Preview an action in the first process, and carry it out in the second one."""
        preview = self.first.get(f"{path}/preview{query}")
        assert preview.status_code == 200, preview.text
        return self.second.post(path, json={"expected": preview.json()["revision"], **body})

    def both(self, path: str, query: str = "", **body: Any) -> list[httpx.Response]:
        """Preview an action in each process, and then carry it out in both at the same time."""
        previews = [client.get(f"{path}/preview{query}").json() for client in (self.first, self.second)]
        assert previews[0]["revision"] == previews[1]["revision"]
        with ThreadPoolExecutor(2) as pool:
            sent = {"expected": previews[0]["revision"], **body}
            return list(pool.map(lambda client: client.post(path, json=sent), (self.first, self.second)))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _peers(process: psutil.Process) -> list[int]:
    return [each.raddr.port for each in process.net_connections("tcp") if each.raddr]


@pytest.fixture(scope="module")
def two(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    extra = {"servers": world.nats.url, "ledger": ACTED}
    acting = {"conn_type": "nats", "login": "all", "password": SECRET, "extra": extra}
    airflow = Airflow(tmp_path_factory.mktemp("two"), {"acting": acting}, stored={}, workers=2)
    try:
        airflow.start()
        two = Two(airflow)
        yield two
        two.close()
    finally:
        airflow.stop()


def states(answers: list[httpx.Response]) -> list[int]:
    """The statuses of two answers. A refusal must say what happened."""
    for answer in answers:
        assert answer.status_code == 200 or answer.json()["error"] in REFUSALS, answer.text
    return sorted(answer.status_code for answer in answers)


def redelivered(world: World, stream: str) -> list[int]:
    """Take what the consumer delivers now, and return how many messages the claims have."""
    taken = world.run(lambda js: take(js.stream(stream), wait=5, consumer_config={}), ledger=ACTED)
    return [claim.count for claim in taken]


def letters(two: Two, stream: str) -> Listing:
    return Listing(**two.first.get(f"connections/acting/dead-letters/{stream}").raise_for_status().json())


def messages(world: World, stream: str) -> int:
    async def count(js: JetStream) -> int:
        return int((await js.stream(stream).info()).state["messages"])

    return world.run(count)


def test_each_action_is_carried_out_by_the_other_process(two: Two, world: World) -> None:
    claim = world.claim("OTHER", 3)
    world.hold(claim)
    consumer = f"connections/acting/consumers/OTHER/{CONSUMER}"
    for client in (two.first, two.second):  # both processes know the claim before it changes
        assert client.get(f"connections/acting/claims/{claim.id}").is_success
    assert two.act(f"connections/acting/claims/{claim.id}/release").status_code == 200
    assert redelivered(world, "OTHER") == [3]
    pause = "2999-01-31T12:00:00Z"
    assert two.act(f"{consumer}/pause", f"?until={pause}", until=pause).status_code == 200
    assert world.consumer("OTHER").paused
    assert two.act(f"{consumer}/resume").status_code == 200
    assert not world.consumer("OTHER").paused
    assert two.act(f"{consumer}/reset").status_code == 200
    world.claim("OTHERS", 4, rejected=True)
    path = "connections/acting/dead-letters/OTHERS"
    until("the dead letters", lambda: letters(two, "OTHERS").complete, 10)
    first, second, *_ = [each["number"] for each in letters(two, "OTHERS").letters]
    replayed = two.act(f"{path}/replay", f"?numbers={first}", numbers=[first])
    assert replayed.json()["text"] == "Published again: 1 dead letter."
    discarded = two.act(f"{path}/discard", f"?numbers={second}", numbers=[second])
    assert discarded.json()["text"] == "Deleted: 1 dead letter."


@pytest.mark.parametrize("verb", ["release", "pause", "reset", "replay", "discard"])
def test_what_the_other_process_has_done_is_not_done_again(two: Two, world: World, verb: str) -> None:
    stream = f"AGAIN{verb}"
    claim = world.claim(stream, 3, rejected=verb in ("replay", "discard"))
    path, query = f"connections/acting/consumers/{stream}/{CONSUMER}/{verb}", ""
    sent: dict[str, Any] = {}
    if verb == "release":
        world.hold(claim)
        path = f"connections/acting/claims/{claim.id}/release"
    elif verb == "pause":
        sent, query = {"until": "2999-01-31T12:00:00Z"}, "?until=2999-01-31T12:00:00Z"
    elif verb != "reset":
        number = letters(two, stream).letters[0]["number"]
        path = f"connections/acting/dead-letters/{stream}/{verb}"
        sent, query = {"numbers": [number]}, f"?numbers={number}"
    previews = [client.get(f"{path}/preview{query}").json()["revision"] for client in (two.first, two.second)]
    done = two.first.post(path, json={"expected": previews[0], **sent})
    assert done.status_code == 200, done.text
    again = two.second.post(path, json={"expected": previews[1], **sent})
    assert (again.status_code, again.json()["error"]) == (409, "Changed")


@pytest.mark.parametrize("turn", range(5))
def test_both_release_at_once(two: Two, world: World, turn: int) -> None:
    claim = world.claim(f"RACE{turn}", 3)
    world.hold(claim)
    assert states(two.both(f"connections/acting/claims/{claim.id}/release"))[0] == 200
    assert redelivered(world, f"RACE{turn}") == [3]


@pytest.mark.parametrize("turn", range(5))
def test_both_replay_or_discard_at_once(two: Two, world: World, turn: int) -> None:
    """Each dead letter is published once, and deleted once."""
    stream = f"LETTERS{turn}"
    world.claim(stream, 6, rejected=True)
    numbers = [each["number"] for each in letters(two, stream).letters]
    for verb, chosen in (("replay", numbers[:4]), ("discard", numbers[4:])):
        query = "?" + "&".join(f"numbers={number}" for number in chosen)
        answers = two.both(f"connections/acting/dead-letters/{stream}/{verb}", query, numbers=chosen)
        assert states(answers)[0] == 200
    assert messages(world, stream) == 6 + 4
    outcomes = sorted(each["outcome"] or "" for each in letters(two, stream).letters)
    assert outcomes == ["discarded"] * 2 + ["replayed"] * 4


def test_both_reset_at_once(two: Two, world: World) -> None:
    world.claim("RESET", 5)
    answers = two.both(f"connections/acting/consumers/RESET/{CONSUMER}/reset")
    assert states(answers)[0] == 200
    assert redelivered(world, "RESET") == [5]
