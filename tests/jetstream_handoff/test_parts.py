"""Messages near the server's limits become dead letters, too: in parts, on a real server with a small max_payload."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import DeadLettersUnsuitable
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.letters import dead_letters
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.letter import MARK, Head, Letter
from jetstream_handoff.letters.listing import letter as one_letter
from jetstream_handoff.letters.listing import listed
from jetstream_handoff.letters.parts import FOR_MARK, PART, Parts
from jetstream_handoff.letters.replay import replay
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.letters.tally import Tally
from tests.jetstream_handoff import killed
from tests.jetstream_handoff.steps import take, unacknowledged
from tests.jetstream_handoff.test_dead_letters import stored

MAX_PAYLOAD = 24 << 10
EVERYTHING = Selection(everything=True, unconfirmed=True)
OURS = 1_600
"""A message that is smaller than ``MAX_PAYLOAD`` by this many bytes certainly fits as a dead letter."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path, f"max_payload: {MAX_PAYLOAD}")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def small(server: NatsServer) -> AsyncIterator[JetStream]:
    """A connection to a server with a small ``max_payload``."""
    async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
        yield js


async def create(js: JetStream, retention: str = "workqueue", **config: Any) -> Stream:
    return await js.create_stream(
        {"name": "S", "subjects": ["S.>"], "retention": retention, "allow_direct": True, **config}
    )


def body(size: int) -> bytes:
    return bytes(number % 251 for number in range(size))


async def rejected(stream: Stream, messages: list[Any], reason: str = "no date") -> None:
    """Publish messages, take them, and settle the claims with all of them rejected."""
    await asyncio.to_thread(publish_all, stream.js.settings, messages)
    for claim in await take(stream, max_messages=10_000):
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.reject(claim.sequences, reason)
            await hold.settle()


async def letters(js: JetStream) -> list[tuple[int, bool]]:
    """Return for each dead letter the size of its payload, and whether it is in parts."""
    found = select(DeadLetters(js, "S"), EVERYTHING)
    return [(each.head.size, each.head.parts is not None) async for each in found if each.head]


async def whole(letters: DeadLetters, head: Head) -> Letter:
    """Return a dead letter with its content."""
    found = await one_letter(letters, head.number)
    assert found is not None
    assert found.letter is not None
    return found.letter


async def parts(stream: Stream) -> list[int]:
    """Return the size of each stored part."""
    found = await stored(stream, "DEAD_S")
    return [len(base64.b64decode(each.get("data", ""))) for each in found if ".part-" in each["subject"]]


@pytest.mark.slow
async def test_a_message_of_any_size_becomes_a_dead_letter_and_is_replayed(
    server: NatsServer, small: JetStream
) -> None:
    stream = await create(small)
    beside = sorted({*range(OURS - 160, OURS - 60), *range(0, OURS, 50), *range(170)}, reverse=True)
    sizes = [MAX_PAYLOAD - each for each in beside]
    await rejected(stream, [("S.a", body(size)) for size in sizes])
    assert await unacknowledged(stream) == 0
    assert (await stream.info()).state["messages"] == 0
    dead = DeadLetters(small, "S")
    found = [each.head async for each in select(dead, Selection(everything=True)) if each.head]
    assert [each.size for each in found] == sizes
    assert [(await whole(dead, each)).data for each in found] == [body(size) for size in sizes]
    first = [each.parts is None for each in found].index(False)
    assert 0 < first < len(sizes) - 1  # one border
    times = 10  # bytes by which the time of a message is shorter if it ends with zeros
    assert all(each.parts is not None for each in found if each.size >= sizes[first] + times)
    border = Sequences.from_ranges([(first - 10, first + 10), (len(sizes) - 160, len(sizes))])
    outcome = await replay(dead, Selection(sequences=border))
    assert 0 < len(outcome.refused) < 160  # with the headers of the replay, these are too large
    assert outcome.published == border.count - len(outcome.refused)
    assert {f"max_payload is {MAX_PAYLOAD}. Raise" in each for each in outcome.refused.values()} == {True}
    server.stop()
    server._config = f"max_payload: {2 * MAX_PAYLOAD}"
    server.start()
    async with connect(small.settings) as js:
        rest = await replay(DeadLetters(js, "S"), Selection(sequences=border))
        assert (rest.published, rest.refused) == (len(outcome.refused), {})
        again = await stored(js.stream("S"), "S")
        assert [base64.b64decode(each["data"]) for each in again] == [body(sizes[each - 1]) for each in border]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_headers_belong_to_the_content(small: JetStream, retention: str) -> None:
    """Most of the message is headers, of which those that begin with Nats- become longer in a dead letter."""
    stream = await create(small, retention)
    headers = {"Kind": ["a" * 9_000, "b" * 9_000], **{f"Nats-{each}": "x" for each in range(100)}}
    spare = MAX_PAYLOAD - 20_000
    await rejected(stream, [("S.a", body(spare), headers), ("S.a", b"", headers)])
    assert await letters(small) == [(spare, True), (0, False)]
    (first, second) = (await listed(DeadLetters(small, "S"))).stubs
    assert (first.head and first.head.size, second.head and second.head.size) == (spare, 0)
    assert first.head
    content = await whole(DeadLetters(small, "S"), first.head)
    assert content.data == body(spare)
    assert b"Kind: " + b"b" * 9_000 in content.header.split(b"\r\n")
    assert b"Nats-Dead-Letter-Original-Nats-7: x" in content.header.split(b"\r\n")
    assert (await replay(DeadLetters(small, "S"), Selection(everything=True))).published == 2
    last = (await stored(stream, "S"))[-2:]
    assert [base64.b64decode(each.get("data", "")) for each in last] == [body(spare), b""]
    assert base64.b64decode(last[0]["hdrs"]).count(b"Kind: ") == 2


async def test_headers_near_their_own_limit(js: JetStream, stream: Stream) -> None:
    """JetStream stores at most 65,535 bytes of headers, whatever ``max_payload`` is."""
    longest = (1 << 16) - 1 - len("NATS/1.0\r\nX: \r\n\r\n")
    sizes = [longest - OURS, longest - 200, longest]
    publish_all(js.settings, [(f"{stream.name}.a", b"data", {"X": "x" * size}) for size in sizes])
    (claim,) = await take(stream)
    async with Hold.begin(js, claim, try_number=1) as hold:
        await hold.reject(claim.sequences, "no date")
        await hold.settle()
    letters = DeadLetters(js, stream.name)
    found = [each.head async for each in select(letters, EVERYTHING) if each.head]
    assert [each.parts is not None for each in found] == [False, True, True]
    for each, size in zip(found, sizes, strict=True):
        content = await whole(letters, each)
        assert b"X: " + b"x" * size in content.header.split(b"\r\n")
        assert content.data == b"data"
    outcome = await replay(letters, Selection(everything=True))
    assert outcome.published == 2
    (problem,) = outcome.refused.values()
    assert "JetStream stores at most 65535" in problem


async def test_what_was_stored_with_larger_limits_is_copied(server: NatsServer, small: JetStream) -> None:
    await create(small)
    await DeadLetters(small, "S").ensure()
    await asyncio.to_thread(publish_all, small.settings, [("S.a", body(MAX_PAYLOAD))])
    await small.stream("DEAD_S").update({"max_msg_size": 9_000})
    server.stop()
    server._config = "max_payload: 12000"
    server.start()
    async with connect(small.settings) as js:
        await rejected(js.stream("S"), [])
        assert await letters(js) == [(MAX_PAYLOAD, True)]
        assert len(await parts(js.stream("S"))) == 3
        (found,) = [each.head async for each in select(DeadLetters(js, "S"), EVERYTHING) if each.head]
        assert (await whole(DeadLetters(js, "S"), found)).data == body(MAX_PAYLOAD)


async def test_a_limit_that_no_letter_fits_is_refused(small: JetStream) -> None:
    stream = await create(small)
    await asyncio.to_thread(publish_all, small.settings, [("S.a", b"x")])
    await DeadLetters(small, "S").ensure()
    await small.stream("DEAD_S").update({"max_msg_size": 1_000})
    (claim,) = await take(stream)
    async with Hold.begin(small, claim, try_number=1) as hold:
        with pytest.raises(DeadLettersUnsuitable, match="max_msg_size=1000"):
            await hold.reject(Sequences.of([1]), "no date")


async def test_a_stream_that_was_changed_since_the_rejection_gets_no_letter(small: JetStream) -> None:
    stream = await create(small)
    await asyncio.to_thread(publish_all, small.settings, [("S.a", b"x")])
    (claim,) = await take(stream)
    async with Hold.begin(small, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([1]), "no date")
        await small.stream("DEAD_S").update({"max_age": timedelta(days=1), "duplicate_window": timedelta(minutes=1)})
        with pytest.raises(DeadLettersUnsuitable, match="max_age"):
            await hold.settle()
    assert await unacknowledged(stream) == 1


async def test_pages_and_counts_show_letters_and_no_parts(small: JetStream) -> None:
    stream = await create(small)
    await rejected(stream, [("S.a", body(size)) for size in (10, MAX_PAYLOAD, 20, MAX_PAYLOAD - 5)])
    dead = DeadLetters(small, "S")
    first = await listed(dead, limit=3)
    second = await listed(dead, limit=3, after=first.next or 0)
    shown = [stub.head.size for page in (first, second) for stub in page.stubs if stub.head]
    assert sorted(shown) == [10, 20, MAX_PAYLOAD - 5, MAX_PAYLOAD]
    assert all(stub.confirmed for page in (first, second) for stub in page.stubs)
    count = await Tally(dead).count(await dead.stream.info())
    assert (count.count, count.complete) == (4, True)
    assert len(await parts(stream)) == 4
    number = next(each["seq"] for each in await stored(stream, "DEAD_S") if ".part-" in each["subject"])
    (chosen,) = [each async for each in select(dead, Selection(numbers=Sequences.of([number])))]
    assert (chosen.head, "a part of the content" in chosen.problem) == (None, True)


async def test_a_discarded_letter_leaves_no_payload(small: JetStream) -> None:
    stream = await create(small)
    await rejected(stream, [("S.a", body(MAX_PAYLOAD)), ("S.b", body(MAX_PAYLOAD))])
    done = await discard(DeadLetters(small, "S"), Selection(subject="*.a"))
    assert (done.count, done.refused) == (1, {})
    assert sorted(await parts(stream))[:2] == [0, 0]
    assert await letters(small) == [(MAX_PAYLOAD, True)]
    assert (await replay(DeadLetters(small, "S"), Selection(everything=True), "S")).count == 0
    assert await letters(small) == [(MAX_PAYLOAD, True)]


async def test_a_letter_whose_part_is_missing_says_so(small: JetStream) -> None:
    stream = await create(small)
    await rejected(stream, [("S.a", body(MAX_PAYLOAD - 300))])
    part = next(each["seq"] for each in await stored(stream, "DEAD_S") if ".part-" in each["subject"])
    await small.stream("DEAD_S").delete_message(part)
    (problem,) = (await replay(DeadLetters(small, "S"), EVERYTHING)).refused.values()
    assert "a part of the dead letter's content is missing" in problem
    assert await letters(small) == [(MAX_PAYLOAD - 300, True)]
    (number,) = [each.number async for each in select(DeadLetters(small, "S"), EVERYTHING)]
    shown = await one_letter(DeadLetters(small, "S"), number)
    assert shown is not None
    assert (shown.letter, "is missing" in shown.problem) == (None, True)
    assert (await discard(DeadLetters(small, "S"), EVERYTHING)).count == 1


@pytest.mark.parametrize("point", ["marked", "published"])
async def test_a_replay_of_parts_that_was_killed_is_finished_by_the_next(small: JetStream, point: str) -> None:
    stream = await create(small, "limits")
    await rejected(stream, [("S.a", body(MAX_PAYLOAD - 300))])
    killed.run(point, small.settings, stream="S")
    (left,) = [each.head async for each in select(DeadLetters(small, "S"), EVERYTHING) if each.head]
    assert left.mark
    outcome = await replay(DeadLetters(small, "S"), Selection(everything=True))
    assert (outcome.published, outcome.found) == ((1, 0) if point == "marked" else (0, 1))
    assert [base64.b64decode(each["data"]) for each in await stored(stream, "S")] == [body(MAX_PAYLOAD - 300)] * 2
    assert await letters(small) == []
    assert set(await parts(stream)) == {0}


async def test_a_later_attempt_replaces_letter_and_parts(small: JetStream) -> None:
    """The first attempt is killed between its copies and the ledger."""
    stream = await create(small)
    await asyncio.to_thread(publish_all, small.settings, [("S.a", body(MAX_PAYLOAD))])
    (claim,) = await take(stream)
    killed.run("copied", small.settings, claim=claim.to_json(), rejected=[1])
    assert sum(await parts(stream)) == MAX_PAYLOAD
    async with Hold.begin(small, claim, try_number=2) as hold:
        await hold.reject(Sequences.of([1]), "no date")
        await hold.settle()
    assert sum(await parts(stream)) == MAX_PAYLOAD
    (found,) = [each async for each in select(DeadLetters(small, "S"), Selection(everything=True)) if each.head]
    assert found.head is not None
    assert (await whole(DeadLetters(small, "S"), found.head)).data == body(MAX_PAYLOAD)
    assert found.head.reason == "no date"


async def test_a_copy_whose_answer_was_lost_keeps_the_parts_that_its_letter_has(
    small: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is sent twice, as after a lost answer, so that the second one is refused."""
    stream = await create(small)
    publish = dead_letters.publish

    async def twice(*arguments: Any) -> Any:
        await publish(*arguments)
        return await publish(*arguments)

    monkeypatch.setattr(dead_letters, "publish", twice)
    await rejected(stream, [("S.a", body(MAX_PAYLOAD))])
    monkeypatch.undo()
    assert sum(await parts(stream)) == MAX_PAYLOAD
    (found,) = [each.head async for each in select(DeadLetters(small, "S"), EVERYTHING) if each.head]
    assert (await whole(DeadLetters(small, "S"), found)).data == body(MAX_PAYLOAD)


async def test_a_replay_empties_no_part_of_the_letter_that_replaced_its_own(
    small: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt repeats its copy while a replay of its first copy is between the note and the parts."""
    stream = await create(small, "limits")
    await asyncio.to_thread(publish_all, small.settings, [("S.a", body(MAX_PAYLOAD - 300))])
    (claim,) = await take(stream)
    noted, go_on = asyncio.Event(), asyncio.Event()
    empty = DeadLetters.empty

    async def frozen(*arguments: Any) -> None:
        noted.set()
        await go_on.wait()
        await empty(*arguments)

    monkeypatch.setattr(DeadLetters, "empty", frozen)
    async with Hold.begin(small, claim, try_number=1) as hold:
        holder = Holder(hold._ledger, claim, hold.token)
        await DeadLetters(small, "S").ensure()
        await DeadLetters(small, "S").copy(holder, {"first": claim.sequences})
        replaying = asyncio.create_task(replay(DeadLetters(small, "S"), EVERYTHING))
        await noted.wait()
        await hold.reject(claim.sequences, "second")
        await hold.settle()
        go_on.set()
        assert (await replaying).published == 1
    (found,) = [each async for each in select(DeadLetters(small, "S"), Selection(everything=True)) if each.head]
    assert found.head is not None
    assert (found.confirmed, found.head.reason) == (True, "second")
    assert (await whole(DeadLetters(small, "S"), found.head)).data == body(MAX_PAYLOAD - 300)


async def test_a_mark_always_fits(small: JetStream) -> None:
    """The longest names make the longest mark."""
    name = "n" * 250
    stream = await small.create_stream({"name": name, "subjects": ["S.>"], "allow_direct": True})
    sizes = range(MAX_PAYLOAD - FOR_MARK - 1_400, MAX_PAYLOAD - FOR_MARK - 300, 20)
    await rejected(stream, [("S.a", body(size)) for size in sizes])
    found = [each.head async for each in select(DeadLetters(small, name), EVERYTHING) if each.head]
    assert {each.parts is None for each in found} == {True, False}
    killed.run("marked", small.settings, stream=name)
    found = [each.head async for each in select(DeadLetters(small, name), EVERYTHING) if each.head]
    (mark,) = [each.mark for each in found if each.mark]
    assert len(f"{MARK}: {mark}\r\n") < FOR_MARK
    assert (await replay(DeadLetters(small, name), Selection(everything=True))).published == len(sizes)


@pytest.mark.parametrize(
    "text",
    ["", "1 a 1 1", "1 a. 1 1 1", "1 a 1 1 1 1", "1 a 10001 1 1", "1 a 1 1 99999999", "x a 1 1 1", "1 a -1 1 1"],
)
def test_invalid_parts(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        Parts.of(text)


def test_parts_are_read_as_they_are_written() -> None:
    assert Parts.of(str(Parts(7, "ab12", 3, 20, 1_000))) == Parts(7, "ab12", 3, 20, 1_000)
    assert Parts(7, "ab", 2, 0, 5).subjects("dead.S.c.7.1.a.b") == ["dead.S.c.7.1.part-ab-1", "dead.S.c.7.1.part-ab-2"]
    assert PART.startswith("Nats-Dead-Letter-")
