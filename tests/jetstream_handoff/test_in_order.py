"""Order per key, on a real server: what a take with ordered_by enters, waits for and refuses."""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, HandoffError, LedgerInvalid
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger import record as records
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.repair import reset as resets
from jetstream_handoff.take import in_order
from jetstream_handoff.take.in_order import InOrder, Missing
from jetstream_handoff.take.take import Take
from tests.jetstream_client.until import until
from tests.jetstream_handoff.order_judge import judge
from tests.jetstream_handoff.order_model import Model
from tests.jetstream_handoff.steps import CONSUMER, taking, unacknowledged

LONG = {"ack_wait": timedelta(seconds=30)}  # no lease ends during a test, unless somebody ends it
IN_ORDER: dict[str, Any] = {"ordered_by": "{2}", "claims": 3, "consumer_config": LONG}


async def publish(stream: Stream, keys: Iterable[object]) -> None:
    """Publish one message for each key, in this order."""
    await asyncio.to_thread(publish_all, stream.js.settings, [(f"{stream.name}.{each}", b"x") for each in keys])


async def take(stream: Stream, run: str = "run", wait: float = 60, **changes: Any) -> list[Claim]:
    work = Take(stream.js, taking(stream, run, **{**IN_ORDER, **changes}))
    try:
        await work.prepare()
        claims = await work.take(wait)
        work.handed_on()
    finally:
        await work.put_back()
    return claims


async def settled(stream: Stream, *claims: Claim) -> None:
    for claim in claims:
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            await hold.settle()


async def failed(stream: Stream, claim: Claim) -> None:
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.fail("failed")


async def order_of(stream: Stream) -> dict[str, Any]:
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    assert record.order
    return record.order.to_json()


async def wrong(stream: Stream, keys: str) -> list[str]:
    """What the judge says, when the key of each message is a letter."""
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    return judge(dict(enumerate(keys, 1)), receipts)


def parts(claims: list[Claim]) -> list[list[int]]:
    return [list(claim.sequences) for claim in claims]


async def test_each_key_is_in_one_claim(stream: Stream) -> None:
    await publish(stream, "abcabdaee")
    claims = await take(stream)
    assert sorted(parts(claims)) == [[1, 4, 7], [2, 3, 5], [6, 8, 9]]
    assert await order_of(stream) == {"by": "{2}", "gathering": None, "gone": [], "claims": 3}


async def test_the_key_may_be_a_header(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """Messages without it have one key in common, and the log says how many: perhaps its name is wrong."""
    for key in "aba":
        await stream.js.publish(f"{stream.name}.x", b"", headers={"Customer": key})
    claims = await take(stream, ordered_by="header:Customer")
    assert parts(claims) == [[1, 3], [2]]
    assert "no header" not in caplog.text
    await settled(stream, *claims)
    for headers in ({"Customer": "a"}, {"customer": "b"}, {}):  # names of headers are case-sensitive
        await stream.js.publish(f"{stream.name}.x", b"", headers=headers)
    assert parts(await take(stream, "next", ordered_by="header:Customer")) == [[4], [5, 6]]
    assert "2 of 3 messages have no header Customer, or an empty one, so they have one key in common" in caplog.text


async def test_the_next_batch_waits_for_all_claims_and_says_so(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """Newer messages of a key must not be taken while an earlier one may still fail."""
    caplog.set_level(logging.INFO)
    await publish(stream, "abc")
    first, second, third = await take(stream)
    await settled(stream, first, second)
    await publish(stream, "aac")
    assert await take(stream, "next", wait=0.3) == []
    blocked = rf"waits for 1 of 3 claims \({third.id}, taken by .* and not held, for \d seconds?\); 3 messages wait"
    assert any(re.search(blocked, line) for line in caplog.messages), caplog.messages
    async with Hold.begin(stream.js, third, try_number=1, holder=("dag", "run", "work", 3, 1)) as hold:
        caplog.clear()
        assert await take(stream, "next", wait=0.3) == []
        assert any(f"({third.id}, held by dag / run / work[3]" in line for line in caplog.messages), caplog.messages
        next_one = asyncio.create_task(take(stream, "next"))
        await hold.settle()
    assert sorted(parts(await next_one)) == [[4, 5], [6]]


async def test_looks_keep_the_order(stream: Stream) -> None:
    """As those of a rescheduled sensor, each of which is a take of its own."""

    async def look(run: str) -> list[Claim]:
        work = Take(stream.js, taking(stream, run, **IN_ORDER))
        await work.prepare()
        claims = await work.look()
        work.handed_on()
        await work.put_back()
        return claims

    assert await look("early") == []
    await publish(stream, "aba")
    claims = await look("first")
    assert sorted(parts(claims)) == [[1, 3], [2]]
    await publish(stream, "b")
    assert await look("blocked") == []
    await settled(stream, *claims)
    (claim,) = await look("next")
    assert list(claim.sequences) == [4]
    assert (await order_of(stream))["gathering"] is None


async def test_a_failed_claim_comes_with_the_newer_messages_of_its_keys(stream: Stream) -> None:
    await publish(stream, "ab")
    one, other = await take(stream)
    await failed(stream, one)
    await settled(stream, other)
    await publish(stream, "ab")
    assert parts(await take(stream, "next")) == [[1, 3], [4]]


async def test_a_lease_that_has_ended_is_found_behind_the_barrier(stream: Stream) -> None:
    """Its holder is dead. Only a redelivery shows it, and a take that waits pulls nothing else."""
    await publish(stream, "ab")
    short: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=9)}}  # looks for ended leases each 3 s
    dead, other = await take(stream, hand_off_timeout=timedelta(seconds=1), **short)
    await settled(stream, other)
    await publish(stream, "ba")
    assert sorted(parts(await take(stream, "next", **short))) == [[1, 4], [3]]
    with pytest.raises(HandoffError, match=f"{dead.id}.* superseded"):
        await settled(stream, dead)


async def test_takes_that_wait_at_the_same_time_do_not_hinder_each_other(stream: Stream) -> None:
    """Without the election, four sensors entered nothing in a minute."""
    await publish(stream, "abcd" * 5)
    waiting = [asyncio.create_task(take(stream, f"run {each}")) for each in range(4)]
    taken: list[Claim] = []
    for _ in range(3):
        finished, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        claims = [claim for each in finished for claim in each.result()]
        taken += claims
        await settled(stream, *claims)
        await publish(stream, "ab")
        waiting = list(rest)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(taken) == 3 + 2 + 2
    assert await wrong(stream, "abcd" * 5 + "ab" * 3) == []


async def test_a_take_that_has_died_while_it_gathers_is_replaced(stream: Stream) -> None:
    """As soon as it has not said for 1.2 times ``ack_wait`` that it gathers; the test waits for that."""
    await publish(stream, "aa")
    short: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=4)}}
    dead = Take(stream.js, taking(stream, "dead", min_messages=3, **{**IN_ORDER, **short}))
    await dead.prepare()
    gathering = asyncio.create_task(dead.take(60))
    await until(lambda: _gathers(stream, dead))
    gathering.cancel()  # its process is gone: nothing is put back
    await asyncio.gather(gathering, return_exceptions=True)
    assert parts(await take(stream, "next", **short)) == [[1, 2]]


async def _gathers(stream: Stream, work: Take) -> bool:
    order = work._order
    assert order
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    gathers = record is not None and record.order is not None and record.order.gathers(order._id)
    return gathers and work._window is not None and work._window.count == 2


@pytest.fixture
async def restarted(tmp_path: Path) -> AsyncIterator[tuple[NatsServer, Stream]]:
    server = NatsServer(tmp_path)
    server.start()
    settings = ConnectionSettings(servers=server.url, shortest_ack_wait=0.5, ledger=f"test_{secrets.token_hex(4)}")
    try:
        async with connect(settings) as js:
            yield server, await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    finally:
        server.stop()


async def test_after_a_restart_newer_messages_wait_for_those_that_are_not_due(
    restarted: tuple[NatsServer, Stream],
) -> None:
    """A restart forgets that messages were negatively acknowledged, so that new ones come first. It takes as long as
    their leases."""
    server, stream = restarted
    slow: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=4)}, "claims": 1}
    await publish(stream, "aaab")
    (claim,) = await take(stream, **slow)
    await failed(stream, claim)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await publish(stream, "ab")
    assert parts(await take(stream, "next", **slow)) == [[1, 2, 3, 4, 5, 6]]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the takes of a test have counted."""
    count, found = InOrder.count, list[Any]()

    async def counting(self: InOrder, *arguments: Any) -> Any:
        found.append(await count(self, *arguments))
        return found[-1]

    monkeypatch.setattr(InOrder, "count", counting)
    return found


@pytest.mark.parametrize("counted", [True, False])
async def test_without_the_count_a_newer_message_overtakes(
    stream: Stream, counted: bool, counts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: another client has received a message, as after the death of a take, and the judge sees it."""
    if not counted:
        monkeypatch.setattr(in_order, "missing", lambda *_: 0)
    await publish(stream, "b")
    await settled(stream, *await take(stream))
    await publish(stream, "aa")
    (stranger,) = await stream.consumer(CONSUMER).fetch(1, max_wait=30)
    assert stranger.metadata.sequence == 2
    taken = asyncio.create_task(take(stream, "next"))
    if counted:
        await until(lambda: counts[-1:] == [Missing(1)])
        await stranger.nak()
        assert parts(await taken) == [[2, 3]]
        await settled(stream, *taken.result())
        assert await wrong(stream, "baa") == []
    else:
        assert parts(await taken) == [[3]]
        await settled(stream, *taken.result())
        await stranger.nak()
        await settled(stream, *await take(stream, "last"))
        gap, late = await wrong(stream, "baa")
        assert gap.startswith("gap: 2 of key a before 3")
        assert late.startswith("out of order: 2")


async def test_a_removed_message_does_not_hide_a_missing_one(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has as many messages unacknowledged as the batch contains, but not the same ones."""
    await publish(stream, "b")
    await settled(stream, *await take(stream))
    await publish(stream, "aaca")
    (stranger,) = await stream.consumer(CONSUMER).fetch(1, max_wait=30)
    assert stranger.metadata.sequence == 2
    count, found = InOrder.count, list[Any]()

    async def counting(self: InOrder, *arguments: Any) -> Any:
        if not found:
            await stream.delete_message(4)
            await until(lambda: _unacknowledged_are(stream, 3))
        found.append(await count(self, *arguments))
        return found[-1]

    monkeypatch.setattr(InOrder, "count", counting)
    taken = asyncio.create_task(take(stream, "next"))
    await until(lambda: found[-1:] == [Missing(1)])
    await stranger.nak()
    assert parts(await taken) == [[2, 3, 5]]
    assert found[0] == Missing(0, "messages were removed from the stream while they were gathered: 4")


async def test_more_deleted_messages_than_the_server_can_list_are_named(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would close the connection, on which all sensors of a triggerer wait, again and again."""
    monkeypatch.setattr(in_order, "MOST_LISTED", 0)
    await publish(stream, "abc")
    count = InOrder.count

    async def counting(self: InOrder, *arguments: Any) -> Any:
        await stream.delete_message(2)
        return await count(self, *arguments)

    monkeypatch.setattr(InOrder, "count", counting)
    with pytest.raises(ConsumerUnsuitable, match=r"ordered_by=.*has 1 deleted messages between others"):
        await take(stream)
    assert await unacknowledged(stream) == 2


async def _unacknowledged_are(stream: Stream, count: int) -> bool:
    return await unacknowledged(stream) == count


async def test_an_open_claim_whose_messages_were_removed_does_not_block(stream: Stream) -> None:
    """It stays open, because its task may be at work."""
    await publish(stream, "ab")
    gone, other = await take(stream)
    await settled(stream, other)
    await stream.delete_message(1)
    await publish(stream, "ab")
    claims = await take(stream, "next")
    assert sorted(parts(claims)) == [[3], [4]]
    await settled(stream, *claims, gone)


async def test_a_key_that_failed_is_tried_again_with_its_first_messages(stream: Stream) -> None:
    """Message 1 is bad. It becomes a dead letter, and its key goes on with the next message."""
    await publish(stream, "aab")
    bad, seen = 1, list[list[int]]()
    async with asyncio.timeout(60):
        while await unacknowledged(stream) if seen else True:
            for claim in await take(stream, f"run {len(seen)}", claims=1, max_failures=2):
                seen.append(list(claim.sequences))
                await (failed if bad in claim.sequences else settled)(stream, claim)
    assert seen[:3] == [[1, 2, 3], [1], [3]]
    assert seen.count([1]) == 2
    assert [each for each in seen[1:] if 2 in each] == [[2]]
    assert seen.index([2]) > max(at for at, each in enumerate(seen) if each == [1])
    receipts = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert judge(dict(enumerate("aab", 1)), receipts, {1}) == []


async def letters(stream: Stream) -> dict[int, str]:
    """The reasons of the dead letters, by the sequence of the message."""
    found = [each async for each in select(DeadLetters(stream.js, stream.name), Selection(everything=True))]
    return {each.head.sequence: each.head.reason for each in found if each.head and each.confirmed}


STOPPING: dict[str, Any] = {"claims": 1, "max_failures": 1, "on_poison": "stop_key"}


async def stopped_at(stream: Stream, bad: int) -> None:
    """Let message ``bad`` fail and stop its key, and settle everything else that is published so far."""
    async with asyncio.timeout(60):
        while True:
            for claim in await take(stream, secrets.token_hex(4), wait=1, **STOPPING):
                await (failed if bad in claim.sequences else settled)(stream, claim)
            if (await order_of(stream)).get("stopped") and not await unacknowledged(stream):
                return


async def test_a_key_stops_and_the_others_go_on(stream: Stream) -> None:
    await publish(stream, "ab")
    await settled(stream, *await take(stream, **STOPPING))
    await publish(stream, "abcb")
    await stopped_at(stream, 3)
    assert await letters(stream) == {3: "failed 1 times alone, the last time: failed"}
    await publish(stream, "aba")
    (claim,) = await take(stream, "later", **STOPPING)
    assert list(claim.sequences) == [8]
    await settled(stream, claim)
    behind = "its key stopped at 3"
    assert (await letters(stream)).items() >= {7: behind, 9: behind}.items()
    assert await wrong(stream, "ababcbaba") == []


async def test_a_stopped_key_stays_stopped_for_a_take_that_skips(stream: Stream) -> None:
    """One that would give up nothing itself, too. The dead letters need a stream then."""
    await publish(stream, "ab")
    await stopped_at(stream, 1)
    await publish(stream, "ab")
    (claim,) = await take(stream, "skips")
    assert list(claim.sequences) == [4]
    assert (await letters(stream))[3] == "its key stopped at 1"


async def test_a_reset_to_where_a_key_stopped_lets_it_go_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset to a later sequence does not."""
    monkeypatch.setattr(resets, "QUIET", 0.1)
    await publish(stream, "ab")
    await stopped_at(stream, 1)
    await publish(stream, "ab")
    await resets.reset(Ledger(stream.js, stream.name, CONSUMER), 3)
    (claim,) = await take(stream, "later", **STOPPING)
    assert list(claim.sequences) == [4]
    await settled(stream, claim)
    await resets.reset(Ledger(stream.js, stream.name, CONSUMER), 1)
    (claim,) = await take(stream, "all", **STOPPING)
    assert list(claim.sequences) == [1, 2, 3, 4]
    assert "stopped" not in await order_of(stream)


async def test_other_takes_of_the_consumer_must_keep_the_same_order(stream: Stream) -> None:
    await publish(stream, "ab")
    await settled(stream, *await take(stream))
    for rule in ({"ordered_by": None, "claims": None}, {"ordered_by": "subject"}):
        with pytest.raises(ConsumerUnsuitable, match=r"ordered_by=.*: other takes of this consumer have .*'\{2\}'"):
            await take(stream, "other", **rule)
    await publish(stream, "a")
    assert parts(await take(stream, "same")) == [[3]]


async def test_a_consumer_without_an_order_gets_one_when_its_claims_have_ended(stream: Stream) -> None:
    await publish(stream, "aba")
    claims = await take(stream, ordered_by=None, claims=None, messages_per_claim=2)
    await settled(stream, claims[0])
    assert await take(stream, "ordered", wait=0.3) == []
    await failed(stream, claims[1])
    assert parts(await take(stream, "ordered")) == [[3]]


async def test_a_release_that_does_not_know_the_order_refuses_the_record(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would enter messages without the order, and drop it."""
    await publish(stream, "a")
    await take(stream)
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    assert record
    written = record.to_json()
    assert written["v"] == 2
    assert records.Record.from_json(json.loads(json.dumps(written))) == record
    monkeypatch.setattr(records, "_VERSIONS", (1,))  # as in earlier releases
    with pytest.raises(LedgerInvalid, match="it has version 2"):
        records.Record.from_json(written)


async def test_a_message_without_a_key_is_an_error_that_names_it(stream: Stream) -> None:
    await publish(stream, ["a.b", "a"])
    with pytest.raises(InvalidValue, match=rf"ordered_by='\{{3\}}': subject '{stream.name}.a' has 2 tokens"):
        await take(stream, ordered_by="{3}")
    assert (await order_of(stream))["gathering"] is None


async def test_what_would_break_the_order_is_refused_before_anything_is_made(stream: Stream) -> None:
    with pytest.raises(ConsumerUnsuitable, match=r"max_ack_pending=5000: with ordered_by.*max_messages=1250 or more"):
        await take(stream, consumer_config={"max_ack_pending": 5_000})
    await stream.update({"max_msgs_per_subject": 1})
    with pytest.raises(ConsumerUnsuitable, match="max_msgs_per_subject=1, which removes messages that wait"):
        await take(stream)
    assert [each async for each in stream.consumer_names()] == []


@pytest.mark.parametrize(("seed", "on_poison"), [(1, "skip"), (2, "stop_key")])
async def test_the_order_is_kept_whatever_fails(stream: Stream, seed: int, on_poison: str) -> None:
    """The model: three takes and four workers that fail and die, another client, removed messages. It takes longer than
    five seconds, because dead takes and workers are only noticed when leases end. ``make order`` runs it for longer."""
    assert await Model(stream, seed, messages=96, on_poison=on_poison).run(within=300) == []
