"""What was confirmed is what is performed, on a real server: a state that changes in between leads to a refusal."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_nats_jetstream.page import holders
from airflow_nats_jetstream.page.actions import Release, ReleaseAll, Reset
from airflow_nats_jetstream.page.claims import Filter
from airflow_nats_jetstream.page.errors import Changed, NotOpen
from airflow_nats_jetstream.page.pool import Line, Pool
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from jetstream_handoff.errors import HolderAlive, HolderUnknown
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.watch.inspection import find
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, publish, take


@pytest.fixture
async def line(nats_server: NatsServer) -> AsyncIterator[Line]:
    settings = ConnectionSettings(servers=nats_server.url, ledger=f"l{secrets.token_hex(4)}", shortest_ack_wait=0.5)

    async def look_up(connection_id: str) -> ConnectionSettings:
        return replace(settings, name=connection_id)

    pool = Pool(look_up)
    async with pool.use("confirmed") as line:
        yield line
    await pool.close()


@pytest.fixture
async def stream(line: Line) -> AsyncIterator[Stream]:
    name = f"S{secrets.token_hex(4)}"
    stream = await (await line.js()).create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    await publish(stream, 10)
    yield stream
    await stream.delete()


async def undelivered(stream: Stream) -> int:
    """How many messages the consumer has not delivered. All of them have been delivered unless it was reset."""
    return (await stream.consumer(CONSUMER).info()).pending


async def test_a_consumer_that_was_claimed_in_the_meantime_is_not_reset(line: Line, stream: Stream) -> None:
    """A reset without the ledger was confirmed, and one with it would now be needed."""
    consumer = await stream.create_consumer(
        {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": 60 * 10**9, "max_ack_pending": 1_000}
    )
    await consumer.fetch(1)
    confirmed = await Reset(stream.name, CONSUMER).preview(line)
    (claim,) = await take(stream, max_messages=9, consumer_config={})
    assert claim.count == 9
    with pytest.raises(Changed):
        await confirmed.perform()
    assert await undelivered(stream) == 0
    assert (await Reset(stream.name, CONSUMER).preview(line)).revision != confirmed.revision


async def test_a_consumer_whose_record_was_deleted_in_the_meantime_is_not_reset(line: Line, stream: Stream) -> None:
    await take(stream)
    confirmed = await Reset(stream.name, CONSUMER).preview(line)
    js = await line.js()
    await js.stream(f"KV_{js.settings.ledger}_claims").purge()
    with pytest.raises(Changed):
        await confirmed.perform()
    assert await undelivered(stream) == 0


async def test_a_claim_is_released_once_by_two_who_confirmed_the_same(line: Line, stream: Stream) -> None:
    (claim,) = await take(stream)
    first, second = [await Release(claim.id).preview(line) for _ in range(2)]
    assert first.revision == second.revision
    await first.perform()
    with pytest.raises(Changed):
        await second.perform()
    third = await Release(claim.id).preview(line)
    assert third.revision != first.revision
    assert "It was already released at" in third.text


async def test_all_claims_of_a_run_are_released(line: Line, stream: Stream) -> None:
    mine = await take(stream, "mine", max_messages=6, messages_per_claim=3)
    others = await take(stream, "another", max_messages=4)
    wanted = Filter(dag="dag", run="mine")
    confirmed = await ReleaseAll(wanted).preview(line)
    assert confirmed.text.startswith("This releases 2 open claims with 6 messages of consumer work of stream")
    assert not confirmed.dangerous
    said = await confirmed.perform()
    assert said == "Released: 2 claims. The next sensors that pull receive the 6 messages again."
    js = await line.js()
    seen = [await find(js, claim.id) for claim in (*mine, *others)]
    assert [each.entry.is_released for each in seen if each and each.entry] == [True, True, False]
    with pytest.raises(NotOpen):
        await ReleaseAll(Filter(dag="dag", run="missing")).preview(line)
    with pytest.raises(Changed):
        await confirmed.perform()


async def test_attempts_that_are_alive_keep_their_claims_unless_that_is_confirmed(line: Line, stream: Stream) -> None:
    (claim, dead) = await take(stream, messages_per_claim=5)
    js = await line.js()
    wanted = Filter(stream.name, CONSUMER)
    async with Hold.begin(js, claim, try_number=1) as held, Hold.begin(js, dead, try_number=1) as silent:
        await silent._stop_beats()
        confirmed = await ReleaseAll(wanted).preview(line)
        assert (confirmed.dangerous, 0 < confirmed.silence < 1) == (True, True)
        with pytest.raises(HolderAlive, match="1 of 2 attempts"):
            await confirmed.perform()
        assert not held.lost
        again = await ReleaseAll(wanted, despite_alive=True).preview(line)
        assert again.revision == confirmed.revision
        await again.perform()
        await until(lambda: bool(held.lost))


async def test_a_holder_that_may_be_alive_is_not_called_alive(
    line: Line, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cannot listen long enough. The user can confirm that, which confirms nothing about a living holder."""
    monkeypatch.setattr(holders, "LONGEST", 0.2)
    (claim,) = await take(stream, consumer_config={"ack_wait": timedelta(seconds=2)})
    js = await line.js()
    async with Hold.begin(js, claim, try_number=1) as held:
        await held._stop_beats()  # as when its worker died
        with pytest.raises(HolderUnknown, match=f"unknown whether attempt {held.token} of claim {claim.id} is alive"):
            await (await Release(claim.id).preview(line)).perform()
        seen = await find(js, claim.id)
        assert seen
        assert (await holders.heard(line, seen, 0.3)).alive is None
        confirmed = Release(claim.id, despite_unknown=True)
        assert "an attempt of this consumer may be silent for" in (await confirmed.preview(line)).text
        await (await confirmed.preview(line)).perform()
    monkeypatch.setattr(holders, "LONGEST", 0.5)
    async with Hold.begin(js, claim, try_number=2):
        with pytest.raises(HolderAlive):
            await (await confirmed.preview(line)).perform()
