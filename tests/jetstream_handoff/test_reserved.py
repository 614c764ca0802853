"""What is done by hand with a consumer that is reserved for a reader: each action names the reader."""

from typing import Any

import pytest

from jetstream_client.stream import Stream
from jetstream_handoff.command_line import actions
from jetstream_handoff.command_line.output import Answer
from jetstream_handoff.errors import CheckpointRefused, DeletionRefused, ResetRefused
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair import deletion, reset
from jetstream_handoff.repair.reservation import reserved
from tests.jetstream_handoff.steps import CONSUMER, publish, take
from tests.jetstream_handoff.test_reader import Query, consumer


@pytest.fixture
async def query(stream: Stream) -> Query:
    """A query that has read five messages, and waits."""
    await consumer(stream)
    await publish(stream, 5)
    query = Query(stream)
    await query.run()
    return query


async def run(stream: Stream, **options: Any) -> Answer:
    from argparse import Namespace

    given = {"stream": stream.name, "consumer": CONSUMER, "yes": False, **options}
    return await actions.end_reservation(stream.js, Namespace(**given))


async def test_its_consumer_is_not_reset(stream: Stream, query: Query) -> None:
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    for act in (reset.plan, reset.reset):
        with pytest.raises(ResetRefused, match=f"it is reserved for reader {query.reader}"):
            await act(ledger, 1)


async def test_its_consumer_is_not_deleted_unless_that_is_meant(stream: Stream, query: Query) -> None:
    for name in (CONSUMER, None):
        with pytest.raises(DeletionRefused, match=f"consumer 'work' for reader {query.reader}"):
            await deletion.delete(stream.js, stream.name, name)
    planned = await deletion.plan(stream.js, stream.name, CONSUMER)
    assert planned
    assert f"consumer 'work' is reserved for reader {query.reader}" in planned.describe()
    await deletion.delete(stream.js, stream.name, CONSUMER, despite_open_claims=True)
    (claim,) = await take(stream)  # everybody may use a consumer of this name again
    assert claim.count == 5


async def test_the_reservation_is_shown_and_ended_by_a_command(stream: Stream, query: Query) -> None:
    shown = await run(stream)
    assert f"is reserved for reader {query.reader} (a streaming query)" in shown.text
    assert "committed 1 batches. To end the reservation, stop the query and add --yes." in shown.text
    assert (shown.data["batch"], shown.data["ended"]) == (1, False)
    assert (await run(stream, yes=True)).data["ended"]
    assert await reserved(Ledger(stream.js, stream.name, CONSUMER)) is None
    assert "is not reserved: everybody may take from it" in (await run(stream, yes=True)).text
    await publish(stream, 5)
    (claim,) = await take(stream, consumer_config=None)
    assert list(claim.sequences) == [6, 7, 8, 9, 10]
    with pytest.raises(CheckpointRefused, match="or the reservation was ended"):
        await query.run()
