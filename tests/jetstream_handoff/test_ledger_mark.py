"""A consumer belongs to one ledger: its messages are never settled in two."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import LedgerUnavailable, WrongLedger
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.selection import Selection
from jetstream_handoff.repair import deletion, transfer
from jetstream_handoff.repair.release import release
from jetstream_handoff.repair.reset import reset
from jetstream_handoff.rules import ledger_mark
from jetstream_handoff.take.take import Take
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.overview import Survey
from tests.jetstream_handoff.access import Access
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking, unacknowledged
from tests.jetstream_handoff.test_commands import run


@pytest.fixture
async def other(settings: ConnectionSettings) -> AsyncIterator[JetStream]:
    """A context whose ledger has another name."""
    async with connect(replace(settings, ledger=f"{settings.ledger}_other")) as js:
        yield js


async def metadata(stream: Stream) -> dict[str, str]:
    """The metadata of the consumer that the server did not write."""
    found = (await stream.consumer(CONSUMER).info()).config.get("metadata") or {}
    return {name: value for name, value in found.items() if not name.startswith("_nats.")}


async def remark(stream: Stream, ledger: str) -> None:
    await stream.consumer(CONSUMER).update({"metadata": {ledger_mark.KEY: ledger}})


async def unmark(stream: Stream) -> None:
    """Write the configuration without the mark, as a tool does that knows only its own fields."""
    await stream.consumer(CONSUMER).update({"metadata": {"by": "terraform"}}, remove=["metadata"])


async def opened(js: JetStream, stream: Stream) -> int:
    record = await Ledger(js, stream.name, CONSUMER).known()
    return len(record.open) if record else 0


async def settled(js: JetStream, claim: Claim) -> None:
    async with Hold.begin(js, claim, try_number=1) as hold:
        await hold.settle()


async def test_another_ledger_is_refused_before_anything_is_pulled(stream: Stream, other: JetStream) -> None:
    await publish(stream, 10)
    await take(stream, max_messages=4)
    names = f"consumer '{CONSUMER}' of stream '{stream.name}' belongs to ledger '{stream.js.settings.ledger}'"
    with pytest.raises(WrongLedger, match=f"{names}.*this connection has ledger '{other.settings.ledger}'"):
        await take(other.stream(stream.name), max_messages=4)
    assert await unacknowledged(stream) == 4
    assert not [name async for name in stream.js.stream_names() if other.settings.ledger in name]


async def test_messages_that_are_redelivered_are_not_settled_in_a_second_ledger(
    stream: Stream, other: JetStream
) -> None:
    """The first ledger still knows the claim as open, so its task settles it, too."""
    await publish(stream, 5)
    (claim,) = await take(stream, hand_off_timeout=timedelta(seconds=1))
    done = []
    with suppress(WrongLedger):
        (again,) = await take(other.stream(stream.name), wait=5)
        await settled(other, again)
        done.append(again)
    await settled(stream.js, claim)
    assert done == []


async def test_the_first_take_marks_an_existing_consumer_and_keeps_everything_else(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    config = {"durable_name": CONSUMER, "max_ack_pending": 5_000, "ack_wait": 10**9, "metadata": {"team": "ingest"}}
    await stream.create_consumer(config)
    before = (await stream.consumer(CONSUMER).info()).config
    await take(stream)
    after = (await stream.consumer(CONSUMER).info()).config
    assert after.pop("metadata").items() >= {ledger_mark.KEY: stream.js.settings.ledger, "team": "ingest"}.items()
    del before["metadata"]
    assert after == before
    with pytest.raises(WrongLedger):
        await take(other.stream(stream.name))


async def test_fields_of_the_author_are_created_together_with_the_mark(stream: Stream) -> None:
    await take(stream, wait=0.1, consumer_config={"metadata": {"team": "ingest"}})
    assert await metadata(stream) == {ledger_mark.KEY: stream.js.settings.ledger, "team": "ingest"}


@pytest.mark.parametrize("exists", [True, False], ids=["unmarked", "missing"])
async def test_of_two_first_takes_one_ledger_wins(stream: Stream, other: JetStream, exists: bool) -> None:
    """Many takes of two ledgers begin together, and settle what they get: no message is settled in both."""
    both = (stream.js, other)
    for _ in range(10):
        await publish(stream, 20)
        if exists:
            await stream.create_consumer({"durable_name": CONSUMER, "ack_wait": 10**9, "max_ack_pending": -1})

        async def work(js: JetStream, run: int) -> None:
            await asyncio.sleep(random.uniform(0, 0.02))
            for claim in await take(js.stream(stream.name), f"run {run}", max_messages=5, wait=1):
                await settled(js, claim)

        ended = await asyncio.gather(*(work(js, run) for run, js in enumerate(both * 3)), return_exceptions=True)
        assert {type(each) for each in ended} <= {type(None), WrongLedger}
        assert any(each is None for each in ended)
        done: Counter[int] = Counter()
        for js in both:
            with suppress(LedgerUnavailable, WrongLedger):  # one of them may have settled nothing
                for receipt in await Ledger(js, stream.name, CONSUMER).committed():
                    done.update(receipt.sequences)
        assert max(done.values(), default=0) <= 1
        winner = (await metadata(stream))[ledger_mark.KEY]
        assert winner in {js.settings.ledger for js in both}
        await stream.delete_consumer(CONSUMER)
        for js in both:
            for bucket in Ledger(js, stream.name, CONSUMER).buckets.names:
                with suppress(StreamNotFound):
                    await js.stream(f"KV_{bucket}").purge()
        await stream.purge()


async def test_a_take_that_was_overtaken_enters_nothing_and_returns_its_messages(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream))
    await work.prepare()
    await remark(stream, other.settings.ledger)
    with pytest.raises(WrongLedger):
        await work.take(5)
    await work.put_back()
    (claim,) = await take(other.stream(stream.name))
    assert claim.count == 10
    assert await opened(stream.js, stream) == 0


async def test_a_mark_that_changes_while_messages_are_gathered_is_noticed_before_they_are_entered(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream))
    await work.prepare()
    enter = work._enter

    async def overtaken() -> list[Claim]:
        await remark(stream, other.settings.ledger)
        return await enter()

    work._enter = overtaken  # type: ignore[method-assign]
    with pytest.raises(WrongLedger):
        await work.take(5)
    assert await opened(stream.js, stream) == 0


async def test_a_claim_of_another_ledger_is_neither_held_nor_settled_nor_released(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    first, second = await take(stream, messages_per_claim=5)
    async with Hold.begin(stream.js, first, try_number=1) as hold:
        await remark(stream, other.settings.ledger)
        with pytest.raises(WrongLedger):
            await hold.settle()
    with pytest.raises(WrongLedger):
        async with Hold.begin(stream.js, second, try_number=1):
            pass
    for act in (
        reset(Ledger(stream.js, stream.name, CONSUMER)),
        deletion.delete(stream.js, stream.name, CONSUMER),
        deletion.delete(stream.js, stream.name),
    ):
        with pytest.raises(WrongLedger):
            await act
    seen = await inspection.find(stream.js, second.id)
    assert seen
    with pytest.raises(WrongLedger):
        await release(stream.js, seen)
    assert await unacknowledged(stream) == 10
    await remark(stream, stream.js.settings.ledger)
    await settled(stream.js, second)


async def test_a_dead_letter_of_a_claim_in_another_ledger_is_kept(stream: Stream, other: JetStream) -> None:
    """Its attempt may be about to settle, relying on this dead letter."""
    await publish(stream, 10)
    first, second = await take(stream, messages_per_claim=5)
    await settled(stream.js, first)  # so that this ledger knows the consumer
    async with Hold.begin(stream.js, second, try_number=1) as hold:
        await hold.reject(Sequences.of([7]), "no date")
        await DeadLetters(stream.js, stream.name).copy(Holder(hold._ledger, second, hold.token), hold._rejected)
        await hold.release()
    await remark(stream, other.settings.ledger)
    everything = Selection(everything=True, unconfirmed=True)
    outcome = await discard(DeadLetters(stream.js, stream.name), everything)
    assert (outcome.count, "belongs to ledger" in outcome.refused[1]) == (0, True)


async def test_a_tool_that_drops_the_mark_stops_no_work_and_the_next_take_marks_again(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, max_messages=5)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await unmark(stream)
        await hold.settle()
    await take(stream, max_messages=5)
    assert await metadata(stream) == {ledger_mark.KEY: stream.js.settings.ledger, "by": "terraform"}
    with pytest.raises(WrongLedger):
        await take(other.stream(stream.name))


async def test_a_user_who_may_not_mark_takes_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = Access(tmp_path)
    access.server.start()
    try:
        async with connect(access.settings("admin")) as js:
            stream = await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
            config = {"durable_name": "delays", "ack_wait": 60 * 10**9, "max_ack_pending": -1}
            await js.create_consumer("FLIGHTS", config)
            await Ledger(js, "FLIGHTS", "delays").create()
            await js.publish("flights.a", b"1")
        of: dict[str, Any] = {"consumer": "delays", "consumer_config": None}
        async with connect(access.settings("sensor")) as js:
            with caplog.at_level(logging.WARNING):
                (claim,) = await take(js.stream("FLIGHTS"), **of)
        (said,) = [each.message for each in caplog.records if "is not marked" in each.message]
        assert "$JS.API.CONSUMER.CREATE.FLIGHTS.delays" in said
        assert "`python -m jetstream_handoff ledger FLIGHTS delays --yes`" in said
        async with connect(access.settings("processor")) as js:
            await settled(js, claim)
        async with connect(replace(access.settings("setup"), ledger="jetstream")) as js:
            assert (await transfer.transfer(js, "FLIGHTS", "delays")).before == ""
        async with connect(access.settings("sensor")) as js:
            with pytest.raises(WrongLedger, match=r"'jetstream'.*'airflow'"):
                await take(js.stream("FLIGHTS"), **of)
        assert stream
    finally:
        access.server.stop()


async def test_committed_of_another_ledger_is_an_error_and_not_an_empty_list(
    stream: Stream, other: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    await Ledger(other, stream.name, CONSUMER).create()
    with pytest.raises(WrongLedger, match="belongs to ledger"):
        await Ledger(other, stream.name, CONSUMER).committed()
    await settled(stream.js, claim)
    await remark(stream, other.settings.ledger)
    assert len(await Ledger(stream.js, stream.name, CONSUMER).committed()) == 1  # what was settled before still counts
    assert "belongs to ledger" in caplog.text


async def test_a_consumer_is_given_to_another_ledger_when_nothing_is_unacknowledged(
    stream: Stream, other: JetStream
) -> None:
    await publish(stream, 10)
    ours, theirs = stream.js.settings.ledger, other.settings.ledger
    (claim,) = await take(stream, max_messages=5)
    there = other.stream(stream.name)
    said = await run(there, "ledger", stream.name, CONSUMER, "--yes")
    assert said.code == 4
    assert f"1 claim is open in ledger {ours!r}, and 5 messages are unacknowledged" in said.out
    await settled(stream.js, claim)
    said = await run(there, "ledger", stream.name, CONSUMER)
    assert (said.code, f"To give it to ledger {theirs!r}, add --yes" in said.out) == (4, True)
    assert (await metadata(stream))[ledger_mark.KEY] == ours
    said = await run(there, "ledger", stream.name, CONSUMER, "--yes")
    assert (said.code, f"now belongs to ledger {theirs!r}" in said.out) == (0, True)
    (claim,) = await take(there, max_messages=5)
    assert claim.sequences.first == 6
    with pytest.raises(WrongLedger):
        await take(stream, max_messages=5)


async def test_lists_name_the_ledger_that_a_consumer_belongs_to(stream: Stream, other: JetStream) -> None:
    await publish(stream, 10)
    await take(stream)
    await Ledger(other, stream.name, CONSUMER).create()
    said = await run(other.stream(stream.name), "claims", "--stream", stream.name, "--consumer", CONSUMER)
    assert said.err.startswith("WrongLedger: ")
    said = await run(other.stream(stream.name), "doctor", "--stream", stream.name, "--consumer", CONSUMER)
    assert f"belongs to ledger '{stream.js.settings.ledger}'" in said.out
    await remark(stream, other.settings.ledger)
    (view,) = (await Survey(stream.js).look()).streams
    (finding,) = [each for each in view.consumers[0].findings if each.kind == "ledger"]
    assert "belongs to ledger" in finding.text


async def test_a_consumer_that_does_not_exist_has_no_ledger_to_change(stream: Stream) -> None:
    with pytest.raises(ConsumerNotFound):
        await transfer.transfer(stream.js, stream.name, "missing")
