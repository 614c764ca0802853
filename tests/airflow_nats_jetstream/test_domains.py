"""The connection's field ``domain``: a sensor and a task on a leaf node, the stream on the hub."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client import connect
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, execute, info, sensor
from tests.jetstream_handoff.domains import Domains, contents


@pytest.fixture
def domains(tmp_path: Path) -> Iterator[Domains]:
    servers = Domains(tmp_path)
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
def hook(domains: Domains, monkeypatch: pytest.MonkeyPatch) -> JetStreamHook:
    """A connection to the leaf node, with everything on the hub."""
    extra = {"servers": domains.leaf.url, "domain": "hub", "shortest_ack_wait": 0.5}
    connection = {"conn_type": "nats", "login": "work", "password": "open", "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", json.dumps(connection))
    return JetStreamHook(CONNECTION)


def test_a_claim_of_another_domain_is_taken_and_settled(domains: Domains, hook: JetStreamHook) -> None:
    async def of_the_leaf(create: bool) -> dict[str, Any]:
        async with connect(domains.settings("leaf")) as leaf:
            if create:
                stream = await leaf.create_stream({"name": "S", "subjects": ["leaf.>"], "allow_direct": True})
                for number in range(25):
                    await leaf.publish(f"leaf.{number}")
                config = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": 60 * 10**9}
                await (await stream.create_consumer(config)).fetch(25, max_wait=5)
            return await contents(leaf)

    async def fill(js: Any) -> None:
        await js.create_stream({"name": "S", "subjects": ["hub.>"], "allow_direct": True})
        for number in range(25):
            await js.publish(f"hub.{number}")

    before = asyncio.run(of_the_leaf(create=True))
    hook.run(fill)
    (claim,) = execute(sensor("S"))

    def body(claim: HeldClaim) -> int:
        assert info(hook, "S").ack_pending == 25
        return claim.count

    task = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": claim}, nats_conn_id=CONNECTION
    )
    assert execute(task) == 25
    assert (info(hook, "S").floor, info(hook, "S").ack_pending) == (25, 0)
    assert [receipt.value for receipt in hook.committed("S", CONSUMER)] == [25]
    assert asyncio.run(of_the_leaf(create=False)) == before
