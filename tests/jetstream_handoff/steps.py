"""Steps that many tests of the hand-off share."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from jetstream_client import config as configs
from jetstream_client.consume.consumer import Consumer, consumer_request
from jetstream_client.consume.metadata import Metadata
from jetstream_client.context import JetStream
from jetstream_client.info import ConsumerInfo
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_client.wire.protocol import AckSubject
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.take.deliveries import Delivery
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.jetstream_client.until import until

ACK_WAIT = timedelta(seconds=1)
CONSUMER = "work"


async def publish(stream: Stream, count: int, size: int = 10) -> None:
    """Publish with acknowledgements, because the server silently drops some of many fast messages otherwise."""
    messages = ((f"{stream.name}.{number % 3}", b"x" * size) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def publish_and_wait(stream: Stream, count: int) -> None:
    """Publish, and wait until the consumer has counted the messages: the server tells its consumers of new messages
    only after it has answered the publisher."""
    before = (await stream.consumer(CONSUMER).info()).pending
    await publish(stream, count)

    async def counted() -> bool:
        return (await stream.consumer(CONSUMER).info()).pending == before + count

    await until(counted)


@asynccontextmanager
async def object_store(js: JetStream) -> AsyncIterator[str]:
    """The name of an empty object store, which is deleted at the end."""
    name = f"b{secrets.token_hex(4)}"
    subjects = [f"$O.{name}.C.>", f"$O.{name}.M.>"]
    config = {"name": f"OBJ_{name}", "subjects": subjects, "allow_rollup_hdrs": True, "discard": "new"}
    await js.create_stream({**config, "allow_direct": True})
    yield name
    await js.delete_stream(f"OBJ_{name}")


def taking(stream: Stream, run: str = "run", **changes: Any) -> Taking:
    values: dict[str, Any] = {
        "stream": stream.name,
        "consumer": CONSUMER,
        "owner": ("dag", run, "sensor", -1, 1),
        "max_messages": 1_000,
        "gather": timedelta(seconds=0.1),
        "consumer_config": {"ack_wait": ACK_WAIT},
    }
    return Taking(**{**values, **changes})


async def take(stream: Stream, run: str = "run", wait: float = 10, **changes: Any) -> list[Claim]:
    """Prepare, take and hand on, as a sensor does."""
    work = Take(stream.js, taking(stream, run, **changes))
    await work.prepare()
    claims = await work.take(wait)
    work.handed_on()
    return [Claim.from_json(claim.to_json()) for claim in claims]


async def unacknowledged(stream: Stream) -> int:
    return (await stream.consumer(CONSUMER).info()).ack_pending


async def floor(stream: Stream) -> int:
    return (await stream.consumer(CONSUMER).info()).floor


async def reset_by_a_stranger(stream: Stream) -> None:
    """Reset the consumer without the ledger: all messages are delivered again.

    The reset is repeated until its answer shows the new counters. While nats-server 2.15.1 is writing an earlier state,
    a reset leaves the previous counters in place (docs/handoff.md, What remains).
    """
    shown = 1
    async with asyncio.timeout(60):
        while shown:
            answer = await stream.js.api(f"CONSUMER.RESET.{stream.name}.{CONSUMER}", {"seq": 1})
            shown = answer["delivered"]["consumer_seq"]


async def edited_by_another(consumer: Consumer, config: dict[str, Any], *, remove: Iterable[str] = ()) -> None:
    """Edit a consumer as another client does, which also removes filters."""
    config = {"name": consumer.name} | configs.merge((await consumer.info()).config, config, remove)
    await consumer.js.api(*consumer_request(consumer.stream, config, "update"))


async def give_up(stream: Stream, claims: list[Claim]) -> None:
    """Lower max_deliver, so that the server gives up the messages that it has delivered, and set it back."""
    (claim,), of, consumer = claims, Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await consumer.update({"max_deliver": 1})
    await of.locate()
    async with asyncio.timeout(30):
        while not (await consumer.info()).gave_up:
            await answers.negative(of, claim.sequences)
            assert not await consumer.fetch_no_wait(100)  # it notices when it would deliver them
    await consumer.update({"max_deliver": -1})


async def rewrite(ledger: Ledger, function: Callable[[Record | None, ConsumerInfo], Record | None]) -> Record | None:
    """Change a record, as another client does, or an earlier release. Returns the record after it."""
    return (await ledger.change(lambda record, info: Changed(function(record, info), None))).record


async def ended_by_the_server(js: JetStream) -> None:
    """Make the server close a connection for good, as it does at a limit, with an unknown command."""
    js.connection._session.write(b"WHAT\r\n")
    await js.connection.publish("flushed")
    await until(lambda: js.connection.closed)


def arrived(*deliveries: Delivery) -> list[Metadata]:
    """Deliveries that arrived together, as a pull returns them."""
    if not deliveries:
        return []
    last = AckSubject("S", "c", 1, deliveries[-1].sequence, deliveries[-1].counter, 0, 0)
    sequences, counters, sizes, firsts, times = zip(*deliveries, strict=True)
    return [Metadata(sequences, counters, sizes, firsts, times, last, "", {}, "")]
