"""Discarding dead letters on a real server, against everything that could make a message disappear unnoticed."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue, RequestTimeout
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold import settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters import dead_letters
from jetstream_handoff.letters import discard as discards
from jetstream_handoff.letters import listing as dead_letter_page
from jetstream_handoff.letters import replay as replays
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.letters.stored import stored
from tests.jetstream_handoff.steps import CONSUMER, publish, take

CONFIRMED = Selection(everything=True)
EVERYTHING = Selection(everything=True, unconfirmed=True)


def of(stream: Stream) -> DeadLetters:
    return DeadLetters(stream.js, stream.name)


async def discard(stream: Stream, selection: Selection) -> discards.Discarded:
    return await discards.discard(of(stream), selection)


async def listed(stream: Stream) -> list[tuple[int, str, bool]]:
    """Return the original sequence and the reason of each dead letter, and whether the ledger confirms it."""
    found = select(of(stream), EVERYTHING)
    return [(each.head.sequence, each.head.reason, each.confirmed) async for each in found if each.head]


async def reject(stream: Stream, sequences: list[int]) -> Claim:
    """Publish ten messages, take them as a claim, and settle it with some of them rejected."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of(sequences), "no date")
        await hold.settle()
    return claim


async def copied(stream: Stream, hold: Hold, sequence: int, reason: str) -> None:
    """Copy a message as an attempt does before it settles its claim."""
    letters = of(stream)
    await letters.ensure()
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await letters.copy(Holder(ledger, hold.claim, hold.token), {reason: Sequences.of([sequence])})


async def count(stream: Stream) -> int:
    return int((await stream.info()).state["messages"])


async def test_a_note_takes_the_place_of_what_is_discarded(stream: Stream) -> None:
    claim = await reject(stream, [3, 4, 5])
    assert await discard(stream, Selection(sequences=Sequences.of([3]))) == discards.Discarded(1)
    assert await listed(stream) == [(4, "no date", True), (5, "no date", True)]
    (note,) = [message async for message in stored(of(stream).stream, f"dead.{stream.name}.*.3.>")]
    assert note.get("data", "") == ""
    headers = decode_headers(base64.b64decode(note["hdrs"]))
    assert headers["Nats-Dead-Letter-Discarded"]
    assert claim.id in headers["Nats-Dead-Letter-Was"][0]
    assert await discard(stream, CONFIRMED) == discards.Discarded(2)
    assert await discard(stream, CONFIRMED) == discards.Discarded()
    assert (await replays.replay(of(stream), EVERYTHING)).count == 0
    assert await count(stream) == 10
    with pytest.raises(InvalidValue, match="everything"):
        Selection(everything=True, numbers=Sequences.of([1]))


async def test_what_an_attempt_is_about_to_settle_is_kept(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    has_copied, go_on = asyncio.Event(), asyncio.Event()
    settle_done = settle.settle_done

    async def frozen(*arguments: Any, **named: Any) -> None:
        has_copied.set()
        await go_on.wait()
        await settle_done(*arguments, **named)

    monkeypatch.setattr(settle, "settle_done", frozen)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3]), "no date")
        settling = asyncio.create_task(hold.settle())
        await has_copied.wait()
        outcome = await discard(stream, CONFIRMED)
        assert (outcome.count, outcome.unconfirmed, outcome.refused) == (0, 1, {})
        outcome = await discard(stream, EVERYTHING)
        assert outcome.count == 0
        assert f"attempt {hold.token} still holds claim {claim.id}" in outcome.refused[1]
        go_on.set()
        await settling
    assert await listed(stream) == [(3, "no date", True)]  # or the message would be nowhere
    assert (await discard(stream, CONFIRMED)).count == 1


async def test_what_a_lost_attempt_left_is_discarded_on_demand_and_the_next_attempt_copies_again(
    stream: Stream,
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as old:
        await copied(stream, old, 3, "old")
        async with Hold.begin(stream.js, claim, try_number=2) as new:
            assert await discard(stream, EVERYTHING) == discards.Discarded(1)
            assert await listed(stream) == []
            await new.reject(Sequences.of([3]), "new")
            await new.settle()
    assert await listed(stream) == [(3, "new", True)]


async def test_a_number_that_was_stored_since_is_not_compared_with_older_decisions(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 20)
    first, second = await take(stream, messages_per_claim=10)
    put_note = DeadLetters.put_note
    async with Hold.begin(stream.js, first, try_number=1) as lost, Hold.begin(stream.js, second, try_number=1) as other:
        await copied(stream, lost, 3, "old")
        await other.release()
        await lost.release()

        async def late(self: DeadLetters, *arguments: Any) -> None:
            monkeypatch.setattr(DeadLetters, "put_note", put_note)
            async with Hold.begin(stream.js, second, try_number=2) as new:
                await copied(stream, new, 13, "new")
            await put_note(self, *arguments)

        monkeypatch.setattr(DeadLetters, "put_note", late)
        outcome = await discard(stream, Selection(numbers=Sequences.of([1, 2]), unconfirmed=True))
    assert outcome.count == 1
    assert "no message has this number" in outcome.refused[2]
    assert await listed(stream) == [(13, "new", False)]


async def test_an_unreadable_record_keeps_what_is_unconfirmed(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await copied(stream, hold, 3, "no date")
        ledger = Ledger(stream.js, stream.name, CONSUMER)
        record, _ = await ledger.read()
        assert record
        await stream.js.publish(ledger.subjects[0], b"{}")
        outcome = await discard(stream, EVERYTHING)
        assert outcome.count == 0
        assert "does not show whether its attempt has ended" in outcome.refused[1]


async def test_a_replay_that_has_begun_wins(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await reject(stream, [3])
    marked, go_on = asyncio.Event(), asyncio.Event()
    publish_marked = replays._publish_marked

    async def frozen(*arguments: Any, **named: Any) -> None:
        marked.set()
        await go_on.wait()
        await publish_marked(*arguments)

    monkeypatch.setattr(replays, "_publish_marked", frozen)
    replaying = asyncio.create_task(replays.replay(of(stream), CONFIRMED))
    await marked.wait()
    outcome = await discard(stream, EVERYTHING)
    assert outcome.count == 0
    (reason,) = outcome.refused.values()
    assert "a replay has begun to publish it" in reason
    go_on.set()
    assert (await replaying).published == 1
    assert await count(stream) == 11
    assert await listed(stream) == []


async def test_a_replay_between_listing_and_discarding_wins(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await reject(stream, [3, 4])
    put_note = DeadLetters.put_note

    async def late(self: DeadLetters, *arguments: Any) -> None:
        monkeypatch.undo()
        assert (await replays.replay(of(stream), Selection(sequences=Sequences.of([3])))).published == 1
        await put_note(self, *arguments)

    monkeypatch.setattr(DeadLetters, "put_note", late)
    outcome = await discard(stream, CONFIRMED)
    assert outcome.count == 1
    assert "changed in the meantime" in outcome.refused[1]
    assert await count(stream) == 11


async def test_a_replay_finds_what_was_discarded_since_it_was_listed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reject(stream, [3])
    mark = replays._mark

    async def late(*arguments: Any) -> int:
        assert (await discard(stream, CONFIRMED)).count == 1
        return await mark(*arguments)

    monkeypatch.setattr(replays, "_mark", late)
    assert (await replays.replay(of(stream), CONFIRMED)).count == 0
    assert await count(stream) == 10


async def test_a_note_whose_confirmation_got_lost_is_our_own(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await reject(stream, [3])
    real = dead_letters._publish
    calls = 0

    def losing(settings: Any, messages: Any, answers: Any) -> None:
        nonlocal calls
        calls += 1
        real(settings, messages, {} if calls == 1 else answers)
        if calls == 1:
            raise RequestTimeout("the answer got lost")

    monkeypatch.setattr(dead_letters, "_publish", losing)
    assert await discard(stream, CONFIRMED) == discards.Discarded(1)
    assert calls == 2
    assert await listed(stream) == []


async def test_a_number_selects_one_message_and_says_what_became_of_it(stream: Stream) -> None:
    await reject(stream, [3, 4, 5])
    await stream.js.publish(f"dead.{stream.name}.any", b"x")

    def numbers(*each: int) -> Selection:
        return Selection(numbers=Sequences.of(each))

    outcome = await discard(stream, numbers(2, 4, 99))
    assert outcome.count == 1
    assert "Nats-Dead-Letter-" in outcome.refused[4]
    assert "no message has this number" in outcome.refused[99]
    outcome = await discard(stream, numbers(2, 5))
    assert outcome.count == 0
    assert "no message has this number" in outcome.refused[2]
    assert "it was discarded at" in outcome.refused[5]
    assert (await replays.replay(of(stream), numbers(1, 2))).published == 1
    assert [sequence for sequence, _, _ in await listed(stream)] == [5]


async def test_a_killed_server_does_not_bring_discarded_dead_letters_back(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await reject(stream, list(range(1, 11)))
            assert (await discard(stream, CONFIRMED)).count == 10
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await js.stream("S").info(patience=10)
            assert await listed(stream) == []
    finally:
        server.stop()


async def test_a_forged_dead_letter_with_a_huge_token_is_discarded(stream: Stream) -> None:
    """Its note is small enough for the server, and can be read."""
    await reject(stream, [3])
    letters = of(stream)
    (real,) = [message async for message in stored(letters.stream, letters.subjects)]
    headers = {name: values[-1] for name, values in decode_headers(base64.b64decode(real["hdrs"])).items()}
    ours = {name: value for name, value in headers.items() if name.startswith("Nats-Dead-Letter-")}
    forged = {**ours, "Nats-Dead-Letter-Token": "é" * 12_000, "Nats-Dead-Letter-Reason": "\x01" * 1_024}
    await stream.js.publish(real["subject"], b"", headers=forged)
    assert await discard(stream, CONFIRMED) == discards.Discarded(1)
    (note,) = (await dead_letter_page.listed(letters)).stubs
    assert note.note
    assert (note.note.outcome, note.note.token, note.note.reason) == ("discarded", "é" * 100, "\x01" * 1_024)
