"""Two pipelines that take from one consumer get only a part of its messages each, and are told so."""

from dataclasses import replace

import pytest

from airflow_nats_jetstream.words import OF_AIRFLOW
from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.history import Owner
from jetstream_handoff.ledger.reservation import owner_of_batch
from jetstream_handoff.ledger.sharing import shared
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.words import OF_HANDOFF, Words
from tests.jetstream_handoff.steps import CONSUMER, publish, take

STEPS, READER = Words(taker=2), "0123456789abcdef"


@pytest.mark.parametrize(
    ("words", "owners", "named"),
    [
        (OF_HANDOFF, [("a", "run", "take"), ("b", "run", "take")], ""),
        (OF_AIRFLOW, [], ""),
        (OF_AIRFLOW, [()], ""),
        (OF_AIRFLOW, [("a", "run 1", "take", 0), ("a", "run 2", "take", 1), ("a", "run 2", "other", -1)], ""),
        (OF_AIRFLOW, [("b", "run", "take"), ("a", "run", "take"), ("b", "run 2", "take")], "by 'a' and 'b':"),
        (OF_AIRFLOW, [(name, "run") for name in "edcba"], "by 'a', 'b', 'c' and 2 more:"),
        (OF_AIRFLOW, [("a",), ("x" * 9_000 + "\n",)], "by 'a' and 'xxx"),
        (STEPS, [("job", "run", "orders", -1), ("other job", "run 2", "orders", -1)], ""),
        (STEPS, [("job", "run", "orders", -1), ("job", "run", "copy", -1)], "by 'copy' and 'orders':"),
        (STEPS, [("dagster",)], ""),
        (STEPS, [owner_of_batch(READER, 5), owner_of_batch(READER, 6), ("job", "run", "orders", -1)], ""),
    ],
)
def test_who_shares_a_consumer_is_named(words: Words, owners: list[Owner], named: str) -> None:
    text = shared("S", "c", owners, words)
    assert text.startswith(f"consumer c of stream S is shared {named}" if named else text[:0])
    assert bool(text) == bool(named)
    assert len(text) < 1_000
    assert "\n" not in text


@pytest.fixture
def settings(settings: ConnectionSettings) -> ConnectionSettings:
    return replace(settings, words=OF_AIRFLOW)


async def test_the_second_pipeline_is_told(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        found = [each.getMessage() for each in caplog.records if " is shared by " in each.getMessage()]
        caplog.clear()
        return found

    await publish(stream, 5)
    (first,) = await take(stream, max_messages=2)
    (again,) = await take(stream, "next run", max_messages=1)
    assert told() == []
    for claim in (first, again):
        async with Hold.begin(stream.js, claim, try_number=1, holder=()) as held:
            await held.settle()
    (other,) = await take(stream, owner=("copy", "run", "sensor", -1, 1), max_messages=1)  # nothing of dag is open
    assert first.sequences.count + again.sequences.count + other.sequences.count == 4
    (text,) = told()
    assert text.startswith(f"consumer {CONSUMER} of stream {stream.name} is shared by 'copy' and 'dag': each message")
    assert [each.state for each in (await examine(stream.js.settings, Scope()))["Open claims"]] == ["fine"]
    await take(stream, "third run", max_messages=1)
    assert told() == [text]
    found, claims = (await examine(stream.js.settings, Scope()))["Open claims"]
    assert (found.state, found.text, claims.state) == ("advice", text, "fine")
