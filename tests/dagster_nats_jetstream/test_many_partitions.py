"""The sensor with many partitions: how many runs a tick requests, which come first, and how often it asks for runs."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import jetstream_sensor
from jetstream_client.context import JetStream
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line
from tests.dagster_nats_jetstream.test_sensor import Ticks, add_run

KEYS = [f"p{number:02}" for number in range(30)]


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(KEYS))
def orders() -> None: ...


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as found:
        yield found


@pytest.fixture
def ticks(line: Line, stored: dg.DagsterInstance) -> Callable[..., Ticks]:
    """Ticks of a sensor with one message in each partition."""
    for key in KEYS:
        line.publish(1, subject=f"{line.stream}.{key}")

    def of(**more: Any) -> Ticks:
        where = {"subject": f"{line.stream}.{{partition}}", "partitions_def": orders.partitions_def}
        return Ticks(line, stored, jetstream_sensor(**line.of(target=[orders], **where, **more)), orders)

    return of


def keys_of(result: Any) -> list[str]:
    return [request.partition_key for request in result.run_requests]


def test_one_tick_requests_a_limited_number_of_runs(
    stored: dg.DagsterInstance, ticks: Callable[..., Ticks], capfd: pytest.CaptureFixture[str]
) -> None:
    tick = ticks(max_runs=12)
    given = []
    for left in (18, 6, 0):
        result = tick()
        given.append(keys_of(result))
        for request in result.run_requests:
            add_run(stored, request, "STARTING")
        assert (f"{left} more partitions need a run" in capfd.readouterr().err) == (left > 0)
    assert [len(keys) for keys in given] == [12, 12, 6]
    assert sorted(chain(*given)) == KEYS
    assert tick.skipped().endswith("p09: a run was requested that has not pulled yet; and 20 more partitions")


def test_no_partition_starves(ticks: Callable[..., Ticks]) -> None:
    """Although the runs of the others end without having pulled, so that these partitions need a run again."""
    tick = ticks(max_runs=12)
    given = [keys_of(tick()) for _ in range(9)]
    for first in range(6):
        assert {*chain(*given[first : first + 4])} == {*KEYS}


def test_a_new_partition_does_not_overtake_those_that_were_left_out(ticks: Callable[..., Ticks]) -> None:
    tick = ticks(max_runs=4)
    tick.cursor = json.dumps({"left": ["p29", "p07", "gone"], "seen": {}})
    assert keys_of(tick()) == ["p29", "p07", "p00", "p01"]


async def take_all(js: JetStream, stream: str, owners: dict[str, str]) -> None:
    """Take a claim from each partition, for an owner whose run goes on."""

    async def one(key: str, run_id: str) -> None:
        owner = ("orders", run_id, "op", -1, "dagster")
        config = {"ack_wait": timedelta(seconds=60), "filter_subject": f"{stream}.{key}"}
        options: dict[str, Any] = {"max_messages": 1, "gather": timedelta(0), "consumer_config": config}
        take = Take(js, Taking(stream=stream, consumer=f"{CONSUMER}-{key}", owner=owner, **options))
        await take.create()
        assert await take.take(10)
        take.handed_on()

    await asyncio.gather(*(one(*each) for each in owners.items()))


def test_a_tick_asks_for_runs_once_for_all_partitions(
    line: Line, stored: dg.DagsterInstance, ticks: Callable[..., Ticks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the runs that may still pull, and once for the runs that have taken claims. The requests to the server
    do not wait for the database meanwhile: with 3,000 partitions, half of them timed out."""
    asked: list[Any] = []
    ask, find = dg.DagsterInstance.get_run_records, dg.DagsterInstance.get_run_by_id

    def asking(self: dg.DagsterInstance, *arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return ask(self, *arguments, **options)

    def finding(self: dg.DagsterInstance, run_id: str) -> Any:
        asked.append(run_id)
        return find(self, run_id)

    tick = ticks()
    monkeypatch.setattr(dg.DagsterInstance, "get_run_records", asking)
    monkeypatch.setattr(dg.DagsterInstance, "get_run_by_id", finding)
    requests = tick().run_requests
    assert len(requests) == len(KEYS)
    assert len(asked) == 1
    for request in requests:
        add_run(stored, request, "STARTING")
    asked.clear()
    assert "has not pulled yet" in tick.skipped()
    assert len(asked) == 1
    owners = {record.dagster_run.tags["dagster/partition"]: record.dagster_run.run_id for record in ask(stored)}
    line.run(lambda js: take_all(js, line.stream, owners))
    asked.clear()
    assert "0 of 1 messages wait" in tick.skipped()
    assert len(asked) == 2
