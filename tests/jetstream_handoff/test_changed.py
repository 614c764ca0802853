"""What changes under open claims is noticed: a stranger edits the consumer, and the server gives deliveries up."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff import answers
from jetstream_handoff import take as takes
from jetstream_handoff.claim import Claim
from jetstream_handoff.conservation import given_up
from jetstream_handoff.errors import ConsumerUnsuitable, DeliveriesGivenUp
from jetstream_handoff.hold import Hold
from jetstream_handoff.ledger import Ledger
from jetstream_handoff.overview import overview
from jetstream_handoff.reset import reset
from jetstream_handoff.take import Take
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking

LEASE: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=60)}}


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pulls, after each of which a take looks at its consumer, and its second reads."""
    monkeypatch.setattr(takes, "LONGEST_PULL", 0.3)
    monkeypatch.setattr(takes, "SECOND_READ", 0.1)


async def waiting(stream: Stream) -> asyncio.Task[Any]:
    """A take that waits for messages, with its pull at the server."""
    work = Take(stream.js, taking(stream, "waits", **LEASE))
    await work.prepare()
    task = asyncio.create_task(work.take(60))

    async def pulls() -> bool:
        return bool((await stream.consumer(CONSUMER).info()).raw["num_waiting"])

    await until(pulls)
    return task


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_deliver": 5}, "max_deliver=5: it must be -1"),
        ({"backoff": [300_000_000], "max_deliver": 2}, "max_deliver=2.*in addition, backoff="),
        ({"inactive_threshold": 3600 * 10**9}, "inactive_threshold=.*it must be absent"),
        ({"ack_wait": 10**8}, "ack_wait=100000000: 0.1 s are shorter than a failover may take"),
    ],
)
async def test_a_waiting_take_stops_when_its_consumer_is_made_unsuitable(
    stream: Stream, change: dict[str, Any], said: str
) -> None:
    """With the error that it would have raised at its start. It has pulled on, and the server has dropped messages."""
    await take(stream, wait=0.1, **LEASE)
    task = await waiting(stream)
    await stream.consumer(CONSUMER).update(change)
    with pytest.raises(ConsumerUnsuitable, match=said):
        await asyncio.wait_for(task, 30)


async def test_a_holder_is_warned_of_a_consumer_that_was_changed(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 3)
    (claim,) = await take(stream, **LEASE)
    await stream.consumer(CONSUMER).update({"backoff": [300_000_000], "max_deliver": 2})
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        assert f"claim {claim.id} is held, but consumer 'work' of stream" in caplog.text
        assert "backoff" in caplog.text
        await hold.release()


async def give_up(stream: Stream, *claims: Claim) -> None:
    """Lower max_deliver while the claims are open, until the server has dropped their messages, and set it back."""
    ledger, consumer = Ledger(stream.js, stream.name, CONSUMER), stream.consumer(CONSUMER)
    await ledger.locate()
    await consumer.update({"max_deliver": 1})
    async with asyncio.timeout(30):
        while not (await consumer.info()).gave_up:
            for claim in claims:
                await answers.negative(ledger, claim.sequences)
            assert not await consumer.fetch_no_wait(100)
    await consumer.update({"max_deliver": -1})


async def test_deliveries_that_the_server_gave_up_are_noticed_and_can_be_reset(stream: Stream) -> None:
    await publish(stream, 10)
    first, lost, last = await take(stream, messages_per_claim=4, **LEASE)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await hold.settle()
    await give_up(stream, lost, last)
    info = await stream.consumer(CONSUMER).info()
    assert (info.floor, info.delivered, info.pending, info.ack_pending) == (4, 10, 0, 0)
    with pytest.raises(DeliveriesGivenUp, match=r"among the sequences 5-10.*reset the consumer to sequence 5") as said:
        await take(stream, "run 2", **LEASE)
    assert (said.value.sequences, said.value.first) == (Sequences.from_ranges([(5, 10)]), 5)
    view = next(each for of in (await overview(stream.js)).streams for each in of.consumers if of.name == stream.name)
    assert [each.kind for each in view.findings if each.level == "error"] == ["given_up"]
    async with Hold.begin(stream.js, last, try_number=1) as hold:
        await hold.settle()  # the ledger knows that they are done, although the server cannot confirm it
    with pytest.raises(DeliveriesGivenUp, match="among the sequences 5-8"):
        await take(stream, "run 3", **LEASE)
    assert (await reset(Ledger(stream.js, stream.name, CONSUMER))).sequence == 5
    (again,) = await take(stream, "run 4", **LEASE)
    assert not lost.sequences - again.sequences


async def test_what_is_done_in_the_ledger_is_not_given_up(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, **LEASE)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await give_up(stream, claim)
        await hold.settle()
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    info = await stream.consumer(CONSUMER).info()
    assert info.gave_up
    assert not given_up(record, info)
    await publish(stream, 5)
    (fresh,) = await take(stream, "run 2", **LEASE)
    assert fresh.sequences == Sequences.from_ranges([(11, 15)])
