"""What the tests for Dagster share: a stream on the run's nats-server, and a Dagster instance of their own."""

import asyncio
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import JetStreamResource
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff import portal
from jetstream_handoff.claim import Claim
from jetstream_handoff.ledger.failures import Failure
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt

CONSUMER = "work"


@dataclass
class Line:
    """A stream, and the resource that reaches it."""

    stream: str
    resource: JetStreamResource

    @property
    def settings(self) -> ConnectionSettings:
        return self.resource.settings

    def publish(self, count: int, first: int = 0, subject: str = "") -> None:
        messages = ((subject or f"{self.stream}.a", b"%d" % (first + number)) for number in range(count))
        publish_all(self.settings, messages, stream=self.stream)

    def run(self, function: Any) -> Any:
        return portal.run(self.settings, function)

    @property
    def unacknowledged(self) -> int:
        return int(self.run(lambda js: js.stream(self.stream).consumer(CONSUMER).info()).ack_pending)

    @property
    def floor(self) -> int:
        return int(self.run(lambda js: js.stream(self.stream).consumer(CONSUMER).info()).floor)

    @property
    def committed(self) -> list[Receipt]:
        return self.resource.committed(self.stream, CONSUMER)

    @property
    def open(self) -> dict[str, Any]:
        async def entries(js: JetStream) -> dict[str, Any]:
            record, _ = await Ledger(js, self.stream, CONSUMER).read()
            return dict(record.open) if record else {}

        found: dict[str, Any] = self.run(entries)
        return found

    @property
    def failures(self) -> list[Failure]:
        """The failed claims in the ledger's record."""

        async def failed(js: JetStream) -> list[Failure]:
            record, _ = await Ledger(js, self.stream, CONSUMER).read()
            return list(record.failures.values()) if record else []

        found: list[Failure] = self.run(failed)
        return found

    def claim(self, receipt: Receipt) -> dict[str, Any]:
        """The claim that a receipt is about, as the ledger's record of it would give it."""

        async def found(js: JetStream) -> dict[str, Any]:
            ledger = Ledger(js, self.stream, CONSUMER)
            stream, consumer = await ledger.stream.info(), await ledger.consumer.info()
            await ledger.locate()
            return Claim(
                id=receipt.claim_id,
                stream=self.stream,
                stream_created=stream.created,
                consumer=CONSUMER,
                consumer_created=consumer.created,
                sequences=receipt.sequences,
                bytes=1,
                consumer_sequence=receipt.sequences.last,
                taken_at=receipt.at,
            ).to_json()

        claim: dict[str, Any] = self.run(found)
        return claim

    def of(self, **more: Any) -> dict[str, Any]:
        """The parameters of an asset, op or sensor on this stream."""
        return {"stream": self.stream, "consumer": CONSUMER, **more}

    def quick(self, **more: Any) -> dict[str, Any]:
        """The parameters of a take that soon begins its work, and that outlasts a machine that stands still for
        seconds."""
        quick = {"gather": timedelta(seconds=0.1), "wait": timedelta(seconds=15)}
        return self.of(consumer_config={"ack_wait": timedelta(seconds=5)}, **quick, **more)


@pytest.fixture
def line(nats_server: NatsServer) -> Line:
    resource = JetStreamResource(servers=nats_server.url, shortest_ack_wait=0.5)
    name = f"S{secrets.token_hex(4)}"

    async def create() -> None:
        async with connect(resource.settings) as js:
            await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

    asyncio.run(create())
    return Line(name, resource)


@pytest.fixture(scope="session")
def one_instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture
def instance(one_instance: dg.DagsterInstance) -> Iterator[dg.DagsterInstance]:
    """An instance that has run nothing. To create one takes a tenth of a second."""
    yield one_instance
    one_instance.wipe()
    shutil.rmtree(one_instance.storage_directory(), ignore_errors=True)
