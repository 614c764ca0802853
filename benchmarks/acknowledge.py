"""Acknowledging 100,000 settled messages with confirmations, compared with nats-py's ``await message.ack_sync()``
one after the other, and a thousand at a time."""

import asyncio
import itertools
import time
from datetime import timedelta

import nats

from benchmarks.comparison import ROUNDS, Comparison
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import DoneEntry, Record
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

MESSAGES = 100_000
SAMPLE = 10_000


def compare(url: str) -> Comparison:
    settings = ConnectionSettings(servers=url)
    asyncio.run(_stream(settings))
    publish_all(settings, ((f"work.{number}", b"x" * 100) for number in range(MESSAGES)), stream="WORK")
    comparison = Comparison("acknowledge", required=10, aim=25)
    for number in itertools.islice(itertools.count(), ROUNDS):
        comparison.baseline.append(SAMPLE / asyncio.run(_confirmed(url, f"baseline{number}", 1)))
        comparison.best.append(SAMPLE / asyncio.run(_confirmed(url, f"best{number}", 1_000)))
        comparison.ours.append(MESSAGES / asyncio.run(_settled(settings, f"ours{number}")))
    return comparison


async def _stream(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": "WORK", "subjects": ["work.>"], "allow_direct": True})


async def _settled(settings: ConnectionSettings, consumer: str) -> float:
    """Return the seconds that it takes to acknowledge a claim that is done in the ledger, the last step of settling."""
    owner = ("dag", "run", "task", -1, 1)
    async with connect(settings) as js:
        taking = Taking(
            stream="WORK", consumer=consumer, owner=owner, max_messages=MESSAGES, gather=timedelta(seconds=5)
        )
        take = Take(js, taking)
        await take.prepare()
        (claim,) = await take.take(60)

        def done(record: Record | None, _: object) -> Changed[None]:
            assert record
            entry = record.open[claim.id]
            settled = DoneEntry(entry.sequences, entry.counter, "1-benchmark", None)
            return Changed(Record(record.created, record.n, done={claim.id: settled}), None)

        ledger = Ledger(js, "WORK", consumer)
        record, _ = await ledger.change(done)
        assert record
        start = time.perf_counter()
        left = await answers.acknowledge(ledger, answers.Delivered.of(record, claim.sequences, claim.consumer_sequence))
        seconds = time.perf_counter() - start
        info = await js.stream("WORK").consumer(consumer).info()
        assert not left
        assert (info.ack_pending, info.floor) == (0, MESSAGES)
        return seconds


async def _confirmed(url: str, consumer: str, at_once: int) -> float:
    """Return the seconds in which nats-py acknowledges a sample, with so many confirmations that it waits for."""
    connection = await nats.connect(url)
    subscription = await connection.jetstream().pull_subscribe("work.>", durable=consumer)
    seconds = 0.0
    for _ in range(SAMPLE // 1_000):
        messages = await subscription.fetch(1_000, timeout=10)
        start = time.perf_counter()
        for at in range(0, len(messages), at_once):
            await asyncio.gather(*(message.ack_sync() for message in messages[at : at + at_once]))
        seconds += time.perf_counter() - start
    await connection.close()
    return seconds
