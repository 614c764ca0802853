"""The events of the hand-off. tests/airflow_nats_jetstream/test_monitoring.py tests them as metrics."""

import asyncio
from datetime import timedelta

import pytest

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff import events
from jetstream_handoff.events import Event
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.keep import keep
from jetstream_handoff.hold.reprocess import Reprocess
from jetstream_handoff.take.take import Take
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking, unacknowledged

LEASE = {"ack_wait": timedelta(seconds=30)}
SHORT = {"ack_wait": timedelta(seconds=2)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> list[tuple[str, int, str]]:
    """The events of the test's stream: name, messages and claim."""
    heard: list[tuple[str, int, str]] = []

    def listener(event: Event) -> None:
        assert (event.stream, event.consumer) == (stream.name, CONSUMER)
        heard.append((event.name, event.messages, event.claim))

    monkeypatch.setattr(events, "_listeners", [])
    events.listen(listener)
    events.listen(listener)
    return heard


async def test_a_claim_that_is_let_go_kept_and_given_back(stream: Stream, told: list[tuple[str, int, str]]) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream, consumer_config=LEASE))
    await work.prepare()
    (first,) = await work.take(20)
    await work.put_back()  # nobody took it over
    (claim,) = await take(stream, "again", consumer_config=LEASE)
    async with Hold.begin(stream.js, claim, try_number=1):
        pass
    assert await keep(stream.js, claim, 0.2) is None
    assert told == [
        ("taken", 10, first.id),
        ("given_back", 10, ""),
        ("taken", 10, claim.id),
        ("held", 10, claim.id),
        ("released", 10, claim.id),
        ("kept", 10, claim.id),
        ("released", 10, claim.id),
    ]


async def test_a_settlement_whose_acknowledgements_got_lost(
    stream: Stream, told: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config=SHORT)

    async def lost(*_: object, **__: object) -> Sequences:
        return claim.sequences

    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        with monkeypatch.context() as patch:
            patch.setattr(answers, "acknowledge", lost)
            await hold.settle()
    assert await unacknowledged(stream) == 10
    await take(stream, "next", wait=8, consumer_config=SHORT)
    assert await unacknowledged(stream) == 0
    async with Reprocess.begin(stream.js, claim, try_number=2) as again:
        await again.settle()
    assert [each for each in told if each[0] != "dropped"] == [  # which sometimes happens on a busy machine
        ("taken", 10, claim.id),
        ("held", 10, claim.id),
        ("done", 10, claim.id),
        ("unconfirmed", 10, claim.id),
        ("repeated", 10, ""),
        ("reprocessed", 10, claim.id),
    ]


async def test_a_batch_that_is_too_old(stream: Stream, told: list[tuple[str, int, str]]) -> None:
    await publish(stream, 10)
    work = Take(stream.js, taking(stream, consumer_config=LEASE))
    await work.prepare()
    clock = asyncio.get_running_loop().time
    await work._gather(clock() + 20)
    work._clock = lambda: clock() + 23
    assert await work._enter() == []
    assert told == [("dropped", 10, "")]


async def test_a_listener_that_fails_costs_nothing(
    stream: Stream, told: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: Event) -> None:
        raise OSError("no metrics")

    events.listen(fails)
    await publish(stream, 10)
    (claim,) = await take(stream, consumer_config=LEASE)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert await unacknowledged(stream) == 0
    assert [name for name, *_ in told] == ["taken", "held", "done"]
    assert caplog.text.count("a listener failed") == 3
