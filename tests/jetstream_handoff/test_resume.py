"""Resuming keys that have stopped: their dead letters are processed in order, and nothing overtakes them."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from jetstream_client.errors import StreamNotFound
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.errors import ResumeRefused
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger import order
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.letter import content
from jetstream_handoff.letters.replay import replay, replay_one
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.letters.stored import stored_message
from jetstream_handoff.repair import resume as resuming
from jetstream_handoff.repair.resume import Resumed, resume
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, unacknowledged
from tests.jetstream_handoff.test_commands import say
from tests.jetstream_handoff.test_in_order import STOPPING, failed, settled, stopped_at, take


async def publish(stream: Stream, values: str) -> None:
    """Publish a message for each word: its first letter is the key, and the word the payload."""
    messages = [(f"{stream.name}.{word[0]}", word.encode()) for word in values.split()]
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


@asynccontextmanager
async def working(stream: Stream) -> AsyncIterator[list[str]]:
    """Take and settle all the while. Yields the payloads of the messages in the order in which they are settled."""
    done: list[str] = []

    async def work() -> None:
        run = 0
        while True:
            for claim in await take(stream, f"works {(run := run + 1)}", wait=5, **STOPPING):
                async with Hold.begin(stream.js, claim, try_number=1) as hold:
                    for sequence in claim.sequences:
                        message = await stored_message(stream, {"seq": sequence})
                        done.append(content(message or {})[1].decode())
                    await hold.settle()

    task = asyncio.create_task(work())
    try:
        yield done
        await until(lambda: _settled(stream), within=60)
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _settled(stream: Stream) -> bool:
    """Whether all is settled that was published. The server counts it as pending only a moment later."""
    last: int = (await stream.info()).state["last_seq"]
    return (await stream.consumer(CONSUMER).info()).floor >= last


async def stopped(stream: Stream) -> DeadLetters:
    """Publish messages of two keys, of which a stops at its first one."""
    await publish(stream, "a1 b1 a2")
    await stopped_at(stream, 1)
    await publish(stream, "a3 b2")
    return DeadLetters(stream.js, stream.name)


async def of_key(stream: Stream) -> dict[str, Any]:
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.order
    return record.order.to_json()


async def test_all_dead_letters_of_the_key_come_first_and_in_order(stream: Stream) -> None:
    letters = await stopped(stream)
    async with working(stream) as done:
        assert await resume(letters, CONSUMER) == Resumed(1, 3)
        await publish(stream, "a4")
    assert [each for each in done if each[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert not {"stopped", "resuming"} & (await of_key(stream)).keys()
    assert await resume(letters, CONSUMER) == Resumed()


async def test_a_message_between_the_dead_letters_does_not_overtake_them(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a dead letter itself, and so do those that were published again."""
    letters, between = await stopped(stream), ["a4", "a5"]

    async def replayed(*values: Any) -> Any:
        found = await replay_one(*values)
        if between:
            await publish(stream, between.pop(0))
        return found

    monkeypatch.setattr(resuming, "replay_one", replayed)
    async with working(stream) as done:
        assert await resume(letters, CONSUMER) == Resumed(1, 3 + 5)
    assert [each for each in done if each[0] == "a"] == ["a1", "a2", "a3", "a4", "a5"]


async def test_a_resume_that_was_killed_is_run_again(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hold ends after a minute."""
    letters = await stopped(stream)
    with monkeypatch.context() as killed:

        async def dies(*values: Any) -> Any:
            await replay_one(*values)
            raise KeyError("killed")

        killed.setattr(resuming, "replay_one", dies)
        async with working(stream):
            with pytest.raises(KeyError):
                await resuming._Resume(letters, CONSUMER, 60.0).run()
            await publish(stream, "a4")
            with pytest.raises(ResumeRefused, match="another resume is in progress"):
                await resume(letters, CONSUMER)
            assert len((await of_key(stream))["resuming"]) == 3
            killed.setattr(order, "HELD", 0.0)
    assert "resuming" not in await of_key(stream)
    async with working(stream) as done:
        assert await resume(letters, CONSUMER) == Resumed(1, 4)
    assert [each for each in done if each[0] == "a"] == ["a1", "a2", "a3", "a4"]


async def test_the_key_goes_on_when_its_dead_letters_are_discarded(stream: Stream) -> None:
    letters = await stopped(stream)
    async with working(stream) as done:
        await until(lambda: _settled(stream), within=60)
        await discard(letters, Selection(everything=True))
        said = await say(stream, "dead-letters", "resume", stream.name, CONSUMER)
        assert (said.code, said.out) == (
            0,
            f"0 dead letters of stream {stream.name} were published again, and 1 key goes on.\n",
        )
        await publish(stream, "a4")
    assert [each for each in done if each[0] == "a"] == ["a4"]
    said = await say(stream, "dead-letters", "resume", stream.name, CONSUMER)
    assert (said.code, said.out) == (0, f"No key of stream {stream.name}, consumer {CONSUMER}, is stopped.\n")


async def test_the_key_goes_on_when_the_stream_of_dead_letters_was_deleted(stream: Stream) -> None:
    letters = await stopped(stream)
    async with working(stream):
        pass  # a take that began after the deletion would create the stream again
    await stream.js.delete_stream(letters.name)
    with pytest.raises(StreamNotFound):
        await resume(DeadLetters(stream.js, stream.name, letters.name), CONSUMER)
    assert await resume(letters, CONSUMER) == Resumed(1, 0)


async def test_a_key_in_a_header_is_resumed(stream: Stream) -> None:
    """Also with a message whose dead letter is in parts, which contain the header."""
    by = {**STOPPING, "ordered_by": "header:Customer"}
    large = {"Customer": "7", "More": "x" * 65_000}
    for headers in ({"Customer": "7"}, large, {"Customer": "8"}):
        await stream.js.publish(f"{stream.name}.x", b"", headers=headers)

    async def settle(run: str, *, bad: bool) -> None:
        for claim in await take(stream, run, wait=1, **by):
            await (failed if bad and 1 in claim.sequences else settled)(stream, claim)

    await settle("first", bad=True)
    async with asyncio.timeout(60):
        while not (await of_key(stream)).get("stopped") or await unacknowledged(stream):
            await settle(secrets.token_hex(4), bad=True)
    letters = DeadLetters(stream.js, stream.name)
    assert [each.head.parts is None async for each in select(letters, Selection(everything=True)) if each.head] == [
        True,
        False,
    ]
    assert await resume(letters, CONSUMER) == Resumed(1, 2)
    await settle("later", bad=False)
    assert await unacknowledged(stream) == 0
    assert not {"stopped", "resuming"} & (await of_key(stream)).keys()


async def test_nothing_goes_on_before_everything_earlier_is_settled(stream: Stream) -> None:
    letters = await stopped(stream)
    with pytest.raises(ResumeRefused, match=r"the messages up to 5 are not all settled; let the sensors"):
        await resume(letters, CONSUMER, patience=0)
    found = await of_key(stream)
    assert found["stopped"]
    assert "resuming" not in found


async def test_dead_letters_from_before_the_key_stopped_stay(stream: Stream) -> None:
    """Messages behind them are processed, so they would come too late."""
    await publish(stream, "a1 a2")
    (claim,) = await take(stream, **STOPPING)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([1]), "not JSON")
        await hold.settle()
    await publish(stream, "a3")
    await stopped_at(stream, 3)
    await publish(stream, "a4")
    letters = DeadLetters(stream.js, stream.name)
    async with working(stream) as done:
        assert await resume(letters, CONSUMER) == Resumed(1, 2)
    assert done == ["a3", "a4"]
    assert [each.head.sequence async for each in select(letters, Selection(everything=True)) if each.head] == [1]


async def test_a_dead_letter_that_is_replayed_by_hand_keeps_its_place(stream: Stream) -> None:
    """It becomes a dead letter again, because its key is still stopped."""
    letters = await stopped(stream)
    async with working(stream) as done:
        await until(lambda: _settled(stream), within=60)
        assert (await replay(letters, Selection(sequences=Sequences.of([1])))).published == 1
        await until(lambda: _settled(stream), within=60)
        assert await resume(letters, CONSUMER) == Resumed(1, 3)
    assert [each for each in done if each[0] == "a"] == ["a1", "a2", "a3"]
