"""Mistyped names: nothing is read silently, and nothing is created when the consumer must exist."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ConsumerNotFound, InvalidValue, StreamNotFound
from jetstream_client.stream import Stream
from jetstream_handoff.errors import LedgerUnavailable
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking


async def consumers(stream: Stream) -> list[str]:
    return [name async for name in stream.consumer_names()]


async def test_the_committed_claims_of_a_mistyped_consumer_are_an_error(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    with pytest.raises(ConsumerNotFound, match=f"'wrok' of stream '{stream.name}'.*Did you mean '{CONSUMER}'"):
        await Ledger(stream.js, stream.name, "wrok").committed()


async def test_the_committed_claims_of_a_mistyped_stream_are_an_error(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    with pytest.raises(StreamNotFound, match=f"'{stream.name}X'.*Did you mean '{stream.name}'"):
        await Ledger(stream.js, f"{stream.name}X", CONSUMER).committed()


async def test_the_committed_claims_in_a_ledger_that_does_not_exist_are_an_error(
    stream: Stream, settings: ConnectionSettings
) -> None:
    await publish(stream, 10)
    await take(stream)
    async with connect(replace(settings, ledger="another")) as js:
        with pytest.raises(LedgerUnavailable, match=r"'another_claims' does not exist.*compare"):
            await Ledger(js, stream.name, CONSUMER).committed()


async def test_a_consumer_without_settled_claims_has_no_committed_ones(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    assert await Ledger(stream.js, stream.name, CONSUMER).committed() == []


@pytest.mark.parametrize("gone", [Stream.delete, lambda stream: stream.delete_consumer(CONSUMER)])
async def test_the_claims_of_a_deleted_consumer_stay_committed(js: JetStream, gone: Callable[[Stream], Any]) -> None:
    stream = await js.create_stream({"name": "GONE", "subjects": ["GONE.>"], "allow_direct": True})
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(js, claim, try_number=1) as hold:
        await hold.settle("kept")
    try:
        await gone(stream)
        (receipt,) = await Ledger(js, "GONE", CONSUMER).committed()
        assert (receipt.claim_id, receipt.value) == (claim.id, "kept")
    finally:
        await js.create_or_update_stream({"name": "GONE"})
        await stream.delete()


async def test_a_take_that_creates_a_consumer_says_where_it_begins(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 10)
    with caplog.at_level(logging.INFO):
        late = {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}
        await take(stream, consumer="wrok", consumer_config=late)
    (said,) = [each for each in caplog.records if "created consumer" in each.message]
    expected = f"created consumer wrok of stream {stream.name}, because it did not exist: it begins at sequence 4 "
    assert said.message.startswith(f"{expected}(deliver_policy by_start_sequence), and 7 messages wait for it")
    assert said.levelno == logging.WARNING
    caplog.clear()
    await take(stream, consumer="wrok", consumer_config=late, wait=0.1)
    assert not [each for each in caplog.records if "created consumer" in each.message]


async def test_a_consumer_that_must_exist_is_not_created(stream: Stream) -> None:
    await publish(stream, 10)
    await stream.create_consumer({"durable_name": CONSUMER})
    work = Take(stream.js, taking(stream, consumer="wrok", create_consumer=False))
    with pytest.raises(ConsumerNotFound, match=f"'wrok'.*create_consumer=True.*Did you mean '{CONSUMER}'"):
        await work.prepare()
    assert await consumers(stream) == [CONSUMER]
    assert not [name async for name in stream.js.stream_names() if stream.js.settings.ledger in name]


async def test_a_consumer_that_must_exist_and_does_is_used(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream, max_messages=3)
    (claim,) = await take(stream, run="another", max_messages=3, create_consumer=False)
    assert claim.sequences.first == 4


def test_an_older_release_gets_the_parameter_only_if_it_is_used() -> None:
    made = Taking(stream="S", consumer="c", owner=("dag",), max_messages=1)
    assert "create_consumer" not in made.to_json()
    strict = replace(made, create_consumer=False)
    assert Taking.from_json(strict.to_json()) == strict
    with pytest.raises(InvalidValue, match="create_consumer"):
        replace(made, create_consumer="False")  # type: ignore[arg-type]
