"""Rejecting and replaying on a real server: messages are copied once and then terminated, in spite of kills."""

import asyncio
import base64
import json
import secrets
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue, StoreFailed, StreamNotFound
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import DeadLettersUnsuitable, HoldLost, ReplayRefused
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters import dead_letters, replayable
from jetstream_handoff.letters import replay as replays
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.letter import PREFIX
from jetstream_handoff.letters.selection import Selection, select
from tests.jetstream_client.until import until
from tests.jetstream_handoff import killed
from tests.jetstream_handoff.steps import CONSUMER, floor, publish, take, unacknowledged

EVERYTHING = Selection(everything=True, unconfirmed=True)


async def stored(stream: Stream, name: str) -> list[dict[str, Any]]:
    """Return all messages of a stream, read from its leader."""
    found: list[dict[str, Any]] = []
    try:
        last = (await stream.js.stream(name).info()).state["last_seq"]
    except StreamNotFound:
        return []
    while not found or found[-1]["seq"] < last:
        first = found[-1]["seq"] + 1 if found else 1
        try:
            answer = await stream.js.api(f"STREAM.MSG.GET.{name}", {"seq": first, "next_by_subj": ">"})
        except Exception:  # noqa: BLE001 - nothing left: the last ones were removed
            return found
        found.append(answer["message"])
    return found


async def letters(stream: Stream, name: str = "") -> list[tuple[int, str]]:
    """Return the original sequence and the reason of each stored dead letter."""
    found = []
    for message in await stored(stream, name or f"DEAD_{stream.name}"):
        headers = decode_headers(base64.b64decode(message["hdrs"]))
        if "Nats-Dead-Letter-Replayed" not in headers:
            found.append((int(headers["Nats-Dead-Letter-Sequence"][0]), headers["Nats-Dead-Letter-Reason"][0]))
    return sorted(found)


async def reject(stream: Stream, sequences: list[int], reason: str = "no date", **changes: Any) -> Claim:
    """Take a claim and settle it with some of its messages rejected."""
    (claim,) = await take(stream, **changes)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of(sequences), reason)
        await hold.settle()
    return claim


async def replay(stream: Stream, selection: Selection) -> replays.Replayed:
    return await replays.replay(DeadLetters(stream.js, stream.name), selection)


async def listed(stream: Stream, selection: Selection = EVERYTHING) -> list[tuple[int, bool]]:
    """Return the original sequence of each selected dead letter, and whether the ledger confirms it."""
    found = select(DeadLetters(stream.js, stream.name), selection)
    return [(each.head.sequence, each.confirmed) async for each in found if each.head]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_what_is_rejected_is_copied_and_terminated_and_the_rest_acknowledged(
    stream: Stream, retention: str
) -> None:
    source = await stream.js.create_stream(
        {"name": f"R{stream.name}", "subjects": [f"R{stream.name}.>"], "retention": retention, "allow_direct": True}
    )
    try:
        await take(source, wait=0.2)  # creates the consumer, without which an interest stream stores nothing
        await publish(source, 1_200)
        claim = await reject(source, [7, 1_100], max_messages=1_200)
        assert await unacknowledged(source) == 0
        assert await floor(source) == 1_200
        assert (await source.info()).state["messages"] == 0
        assert await letters(source) == [(7, "no date"), (1_100, "no date")]
        (receipt,) = await Ledger(source.js, source.name, CONSUMER).committed()
        assert receipt.rejected == Sequences.of([7, 1_100])
        assert receipt.processed == claim.sequences - receipt.rejected
        assert await listed(source) == [(7, True), (1_100, True)]
        await source.js.stream(f"DEAD_{source.name}").delete()
    finally:
        await source.delete()


async def test_a_stream_with_the_longest_name(js: JetStream) -> None:
    """``DEAD_<stream>`` would be longer than a name may be."""
    name = f"{secrets.token_hex(4)}{'é' * 123}S"
    assert len(name.encode()) == 255
    source = await js.create_stream({"name": name, "subjects": [f"{name[:8]}.>"], "allow_direct": True})
    try:
        publish_all(js.settings, [(f"{name[:8]}.x", b"1"), (f"{name[:8]}.x", b"2")])
        await reject(source, [2], max_messages=2)
        assert await unacknowledged(source) == 0
        assert await listed(source) == [(2, True)]
        await DeadLetters(js, name).stream.delete()
    finally:
        await source.delete()


async def test_a_letter_is_the_message_byte_by_byte(stream: Stream) -> None:
    await stream.update({"duplicate_window": timedelta(milliseconds=100), "allow_msg_ttl": True})
    data = bytes(range(256)) * 40
    headers = {"Place": ["Köln", "Bonn"], "place": "x", "Nats-Msg-Id": "same", "Nats-TTL": "1h"}

    async def stores(count: int) -> bool:
        publish_all(stream.js.settings, [(f"{stream.name}.a.b", data, headers)], stream=stream.name)
        return bool((await stream.info()).state["messages"] == count)

    for count in (1, 2):  # two messages with the same id, which must become two dead letters
        await until(partial(stores, count))
    await reject(stream, [1, 2])
    originals = await stored(stream, stream.name)
    copies = await stored(stream, f"DEAD_{stream.name}")
    assert len(originals) == len(copies) == 2
    for original, copy in zip(originals, copies, strict=True):
        assert base64.b64decode(copy["data"]) == data
        lines = base64.b64decode(original["hdrs"]).split(b"\r\n")[1:-2]
        copied = base64.b64decode(copy["hdrs"]).split(b"\r\n")[1:-2]
        assert [line for line in lines if not line.startswith(b"Nats-")] == copied[:3]
        for line in lines[3:]:
            assert b"Nats-Dead-Letter-Original-" + line in copied
        found = decode_headers(base64.b64decode(copy["hdrs"]))
        ours = {name.removeprefix("Nats-Dead-Letter-"): value for name, (value, *_) in found.items()}
        assert (ours["Stream"], int(ours["Sequence"]), ours["Subject"], ours["Consumer"]) == (
            stream.name,
            original["seq"],
            original["subject"],
            CONSUMER,
        )
        assert ours["Time-Stamp"] == original["time"]
        assert copy["subject"].endswith(f".{stream.name}.a.b")


async def test_work_that_fails_rejects_nothing(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3]), "no date")
        await hold.fail()
    (again,) = await take(stream, "other")
    assert again.sequences == claim.sequences
    assert await letters(stream) == []


async def test_what_cannot_be_rejected_is_refused_at_once(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        with pytest.raises(InvalidValue, match=r"11-12.*does not contain"):
            await hold.reject(Sequences.of([3, 11, 12]), "no date")
        with pytest.raises(InvalidValue, match="reason"):
            await hold.reject(Sequences.of([3]), " \n ")
        with pytest.raises(InvalidValue, match="another stream"):
            await hold.reject(Sequences.of([3]), "no date", stream.name)
        assert not hold.rejected
        await hold.release()
        with pytest.raises(HoldLost):
            await hold.reject(Sequences.of([5]), "no date")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"retention": "workqueue"}, "retention"),
        ({"max_msgs_per_subject": -1}, "max_msgs_per_subject"),
        ({"subjects": ["elsewhere.%s.*"]}, "subjects"),
        ({"subjects": ["dead.%s.*", "dead.%s.*.>"]}, "subjects"),
        ({"no_ack": True}, "no_ack"),
        ({"discard": "old", "max_msgs": 10}, "discard"),
        ({"storage": "memory"}, "storage='memory'.*must survive a restart"),
        ({"max_age": timedelta(days=1)}, "max_age=86400000000000.*at least 604800000000000 ns"),
        pytest.param({"persist_mode": "async"}, "persist_mode", marks=pytest.mark.server("2.12")),
    ],
)
async def test_an_unsuitable_stream_is_refused_at_the_first_rejection(
    stream: Stream, changes: dict[str, Any], rule: str
) -> None:
    config: dict[str, Any] = {
        "name": f"OTHER_{stream.name}",
        "subjects": ["dead.%s.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
    }
    config |= changes
    config["subjects"] = [each % stream.name for each in config["subjects"]]
    await stream.js.create_stream(config)
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        with pytest.raises(DeadLettersUnsuitable, match=rule):
            await hold.reject(Sequences.of([3]), "no date", f"OTHER_{stream.name}")
        assert not hold.rejected


async def test_a_source_that_would_take_its_own_letters_is_refused(stream: Stream) -> None:
    await stream.update({"subjects": [f"{stream.name}.>", f"dead.{stream.name}.>"]})
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        with pytest.raises(DeadLettersUnsuitable, match="narrow"):
            await hold.reject(Sequences.of([3]), "no date")


async def test_an_attempt_that_lost_its_claim_copies_nothing(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as old:
        await old.reject(Sequences.of([3]), "old")
        async with Hold.begin(stream.js, claim, try_number=2) as new:
            with pytest.raises(HoldLost):
                await old.settle()
            assert await letters(stream) == []
            await new.reject(Sequences.of([3, 4]), "new")
            await new.settle()
    assert await letters(stream) == [(3, "new"), (4, "new")]


async def test_a_copy_that_comes_late_does_not_replace_the_newer_one(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    publishing, go_on = asyncio.Event(), asyncio.Event()

    async def frozen(*arguments: Any) -> Any:
        monkeypatch.undo()  # those of the newer attempt are not confirmed
        publishing.set()
        await go_on.wait()
        return await dead_letters.publish(*arguments)

    async with Hold.begin(stream.js, claim, try_number=1) as old:
        await old.reject(Sequences.of([3]), "old")
        monkeypatch.setattr(dead_letters, "publish", frozen)
        late = asyncio.create_task(old.settle())
        await publishing.wait()
        async with Hold.begin(stream.js, claim, try_number=2) as new:
            await new.reject(Sequences.of([3]), "new")
            await new.settle()
        go_on.set()
        with pytest.raises(HoldLost):
            await late
    assert await letters(stream) == [(3, "new")]


async def test_killed_between_copy_and_ledger_the_next_attempt_decides(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    killed.run("copied", stream.js.settings, claim=claim.to_json(), rejected=[3, 4])
    assert await letters(stream) == [(3, "killed"), (4, "killed")]
    assert await listed(stream) == [(3, False), (4, False)]
    assert await listed(stream, Selection(everything=True)) == []
    assert await unacknowledged(stream) == 10
    async with Hold.begin(stream.js, claim, try_number=2) as hold:
        await hold.reject(Sequences.of([3]), "once\n more")  # and 4 is processed this time
        await hold.settle()
    assert await letters(stream) == [(3, "once more"), (4, "killed")]
    assert dict(await listed(stream)) == {3: True, 4: False}
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert receipt.rejected == Sequences.of([3])
    assert (await replay(stream, Selection(everything=True))).count == 1
    assert (await stream.info()).state["messages"] == 11


async def test_killed_between_ledger_and_termination_is_terminated_later(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    killed.run("decided", stream.js.settings, claim=claim.to_json(), rejected=[3])
    assert await unacknowledged(stream) == 10
    assert await take(stream, "other", wait=1.8) == []
    assert await unacknowledged(stream) == 0
    assert await letters(stream) == [(3, "killed")]
    assert await listed(stream) == [(3, True)]
    (receipt,) = await Ledger(stream.js, stream.name, CONSUMER).committed()
    assert (receipt.claim_id, receipt.rejected) == (claim.id, Sequences.of([3]))


async def test_replay_publishes_the_chosen_to_their_subjects(stream: Stream) -> None:
    messages = [
        (
            f"{stream.name}.{kind}",
            f"{kind} {number}".encode(),
            {"Kind": [kind, str(number)], "Nats-Msg-Id": f"{kind}{number}"},
        )
        for number in range(5)
        for kind in ("a", "b")
    ]
    publish_all(stream.js.settings, messages)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([1, 2, 3]), "no date")
        await hold.reject(Sequences.of([9, 10]), "no weight")
        await hold.settle()
    assert [each for each, _ in await listed(stream, Selection(reason="weight"))] == [9, 10]
    assert [each for each, _ in await listed(stream, Selection(subject="*.a"))] == [1, 3, 9]
    assert [each for each, _ in await listed(stream, Selection(sequences=Sequences.of([2, 9])))] == [2, 9]
    assert await listed(stream, Selection(consumer="nobody")) == []
    assert len(await letters(stream)) == 5  # listing changes nothing
    assert (await replay(stream, Selection(subject="*.a", reason="date"))).published == 2
    assert await letters(stream) == [(2, "no date"), (9, "no weight"), (10, "no weight")]
    before, after = (await stored(stream, stream.name))[:10], (await stored(stream, stream.name))[10:]
    assert [each["subject"] for each in after] == [f"{stream.name}.a"] * 2
    for new, old in zip(after, (before[0], before[2]), strict=True):
        assert new["data"] == old["data"]
        assert (
            decode_headers(base64.b64decode(new["hdrs"]))["Kind"]
            == decode_headers(base64.b64decode(old["hdrs"]))["Kind"]
        )
    assert (await replay(stream, Selection(everything=True))).published == 3
    assert (await replay(stream, Selection(everything=True))).count == 0
    assert (await stream.info()).state["messages"] == 15
    (again,) = await take(stream, "again")
    assert again.sequences == Sequences.from_ranges([(11, 15)])


@pytest.mark.parametrize("point", ["marked", "published"])
async def test_a_replay_that_was_killed_is_finished_by_the_next(stream: Stream, point: str) -> None:
    # The shortest window: what a repeated id would hide, nothing hides here.
    await stream.update({"duplicate_window": timedelta(milliseconds=100)})
    await publish(stream, 10)
    await reject(stream, [3, 4])
    killed.run(point, stream.js.settings, stream=stream.name)
    assert (await stream.info()).state["messages"] == (10 if point == "marked" else 11)
    assert len(await letters(stream)) == 2
    await publish(stream, 10)
    outcome = await replay(stream, Selection(everything=True))
    assert (outcome.published, outcome.found) == ((2, 0) if point == "marked" else (1, 1))
    assert (await stream.info()).state["messages"] == 22
    assert await letters(stream) == []


async def test_a_replay_removes_no_newer_message_on_its_subject(stream: Stream) -> None:
    """Of a stream that keeps the last message for each subject. The newer message is not processed yet."""
    await stream.update({"max_msgs_per_subject": 1})
    publish_all(stream.js.settings, [(f"{stream.name}.{name}", b"old") for name in "ab"])
    await reject(stream, [1, 2])
    publish_all(stream.js.settings, [(f"{stream.name}.a", b"new")])
    outcome = await replay(stream, Selection(everything=True))
    assert (outcome.published, list(outcome.refused)) == (1, [1])  # the original of "b" is still the last one there
    assert "would remove message 3 on" in outcome.refused[1]
    assert [each for each, _ in await letters(stream)] == [1]
    assert [each["seq"] for each in await stored(stream, stream.name)] == [3, 4]
    publish_all(stream.js.settings, [(f"{stream.name}.b", b"new")])
    await stream.update({"max_msgs_per_subject": 2})
    assert (await replay(stream, Selection(everything=True))).published == 1


async def test_a_message_that_comes_between_the_check_and_the_replay_is_not_removed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.update({"max_msgs_per_subject": 1})
    await publish(stream, 1)
    await reject(stream, [1])
    checked = replayable.only_if_room

    async def overtaken(target: Stream, config: Any, letter: Any) -> list[bytes]:
        lines = await checked(target, config, letter)
        publish_all(stream.js.settings, [(letter.subject, b"new")])
        return lines

    monkeypatch.setattr(replays, "only_if_room", overtaken)
    outcome = await replay(stream, Selection(everything=True))
    assert outcome.published == 0
    assert "another message was published" in next(iter(outcome.refused.values()))
    assert [base64.b64decode(each["data"]) for each in await stored(stream, stream.name)] == [b"new"]
    assert [each for each, _ in await letters(stream)] == [1]


async def test_a_stream_that_nobody_is_interested_in_gets_no_replay(stream: Stream) -> None:
    """It would confirm the message and store nothing, and the dead letter would be replaced by a note."""
    await stream.delete()
    config = {"name": stream.name, "subjects": [f"{stream.name}.>"], "retention": "interest", "allow_direct": True}
    stream = await stream.js.create_stream(config)
    await take(stream, "creates the consumer", wait=0.1)
    await publish(stream, 3)
    await reject(stream, [1, 2, 3])
    await stream.consumer(CONSUMER).update({"filter_subject": f"{stream.name}.other"})
    outcome = await replay(stream, Selection(everything=True))
    assert (outcome.published, len(outcome.refused)) == (0, 3)
    assert all("no consumer is interested in" in each for each in outcome.refused.values())
    assert len(await letters(stream)) == 3
    await stream.consumer(CONSUMER).update({"filter_subject": f"{stream.name}.>"})
    assert (await replay(stream, Selection(everything=True))).published == 3
    assert (await stream.info()).state["messages"] == 3


async def test_what_the_stream_confirms_and_does_not_have_stays_a_dead_letter(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.update({"duplicate_window": timedelta(milliseconds=100)})
    await publish(stream, 1)
    await reject(stream, [1])
    published = DeadLetters.publish_one

    async def lost(self: DeadLetters, target: Stream, *arguments: Any, **options: Any) -> Any:
        ack = await published(self, target, *arguments, **options)
        if target.name == stream.name:
            await stream.delete_message(ack.seq)
        return ack

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetters, "publish_one", lost)
        outcome = await replay(stream, Selection(everything=True))
    assert outcome.published == 0
    assert "has confirmed the message as sequence 2, but does not have it" in next(iter(outcome.refused.values()))

    async def published_again() -> bool:
        return (await replay(stream, Selection(everything=True))).published == 1

    await until(published_again)  # when the server has forgotten the id
    assert await letters(stream) == []


async def test_a_selection_says_what_it_wants(stream: Stream) -> None:
    with pytest.raises(InvalidValue, match="everything"):
        Selection()
    with pytest.raises(InvalidValue, match="everything"):
        Selection(everything=True, reason="x")
    with pytest.raises(InvalidValue, match="subject"):
        Selection(subject="a.>.b")
    assert await listed(stream) == []  # nothing was rejected yet
    assert (await replay(stream, EVERYTHING)).count == 0
    for missing in (DeadLetters(stream.js, stream.name, "MISSING"), DeadLetters(stream.js, "MISSING")):
        with pytest.raises(StreamNotFound):
            await anext(select(missing, EVERYTHING))


@pytest.mark.killed
async def test_a_killed_server_does_not_bring_replayed_letters_back(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            # The shortest window: the ids of the first replay would hide the second.
            short = {"duplicate_window": timedelta(milliseconds=100)}
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True, **short})
            await publish(stream, 200)
            await reject(stream, list(range(1, 201)))
            assert (await replay(stream, Selection(sequences=Sequences.from_ranges([(1, 150)])))).published == 150
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.2)
            assert (await replay(stream, Selection(everything=True))).count == 50
            assert (await stream.info(patience=10)).state["messages"] == 400
    finally:
        server.stop()


async def forge(stream: Stream, address: str = "", data: bytes | None = None, **headers: str) -> None:
    """Publish a copy of the first dead letter with changed headers, under the address that matches them."""
    copy = (await stored(stream, f"DEAD_{stream.name}"))[0]
    given = decode_headers(base64.b64decode(copy["hdrs"]))
    ours = {name.removeprefix(PREFIX): value for name, (value, *_) in given.items() if name.startswith(PREFIX)}
    ours |= {name.replace("_", "-"): value for name, value in headers.items()}
    if not address:
        created = time_nanoseconds(ours["Stream-Created"])
        address = f"dead.{ours['Stream']}.{ours['Consumer']}.{ours['Sequence']}.{created}.{ours['Subject']}"
    lines = {f"{PREFIX}{name}": value for name, value in ours.items()}
    payload = base64.b64decode(copy["data"]) if data is None else data
    await stream.js.publish(address, payload, headers=lines)


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        ({"Subject": "$JS.API.STREAM.DELETE.OTHER_{name}", "Sequence": "99"}, "does not listen on '$JS.API"),
        ({"Subject": "OTHER_{name}.a", "Sequence": "99"}, "does not listen on 'OTHER_{name}.a'"),
        ({"Subject": "{name}.else"}, "not a copy of message 3 of stream '{name}'"),
        ({"data": b"else"}, "not a copy of message 3 of stream '{name}'"),
        ({"address": "dead.{name}.work.3.1.{name}.2"}, "address"),
        ({"address": "dead.{name}.any", "Subject": "{name}.*"}, "no wildcards"),
        ({"address": "dead.{name}.any", "Subject": "{name}.a _INBOX.b"}, "white space"),
        ({"address": "dead.{name}.any", "Sequence": "many"}, "Sequence"),
        ({"address": "dead.{name}.any", "Stream_Created": "yesterday"}, "Stream-Created"),
        ({"Claim": "*", "Sequence": "99"}, "Claim"),
        ({"Consumer": "work.a"}, "Consumer"),
        ({"Replay": "x", "Sequence": "99"}, "Replay"),
    ],
)
async def test_a_forged_letter_is_not_replayed_and_hides_no_other(
    stream: Stream, forged: dict[str, Any], says: str
) -> None:
    other = await stream.js.create_stream({"name": f"OTHER_{stream.name}", "subjects": [f"OTHER_{stream.name}.>"]})
    await publish(stream, 10)
    await reject(stream, [3, 4])
    named: dict[str, Any] = {
        name: value.format(name=stream.name) if isinstance(value, str) else value for name, value in forged.items()
    }
    await forge(stream, **named)
    overwritten = 1 if forged.keys() == {"data"} else 0
    assert len(await letters_stored(stream)) == 3 - overwritten
    outcome = await replay(stream, EVERYTHING)
    assert outcome.published == 2 - overwritten
    (problem,) = outcome.refused.values()
    assert says.format(name=stream.name) in problem
    assert (await other.info()).state["messages"] == 0
    subjects = [message["subject"] for message in (await stored(stream, stream.name))[10:]]
    assert subjects == [f"{stream.name}.2", f"{stream.name}.0"][overwritten:]
    assert len(await letters_stored(stream)) == 1


async def letters_stored(stream: Stream) -> list[dict[str, Any]]:
    """Return the messages of the dead-letter stream, except the notes of a replay."""
    found = await stored(stream, f"DEAD_{stream.name}")
    return [message for message in found if b"Dead-Letter-Replayed" not in base64.b64decode(message["hdrs"])]


async def test_what_is_no_letter_is_listed_as_such(stream: Stream) -> None:
    await publish(stream, 10)
    await reject(stream, [3, 4])
    await stream.js.publish(f"dead.{stream.name}.any", b"x")
    found = [each async for each in select(DeadLetters(stream.js, stream.name), EVERYTHING)]
    assert [(each.number, each.head and each.head.sequence, each.confirmed) for each in found] == [
        (1, 3, True),
        (2, 4, True),
        (3, None, False),
    ]
    assert "Nats-Dead-Letter-" in found[2].problem


async def test_a_claim_that_the_ledger_does_not_know_confirms_nothing(stream: Stream) -> None:
    await publish(stream, 10)
    claim = await reject(stream, [3])
    await forge(stream, Claim="0123456789ab", Sequence="4", Subject=f"{stream.name}.0")
    await forge(stream, Claim=claim.id, Consumer="other")
    assert await listed(stream) == [(3, True), (4, False), (3, False)]
    outcome = await replay(stream, Selection(everything=True))
    assert (outcome.published, outcome.unconfirmed) == (1, 2)


async def test_who_may_publish_on_the_dead_letter_subjects_replaces_a_letter(stream: Stream) -> None:
    """Without the source's message, a replaced dead letter cannot be told from the original (SECURITY.md)."""
    await publish(stream, 10)
    await reject(stream, [3, 4])
    await stream.purge()
    await forge(stream, data=b"else")
    assert sorted(await listed(stream)) == [(3, True), (4, True)]
    assert (await replay(stream, Selection(everything=True))).published == 2
    assert b"else" in [base64.b64decode(message["data"]) for message in await stored(stream, stream.name)]


async def test_who_may_publish_on_the_dead_letter_subjects_loses_a_letter(stream: Stream) -> None:
    await publish(stream, 10)
    await reject(stream, [3, 4])
    letters = await stored(stream, f"DEAD_{stream.name}")
    await stream.js.publish(letters[0]["subject"], b"", headers={f"{PREFIX}Replayed": "1"})
    assert await listed(stream) == [(4, True)]


@pytest.mark.parametrize("length", [300, 2_000, 3_900])
async def test_a_long_subject_is_rejected_and_replayed(stream: Stream, length: int) -> None:
    subject = f"{stream.name}.{'long.' * (length // 5)}end"
    with Wire.open(stream.js.settings) as wire:  # as other clients may publish: ours refuse subjects of this length
        for _ in range(2):
            wire.request(subject, b"x")
    await reject(stream, [1, 2], consumer="c" * 200)
    assert await listed(stream) == [(1, True), (2, True)]
    assert (await replay(stream, Selection(everything=True))).published == 2
    assert [each["subject"] for each in await stored(stream, stream.name)] == [subject] * 4
    assert await listed(stream) == []


async def test_many_large_messages_are_copied_on_one_connection(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "max_payload: 8MB, max_pending: 16MB")
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, 12, size=4 << 20)
            await reject(stream, list(range(1, 13)))
            assert await letters(stream) == [(number, "no date") for number in range(1, 13)]
            assert js.connection.reconnects == 0
    finally:
        server.stop()


async def refusal_of_replay(stream: Stream) -> str:
    try:
        (problem,) = (await replay(stream, EVERYTHING)).refused.values()
    except ReplayRefused as refused:
        return str(refused)
    return problem


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mirror": {"name": "{origin}"}}, "it is a mirror of stream '{origin}'"),
        (
            {"sources": [{"name": "{origin}"}]},
            "it listens on no subjects, and it copies messages of other streams ('{origin}')",
        ),
        ({"sources": [{"name": "{origin}"}], "subjects": ["{name}.>"]}, "stream '{name}' does not listen on"),
        (
            {"subjects": ["{name}.>"], "subject_transform": {"src": "{name}.>", "dest": "{origin}.>"}},
            "stream '{name}' does not listen on",
        ),
    ],
)
async def test_a_replay_goes_into_another_stream_where_its_own_cannot_take_it(
    stream: Stream, config: dict[str, Any], says: str
) -> None:
    names = {"origin": stream.name, "name": f"OTHER_{stream.name}"}
    config = {key: json.loads(_named(json.dumps(value), names)) for key, value in config.items()}
    other = await stream.js.create_stream({"name": names["name"], "allow_direct": True, **config})
    await publish(stream, 1)
    if "subject_transform" in config:
        await stream.js.publish(f"{other.name}.0", b"x")
    await reject(other, [1])
    problem = await refusal_of_replay(other)
    assert says.format(**names) in problem
    assert "use 'into' to name" in problem
    letters = DeadLetters(stream.js, other.name)
    assert (await replays.replay(letters, EVERYTHING, stream.name)).published == 1
    assert (await stream.info()).state["messages"] == 2
    await letters.stream.delete()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sealed": True}, "it is sealed"),
        ({"no_ack": True}, "no_ack"),
        ({"subject_transform": {"src": "{name}.*", "dest": "{name}.in.{{wildcard(1)}}"}}, "under another subject"),
    ],
)
async def test_a_stream_that_cannot_take_its_messages_again_says_so(
    stream: Stream, change: dict[str, Any], says: str
) -> None:
    await publish(stream, 1)
    await reject(stream, [1])
    await stream.update(json.loads(_named(json.dumps(change), {"name": stream.name})))
    assert says in await refusal_of_replay(stream)
    assert len(await letters_stored(stream)) == 1


def _named(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


async def test_a_full_stream_is_named_by_copies_and_replays(stream: Stream) -> None:
    await publish(stream, 3)
    claims = await take(stream, messages_per_claim=1)
    async with Hold.begin(stream.js, claims[0], try_number=1) as hold:
        await hold.reject(Sequences.of([1]), "no date")
        await hold.settle()
    dead = stream.js.stream(f"DEAD_{stream.name}")
    await dead.update({"max_msgs": 1})
    async with Hold.begin(stream.js, claims[1], try_number=1) as hold:
        await hold.reject(Sequences.of([2]), "no date")
        says = f"message 2 of stream '{stream.name}' could not be copied to stream '{dead.name}': maximum"
        with pytest.raises(StoreFailed, match=says):
            await hold.settle()
    await stream.update({"max_msgs": 3, "discard": "new"})
    says = f"'{dead.name}' are being replayed, but publishing a message to stream '{stream.name}' failed: maximum"
    with pytest.raises(StoreFailed, match=says):
        await replay(stream, EVERYTHING)
    assert await letters(stream) == [(1, "no date")]
