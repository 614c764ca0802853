"""Taking on a real server: leases, entries, recognised messages, and negative acknowledgements."""

import asyncio
import json
import logging
import os
import random
import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.priority import Priority
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ConsumerDeleted,
    ConsumerNotFound,
    DirectGetDisabled,
    InvalidValue,
    NotJetStreamMessage,
    ServerTooOld,
)
from jetstream_client.info import ConsumerInfo
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import by_consumer
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, LedgerFull
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.messages import messages
from jetstream_handoff.ledger import ledger
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import DoneEntry, Record
from jetstream_handoff.ledger.settled import Settled
from jetstream_handoff.take import take as take_of_claims
from jetstream_handoff.take.take import Take
from tests.chaos.proxy import Proxy
from tests.jetstream_client.servers import older_program
from tests.jetstream_client.steps import forge
from tests.jetstream_client.until import SOON, until
from tests.jetstream_handoff.steps import (
    ACK_WAIT,
    CONSUMER,
    floor,
    publish,
    reset_by_a_stranger,
    rewrite,
    take,
    taking,
    unacknowledged,
)

SHORT = {"ack_wait": timedelta(seconds=3)}
LONG = {"ack_wait": timedelta(seconds=30)}  # a batch that is older than three quarters of this is dropped


async def settle_without_acknowledging(stream: Stream, claim_id: str) -> None:
    """Settle a claim like a worker that dies right after the ledger's decision."""

    def done(record: Record | None, info: object) -> Record | None:
        assert record
        entry = record.open[claim_id]
        settled = DoneEntry(entry.sequences, entry.counter, "1-dead", None)
        rest = {other: each for other, each in record.open.items() if other != claim_id}
        return Record(record.created, record.n, open=rest, done={**record.done, claim_id: settled})

    await rewrite(Ledger(stream.js, stream.name, CONSUMER), done)


async def leave_to_receipts(stream: Stream) -> None:
    """Return what the next take does with claims that are done."""
    book = Ledger(stream.js, stream.name, CONSUMER)
    record = await rewrite(book, lambda record, info: record.tidied(info) if record else None)
    assert record
    assert not record.done
    assert record.settled


async def test_claims_hold_every_message_once_and_acknowledge_none(stream: Stream) -> None:
    await publish(stream, 1_000, size=10)
    claims = await take(stream, messages_per_claim=300)
    assert [claim.count for claim in claims] == [300, 300, 300, 100]
    assert sorted(sequence for claim in claims for sequence in claim.sequences) == list(range(1, 1_001))
    assert sum(claim.bytes for claim in claims) == 10_000
    assert await unacknowledged(stream) == 1_000


async def test_a_stream_that_cannot_be_read_is_refused_before_anything_is_made(stream: Stream) -> None:
    await stream.update({"allow_direct": False})
    await publish(stream, 5)
    with pytest.raises(DirectGetDisabled, match=f"{stream.name}.*allow_direct=true"):
        await take(stream)
    with pytest.raises(ConsumerNotFound):
        await stream.consumer(CONSUMER).info()
    await stream.update({"allow_direct": True})
    (claim,) = await take(stream)
    assert claim.count == 5


async def test_a_server_on_which_reading_takes_seconds_a_message_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    """The server of the stream decides, also for a client that is connected to a newer one."""
    port = free_port()
    hub = f'server_name: hub, jetstream {{ domain: hub }}, leafnodes {{ listen: "127.0.0.1:{port}" }}'
    remote = f'{{ url: "nats-leaf://127.0.0.1:{port}" }}'
    leaf = f"server_name: leaf, jetstream {{ domain: leaf }}, leafnodes {{ reconnect: 1, remotes: [{remote}] }}"
    servers = [NatsServer(tmp_path / "hub", hub, program=older_program("2.10.26")), NatsServer(tmp_path / "leaf", leaf)]
    for server in servers:
        server.start()
    try:
        for server in servers:
            settings = ConnectionSettings(servers=server.url, domain="hub", shortest_ack_wait=0.5, request_timeout=30)
            async with connect(settings) as js:
                await js.api("STREAM.NAMES", patience=30)  # until the leaf node has found the hub
                config = {"name": "S", "subjects": ["S.>"], "allow_direct": True}
                stream = await js.get_or_create_stream(config)
                with pytest.raises(ServerTooOld, match=r"nats-server 2\.11 or newer is needed for batched direct get"):
                    await take(stream)
                assert [name async for name in js.stream_names()] == ["S"]
                with pytest.raises(ConsumerNotFound):
                    await stream.consumer(CONSUMER).info()
    finally:
        for server in servers:
            server.stop()


async def test_the_lease_outlives_ack_wait_and_then_ends(stream: Stream) -> None:
    await publish(stream, 20)
    (first,) = await take(stream, hand_off_timeout=timedelta(seconds=3))
    assert await take(stream, "other", wait=1.5) == []
    (again,) = await take(stream, "other", wait=10)
    assert again.sequences == first.sequences
    receipt = await Ledger(stream.js, stream.name, CONSUMER).receipts.read(first.id)
    assert receipt
    assert receipt.state == "superseded"


async def test_ends_at_max_messages(stream: Stream) -> None:
    await publish(stream, 50)
    (claim,) = await take(stream, max_messages=20, gather=timedelta(seconds=30))
    assert claim.count == 20


async def test_waits_for_min_messages_and_gives_fewer_back(stream: Stream) -> None:
    await publish(stream, 5)
    assert await take(stream, min_messages=6, wait=2.5) == []  # more than two leases
    waiting = asyncio.create_task(take(stream, min_messages=6, wait=10))
    await asyncio.sleep(0.5)
    await publish(stream, 1)
    (claim,) = await waiting
    assert claim.count == 6


async def test_a_pull_waits_no_longer_than_its_consumer_allows(stream: Stream) -> None:
    waiting = asyncio.create_task(take(stream, wait=30, consumer_config={**LONG, "max_expires": timedelta(seconds=1)}))
    await asyncio.sleep(2.5)  # two pulls have ended
    await publish(stream, 1)
    (claim,) = await waiting
    assert claim.count == 1


async def test_nothing_there_writes_nothing(stream: Stream) -> None:
    assert await take(stream, wait=0.5) == []
    assert await Ledger(stream.js, stream.name, CONSUMER).read() == (None, 0)


async def said(stream: Stream, caplog: pytest.LogCaptureFixture, run: str = "waits", **changes: Any) -> str:
    """Return the first sentence that a waiting sensor logs."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    waiting = asyncio.create_task(take(stream, run, wait=60, **{"consumer_config": LONG, **changes}))

    def sentences() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name.endswith(".waiting")]

    await until(lambda: bool(sentences()) or waiting.done())
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    (sentence,) = sentences()
    name, _, reason = sentence.partition(": ")
    assert name == f"still waiting for messages of stream {stream.name}, consumer {CONSUMER}"
    return reason


async def test_who_waits_says_that_nothing_is_published(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    empty = f"stream {stream.name} contains no messages; the stream listens on '{stream.name}.>'"
    assert await said(stream, caplog) == empty
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config=LONG)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    reason = await said(stream, caplog)
    assert f"all delivered messages are acknowledged; the last message of stream {stream.name} is" in reason
    assert re.search(r"is sequence 10, published at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC$", reason)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"filter_subject": "{}.none"}, "none of the 10 messages of stream {} matches the consumer's filter '{}.none'"),
        ({"deliver_policy": "new"}, "no message has been published that the consumer's deliver_policy 'new' selects"),
    ],
)
async def test_who_waits_says_what_its_consumer_leaves_out(
    stream: Stream, caplog: pytest.LogCaptureFixture, config: dict[str, str], says: str
) -> None:
    await publish(stream, 10)
    config = {name: value.replace("{}", stream.name) for name, value in config.items()}
    assert re.match(says.replace("{}", stream.name), await said(stream, caplog, consumer_config={**LONG, **config}))


async def test_who_waits_says_whose_the_messages_are(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    await publish(stream, 30)
    leased, held, *_ = await take(stream, "first", messages_per_claim=6, consumer_config=LONG)
    async with Hold.begin(stream.js, held, try_number=3) as hold:
        reason = await said(stream, caplog, consumer_config=LONG)
    end = datetime.fromisoformat(leased.taken_at[:19] + "Z") + timedelta(minutes=15)
    assert reason.startswith("no new messages have been published, and ")
    assert (
        f"6 messages belong to claim {leased.id}, taken by dag / first / sensor, and are leased "
        f"until {end:%Y-%m-%d %H:%M:%S} UTC "
        f"(run `python -m jetstream_handoff release {leased.id}` to have them redelivered now)"
    ) in reason
    assert f"6 messages are held by attempt {held.id}-{hold.token} of claim {held.id}, taken by dag" in reason
    assert (
        f"12 messages belong to 2 more claims (`python -m jetstream_handoff claims --stream {stream.name}`)" in reason
    )


async def test_who_waits_says_that_messages_belong_to_no_claim(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 10)
    await Take(stream.js, taking(stream, consumer_config=LONG)).prepare()
    assert len(await stream.consumer(CONSUMER).fetch(10, max_wait=SOON)) == 10
    reason = await said(stream, caplog, consumer_config=LONG)
    assert "messages belong to no claim and are redelivered within ack_wait (30 s)" in reason


async def test_who_waits_says_that_max_ack_pending_is_reached(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    await publish(stream, 30)
    config = {**LONG, "max_ack_pending": 20}
    (claim,) = await take(stream, max_messages=20, consumer_config=config)
    reason = await said(stream, caplog, max_messages=20, consumer_config=config)
    assert reason.startswith(
        f"10 messages are pending, but max_ack_pending=20 is reached, because 20 messages belong to claim {claim.id}"
    )


async def test_who_waits_says_that_its_consumer_is_paused(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    await publish(stream, 10)
    await Take(stream.js, taking(stream, consumer_config=LONG)).prepare()
    until_then = datetime.now(UTC) + timedelta(hours=1)
    await stream.consumer(CONSUMER).pause(until_then)
    reason = await said(stream, caplog)
    assert reason == (
        f"the consumer is paused until {until_then:%Y-%m-%d %H:%M:%S} UTC; "
        f"`nats consumer resume {stream.name} {CONSUMER}` resumes it"
    )


@pytest.mark.parametrize("policy", ["pinned_client", "overflow"])
async def test_who_waits_says_that_its_group_is_not_served(
    stream: Stream, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    await publish(stream, 10)
    config = {**LONG, "priority_groups": ["g"], "priority_policy": policy, "priority_timeout": timedelta(minutes=5)}
    if policy == "overflow":
        del config["priority_timeout"]
        reason = await said(
            stream, caplog, consumer_config=config, priority=Priority("g", min_pending=99, min_ack_pending=5)
        )
        assert reason == (
            "10 messages are pending, but priority group 'g' serves this sensor only if min_pending=99 messages are "
            "pending or min_ack_pending=5 messages are unacknowledged; 0 are unacknowledged"
        )
        return
    (claim,) = await take(stream, max_messages=5, consumer_config=config, priority=Priority("g"))
    assert claim.count == 5
    reason = await said(stream, caplog, max_messages=5, consumer_config=config, priority=Priority("g"))
    assert re.match(
        "5 messages are pending, but priority group 'g' has been pinned to client .+ since 20.* UTC; ", reason
    )
    assert f"`nats consumer unpin {stream.name} {CONSUMER} g`" in reason


def thousands(info: ConsumerInfo) -> bool:
    return info.pending > 1_000


async def test_who_waits_says_what_it_has_and_what_its_backlog_is(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 10)
    reason = await said(stream, caplog, min_messages=11)
    assert reason == "10 messages have arrived, but min_messages=11 are needed"
    reason = await said(stream, caplog, "looks", backlog=f"{__name__}.thousands")
    says = r"the backlog function does not ask for a pull yet; \d+ messages are pending and \d+ are unacknowledged"
    assert re.match(says, reason)


async def test_put_back_returns_claims_that_were_not_handed_on(stream: Stream) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream))
    await work.prepare()
    (lost,) = await work.take(3)
    await work.put_back()
    await work.put_back()
    (again,) = await take(stream, "other", wait=0.9)  # at once: long before the lease ends
    assert again.sequences == lost.sequences


async def test_a_trigger_started_again_hands_on_its_own_claims(stream: Stream) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream, messages_per_claim=5))
    await work.prepare()
    claims = await work.take(3)  # this take dies here: it calls neither handed_on nor put_back
    again = await take(stream, messages_per_claim=5)
    assert [replace(each, taken_at="") for each in again] == [replace(each, taken_at="") for each in claims]
    assert await take(stream, "another run", wait=0.5) == []


async def test_what_an_earlier_try_took_is_handed_on_under_a_new_lease(stream: Stream) -> None:
    await publish(stream, 10)
    lease = timedelta(seconds=4)
    (claim,) = await take(stream, hand_off_timeout=lease)  # then Airflow fails the sensor
    await asyncio.sleep(3)
    (again,) = await take(stream, hand_off_timeout=lease)
    assert again.id == claim.id
    assert await take(stream, "other", wait=2.5) == [], "its first lease has ended"
    async with Hold.begin(stream.js, again, try_number=1) as hold:
        assert await take(stream, wait=0.5) == [], "a claim that a task holds was handed on"
        await hold.settle()
    assert await floor(stream) == 10


async def test_a_try_that_dies_late_does_not_withdraw_what_the_next_one_handed_on(stream: Stream) -> None:
    await publish(stream, 10)
    older = Take(stream.js, taking(stream))
    await older.prepare()
    (claim,) = await older.take(3)
    (handed_on,) = await take(stream)
    await older.put_back()
    assert await take(stream, "other", wait=0.7) == [], "the older try negatively acknowledged its messages"
    async with Hold.begin(stream.js, handed_on, try_number=1) as hold:
        await hold.settle()
    assert handed_on.id == claim.id
    assert await floor(stream) == 10


async def test_a_try_that_found_claims_does_not_withdraw_what_the_older_one_handed_on(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    newer = Take(stream.js, taking(stream))
    await newer.prepare()
    assert [each.id for each in await newer.take(3)] == [claim.id]
    await newer.put_back()  # cancelled, because the event of the older one came first
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert await floor(stream) == 10


async def test_a_try_that_waits_hands_on_what_an_older_one_takes_meanwhile(stream: Stream) -> None:
    config = {**LONG, "max_expires": timedelta(seconds=1)}
    older = Take(stream.js, taking(stream, consumer_config=config))
    await older.prepare()
    await publish(stream, 10)
    await older._gather(older._clock() + 10)
    newer = asyncio.create_task(take(stream, wait=30, consumer_config=config))

    async def waits() -> bool:
        return bool((await stream.consumer(CONSUMER).info()).raw["num_waiting"])

    await until(waits)
    (claim,) = await older._enter()
    (handed_on,) = await newer
    assert handed_on.id == claim.id


@pytest.mark.parametrize("receipted", [False, True])
async def test_done_messages_that_come_again_are_acknowledged_and_not_handed_on(
    stream: Stream, receipted: bool
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, hand_off_timeout=ACK_WAIT)
    await settle_without_acknowledging(stream, claim.id)
    if receipted:
        await leave_to_receipts(stream)
    await publish(stream, 1)
    new = await take(stream, "next", wait=5, min_messages=11)
    assert [sequence for each in new for sequence in each.sequences] == [11]
    assert await floor(stream) == 10


@pytest.mark.server("2.14")
async def test_a_reset_processes_again_what_was_done(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    await reset_by_a_stranger(stream)
    (again,) = await take(stream, "after")
    assert again.sequences == claim.sequences
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.n == 1


@pytest.mark.server("2.14")
@pytest.mark.parametrize("receipted", [False, True])
async def test_a_reset_that_no_counter_shows_is_seen_by_first_deliveries(stream: Stream, receipted: bool) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    await settle_without_acknowledging(stream, claim.id)
    if receipted:
        await leave_to_receipts(stream)
    await reset_by_a_stranger(stream)
    messages = await stream.consumer(CONSUMER).fetch(10, max_wait=2)  # counters as before the reset
    assert len(messages) == 10
    for message in messages:
        await message.nak()
    await reset_by_a_stranger(stream)
    (again,) = await take(stream, "after")
    assert again.sequences == claim.sequences


@pytest.mark.server("2.14")
@pytest.mark.parametrize(("fetched", "later"), [(8, 0), (10, 40)], ids=["first delivery", "consumer sequence"])
async def test_either_shows_a_reset_that_no_counter_shows(stream: Stream, fetched: int, later: int) -> None:
    await publish(stream, 10)
    for claim in await take(stream, messages_per_claim=2):
        await settle_without_acknowledging(stream, claim.id)
    await leave_to_receipts(stream)
    await reset_by_a_stranger(stream)
    for _ in range(2):  # the client that had them died
        for message in await stream.consumer(CONSUMER).fetch(fetched, max_wait=2):
            await message.nak()
        await asyncio.sleep(0.2)
    book = Ledger(stream.js, stream.name, CONSUMER)
    record, _ = await book.read()
    assert record
    spans = record.settled.spans
    assert [counter for _, _, counter in spans] == [2, 4, 6, 8, 10]
    # As if the claims had been taken much later in the consumer's life, so that its counters do not show the reset:
    settled = Settled(tuple((first, last, later + counter) for first, last, counter in spans))
    await rewrite(book, lambda old, info: replace(old, counter=0, settled=settled) if old else None)  # noqa: ARG005
    (again,) = await take(stream, "after", max_messages=10)
    assert again.count == 10
    record, _ = await book.read()
    assert record
    assert record.n == 1


async def test_a_claim_whose_messages_a_stranger_acknowledged_is_still_processed(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    for sequence in claim.sequences:
        await stream.js.connection.request(f"$JS.ACK.{stream.name}.{CONSUMER}.1.{sequence}.{sequence}.0.0", b"+ACK")
    assert await floor(stream) == 10  # the server will never deliver them again
    for run in ("next", "after", "last"):  # the floor is believed when it has stood for a second
        await publish(stream, 1)
        assert len(await take(stream, run)) == 1
        await asyncio.sleep(1.1)
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.floor == 10
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert [receipt.claim_id for receipt in receipts] == [claim.id]


async def test_giving_back_to_a_consumer_that_is_gone_is_no_error(stream: Stream) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream))
    await work.prepare()
    assert await work.take(3)
    await stream.consumer(CONSUMER).delete()
    await work.put_back()


async def test_racing_sensors_share_without_overlap(stream: Stream) -> None:
    await publish(stream, 600)
    config = LONG | {"max_ack_pending": 600}
    takes = [take(stream, f"run {each}", max_messages=100, consumer_config=config, wait=5) for each in range(6)]
    batches = await asyncio.gather(*takes)
    sequences = [sequence for batch in batches for claim in batch for sequence in claim.sequences]
    assert sorted(sequences) == list(range(1, 601))


async def test_a_deleted_consumer_is_an_error_not_an_empty_batch(stream: Stream) -> None:
    work = Take(stream.js, taking(stream))
    await work.prepare()
    waiting = asyncio.create_task(work.take(20))
    await asyncio.sleep(0.5)
    await stream.consumer(CONSUMER).delete()
    with pytest.raises(ConsumerDeleted):
        await waiting


async def test_a_scattered_filter_is_claimed_exactly(stream: Stream) -> None:
    await publish(stream, 300)
    config = {"ack_wait": ACK_WAIT, "filter_subject": f"{stream.name}.1"}
    claims = await take(stream, messages_per_claim=70, consumer_config=config)
    assert [sequence for claim in claims for sequence in claim.sequences] == list(range(2, 301, 3))


async def test_a_claim_of_scattered_messages(stream: Stream) -> None:
    count = int(os.environ.get("SCATTERED", "20000"))  # `make machine` takes 300,000
    chosen = random.Random(1)
    subjects = (f"{stream.name}.{chosen.randrange(2)}" for _ in range(2 * count))
    await asyncio.to_thread(publish_all, stream.js.settings, ((subject, b"x") for subject in subjects))
    config = {"ack_wait": timedelta(seconds=60), "filter_subject": f"{stream.name}.1", "max_ack_pending": 400_000}
    (claim,) = await take(stream, max_messages=400_000, wait=120, consumer_config=config)
    assert 0.99 * count < claim.count < 1.01 * count
    assert len(claim.sequences.ranges) > 0.47 * count
    book = Ledger(stream.js, stream.name, CONSUMER)
    record, _ = await book.read()
    assert record
    assert len(json.dumps(record.to_json())) < ledger.LARGEST_RECORD / 2 * count / 300_000
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert [receipt.sequences for receipt in await book.committed()] == [claim.sequences]
    info = await stream.consumer(CONSUMER).info()
    assert (info.pending, info.ack_pending) == (0, 0)


async def test_of_what_does_not_fit_into_the_record_as_much_as_fits_is_taken(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LARGEST_RECORD", 4_000)
    chosen = random.Random(1)
    subjects = [f"{stream.name}.{chosen.randrange(2)}" for _ in range(2_000)]
    await asyncio.to_thread(publish_all, stream.js.settings, ((subject, b"x") for subject in subjects))
    config = LONG | {"filter_subject": f"{stream.name}.1", "max_ack_pending": 20_000}
    book = Ledger(stream.js, stream.name, CONSUMER)
    claims = await take(stream, max_messages=300, wait=30, consumer_config=config)

    async def take_all() -> None:
        for _ in range(20):
            run = f"run {len(claims)}"
            claims.extend(await take(stream, run, max_messages=300, wait=30, consumer_config=config))
            record, _ = await book.read()
            assert record
            assert len(json.dumps(record.to_json())) <= 4_000

    with pytest.raises(LedgerFull, match="settle the open claims"):
        await take_all()
    assert len(claims) > 1
    for run in map(str, range(100, 200)):
        for claim in claims:
            async with Hold.begin(stream.js, claim, try_number=1) as hold:
                await hold.settle()
        claims = await take(stream, run, max_messages=300, wait=5, consumer_config=config)
        if not claims:
            break
    settled = [sequence for receipt in await book.committed() for sequence in receipt.sequences]
    assert sorted(settled) == [number for number, subject in enumerate(subjects, 1) if subject.endswith("1")]


async def test_what_holds_the_floor_finds_room_in_a_record_full_of_what_is_done(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 900)
    scattered = {"filter_subject": f"{stream.name}.1", "ack_wait": timedelta(seconds=2), "max_ack_pending": 300}
    (lost,) = await take(stream, max_messages=1, consumer_config=scattered, hand_off_timeout=timedelta(seconds=4))
    (claim,) = await take(stream, "many", max_messages=250, consumer_config=scattered)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    await leave_to_receipts(stream)
    book = Ledger(stream.js, stream.name, CONSUMER)
    record, _ = await book.read()
    assert record
    assert len(record.settled.spans) == 250
    monkeypatch.setattr(ledger, "LARGEST_RECORD", len(json.dumps(record.to_json())) - 100)
    found = await take(stream, "again", max_messages=1, wait=10, consumer_config=scattered)
    assert [claim.sequences for claim in found] == [lost.sequences]
    async with Hold.begin(stream.js, found[0], try_number=1) as hold:
        await hold.settle()
    await asyncio.sleep(1.1)
    (rest,) = await take(stream, "rest", max_messages=100, wait=10, consumer_config=scattered)
    assert rest.count == 49
    record, _ = await book.read()
    assert record
    assert not record.all_settled


async def test_an_api_prefix_is_refused_with_the_reason(js: JetStream) -> None:
    imported = js.with_options(api_prefix="JS.hub.API")
    with pytest.raises(InvalidValue, match=r"api_prefix='JS.hub.API': .* through an imported API"):
        Ledger(imported, "S", "c")


async def test_a_backlog_is_taken_whole_however_short_the_gathering(stream: Stream) -> None:
    await publish(stream, 20_000)
    claims = await take(stream, max_messages=100_000, gather=timedelta(0), wait=30, consumer_config=LONG)
    assert sum(claim.count for claim in claims) == 20_000
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 20_000


@pytest.mark.slow
async def test_a_backlog_that_cannot_be_leased_at_once_is_taken_in_parts(stream: Stream) -> None:
    await publish(stream, 100_000)
    short, taken = {"ack_wait": timedelta(seconds=2)}, 0
    for number in range(100):
        claims = await take(stream, f"run {number}", max_messages=100_000, wait=100, consumer_config=short)
        assert claims  # otherwise all would be dropped again and again, because their leases cannot be renewed in time
        taken += sum(claim.count for claim in claims)
        if taken == 100_000:
            break
    assert taken == (await stream.consumer(CONSUMER).info()).ack_pending == 100_000


async def test_after_two_batches_that_were_not_kept_leased_a_smaller_one_is_pulled(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated machine needs half a millisecond for each message."""
    report = Take._report

    def slow(*arguments: Any, **stopped: Any) -> None:
        report(*arguments, **stopped)
        time.sleep(0.0005 * sum(map(len, arguments[3])))

    monkeypatch.setattr(Take, "_report", slow)
    await publish(stream, 4_000)
    claims = await take(stream, max_messages=4_000, wait=60, consumer_config={"ack_wait": timedelta(seconds=0.5)})
    assert 0 < sum(claim.count for claim in claims) <= 1_000


async def test_after_one_batch_that_was_not_kept_leased_the_next_one_is_as_large(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    report, pauses = Take._report, [2.0]

    def once(*arguments: Any, **stopped: Any) -> None:
        report(*arguments, **stopped)
        if arguments[3] and pauses:
            time.sleep(pauses.pop())

    monkeypatch.setattr(Take, "_report", once)
    await publish(stream, 1_000)
    (claim,) = await take(stream, max_messages=1_000, wait=30, consumer_config={"ack_wait": timedelta(seconds=2)})
    assert caplog.text.count("dropping a batch") == 1
    assert claim.count == 1_000


@pytest.mark.slow
async def test_min_messages_that_cannot_be_kept_leased_are_refused(stream: Stream) -> None:
    await publish(stream, 200_000)
    short = {"ack_wait": timedelta(seconds=0.5)}
    says = r"ack_wait=0\.5: .* the lease ended before min_messages=200000 messages had arrived; raise ack_wait"
    with pytest.raises(ConsumerUnsuitable, match=says):
        await take(stream, min_messages=200_000, max_messages=200_000, wait=120, consumer_config=short)


@pytest.mark.slow
async def test_a_machine_that_stands_still_now_and_then_does_not_end_the_wait_for_min_messages(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(take_of_claims, "_KEPT", 2)
    await publish(stream, 5)
    work = Take(stream.js, taking(stream, min_messages=6, consumer_config={"ack_wait": timedelta(seconds=2)}))
    await work.prepare()
    waiting = asyncio.create_task(work.take(60))

    def dropped() -> int:
        return caplog.text.count("dropping a batch of 5 messages")

    for times, kept in enumerate((timedelta(0), timedelta(0), timedelta(seconds=5))):
        await until(lambda: waiting.done() or (work._window is not None and work._window.count == 5))
        await asyncio.sleep(kept.total_seconds())
        asyncio.get_running_loop().call_soon(time.sleep, 2.1)  # nothing else runs meanwhile
        await until(partial(lambda before: waiting.done() or dropped() > before, times))
    await publish(stream, 1)
    (claim,) = await waiting
    assert claim.count == 6


async def test_a_pull_that_ends_early_leaves_nothing_on_its_way(stream: Stream) -> None:
    await publish(stream, 40_000)
    claims = await take(stream, max_messages=15_000, gather=timedelta(0), wait=30, consumer_config=LONG)
    assert sum(claim.count for claim in claims) == (await stream.consumer(CONSUMER).info()).ack_pending == 15_000


async def _unrelated(stream: Stream) -> Claim:
    await publish(stream, 5)
    (claim,) = await take(stream, "unrelated", consumer_config=SHORT)
    return claim


async def _settled_by_somebody_else(stream: Stream, count: int) -> None:
    (claim,) = await take(stream, "somebody else", consumer_config=SHORT)
    assert claim.count == count
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle("somebody else")


async def _undisturbed(stream: Stream, held: Hold, count: int) -> None:
    """Check that redelivered messages of another claim were not mistaken for the next life of the consumer."""
    assert not await held._why_lost()
    book = Ledger(stream.js, stream.name, CONSUMER)
    record, _ = await book.read()
    assert record
    assert (record.n, list(record.open)) == (0, [held.claim.id])
    assert [(each.value, each.sequences.count) for each in await book.committed()] == [("somebody else", count)]


async def test_a_batch_of_a_machine_that_was_paused_is_dropped(stream: Stream) -> None:
    claim = await _unrelated(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        await publish(stream, 10)
        work = Take(stream.js, taking(stream, "paused", consumer_config=SHORT))
        await work.prepare()
        loop = asyncio.get_running_loop()
        await work._gather(loop.time() + 10)
        paused = loop.time()
        work._clock = lambda: paused  # our clock stands still, but the leases on the server end
        await _settled_by_somebody_else(stream, 10)
        assert await work._enter() == []
        await _undisturbed(stream, held, 10)


async def test_a_batch_that_was_on_its_way_for_longer_than_its_lease_is_dropped(
    stream: Stream, settings: ConnectionSettings
) -> None:
    claim = await _unrelated(stream)
    proxy = Proxy(int(settings.servers[0].rpartition(":")[2]))
    await proxy.start()
    far = replace(settings, servers=f"nats://127.0.0.1:{proxy.port}")
    async with Hold.begin(stream.js, claim, try_number=1) as held, connect(far) as js:
        waiting = asyncio.create_task(take(js.stream(stream.name), "stalled", wait=60, consumer_config=SHORT))
        consumer = stream.consumer(CONSUMER)

        async def waits() -> bool:
            return bool((await consumer.info()).raw["num_waiting"])

        async def delivered() -> bool:
            return await unacknowledged(stream) == 15

        await until(waits)
        proxy.hold("down")
        await publish(stream, 10)
        await until(delivered)
        await _settled_by_somebody_else(stream, 10)
        proxy.heal()
        await asyncio.sleep(2)  # in which it would have entered them
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await _undisturbed(stream, held, 10)
    await proxy.stop()


@pytest.mark.slow
async def test_a_server_that_takes_small_messages_gets_small_records(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "max_payload: 12000")
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream, _ = await js.create_or_update_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await _take_and_settle_all(stream)
    finally:
        server.stop()


async def test_messages_that_are_larger_than_the_usual_limit_of_a_pull_are_claimed_and_read(tmp_path: Path) -> None:
    """A pull request is limited to 8 MiB, unless the server allows larger messages."""
    server = NatsServer(tmp_path, "max_payload: 16MB")
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, 2, size=12 << 20)
            (claim,) = await take(stream, consumer_config=LONG)
            async with Hold.begin(js, claim, try_number=1) as hold:
                batches = by_consumer.read(js.settings, "S", claim.sequences, claim.stream_created)
                delivered = await asyncio.to_thread(lambda: [len(data) for batch in batches for data in batch.data])
                requested = await asyncio.to_thread(lambda: [len(each.data) for each in messages(js.settings, claim)])
                assert delivered == requested == [12 << 20] * 2
                await hold.settle()
            assert await floor(stream) == 2
    finally:
        server.stop()


async def _take_and_settle_all(stream: Stream) -> None:
    chosen = random.Random(1)
    subjects = [f"S.{chosen.randrange(2)}" for _ in range(3_000)]
    await asyncio.to_thread(publish_all, stream.js.settings, ((subject, b"x") for subject in subjects))
    how = {"consumer_config": LONG | {"filter_subject": "S.1", "max_ack_pending": 2_000}}
    settled: list[int] = []
    for run in map(str, range(100)):
        claims = await take(stream, run, max_messages=2_000, messages_per_claim=100, wait=2, **how)
        for claim in claims:
            async with Hold.begin(stream.js, claim, try_number=1) as hold:
                await hold.settle("x" * 2_500)  # five of them are more than a message
            settled += claim.sequences
        if not claims:
            break
    assert sorted(settled) == [number for number, subject in enumerate(subjects, 1) if subject == "S.1"]
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert sum(receipt.sequences.count for receipt in receipts) == len(settled)


async def test_what_a_forged_record_calls_settled_is_processed_when_it_is_delivered_for_the_first_time(
    stream: Stream,
) -> None:
    await take(stream, "before", wait=0.5)
    await publish(stream, 10)

    def forged(record: Record | None, info: ConsumerInfo) -> Record:
        return replace(record or Record(info.created), settled=Settled(((1, 10, 0),)))

    await rewrite(Ledger(stream.js, stream.name, CONSUMER), forged)
    (claim,) = await take(stream, "after")
    assert claim.count == 10
    assert await floor(stream) == 0


@pytest.mark.parametrize(
    ("forged", "kind", "says"),
    [
        ("$JS.ACK.{}.other.1.7.7.0.0", InvalidValue, r"reply='\$JS\.ACK\..*other.*was not delivered by the consumer"),
        ("$JS.ACK.hub.HASHHASH.{}.work.1.7.7.0.0", InvalidValue, r"hub.*was not delivered by the consumer"),
        ("$JS.ACK.{}.work.1.-7.7.0.0", NotJetStreamMessage, "no consumer delivered this message"),
        ("$JS.ACK.{}.work.1.99999999999999999999.7.0.0", NotJetStreamMessage, "no consumer delivered this message"),
        ("$JS.ACK.{}.work.1.7.7.0", NotJetStreamMessage, "no consumer delivered this message"),
    ],
)
async def test_what_the_consumer_did_not_deliver_ends_the_take_and_enters_nothing(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, forged: str, kind: type[Exception], says: str
) -> None:
    receive = Take._receive

    async def attacked(take: Take, window: Any, pull: Any) -> None:
        await forge(stream.js.connection, pull.inbox, forged.format(stream.name))
        await receive(take, window, pull)

    monkeypatch.setattr(Take, "_receive", attacked)
    await publish(stream, 10)
    work = Take(stream.js, taking(stream, consumer_config=LONG, min_messages=11))
    await work.prepare()
    with pytest.raises(kind, match=says):
        await work.take(60)
    await work.put_back()
    assert await Ledger(stream.js, stream.name, CONSUMER).read() == (None, 0)
    monkeypatch.setattr(Take, "_receive", receive)
    claims = await take(stream, "after", consumer_config=LONG, min_messages=10, wait=60)
    assert [sequence for claim in claims for sequence in claim.sequences] == list(range(1, 11))


async def test_messages_that_are_redelivered_in_any_order_are_claimed_once(stream: Stream) -> None:
    await publish(stream, 3_000)
    config = {**LONG, "max_ack_pending": 10_000}
    await Take(stream.js, taking(stream, consumer_config=config)).prepare()
    messages = await stream.consumer(CONSUMER).fetch(2_000, max_wait=SOON)
    random.Random(1).shuffle(messages)
    for message in messages:
        await message.nak()
    (claim,) = await take(stream, max_messages=10_000, min_messages=3_000, wait=60, consumer_config=config)
    assert claim.sequences.ranges == ((1, 3_000),)
    assert claim.bytes == 30_000
    assert claim.consumer_sequence == (await stream.consumer(CONSUMER).info()).counter == 5_000


async def test_a_look_waits_no_longer_than_it_is_told_to(stream: Stream) -> None:
    await publish(stream, 5)
    leased = {"ack_wait": timedelta(minutes=10)}  # so that the batch is not dropped before the wait ends
    look = Take(stream.js, taking(stream, min_messages=8, gather=timedelta(minutes=5), consumer_config=leased))
    await look.prepare()
    async with asyncio.timeout(60):
        assert await look.look(1) == []
    assert (await stream.consumer(CONSUMER).info()).counter == 5  # they were pulled


async def test_many_claims_are_leased_at_once(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leased one after the other, the last of a thousand claims would be redelivered before its turn."""
    await publish(stream, 40)
    leased: list[Sequences] = []
    negative = answers.negative

    async def spied(of: Ledger, sequences: Sequences, delay: timedelta | None = None) -> None:
        leased.append(sequences)
        await negative(of, sequences, delay)

    monkeypatch.setattr(answers, "negative", spied)
    claims = await take(stream, messages_per_claim=1, max_messages=40)
    again = await take(stream, messages_per_claim=1, max_messages=40)  # another try hands them on
    assert len(claims) == len(again) == 40
    assert leased == [Sequences.from_ranges([(1, 40)])] * 2
    await asyncio.sleep(1.1 * ACK_WAIT.total_seconds())
    assert await unacknowledged(stream) == 40
    assert not await take(stream, "other", max_messages=40, wait=0.1)
