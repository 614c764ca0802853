"""The page on a cluster of three nats-servers, with stream, consumer and ledger in three replicas: a worker that was
killed is recognised and its claim released, also when the consumer's leader changes.

`make page` runs this file; `make test` does not collect it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from tests.airflow_nats_jetstream.page.airflow import SAME, Airflow
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_client.test_leader import leader
from tests.jetstream_handoff import killed
from tests.jetstream_handoff.steps import publish, take

Result = TypeVar("Result")

ACK_WAIT = 10.0
"""Seconds. A worker counts as dead after 60 % of it."""
COUNT = 5
CONSUMER = "work"


class Replicated:
    """The cluster, and the application of Airflow with a connection to it."""

    def __init__(self, cluster: Cluster, client: httpx.Client) -> None:
        self.cluster = cluster
        self.client = client
        self.settings = ConnectionSettings(servers=cluster.url, ledger="replicated", shortest_ack_wait=0.5)

    def run(self, steps: Callable[[JetStream], Awaitable[Result]]) -> Result:
        async def connected() -> Result:
            async with connect(self.settings) as js:
                return await steps(js)

        return asyncio.run(connected())

    def claim(self, stream: str) -> Claim:
        """Take a claim from a new stream with three replicas."""

        async def taken(js: JetStream) -> Claim:
            handle = await replicated_stream(js, stream, [f"{stream}.>"])
            await publish(handle, COUNT)
            (claim,) = await take(handle, consumer_config={"ack_wait": timedelta(seconds=ACK_WAIT)})
            replicas = [js.stream(each) for each in (f"KV_{js.settings.ledger}_claims", stream)]
            assert [(await each.info()).config["num_replicas"] for each in replicas] == [3, 3]
            return claim

        return self.run(taken)

    def dies(self, claim: Claim) -> None:
        """Hold a claim in a process that is killed with SIGKILL."""
        killed.run("held", self.settings, claim=claim.to_json(), rejected=[])

    @contextmanager
    def held(self, claim: Claim) -> Iterator[None]:
        """Hold a claim with heartbeats during the block."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._held(claim)):
            yield

    @asynccontextmanager
    async def _held(self, claim: Claim) -> AsyncIterator[None]:
        async with connect(self.settings) as js, Hold.begin(js, claim, try_number=1):
            yield

    def leader(self, stream: str) -> str:
        return self.run(lambda js: leader(js.stream(stream).consumer(CONSUMER)))

    def step_down(self, stream: str) -> None:
        """Let the leader of the consumer step down, and wait for another one."""
        before = self.leader(stream)
        self.run(lambda js: js.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{CONSUMER}"))
        until("another leader", lambda: self.leader(stream) not in ("", before), 60)

    def findings(self, claim: Claim) -> list[str]:
        """The kinds of findings about a claim, in the overview."""
        answer = self.client.get("connections/replicated/overview")
        if answer.status_code != 200:
            return []
        consumers = [each for stream in answer.json()["streams"] for each in stream["consumers"]]
        return [found["kind"] for each in consumers for found in each["findings"] if found["claim"] == claim.id]

    def release(self, claim: Claim) -> httpx.Response:
        path = f"connections/replicated/claims/{claim.id}/release"
        preview = self.client.get(f"{path}/preview")
        if preview.status_code != 200:
            return preview
        return self.client.post(path, json={"expected": preview.json()["revision"]})

    def taken_again(self, stream: str) -> int:
        """Take what the consumer delivers within a few seconds, less than ``ACK_WAIT``, and return the number."""
        claims = self.run(lambda js: take(js.stream(stream), "again", wait=ACK_WAIT / 2, consumer_config={}))
        return sum(claim.count for claim in claims)


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        extra: dict[str, Any] = {"servers": cluster.url, "ledger": "replicated"}
        connections = {"replicated": {"conn_type": "nats", "extra": extra}}
        airflow = Airflow(tmp_path_factory.mktemp("page-replicated"), connections, stored={})
        try:
            airflow.start()
            with airflow.client("op", headers=SAME) as client:
                yield Replicated(cluster, client)
        finally:
            airflow.stop()


def is_dead(replicated: Replicated, claim: Claim) -> bool:
    return "dead_holder" in replicated.findings(claim)


def test_a_killed_worker_is_recognised_and_its_claim_released(replicated: Replicated) -> None:
    claim = replicated.claim("KILLED")
    replicated.dies(claim)
    until("the finding", lambda: is_dead(replicated, claim), ACK_WAIT * 2)
    answer = replicated.release(claim)
    assert answer.status_code == 200, answer.text
    assert replicated.taken_again("KILLED") == COUNT


def test_the_leader_steps_down_before_and_during_the_release(replicated: Replicated) -> None:
    """The new leader does not know when the last heartbeat arrived."""
    claim = replicated.claim("STEPS")
    replicated.dies(claim)
    replicated.step_down("STEPS")
    until("the finding", lambda: is_dead(replicated, claim), ACK_WAIT * 3)
    with start_blocking_portal() as portal:
        stepping = portal.start_task_soon(asyncio.to_thread, replicated.step_down, "STEPS")
        answers = [replicated.release(claim)]
        stepping.result()
    while answers[-1].status_code != 200:
        assert answers[-1].json()["error"] in {"LeadershipChanged", "RequestTimeout", "Changed", "NoAnswer"}
        answers.append(replicated.release(claim))
        assert len(answers) < 20
    assert replicated.taken_again("STEPS") == COUNT


def test_the_server_that_leads_the_consumer_dies(replicated: Replicated) -> None:
    claim = replicated.claim("DIES")
    replicated.dies(claim)
    node = replicated.cluster.named(replicated.leader("DIES"))
    node.kill()
    try:
        until("the finding", lambda: is_dead(replicated, claim), ACK_WAIT * 4)
        until("the release", lambda: replicated.release(claim).status_code == 200, 60)
        assert replicated.taken_again("DIES") == COUNT
    finally:
        node.start()


def test_a_living_worker_is_not_called_dead_when_the_leader_changes(replicated: Replicated) -> None:
    claim = replicated.claim("LIVES")
    with replicated.held(claim):
        for _ in range(3):
            replicated.step_down("LIVES")
            end = time.monotonic() + ACK_WAIT
            while time.monotonic() < end:
                assert not is_dead(replicated, claim)
                time.sleep(0.5)
        refused = replicated.release(claim)
        assert (refused.status_code, refused.json()["error"]) == (409, "HolderAlive")
