"""A message is its stream's name, its sequence and its time: it is in the table once, although the stream's creation
time changes, and messages of another life of the stream that use its sequences again are all there."""

import asyncio
import datetime as dt
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import StreamRecreated
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_tables.errors import OtherMessage, RowsInvalid
from tests.jetstream_client.servers import older_program
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Format
from tests.jetstream_tables.steps import Dying, Killed, begin, counted, die, once, rows

SUBJECTS: dict[str, Any] = {"name": "S", "subjects": ["S.>"], "allow_direct": True}


@pytest.fixture
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("older"), program=older_program("2.11.11"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nats_server_of_its_own(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def old_stream(older: NatsServer) -> AsyncIterator[Stream]:
    """A stream whose creation time changes at the next restart of its server, because it was updated since the last
    one."""
    async with connect(ConnectionSettings(servers=older.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream(SUBJECTS)
        await asyncio.to_thread(older.restart)
        await stream.info(patience=60)
        await stream.update({"max_msgs": 1_000})
        yield stream


async def restart(server: NatsServer, stream: Stream) -> None:
    before = (await stream.info()).created
    await asyncio.to_thread(server.restart)
    assert (await stream.info(patience=60)).created != before


async def append_all(stream: Stream, lake: Format, run: str, size: int) -> None:
    """Take all messages that wait in claims of this size, append their rows and settle."""
    for claim in await take(stream, run, messages_per_claim=size):
        with BlockingHold.begin(stream.js.settings, claim, try_number=1) as held:
            held.append_to(lake.table(), rows(held))
            held.settle()


async def test_a_restart_between_commit_and_settlement(
    older: NatsServer, old_stream: Stream, lake: Format, holds: ExitStack
) -> None:
    """The creation time of the stream is another one after it. With it as a part of the identity, each row was written
    a second time."""
    await publish(old_stream, 20)
    (claim,) = await take(old_stream)
    held = begin(holds, old_stream, claim)
    with pytest.raises(Killed):
        held.append_to(Dying(lake.table(), after=die), rows(held))
    await restart(older, old_stream)
    await append_all(old_stream, lake, "again", 7)
    assert lake.sequences() == [*range(1, 21)]


@pytest.mark.killed
async def test_an_attempt_that_stands_still_during_a_restart(
    older: NatsServer, old_stream: Stream, lake: Format, holds: ExitStack
) -> None:
    """It has looked before the restart, and commits when another attempt, whose claim names another creation time, has
    done so: it loses this race, and its stream has then become another one, as far as it can know."""
    await publish(old_stream, 20)
    first, second = await take(old_stream, messages_per_claim=10)
    with BlockingHold.begin(old_stream.js.settings, first, try_number=1) as held:
        held.append_to(lake.table(), rows(held))
        held.settle()
    frozen = begin(holds, old_stream, second)
    given, loop = rows(frozen), asyncio.get_running_loop()

    async def meanwhile() -> None:
        await restart(older, old_stream)
        done = Sequences()
        while 20 not in done:
            for claim in await take(old_stream, f"after {done}"):
                other = begin(holds, old_stream, claim)
                await asyncio.to_thread(partial(other.append_to, lake.table(), rows(other)))
                done |= claim.sequences

    stands_still = once(lambda: asyncio.run_coroutine_threadsafe(meanwhile(), loop).result())
    table = Dying(lake.table(), before=stands_still)
    with pytest.raises(StreamRecreated):
        await asyncio.to_thread(frozen.append_to, table, given)
    assert lake.sequences() == [*range(1, 21)]


@pytest.mark.parametrize("size", [10, 4])
async def test_a_stream_that_is_created_again(stream: Stream, lake: Format, holds: ExitStack, size: int) -> None:
    """Its messages have the sequences of the earlier ones, and none of them is taken for present. The first life ended
    with a commit that nobody settled, the second begins with one."""
    await publish(stream, 10)
    for claim in await take(stream, "first", messages_per_claim=10):
        held = begin(holds, stream, claim)
        held.append_to(lake.table(), rows(held))
    await create_again(stream)
    await publish(stream, 12)
    first, *_ = claims = await take(stream, "second", messages_per_claim=size)
    held = begin(holds, stream, first)
    with pytest.raises(Killed):
        held.append_to(Dying(lake.table(), after=die), rows(held))
    for claim in claims:
        held = begin(holds, stream, claim, 2)
        done = held.append_to(lake.table(), rows(held))
        assert counted(done) == ((0, claim.count) if claim is first else (claim.count, 0))
    assert lake.sequences() == sorted([*range(1, 11), *range(1, 13)])
    assert len(set(lake.query('"_stream", "_sequence", "_timestamp"'))) == 22


async def test_rows_of_an_earlier_life_account_for_nothing(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """A message without a row is missing, although its sequence is in the table; and it can be rejected."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    held.append_to(lake.table(), rows(held))
    await create_again(stream)
    await publish(stream, 10)
    (claim,) = await take(stream, "again")
    held = begin(holds, stream, claim)
    with pytest.raises(RowsInvalid, match=r"messages 4-5 of claim .* have no row"):
        held.append_to(lake.table(), rows(held, [1, 2, 3, *range(6, 11)]))
    kept = [1, 2, 3, *range(5, 11)]
    assert counted(held.append_to(lake.table(), rows(held, kept), rejected={"bad": [4]})) == (9, 0)
    assert held.rejected == Sequences.of([4])
    assert lake.sequences() == sorted([*range(1, 11), *kept])


async def test_a_server_that_is_restored_from_an_older_copy(
    nats_server_of_its_own: NatsServer, lake: Format, tmp_path: Path, holds: ExitStack
) -> None:
    """The stream uses sequences again, under the same creation time. The consumer delivers older ones again, too."""
    server = nats_server_of_its_own
    async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
        stream = await js.create_stream(SUBJECTS)
        await publish(stream, 5)
        (first,) = await take(stream)
        held = begin(holds, stream, first)
        held.append_to(lake.table(), rows(held))
        held.settle()
        await publish(stream, 5)
        await asyncio.to_thread(server.stop)
        shutil.copytree(server.store, tmp_path / "copy")
        await asyncio.to_thread(server.start)
        created = (await stream.info(patience=60)).created
        await publish(stream, 10)  # 11 to 20, which are lost with the server
        while lake.sequences() != [*range(1, 21)]:
            for claim in await take(stream, f"lost {len(lake.sequences())}", messages_per_claim=5):
                held = begin(holds, stream, claim)
                held.append_to(lake.table(), rows(held))
        await asyncio.to_thread(server.stop)
        shutil.rmtree(server.store)
        shutil.copytree(tmp_path / "copy", server.store)
        await asyncio.to_thread(server.start)
        assert (await stream.info(patience=60)).created == created
        await publish(stream, 7)  # 11 to 17 again
        found: set[int] = set()
        while found < set(range(6, 18)):
            for claim in await take(stream, f"restored {len(found)}", messages_per_claim=4):
                held = begin(holds, stream, claim, 3)
                done = held.append_to(lake.table(), rows(held))
                assert done.already == claim.sequences & Sequences.from_ranges([(1, 10)])
                held.settle()
                found |= set(claim.sequences)
    assert lake.sequences() == sorted([*range(1, 21), *range(11, 18)])
    assert len(set(lake.query('"_sequence", "_timestamp"'))) == 27


def changed(given: pa.Table, sequences: Collection[int], by: dt.timedelta) -> pa.Table:
    """Rows in which the column timestamp of some messages is another time."""
    pairs = zip(given["sequence"].to_pylist(), given["timestamp"].to_pylist(), strict=True)
    times = [time + by * (sequence in sequences) for sequence, time in pairs]
    at = given.schema.get_field_index("timestamp")
    return given.set_column(at, "timestamp", pa.array(times, given["timestamp"].type))


@pytest.mark.parametrize("sequences", [range(1, 11), [10], [1]])
async def test_another_time_than_that_of_the_server(
    stream: Stream, lake: Format, holds: ExitStack, sequences: Collection[int]
) -> None:
    """With a time of their own, messages of the next life of the stream could be taken for those of this one."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    given = changed(rows(held), sequences, -dt.timedelta(days=1))
    with pytest.raises(RowsInvalid, match="have another timestamp than the server, which stored it") as refused:
        held.append_to(lake.table(), given)
    times = rows(held)["timestamp"].to_pylist()
    assert f"rows of message {min(sequences)} of" in str(refused.value)
    assert f"{times[min(sequences) - 1]:%H:%M:%S.%f}" in str(refused.value)
    assert lake.query() == []


async def test_a_changed_time_between_the_samples(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """It is noticed before anything is left out because of it."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    for attempt in (1, 2):
        held = begin(holds, stream, claim, attempt)
        given = changed(rows(held), [4], -dt.timedelta(seconds=attempt))
        if attempt == 1:
            held.append_to(lake.table(), given)
            continue
        with pytest.raises(RowsInvalid, match=r"rows of message 4 of claim .* have another timestamp than the server"):
            held.append_to(lake.table(), given)
    assert lake.sequences() == [*range(1, 11)]


async def test_two_streams_of_one_name(
    stream: Stream, nats_server_of_its_own: NatsServer, lake: Format, holds: ExitStack
) -> None:
    """In two accounts, or on two servers: it is noticed when a message is older than that in the table."""
    await publish(stream, 10)
    async with connect(ConnectionSettings(servers=nats_server_of_its_own.url, shortest_ack_wait=0.5)) as js:
        namesake = await js.create_stream({**SUBJECTS, "name": stream.name, "subjects": [f"{stream.name}.>"]})
        await publish(namesake, 10)
        (claim,) = await take(namesake)
        later = begin(holds, namesake, claim)
        later.append_to(lake.table(), rows(later))
        (claim,) = await take(stream)
        held = begin(holds, stream, claim)
        with pytest.raises(OtherMessage, match="message 1 of a stream of this name that was stored later, at"):
            held.append_to(lake.table(), rows(held))
    assert lake.sequences() == [*range(1, 11)]


async def test_times_with_nanoseconds(stream: Stream, lake: Format, holds: ExitStack) -> None:
    """They are cut off, in the rows and in the stream, before they are compared."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    held.append_to(lake.table(), rows(held))
    again = begin(holds, stream, claim, 2)
    given, stored = rows(again), {each.sequence: time_nanoseconds(each.time) for each in again.messages()}
    exact = pa.array([stored[each] for each in given["sequence"].to_pylist()], pa.timestamp("ns", "UTC"))
    given = given.set_column(given.schema.get_field_index("timestamp"), "timestamp", exact)
    assert counted(again.append_to(lake.table(), given)) == (0, 10)


async def create_again(stream: Stream) -> None:
    await stream.delete()
    await stream.js.create_stream({"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True})
