"""A nats-server and a Dagster with real processes, and the judgement of what became of the messages."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_nats_jetstream import JetStreamResource
from demo.dagster import DagsterStack
from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ConsumerNotFound
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff import portal
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt

CONSUMER = "work"
DEFINITIONS = Path(__file__).with_name("definitions.py")
STREAMS = ("DRAIN", "SPAWNED", "ALONE", "ORDERS", "CHECKED", "RETRIED", "LIMITED", "UNLIMITED")


@dataclass(frozen=True)
class Judgement:
    """What became of the messages of a stream: all should be zero."""

    lost: int
    twice: int
    without_output: int
    """Committed receipts whose output does not exist, or has other messages, under the attempt's id."""
    open: int
    unacknowledged: int
    """Messages above the acknowledgement floor."""
    stale: int
    """Steps of which Dagster has another output than the committed one."""

    def __bool__(self) -> bool:
        """Whether all is well."""
        return not any(vars(self).values())


class World:
    """The folder `orders` has what the pipelines are to do at which point; see `definitions.py`.

    watched:  the streams whose sensors run. Each costs a look a second.
    """

    def __init__(self, folder: Path, watched: Collection[str] = ()) -> None:
        self.folder = folder.absolute()
        self.nats = NatsServer(self.folder / "nats")
        self.settings = JetStreamResource(servers=self.nats.url, shortest_ack_wait=0.5).settings
        environment = {"WORLD": str(self.folder), "NATS_URL": self.nats.url, "WATCHED": " ".join(watched)}
        self.stack = DagsterStack(self.folder / "dagster", DEFINITIONS, environment, parallelism=10)
        self.published: Counter[str] = Counter()
        self.measured: dict[str, float] = {}
        """What the last scenario measured, in seconds."""

    @contextmanager
    def running(self) -> Iterator["World"]:
        for name in ("orders", "reached", "outputs", "stored", "steps"):
            (self.folder / name).mkdir(parents=True)
        self.nats.start()
        try:
            asyncio.run(self._create())
            with self.stack:
                yield self
        finally:
            self.nats.stop()

    def wait_for_runs(self) -> None:
        """Wait until all runs have ended: on a slow machine, the sensor requests more than a scenario needs."""
        until("the end of all runs", lambda: all(run.is_finished for run in self.stack.runs()), 300)

    def keep(self, folder: Path) -> None:
        """Keep the logs and the instance, to see why a scenario failed."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.sock"))

    async def _create(self) -> None:
        async with connect(self.settings) as js:
            for name in STREAMS:
                await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
            await Ledger(js, STREAMS[0], CONSUMER).create()

    def publish(self, stream: str, count: int) -> None:
        first = self.published[stream]
        messages = ((f"{stream}.a", b"%d" % (first + number)) for number in range(count))
        publish_all(self.settings, messages, stream=stream)
        self.published[stream] += count

    def order(self, stream: str, *points: str, what: str = "kill", times: int = 1) -> None:
        """Let the pipeline of a stream be killed, wait or raise when it reaches each of these points."""
        for point in points:
            for number in range(times):
                name = f"{stream}.{point}.{number}"
                (self.folder / "reached" / name).unlink(missing_ok=True)
                (self.folder / name).write_text(what)
                (self.folder / name).rename(self.folder / "orders" / name)

    def reached(self, stream: str, point: str, number: int = 0, seconds: float = 300) -> int:
        """Wait until the pipeline obeys an order, and return the id of its process."""
        file = self.folder / "reached" / f"{stream}.{point}.{number}"
        until(f"{stream} to reach {point}", file.exists, seconds, every=0.05)
        return int(file.read_text())

    def left(self, stream: str) -> list[str]:
        """The orders for the pipeline of a stream that nobody has obeyed."""
        return sorted(file.name for file in (self.folder / "orders").glob(f"{stream}.*"))

    def open(self, stream: str) -> dict[str, Any]:
        """The open claims of a stream's consumer."""

        async def entries(js: JetStream) -> dict[str, Any]:
            record, _ = await Ledger(js, stream, CONSUMER).read()
            return dict(record.open) if record else {}

        return portal.run(self.settings, entries)

    def held(self, stream: str) -> int:
        """Number of open claims that an attempt holds."""
        return sum(entry.token is not None for entry in self.open(stream).values())

    def committed(self, stream: str) -> list[Receipt]:
        """The receipts of a stream's settled claims; none before the first run has created the consumer."""

        async def receipts(js: JetStream) -> list[Receipt]:
            try:
                return await Ledger(js, stream, CONSUMER).committed()
            except ConsumerNotFound:
                return []

        return portal.run(self.settings, receipts)

    def judge(self, stream: str) -> Judgement:
        """Compare what was published, what is committed, and which outputs there are."""
        floor = portal.run(self.settings, lambda js: _floor(js, stream))
        seen: Counter[int] = Counter()
        without = 0
        attempts = set()
        for receipt in self.committed(stream):
            output = self.folder / "outputs" / receipt.attempt_id
            numbers = json.loads(output.read_text()) if output.exists() else []
            stored = stream == "CHECKED" or (self.folder / "stored" / receipt.attempt_id).exists()
            # Message n has the sequence n + 1.
            without += not stored or sorted(numbers) != [each - 1 for each in receipt.sequences]
            seen.update(numbers)
            attempts.add(receipt.attempt_id)
        return Judgement(
            lost=self.published[stream] - len(seen),
            twice=sum(count > 1 for count in seen.values()),
            without_output=without,
            open=len(self.open(stream)),
            unacknowledged=self.published[stream] - floor,
            stale=self._stale(stream, attempts),
        )

    def _stale(self, stream: str, committed: set[str]) -> int:
        found = 0
        for run in self.stack.runs(stream.lower()):
            for event in self.stack.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS):
                notes = self.folder / "steps" / f"{run.run_id}.{event.get_dagster_event().step_key}"
                found += notes.exists() and notes.read_text().split()[-1] not in committed
        return found


async def _floor(js: JetStream, stream: str) -> int:
    try:
        return int((await js.stream(stream).consumer(CONSUMER).info()).floor)
    except ConsumerNotFound:  # no take has begun
        return 0
