"""A reader whose ledger is deleted, or is restored from an older copy, between two runs and while a run has a batch in
process, on a real server of its own."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from jetstream_handoff.errors import CheckpointRefused
from jetstream_handoff.ledger.ledger import Ledger
from tests.jetstream_handoff.steps import CONSUMER, publish
from tests.jetstream_handoff.test_reader import Query, all_acknowledged, consumer


@dataclass
class Backups:
    """A server whose ledger can be put back to an older copy."""

    server: NatsServer
    folder: Path

    @property
    def settings(self) -> ConnectionSettings:
        return ConnectionSettings(servers=self.server.url, shortest_ack_wait=0.5, ledger="ledger")

    def _buckets(self) -> list[Path]:
        return [*self.server.store.glob("jetstream/*/streams/KV_ledger_*")]

    async def make(self, stream: Stream) -> None:
        self.server.stop()
        for each in self._buckets():
            shutil.copytree(each, self.folder / each.name)
        self.server.start()
        await stream.info(patience=60)

    async def restore(self, stream: Stream) -> None:
        self.server.stop()
        for each in self._buckets():
            shutil.rmtree(each)
            if (copy := self.folder / each.name).exists():
                shutil.copytree(copy, each)
        self.server.start()
        await stream.info(patience=60)


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[Backups]:
    server = NatsServer(tmp_path / "server")
    server.start()
    yield Backups(server, tmp_path)
    server.stop()


@pytest.fixture
async def stream(backups: Backups) -> AsyncIterator[Stream]:
    async with connect(backups.settings) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        await consumer(stream)
        yield stream


@pytest.mark.parametrize(
    ("killed", "refused"),
    [
        ("in read", ""),  # its batch is repeated
        ("after the commit log", "batch 2 is committed, but none of its messages were read, .* or a server that was"),
        ("", "has committed 4 batches, and the ledger 'ledger' knows 1 of them: the ledger was restored from an older"),
    ],
)
async def test_a_ledger_that_is_behind_the_checkpoint(
    stream: Stream, backups: Backups, killed: str, refused: str
) -> None:
    """The copy knows the reader, and not that the last committed batch was read, so that a sink may have skipped it. A
    server takes seconds to start again."""
    query = Query(stream)
    await publish(stream, 5)
    await query.run()
    await backups.make(stream)
    await publish(stream, 25)
    await query.run(kill=killed)
    await publish(stream, 5)
    await backups.restore(stream)
    if refused:
        with pytest.raises(CheckpointRefused, match=f"(?i){refused}.*start the same query once with .*{query.reader}"):
            await query.run()
        query.replaces = query.reader
    await query.run()
    await query.run()  # what is delivered again is acknowledged, and not read again
    assert query.sequences == [*range(1, 36)]
    assert await all_acknowledged(stream)


async def test_a_ledger_from_before_the_reader_is_refused_and_replaced_on_demand(
    stream: Stream, backups: Backups
) -> None:
    query = Query(stream)
    await backups.make(stream)
    await publish(stream, 25)
    await query.run(kill="after the commit log")
    await backups.restore(stream)
    with pytest.raises(CheckpointRefused, match=r"'ledger_claims' does not exist.*start the same query once with"):
        await query.run()
    query.replaces = query.reader
    await query.run()
    assert query.sequences == [*range(1, 26)]
    assert await all_acknowledged(stream)


async def test_one_start_with_its_own_id_is_enough_when_only_the_first_batch_is_committed(stream: Stream) -> None:
    """The mark that messages of that batch were read is lost with the ledger, and no later run can store it."""
    query = Query(stream)
    await publish(stream, 5)
    await query.run()
    for kind in ("claims", "receipts"):
        await stream.js.stream(f"KV_ledger_{kind}").delete()
    with pytest.raises(CheckpointRefused, match="start the same query once with"):
        await query.run()
    query.replaces = query.reader
    await query.run()
    query.replaces = ""
    await query.run()
    await publish(stream, 5)
    await query.run()
    assert query.sequences == [*range(1, 11)]
    assert await all_acknowledged(stream)


@pytest.mark.parametrize("created", [True, False], ids=["and created again", "for good"])
async def test_a_ledger_that_is_deleted_while_a_run_goes_on(stream: Stream, *, created: bool) -> None:
    """If another client creates its buckets again, the run reserves the consumer again. Otherwise it ends. Nothing is
    lost; the first batch, whose acknowledgements may not have begun when it was deleted, may be processed again."""
    query = Query(stream)
    await publish(stream, 25)

    async def delete(batch: int) -> None:
        if batch == 2:
            for kind in ("claims", "receipts"):
                await stream.js.stream(f"KV_ledger_{kind}").delete()
            if created:
                await Ledger(stream.js, stream.name, CONSUMER).create()

    query.during = delete
    if created:
        await query.run()
        assert query.sequences == [*range(1, 26)]
    else:
        for _ in range(2):
            with pytest.raises(CheckpointRefused, match=r"does not exist.*start the same query once with"):
                await query.run()
        query.during, query.replaces = None, query.reader
        await query.run()
        assert Counter(range(1, 26)) <= Counter(query.sequences) <= Counter([*range(1, 11), *range(1, 26)])
    await query.run()
    assert await all_acknowledged(stream)
