"""A reader with its own checkpoint, on a real server: what it reads is exact whenever it is killed, nobody else
takes from its consumer, and a checkpoint with which messages would be missing is refused."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import CheckpointRefused, ConsumerReserved, HeldByAnother
from jetstream_handoff.hold import answers, settle
from jetstream_handoff.ledger.first_read import mark_read
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.reservation import Reservation
from jetstream_handoff.take.position import Position, new_reader_id
from jetstream_handoff.take.reader import ConsumerReader
from tests.jetstream_handoff.steps import CONSUMER, publish, publish_and_wait, reset_by_a_stranger, take

KILLED = ("after the take", "after the offset log", "in read", "after the sink", "after the commit log")


class Killed(Exception):
    pass


@dataclass
class Query:
    """A streaming query as Spark runs it, in small: a checkpoint, a sink that ignores a batch that it has, and runs.
    A run that is killed closes its connection, and ends nothing else."""

    stream: Stream
    replaces: str = ""
    skips: int = 0  # the first batch of those that its sink has already from another query; 0 if there is none
    offsets: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0
    output: dict[int, list[int]] = field(default_factory=dict)
    read: dict[int, list[int]] = field(default_factory=dict)
    killed: list[ConsumerReader] = field(default_factory=list)  # a killed process cleans up nothing
    during: Callable[[int], Awaitable[None]] | None = None  # called with each batch while it is processed

    @property
    def reader(self) -> str:
        return str(self.offsets[-1]["reader"])

    @property
    def sequences(self) -> list[int]:
        return sorted(each for batch in self.output.values() for each in batch)

    def copied(self) -> "Query":
        """A copy of its checkpoint and its output."""
        return replace(self, offsets=[*self.offsets], output={**self.output}, read={**self.read})

    def position(self, value: dict[str, Any]) -> Position:
        return Position.from_json(value, self.stream.name, CONSUMER)

    async def run(self, most: int = 10, kill: str = "") -> None:
        """Process all messages that are available now; or die after the first ``kill``."""
        alive = asyncio.all_tasks()
        try:
            async with connect(self.stream.js.settings) as js:
                reader = ConsumerReader(js, self.stream.name, CONSUMER, most, self.replaces)
                initial = Position(self.stream.name, CONSUMER, new_reader_id()).to_json()
                try:
                    await self._run(reader, initial, kill)
                except Killed:
                    self.killed.append(reader)
                    raise
                except BaseException:
                    await reader.release()
                    raise
        except Killed:  # what it was doing ends without a connection
            left = asyncio.all_tasks() - alive
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    async def _run(self, reader: ConsumerReader, initial: dict[str, Any], kill: str) -> None:
        def may_die(point: str) -> None:
            if point == kill:
                raise Killed

        logs = [initial, *self.offsets]
        if self.commits < len(self.offsets):
            start, end = map(self.position, logs[-2:])
            await self._process(reader, start, end, may_die)
        await reader.end_with_the_present()
        while True:
            start = self.position([initial, *self.offsets][-1])
            if (end := await reader.next(start)) == start:
                return
            may_die("after the take")
            self.offsets.append(json.loads(json.dumps(end.to_json())))
            may_die("after the offset log")
            await self._process(reader, start, self.position(self.offsets[-1]), may_die)

    async def _process(
        self, reader: ConsumerReader, start: Position, end: Position, may_die: Callable[[str], None]
    ) -> None:
        if end.batch in self.output or 0 < self.skips <= end.batch:
            self.commits = end.batch  # Spark does not even plan a batch that its sink skips
            return
        await reader.logged(start, end)
        read = list(end.wanted)
        assert self.read.setdefault(end.batch, read) == read  # a repeated batch has the same messages
        if end.batch == 1 and end.claim:
            await asyncio.to_thread(mark_read, self.stream.js.settings, end.claim)
        may_die("in read")
        if self.during:
            await self.during(end.batch)
        self.output.setdefault(end.batch, read)
        may_die("after the sink")
        self.commits = end.batch
        may_die("after the commit log")


@pytest.fixture
async def query(stream: Stream) -> Query:
    await consumer(stream)
    return Query(stream)


async def consumer(stream: Stream) -> None:
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": timedelta(seconds=2), "max_deliver": -1}
    await stream.create_consumer({**config, "max_ack_pending": 1_000})


async def all_acknowledged(stream: Stream) -> bool:
    info = await stream.consumer(CONSUMER).info()
    return (info.pending, info.ack_pending) == (0, 0)


async def until(function: Callable[[], Awaitable[Any]], result: Any) -> None:
    """Wait until a function returns this result."""
    async with asyncio.timeout(60):
        while await function() != result:  # noqa: ASYNC110 - it is a server that changes
            await asyncio.sleep(0.05)


async def unacknowledged(stream: Stream) -> int:
    return (await stream.consumer(CONSUMER).info()).ack_pending


async def settled(stream: Stream) -> list[int]:
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    return sorted(each for receipt in receipts for each in receipt.sequences)


async def test_each_batch_is_a_claim_of_its_own_and_is_settled_when_the_next_is_taken(
    stream: Stream, query: Query
) -> None:
    await publish(stream, 15)
    await query.run()
    assert query.output == {1: [*range(1, 11)], 2: [*range(11, 16)]}
    assert await settled(stream) == [*range(1, 16)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize("kill", KILLED)
async def test_a_killed_run_is_continued_with_the_exact_messages(stream: Stream, query: Query, kill: str) -> None:
    """While the first batch is processed, the second one is taken."""
    await publish(stream, 22)
    await query.run(kill=kill)
    acknowledged = (await stream.consumer(CONSUMER).info()).acknowledged
    assert not acknowledged  # nothing, before the checkpoint is asked
    await query.run()
    assert query.sequences == [*range(1, 23)]
    assert await settled(stream) == [*range(1, 23)]
    assert await all_acknowledged(stream)


async def test_a_run_that_is_killed_between_decision_and_acknowledgements(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: Any) -> Sequences:
        raise Killed

    await publish(stream, 12)
    with monkeypatch.context() as patch:
        patch.setattr(settle, "_acknowledge", killed)
        await query.run()
    assert (query.commits, await settled(stream)) == (2, [*range(1, 11)])
    await query.run()
    assert query.sequences == [*range(1, 13)]
    assert await all_acknowledged(stream)


async def test_messages_are_acknowledged_while_the_next_batch_is_processed_but_before_the_query_ends(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge, may_go = settle._acknowledge, asyncio.Event()

    async def later(*arguments: Any) -> Sequences:
        await may_go.wait()
        return await acknowledge(*arguments)

    monkeypatch.setattr(settle, "_acknowledge", later)
    await publish(stream, 12)
    reader = ConsumerReader(stream.js, stream.name, CONSUMER, 10)
    await reader.end_with_the_present()
    position = Position(stream.name, CONSUMER, new_reader_id())
    for batch in (1, 2):
        start, position = position, await reader.next(position)
        await reader.logged(start, position)
        await asyncio.to_thread(mark_read, stream.js.settings, position.claim)  # type: ignore[arg-type]
        assert (await stream.consumer(CONSUMER).info()).ack_pending == {1: 10, 2: 12}[batch]
    await until(lambda: settled(stream), [*range(1, 11)])  # in the ledger, the first batch is done
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 12
    may_go.set()
    assert await reader.next(position) == position
    assert await all_acknowledged(stream)


async def test_a_full_batch_is_taken_while_the_one_before_is_processed(stream: Stream, query: Query) -> None:
    """A batch that is not full is taken when it is needed. What was taken ahead and is not processed is released."""
    reader = ConsumerReader(stream.js, stream.name, CONSUMER, 10)
    position = Position(stream.name, CONSUMER, new_reader_id())
    await publish_and_wait(stream, 25)
    for batch, count, leased in ((1, 10, 20), (2, 10, 10), (3, 5, 5)):
        start, position = position, await reader.next(position)
        await reader.logged(start, position)
        await asyncio.to_thread(mark_read, stream.js.settings, position.claim)  # type: ignore[arg-type]
        assert (position.batch, position.wanted.count) == (batch, count)
        await until(partial(unacknowledged, stream), leased)  # the batch before is settled meanwhile
    await publish_and_wait(stream, 20)
    start, position = position, await reader.next(position)
    await reader.logged(start, position)
    ledger = Ledger(stream.js, stream.name, CONSUMER)

    async def held() -> int:
        record, _ = await ledger.read()
        return len([entry for entry in record.open.values() if entry.token]) if record else 0

    await until(held, 2)
    await reader.release()
    assert await held() == 0
    assert await settled(stream) == [*range(1, 26)]


async def test_an_idle_reader_asks_for_information_only(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks many times a second."""
    reader = ConsumerReader(stream.js, stream.name, CONSUMER, 10)
    start = Position(stream.name, CONSUMER, new_reader_id())
    assert await reader.next(start) == start

    async def refused(*_: Any) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "read", refused)
        assert await reader.next(start) == start
    await publish(stream, 5)
    end = await reader.next(start)
    await reader.logged(start, end)
    await asyncio.to_thread(mark_read, stream.js.settings, end.claim)  # type: ignore[arg-type]
    assert await reader.next(end) == end
    await reader.release()
    monkeypatch.setattr(Ledger, "read", refused)
    assert await reader.next(end) == end


async def test_nobody_else_takes_from_its_consumer(stream: Stream, query: Query) -> None:
    await publish(stream, 5)
    await query.run()
    await publish(stream, 5)
    with pytest.raises(ConsumerReserved, match=f"reserved for reader {query.reader} .* use another consumer"):
        await take(stream, consumer_config=None)
    with pytest.raises(ConsumerReserved, match=query.reader):
        await Query(stream).run()
    await query.run()
    assert query.sequences == [*range(1, 11)]


async def test_a_lost_checkpoint_is_replaced_on_demand(stream: Stream, query: Query) -> None:
    await publish(stream, 5)
    await query.run(kill="after the commit log")
    new = Query(stream, replaces=query.reader)
    await new.run()
    assert new.sequences == [*range(1, 6)]  # again: what the lost checkpoint had committed was not acknowledged
    with pytest.raises(ConsumerReserved, match=new.reader):
        await query.run()
    assert await all_acknowledged(stream)


async def test_an_older_copy_of_a_checkpoint_is_refused(stream: Stream, query: Query) -> None:
    """On a stream with limits, it would go on behind the batches that it does not have."""
    await publish(stream, 5)
    await query.run()
    older = query.copied()
    await publish(stream, 5)
    await query.run()
    await publish(stream, 5)
    with pytest.raises(CheckpointRefused, match=r"committed 1 batches, and .* 2 were committed: it is an older copy"):
        await older.run()
    older.commits = 0  # as if its batch had to be repeated
    with pytest.raises(CheckpointRefused, match="it is an older copy"):
        await older.run()
    await query.run()
    assert query.sequences == [*range(1, 16)]


@pytest.mark.parametrize("batch", [1, 2])
async def test_a_sink_that_skips_a_batch_is_noticed(stream: Stream, query: Query, batch: int) -> None:
    """As Spark's file sink, in a folder to which another query has written: it has a batch of this number."""
    await publish(stream, 12)
    query.skips = batch
    for _ in range(2):  # also when the query is started again
        with pytest.raises(CheckpointRefused, match=f"batch {batch} is committed, but none of its messages were read"):
            await query.run()
    assert (await stream.consumer(CONSUMER).info()).ack_pending == {1: 10, 2: 2}[batch]


async def test_a_first_batch_that_is_planned_and_not_read_is_noticed(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.jetstream_handoff.test_reader.mark_read", lambda *_: None)
    await publish(stream, 5)
    with pytest.raises(CheckpointRefused, match="batch 1 is committed, but none of its messages were read"):
        await query.run()
    assert (await stream.consumer(CONSUMER).info()).ack_pending == 5


async def test_the_newest_run_counts(stream: Stream, query: Query) -> None:
    """Two runs at the same time, as with a copied checkpoint: the older one ends before it can settle anything."""
    await publish(stream, 5)
    await query.run()
    await publish(stream, 5)
    async with connect(stream.js.settings) as js:
        older = ConsumerReader(js, stream.name, CONSUMER, 10)
        start = query.position(query.offsets[-1])
        while (end := await older.next(start)) == start:  # on a busy machine, a take may drop a batch
            pass
        await older.logged(start, end)
        query.offsets.append(end.to_json())
        await query.run()  # reads the batch that the older run has taken
        assert query.position(query.offsets[-1]).id == end.id
        with pytest.raises(HeldByAnother, match="another run of reader"):
            await older.next(end)
        await older.release()
    assert query.sequences == [*range(1, 11)]
    assert await settled(stream) == [*range(1, 11)]


async def test_a_checkpoint_that_lacks_only_the_last_batch_is_refused(stream: Stream, query: Query) -> None:
    await publish(stream, 12)
    await query.run(kill="after the commit log")
    older = query.copied()
    await query.run(kill="in read")  # the second batch
    with pytest.raises(CheckpointRefused, match=r"the reader has logged batch 2 with claim .*: it is an older copy"):
        await older.run()
    await query.run()
    assert query.sequences == [*range(1, 13)]


@pytest.mark.parametrize(
    ("batch", "claim", "after", "logged", "problem"),
    [
        (3, "c", "b", "", ""),
        (3, "c", "b", "d", ""),
        (4, "d", "c", "", ""),
        (6, "f", "e", "", ""),  # a killed server has forgotten the last writes
        (2, "b", "a", "c", "is an older copy"),
        (3, "x", "b", "", "another copy of it went on"),
        (4, "d", "x", "", "another copy of it went on"),
    ],
)
def test_which_checkpoints_go_on(batch: int, claim: str, after: str, logged: str, problem: str) -> None:
    found = Reservation("0" * 16, "1" * 16, "2026-11-21T03:00:00Z", 3, "c", "c")
    with pytest.raises(CheckpointRefused, match=problem) if problem else nullcontext():
        found.check_checkpoint("work", batch, claim, after, logged)
    if (batch, claim) == (3, "c"):
        with pytest.raises(CheckpointRefused, match="older copy"):
            replace(found, planned="e").check_checkpoint("work", batch, claim, after, logged)


@pytest.mark.parametrize("kill", ["after the commit log", ""])
async def test_what_is_committed_is_not_read_again_after_a_reset(stream: Stream, query: Query, kill: str) -> None:
    """Another client resets the consumer, before or after the batch was settled, so that it is delivered again."""
    await publish(stream, 10)
    await query.run(kill=kill)
    await reset_by_a_stranger(stream)
    await publish(stream, 2)
    await query.run()
    assert query.sequences == [*range(1, 13)]
    assert await all_acknowledged(stream)


async def test_a_batch_that_was_released_by_hand_is_settled(stream: Stream, query: Query) -> None:
    await publish(stream, 5)
    await query.run(kill="after the commit log")
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    claim = query.position(query.offsets[-1]).claim
    assert claim
    await settle.release(ledger, claim, (await ledger.read())[0].open[claim.id].token)  # type: ignore[union-attr]
    await query.run()
    assert query.sequences == [*range(1, 6)]
    assert await settled(stream) == [*range(1, 6)]


@pytest.mark.parametrize("recreated", ["consumer", "stream"])
async def test_a_recreated_consumer_or_stream_is_refused(stream: Stream, query: Query, recreated: str) -> None:
    await publish(stream, 5)
    await query.run()
    if recreated == "stream":
        await stream.delete()
        await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
    else:
        await stream.js.delete_consumer(stream.name, CONSUMER)
    await consumer(stream)
    await publish(stream, 5)
    with pytest.raises(CheckpointRefused, match=f"the {recreated} was recreated at"):
        await query.run()


async def test_a_deleted_ledger_is_refused_and_replaced_on_demand(stream: Stream, query: Query) -> None:
    await publish(stream, 12)
    await query.run(kill="after the commit log")
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    for bucket in (ledger.buckets.claims, ledger.buckets.receipts):
        await stream.js.delete_stream(f"KV_{bucket}")
    await ledger.create()
    with pytest.raises(CheckpointRefused, match="does not know the reader: the ledger was deleted or restored"):
        await query.run()
    query.replaces = query.reader
    await query.run()
    assert query.sequences == [*range(1, 13)]
    assert await all_acknowledged(stream)


async def test_an_idle_reader_does_not_read_the_ledger(
    stream: Stream, query: Query, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 5)
    await query.run()
    async with connect(settings) as js:
        reader, start = ConsumerReader(js, stream.name, CONSUMER, 10), query.position(query.offsets[-1])
        assert await reader.next(start) == start

        async def read(*_: Any) -> None:
            raise AssertionError("it read the ledger")

        monkeypatch.setattr(Ledger, "read", read)
        monkeypatch.setattr(answers, "negative", read)
        assert await reader.next(start) == start


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "belongs to a query without a consumer"),
        ({"stream": "S", "consumer": "other"}, "belongs to consumer 'other', stream 'S'"),
        ({"stream": "S", "consumer": CONSUMER, "reader": "x", "batch": 0}, "not what this package writes"),
        ({"stream": "S", "consumer": CONSUMER, "reader": "0" * 16, "batch": 1}, "not what this package writes"),
        ({"stream": "S", "consumer": CONSUMER, "reader": "0" * 16, "batch": True}, "not what this package writes"),
    ],
)
def test_a_position_of_something_else_is_refused(value: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointRefused, match=problem):
        Position.from_json(value, "S", CONSUMER)
