"""A reader whose consumer is edited, paused or deleted, between two runs and while a run has a batch in process and one
taken ahead, on a real server. Either the reader goes on and loses nothing, or it fails with an error that names the
field, its value and the remedy, and acknowledges only what is committed; when the edit is undone, it goes on."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from jetstream_client.errors import ApiError, JetStreamError
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import CheckpointRefused, ConsumerUnsuitable
from jetstream_handoff.take import reader
from jetstream_handoff.take.position import Position, new_reader_id
from jetstream_handoff.take.reader import ConsumerReader
from tests.jetstream_handoff.steps import CONSUMER, edited_by_another, publish, unacknowledged
from tests.jetstream_handoff.test_reader import Query, all_acknowledged, consumer, settled, until

SECOND = 10**9


@pytest.fixture
async def query(stream: Stream) -> Query:
    await consumer(stream)
    await publish(stream, 35)
    return Query(stream)


class Editing:
    """Edits the consumer while the first batch is processed and the second one is taken ahead."""

    def __init__(self, query: Query, changes: dict[str, Any]) -> None:
        self.handle = query.stream.consumer(CONSUMER)
        self.changes = changes
        self.before: dict[str, Any] = {}
        self._stream = query.stream
        query.during = self

    async def __call__(self, batch: int) -> None:
        if batch == 1 and not self.before:
            await until(partial(unacknowledged, self._stream), 20)
            self.before = (await self.handle.info()).config
            await self.handle.update(self.changes)

    async def undo(self) -> None:
        """Set back what was changed; the server has changed ``ack_wait`` with ``backoff``."""
        kept = {name: self.before[name] for name in (*self.changes, "ack_wait") if name in self.before}
        await edited_by_another(self.handle, kept, remove=self.changes.keys() - kept.keys())


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_wait": 60 * SECOND},
        {"max_ack_pending": 12},
        {"headers_only": True},
        {"sample_freq": "100%"},
        {"description": "edited"},
        {"metadata": {"owner": "sales"}},
        {"max_expires": SECOND},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_harmless_edit_changes_nothing(stream: Stream, query: Query, changes: dict[str, Any]) -> None:
    Editing(query, changes)
    await query.run()
    await publish(stream, 5)
    await query.run()
    assert query.sequences == await settled(stream) == [*range(1, 41)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"ack_wait": SECOND // 10}, "shorter than a failover may take; set at least"),
        ({"max_ack_pending": 3}, "a batch of max_messages=10 would never be complete; set it to"),
        ({"max_batch": 2}, "the server would refuse pull requests with max_messages=10; set 10 or more"),
        ({"max_deliver": 1}, "it must be -1"),
        ({"backoff": [SECOND // 2, SECOND]}, "it must be absent"),
        ({"inactive_threshold": 600 * SECOND}, "it must be absent"),
        ({"priority_groups": ["a"], "priority_policy": "overflow"}, "pull requests must name one of these groups"),
    ],
    ids=lambda changes: next(iter(changes)) if isinstance(changes, dict) else "",
)
async def test_an_edit_that_breaks_a_rule_is_an_error_until_it_is_undone(
    stream: Stream, query: Query, changes: dict[str, Any], remedy: str
) -> None:
    """Three runs: while the consumer is edited, after that, and when it is put right."""
    editing = Editing(query, changes)
    field, value = next(iter(changes.items()))
    for _ in range(2):
        with pytest.raises(ConsumerUnsuitable, match=rf"because of {field}={value!r}: ".replace("[", r"\[")) as error:
            await query.run()
        assert remedy in str(error.value)
        assert "use `nats consumer edit`" in str(error.value)
        # The batch that was taken before the edit is processed, and nothing else is acknowledged.
        assert query.sequences == await settled(stream) == [*range(1, 21)]
        assert await unacknowledged(stream) == 0
    await editing.undo()
    await query.run()
    assert query.sequences == await settled(stream) == [*range(1, 36)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize("field", ["filter_subject", "filter_subjects"])
async def test_a_narrower_filter_counts_from_the_next_take_on(stream: Stream, query: Query, field: str) -> None:
    """What was delivered before is processed, whether it matches or not. The server skips what does not match, and does
    not deliver it when the filter is removed; nats-server 2.15.1 then counts no message as pending any more."""
    subject = f"{stream.name}.0"  # of the sequences 1, 4, 7 …
    editing = Editing(query, {field: subject if field == "filter_subject" else [subject]})
    await query.run()
    matching = [each for each in range(21, 36) if each % 3 == 1]
    assert query.sequences == [*range(1, 21), *matching]
    await editing.undo()
    await publish(stream, 5)
    await query.run()
    assert query.sequences == await settled(stream) == [*range(1, 21), *matching, *range(36, 41)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_policy": "all"},
        {"ack_policy": "none"},
        {"deliver_policy": "new"},
        {"replay_policy": "original"},
        {"mem_storage": True},
        {"deliver_subject": "pushed"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_the_server_refuses_to_change_what_would_lose_messages(
    stream: Stream, query: Query, changes: dict[str, Any]
) -> None:
    """If a later server allowed such an edit, a rule for it would be needed."""
    with pytest.raises(ApiError):
        await stream.consumer(CONSUMER).update(changes)


async def test_a_pause_is_told_and_loses_nothing(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that ends with the present ends with an error; a run that goes on logs the reason, and does not pull again
    and again."""
    monkeypatch.setattr(reader, "_LONGER", 0.0)
    await query.run(most=100)
    await publish(stream, 5)
    handle = stream.consumer(CONSUMER)
    await handle.pause(datetime.now(UTC) + timedelta(hours=1))
    told = (
        rf"consumer 'work' delivers nothing: the consumer is paused until .*; `nats consumer resume {stream.name} work`"
    )
    with pytest.raises(JetStreamError, match=told):
        await query.run()
    caplog.clear()
    monkeypatch.setattr(reader, "_LONGER", 3.0)
    goes_on = ConsumerReader(stream.js, stream.name, CONSUMER, 10)
    start = query.position(query.offsets[-1])
    looks: list[Position] = []
    take = goes_on._take

    async def counted(position: Position) -> Claim | None:
        looks.append(position)
        return await take(position)

    monkeypatch.setattr(goes_on, "_take", counted)
    asked = 0
    while "consumer work delivers nothing: the consumer is paused until" not in caplog.text:
        assert await goes_on.next(start) == start
        asked += 1
    assert len(looks) < asked
    await goes_on.release()
    await handle.resume()
    await query.run()
    assert query.sequences == [*range(1, 41)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize("kind", ["consumer", "stream"])
async def test_what_is_deleted_while_a_run_goes_on_is_not_created_again(
    stream: Stream, query: Query, kind: str
) -> None:
    async def delete(batch: int) -> None:
        await (stream.js.delete_consumer(stream.name, CONSUMER) if kind == "consumer" else stream.delete())

    query.during = delete
    with pytest.raises(CheckpointRefused, match=f"the server says '{kind} not found'. Start a query with a new"):
        await query.run()
    if kind == "stream":
        await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
    with pytest.raises(CheckpointRefused, match=r"not found|the stream was recreated"):
        await query.run()
    assert not [each async for each in stream.consumer_names()]


async def test_a_new_query_says_that_its_stream_does_not_exist(stream: Stream) -> None:
    missing = ConsumerReader(stream.js, "MISSING", CONSUMER, 10)
    with pytest.raises(JetStreamError, match="stream not found"):
        await missing.next(Position("MISSING", CONSUMER, new_reader_id()))
