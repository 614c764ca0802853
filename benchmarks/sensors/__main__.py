"""A thousand sensors that wait in one real triggerer: its connections, idle load and memory, and the delay of messages
when one for each sensor arrives at the same time.

    python -m benchmarks.sensors [number of sensors, default: 1,000] [ways, default: all]

Airflow's api-server creates the run of a mapped sensor. Its task instances are then changed to deferred through
Airflow's models, because running a thousand tasks until they defer takes a quarter of an hour on two cores. Scheduler
and DAG processor have been stopped by then. A task instance that is resumed stays ``scheduled``. There the measured
delay of a message ends, because the rest is the executor's work.

The ways:

    shared     our trigger, with a consumer for each sensor
    one        our trigger, with one consumer for all sensors: their claims are entered in one record
    connected  our trigger, with a consumer and a connection for each sensor
    plain      fetch and acknowledge with nats-py, with a consumer and a connection for each sensor
    asleep     a trigger that only sleeps, which shows what Airflow alone needs; all wake up at the same moment
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil

from demo.nats_server import NatsServer
from demo.service import Service, free_port, session, until
from demo.stack import Stack
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import StreamNotFound
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.claim import Claim

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STREAM = "WAITING"
WAYS = ("shared", "one", "connected", "plain", "asleep")
SETTLE = 10.0  # seconds
IDLE = 100.0  # seconds during which idle load is measured, in which each pull is renewed once


@dataclass(frozen=True)
class Bench:
    """One stack for all ways, and the pages of its nats-server's monitoring."""

    stack: Stack
    monitor: str
    sensors: int

    def page(self, name: str) -> Any:
        return httpx.get(f"{self.monitor}/{name}").raise_for_status().json()

    def connections(self) -> int:
        total: int = self.page("connz?limit=1")["total"]
        return total

    def pulls(self) -> int:
        """Return the number of pull requests that wait on the server."""
        accounts = self.page("jsz?accounts=true&streams=true&consumers=true")["account_details"] or []
        streams = [stream for account in accounts for stream in account.get("stream_detail") or []]
        return sum(each["num_waiting"] for stream in streams for each in stream.get("consumer_detail") or [])

    def begun(self) -> int:
        """Return the number of triggers that have begun. Airflow creates a log for each."""
        return sum(1 for _ in self.logs.rglob("*.trigger.*.log"))

    @property
    def logs(self) -> Path:
        return self.stack.folder / "airflow" / "logs"


@dataclass(frozen=True)
class Measured:
    """The results of one way.

    runner:      idle load of the triggerer's process with the event loop, as a share of one core.
    supervisor, server, database:  the same for its other process, which uses the database, nats-server and Postgres.
    others:      the load of everything else on the machine meanwhile.
    memory:      bytes per sensor of both processes of the triggerer.
    claimed:     seconds from when each message was stored until it was claimed.
    late:        seconds from when each message was stored until its event was stored.
    """

    way: str
    connections: int
    until_waiting: float
    runner: float
    supervisor: float
    server: float
    database: float
    others: float
    memory: float
    claimed: Sequence[float]
    late: Sequence[float]

    @property
    def lines(self) -> Iterable[tuple[str, str]]:
        yield "connections", f"{self.connections}"
        yield "until all wait", f"{self.until_waiting:.0f} s"
        yield "idle, event loop", f"{self.runner:.1%}"
        yield "idle, Airflow's supervisor", f"{self.supervisor:.1%}"
        yield "idle, nats-server", f"{self.server:.1%}"
        yield "idle, Postgres", f"{self.database:.1%}"
        yield "meanwhile, everything else", f"{self.others:.0%}"
        yield "memory per sensor", f"{self.memory / 1024:.0f} KiB"
        for what, seconds in (("claimed", self.claimed), ("event stored", self.late)):
            yield what, " / ".join(f"{each:.2f}" for each in _spread(seconds)) + " s" if seconds else "-"


def measured(bench: Bench, way: str) -> Measured:
    from benchmarks.sensors import rows

    stack, sensors = bench.stack, bench.sensors
    consumers = {"one": 1, "asleep": 0}.get(way, sensors)
    asyncio.run(_stream(stack.nats.url, consumers, sensors))
    stack.triggerer.restart()
    until("the triggerer's event loop", lambda: len(session(stack.triggerer.pid)) > 1, 600)
    time.sleep(SETTLE)
    alone, begun = _memory(stack.triggerer), bench.begun()
    run = stack.airflow.trigger("waiting")
    wake = time.time() + sensors / 20 + SETTLE + IDLE + 60
    triggers = [rows.trigger(way, number, run, stack.nats.url, wake) for number in range(sensors)]
    rows.defer(run, triggers)
    start = time.time()
    until("all to begin", lambda: bench.begun() - begun == sensors, 600, every=0.5)
    if consumers:
        until("all to wait", lambda: bench.pulls() == sensors, 600, every=0.5)
    waiting = time.time() - start
    time.sleep(SETTLE)
    runner, supervisor, server, database, others = _shares(stack)
    memory = (_memory(stack.triggerer) - alone) / sensors
    connections = bench.connections()
    if consumers:
        publish_all(ConnectionSettings(servers=stack.nats.url), ((f"waiting.{each}", b"") for each in range(sensors)))
    until("all events", lambda: not rows.deferred(run), 600)
    resumed = rows.resumed(run)
    assert len(resumed) == sensors, f"{len(resumed)} of {sensors} were resumed"
    times = asyncio.run(_times(stack.nats.url)) if consumers else {}
    late, claimed = [], []
    for each in resumed:
        since = times[_sequence(each.event)] if consumers else wake
        late.append(each.at - since)
        if at := _claimed(each.event):
            claimed.append(at - since)
    return Measured(way, connections, waiting, runner, supervisor, server, database, others, memory, claimed, late)


async def _stream(url: str, consumers: int, sensors: int) -> None:
    """Create the stream again, with its consumers, which would otherwise be created by the first trigger that waits."""
    async with connect(ConnectionSettings(servers=url)) as js:
        with suppress(StreamNotFound):
            await js.stream(STREAM).delete()
        stream = await js.create_stream({"name": STREAM, "subjects": ["waiting.*"], "allow_direct": True})
        for number in range(consumers):
            own = {"filter_subject": f"waiting.{number}"} if consumers > 1 else {"max_waiting": 2 * sensors}
            name = f"w{number}"
            limits = {"ack_wait": timedelta(minutes=1), "max_ack_pending": sensors, "max_deliver": -1}
            await stream.create_consumer({"durable_name": name, "ack_policy": "explicit", **limits, **own})


async def _times(url: str) -> dict[int, float]:
    """Return when each message was stored, in seconds since 1970, by its sequence."""
    async with connect(ConnectionSettings(servers=url)) as js:
        return {each.sequence: _moment(each.time) async for each in js.stream(STREAM).get_messages()}


def _sequence(event: Mapping[str, Any]) -> int:
    """Return the sequence of the only message of an event."""
    if "sequence" in event:
        return int(event["sequence"])
    assert event["status"] == "claims", event
    (claim,) = event["claims"]
    return Claim.from_json(claim).sequences.first


def _claimed(event: Mapping[str, Any]) -> float:
    return _moment(event["claims"][0]["taken_at"]) if "claims" in event else event["at"]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _memory(service: Service) -> int:
    """Return the resident bytes of a service's processes."""
    return sum(process.memory_info().rss for process in session(service.pid))


def _shares(stack: Stack) -> list[float]:
    """Return loads as shares of one core: triggerer's event loop and other process, nats-server, Postgres, the rest."""

    def busy() -> list[float]:
        triggerer = _seconds(stack.triggerer)
        supervisor = triggerer.pop(stack.triggerer.pid)
        services = (sum(_seconds(each).values()) for each in (stack.nats, stack.postgres))
        machine = psutil.cpu_times()
        return [sum(triggerer.values()), supervisor, *services, sum(machine) - machine.idle - machine.iowait]

    start, before = time.monotonic(), busy()
    time.sleep(IDLE)
    elapsed = time.monotonic() - start
    *ours, machine = [(after - earlier) / elapsed for earlier, after in zip(before, busy(), strict=True)]
    return [*ours, machine - sum(ours)]


def _seconds(service: Service) -> dict[int, float]:
    """Return the processor seconds of each process of a service, with those of children that have ended."""
    return {process.pid: sum(process.cpu_times()[:4]) for process in session(service.pid)}


def _spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(seconds), statistics.quantiles(seconds, n=20)[18], max(seconds)


def _table(results: Sequence[Measured]) -> str:
    rows = [("", *(each.way for each in results)), ("---",) * (len(results) + 1)]
    columns = (each.lines for each in results)
    rows += [(cells[0][0], *(value for _, value in cells)) for cells in zip(*columns, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    sensors = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    ways = sys.argv[2:] or WAYS
    stack = Stack(ROOT / "build" / "sensors", HERE / "dags", {"SENSORS": str(sensors)})
    monitor = free_port()
    stack.nats = NatsServer(
        stack.nats.folder, f"http: 127.0.0.1:{monitor}", port=stack.nats.port, environment=stack.environment
    )
    stack.environment["PYTHONPATH"] = str(ROOT)
    os.environ.update(stack.environment)
    results = []
    with stack:
        stack.airflow.wait_for_dag("waiting")
        stack.scheduler.stop()
        stack.dag_processor.stop()
        bench = Bench(stack, f"http://127.0.0.1:{monitor}", sensors)
        for way in ways:
            results.append(measured(bench, way))
            for what, value in results[-1].lines:
                print(f"{way}: {what}: {value}", flush=True)
    print(_table(results))
    return 0


sys.exit(main())
