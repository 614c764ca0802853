"""Changes of one record that wait together, on a real server: there is one write, and one outcome for each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import RequestTimeout
from jetstream_client.info import ConsumerInfo
from jetstream_client.stream import Stream
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt, Record, stored_record
from tests.jetstream_handoff.steps import CONSUMER, publish, rewrite, take


@pytest.fixture
async def book(stream: Stream) -> Ledger:
    await publish(stream, 1)
    await take(stream)
    return Ledger(stream.js, stream.name, CONSUMER)


@pytest.fixture
async def rival(stream: Stream, settings: ConnectionSettings) -> AsyncIterator[Ledger]:
    """The same record from another connection."""
    async with connect(settings) as js:
        yield Ledger(js, stream.name, CONSUMER)


def counted(record: Record | None, info: ConsumerInfo) -> Record:
    assert record
    return replace(record, n=record.n + 1)


def slow(began: asyncio.Event) -> Callable[[Record | None, ConsumerInfo], Record]:
    """A change that reports when it is applied, and so when its write begins."""

    def change(record: Record | None, info: ConsumerInfo) -> Record:
        began.set()
        return counted(record, info)

    return change


async def n_and_revision(book: Ledger) -> tuple[int, int]:
    record, revision = await book.read()
    assert record
    return record.n, revision


async def test_what_waits_together_is_written_once(book: Ledger) -> None:
    n, revision = await n_and_revision(book)
    outcomes = await asyncio.gather(*(rewrite(book, counted) for _ in range(50)))
    assert [record.n for record in outcomes if record] == list(range(n + 1, n + 51))
    assert await n_and_revision(book) == (n + 50, revision + 1)


async def test_a_record_that_this_connection_has_written_is_not_decoded_again(
    book: Ledger, rival: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def counting(data: bytes, what: str) -> Record:
        decoded.append(data)
        return stored_record(data, what)

    monkeypatch.setattr("jetstream_handoff.ledger.ledger.stored_record", counting)
    n, _ = await n_and_revision(book)
    decoded.clear()
    await rewrite(book, counted)
    await rewrite(book, counted)
    mine, _ = await book.read()
    assert not decoded
    assert await n_and_revision(rival) == (n + 2, (await book.read())[1])
    assert (await rival.read())[0] == mine
    await rewrite(rival, counted)
    assert await n_and_revision(book) == (n + 3, (await rival.read())[1])
    assert len(decoded) == 2


async def test_an_error_is_told_to_the_one_that_raised_it(book: Ledger) -> None:
    def refuse(record: Record | None, info: ConsumerInfo) -> Record:
        raise ValueError("not this one")

    n, _ = await n_and_revision(book)
    changes = [rewrite(book, each) for each in (counted, refuse, counted)]
    first, refused, second = await asyncio.gather(*changes, return_exceptions=True)
    assert isinstance(refused, ValueError)
    assert not isinstance(first, BaseException)
    assert not isinstance(second, BaseException)
    assert (await n_and_revision(book))[0] == n + 2


async def test_rivals_on_other_connections_overwrite_nothing(book: Ledger, rival: Ledger) -> None:
    n, revision = await n_and_revision(book)
    for _ in range(20):
        await asyncio.gather(*(rewrite(ledger, counted) for ledger in (book, rival) for _ in range(10)))
    after, last = await n_and_revision(book)
    assert after == n + 400
    assert last - revision < 100


@pytest.mark.parametrize("writes_between", [0, 3])
async def test_a_write_whose_answer_got_lost_is_recognised(
    book: Ledger, rival: Ledger, writes_between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if other clients have written the record since. Its changes are not applied again."""
    publish_, lost = book.buckets._publish, list[object]()

    async def unanswered(subject: str, data: bytes, revision: int) -> int:
        sequence = await publish_(subject, data, revision)
        if lost or "receipts" in subject:
            return sequence
        lost.append(sequence)
        for _ in range(writes_between):
            await rewrite(rival, counted)
        raise RequestTimeout("no answer")

    monkeypatch.setattr(book.buckets, "_publish", unanswered)
    n, _ = await n_and_revision(book)
    records = await asyncio.gather(*(rewrite(book, counted) for _ in range(3)))
    assert lost
    assert [record.n for record in records if record] == [n + 1, n + 2, n + 3]
    assert (await n_and_revision(book))[0] == n + 3 + writes_between


async def test_a_write_that_was_never_stored_is_repeated(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_, lost = book.buckets._publish, list[object]()

    async def unsent(subject: str, data: bytes, revision: int) -> int:
        if not lost:
            lost.append(subject)
            raise RequestTimeout("no answer")
        return await publish_(subject, data, revision)

    monkeypatch.setattr(book.buckets, "_publish", unsent)
    n, _ = await n_and_revision(book)
    await rewrite(book, counted)
    assert lost
    assert (await n_and_revision(book))[0] == n + 1


async def test_a_cancelled_change_that_waits_is_not_applied(book: Ledger) -> None:
    n, _ = await n_and_revision(book)
    first = asyncio.create_task(rewrite(book, counted))
    await asyncio.sleep(0)  # by now the first one reads the record
    waiting = [asyncio.create_task(rewrite(book, counted)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[2].cancel()
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [isinstance(result, BaseException) for result in results] == [False, False, False, True, False, False]
    assert (await n_and_revision(book))[0] == n + 5


async def test_when_the_one_at_work_is_cancelled_the_others_go_on(book: Ledger) -> None:
    n, _ = await n_and_revision(book)
    began = asyncio.Event()
    first = asyncio.create_task(rewrite(book, counted))
    await asyncio.sleep(0)  # by now the first one reads the record, and all others wait together
    at_work = asyncio.create_task(rewrite(book, slow(began)))
    others = [asyncio.create_task(rewrite(book, counted)) for _ in range(5)]
    await began.wait()
    at_work.cancel()
    await asyncio.gather(first, *others)
    # The write may have arrived. Then the changes in it do not count twice.
    assert (await n_and_revision(book))[0] in (n + 6, n + 7)
    with pytest.raises(asyncio.CancelledError):
        await at_work


async def test_when_the_one_that_has_written_is_cancelled_no_change_counts_twice(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has stored everybody's changes, and writes the receipts of superseded claims. The others do not go on to apply
    their changes again: a take would supersede its own claims, and a failed claim would count as superseded."""
    n, _ = await n_and_revision(book)
    explain, explaining = book._explain, asyncio.Event()

    async def slowly(forgotten: Iterable[Receipt]) -> None:
        if (await n_and_revision(book))[0] > n + 1 and not explaining.is_set():
            explaining.set()
            await asyncio.sleep(60)
        await explain(forgotten)

    monkeypatch.setattr(book, "_explain", slowly)
    first = asyncio.create_task(rewrite(book, counted))
    await asyncio.sleep(0)  # by now the first one reads the record, and all others wait together
    at_work, *others = (asyncio.create_task(rewrite(book, counted)) for _ in range(6))
    await explaining.wait()
    at_work.cancel()
    records = await asyncio.gather(first, *others)
    assert [record.n for record in records if record] == [n + 1, *range(n + 3, n + 8)]
    assert (await n_and_revision(book))[0] == n + 7


async def test_a_stored_change_is_recognised_although_the_consumer_is_gone(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer was deleted before the change was looked for. The record contains the decision all the same."""
    publish_, lost = book.buckets._publish, list[object]()

    async def unanswered(subject: str, data: bytes, revision: int) -> int:
        lost.append(await publish_(subject, data, revision))
        await book.consumer.delete()
        raise RequestTimeout("no answer")

    monkeypatch.setattr(book.buckets, "_publish", unanswered)
    n, _ = await n_and_revision(book)
    record = await rewrite(book, counted)
    assert record
    assert record.n == n + 1
    assert len(lost) == 1
