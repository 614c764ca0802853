"""Pages of dead letters, and their numbers, on a real server: without payloads, and with what became of them."""

import asyncio
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, Trace, connect
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import new_claim_id
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.letters import replay as replays
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.letter import PREFIX, address_of
from jetstream_handoff.letters.listing import Page, chosen, letter, listed
from jetstream_handoff.letters.selection import Selection, select
from jetstream_handoff.letters.stubs import Stub
from jetstream_handoff.letters.tally import Tally
from jetstream_handoff.rules import roles
from tests.jetstream_handoff.steps import CONSUMER, publish, take


@pytest.fixture(params=["by a consumer", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to read a page. The second one is that of users who are not permitted to create a consumer."""
    if request.param == "one by one":

        async def denied(_: Any, needs: Any) -> set[str]:
            return {need.subject for need in needs}

        monkeypatch.setattr(roles, "denied", denied)
    return str(request.param)


async def rejected(stream: Stream) -> DeadLetters:
    """Settle a claim of ten messages with five dead letters, of which one is replayed and one is discarded; and store a
    message that is no dead letter."""
    await publish(stream, 10, size=100)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3, 4, 5]), "no date")
        await hold.reject(Sequences.of([6, 7]), "no weight")
        await hold.settle()
    letters = DeadLetters(stream.js, stream.name)
    await replays.replay(letters, Selection(sequences=Sequences.of([3])))
    await discard(letters, Selection(sequences=Sequences.of([4])))
    await stream.js.publish(f"dead.{stream.name}.any", b"x" * 5)
    return letters


def shown(page: Page) -> list[tuple[str, int, str]]:
    return [_shown(stub) for stub in page.stubs]


def _shown(stub: Stub) -> tuple[str, int, str]:
    if stub.head:
        return ("confirmed" if stub.confirmed else "unconfirmed", stub.head.sequence, stub.head.reason)
    if stub.note:
        return (stub.note.outcome, stub.note.sequence, stub.note.reason)
    return ("neither", 0, stub.problem[:16])


LEFT = [("confirmed", 5, "no date"), ("confirmed", 6, "no weight"), ("confirmed", 7, "no weight")]
NOTES = [("replayed", 3, "no date"), ("discarded", 4, "no date")]


async def test_a_page_shows_dead_letters_and_what_became_of_them(stream: Stream, way: str) -> None:
    letters = await rejected(stream)
    page = await listed(letters)
    assert shown(page) == [*LEFT, *NOTES, ("neither", 0, "Nats-Dead-Letter")]
    assert page.next is None
    first = page.stubs[0].head
    assert first
    assert (first.number, first.consumer, first.subject, first.size) == (3, CONSUMER, f"{stream.name}.1", 100)
    assert page.stubs[3].note
    assert page.stubs[3].note.subject == f"{stream.name}.2"
    assert page.stubs[3].note.size == 100
    assert [each.number for each in page.stubs] == sorted(each.number for each in page.stubs)
    if way == "by a consumer":  # it has been deleted again
        assert [each async for each in letters.stream.consumer_names()] == []


async def test_pages_follow_each_other_and_can_be_filtered(
    stream: Stream, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = await rejected(stream)
    found: list[tuple[str, int, str]] = []
    after: int | None = 0
    while after is not None:
        page = await listed(letters, after=after, limit=2)
        found += shown(page)
        assert page.left in (None, 6 - len(found))
        after = page.next
    assert found == [*LEFT, *NOTES, ("neither", 0, "Nats-Dead-Letter")]
    assert shown(await listed(letters, reason="weight")) == LEFT[1:]
    assert shown(await listed(letters, consumer="nobody")) == []
    assert shown(await listed(letters, consumer=CONSUMER)) == [*LEFT, *NOTES]
    short = await listed(letters, reason="weight", most=2)  # it ends although the next page has one more
    assert (shown(short), short.next) == (LEFT[1:2], short.stubs[0].number)
    assert shown(await listed(DeadLetters(stream.js, stream.name, "MISSING"))) == []
    monkeypatch.setattr("jetstream_handoff.letters.listing.WITHIN", -1)
    monkeypatch.setattr("jetstream_handoff.letters.stubs.AT_ONCE", 2)
    late: list[list[tuple[str, int, str]]] = []
    after = 0
    while after is not None:
        page = await listed(letters, after=after, reason="weight")
        late.append(shown(page))
        after = page.next
    assert [each for some in late for each in some] == LEFT[1:]
    assert len(late) > 2


async def test_each_is_selected_once_while_they_are_replayed(
    stream: Stream, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of two, and nothing that is stored meanwhile: otherwise, this might never end."""
    letters = await rejected(stream)
    monkeypatch.setattr("jetstream_handoff.letters.stubs.AT_ONCE", 2)
    found = []
    async for each in select(letters, Selection(everything=True)):
        found.append(_shown(each))
        assert len(found) < 9
        await stream.js.publish(f"dead.{stream.name}.{len(found)}", b"")
    assert found == [*LEFT, ("neither", 0, "Nats-Dead-Letter")]
    assert (await replays.replay(letters, Selection(consumer=CONSUMER))).published == 3
    left = [_shown(each) async for each in select(letters, Selection(everything=True))]
    assert left == [("neither", 0, "Nats-Dead-Letter")] * (1 + len(found))
    if way == "by a consumer":
        assert [each async for each in letters.stream.consumer_names()] == []


async def test_chosen_dead_letters_ask_the_ledger_for_nothing_else(
    stream: Stream, settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many others lie between them."""
    last = (await (await rejected(stream)).stream.info()).state["last_seq"]
    created = (await stream.info()).created
    forged = [_forged(stream.name, created, number) for number in range(11, 311)]
    await asyncio.to_thread(publish_all, settings, forged)
    sent: list[str] = []
    async with connect(settings, trace=Trace(request_sent=lambda request: sent.append(request.subject))) as js:
        letters = DeadLetters(js, stream.name)
        sent.clear()
        found = await chosen(letters, Sequences.of([3, 4, last + 300, last + 900]))
        receipts = [each for each in sent if each.endswith(f"KV_{js.settings.ledger}_receipts")]
        assert len(receipts) == 2
        assert [(each.number, each.confirmed) for each in found] == [(3, True), (4, True), (last + 300, False)]
        monkeypatch.setattr("jetstream_handoff.letters.listing.LARGEST_SPAN", 100)
        with pytest.raises(InvalidValue, match="choose fewer"):
            await chosen(letters, Sequences.of([3, last + 300]))
        assert len(await chosen(letters, Sequences.of([last + 299, last + 300]))) == 2


def _forged(stream: str, created: str, number: int) -> tuple[str, bytes, dict[str, str]]:
    """A dead letter of a claim that the ledger does not know."""
    headers = {
        "Stream": stream,
        "Stream-Created": created,
        "Sequence": str(number),
        "Subject": f"{stream}.x",
        "Time-Stamp": created,
        "Consumer": CONSUMER,
        "Reason": "no reason",
        "Claim": new_claim_id(),
        "Token": "1-x",
        "Failures": "0",
    }
    address = address_of(stream, CONSUMER, number, created, f"{stream}.x", hashed=False)
    return address, b"", {f"{PREFIX}{name}": value for name, value in headers.items()}


async def test_one_dead_letter_has_its_payload(stream: Stream) -> None:
    letters = await rejected(stream)
    found = await letter(letters, 3)
    assert found
    assert found.letter
    assert (found.letter.sequence, found.letter.data, found.confirmed) == (5, b"x" * 100, True)
    assert b"Nats-Dead-Letter-Reason: no date" in found.letter.header
    assert await letter(letters, 1) is None
    junk = await letter(letters, (await letters.stream.info()).state["last_seq"])
    assert junk
    assert (junk.letter, junk.problem[:16]) == (None, "Nats-Dead-Letter")
    assert await letter(DeadLetters(stream.js, stream.name, "MISSING"), 1) is None


async def test_only_what_waits_is_counted(stream: Stream) -> None:
    letters = await rejected(stream)
    tally = Tally(letters)
    count = await tally.count(await letters.stream.info())
    assert (count.waiting, count.count, count.stored, count.complete) == ({CONSUMER: 3}, 3, 6, True)
    assert count.newest[CONSUMER].sequence == 7
    await discard(letters, Selection(sequences=Sequences.of([6, 7])))
    count = await tally.count(await letters.stream.info())
    assert (count.waiting, count.newest) == ({CONSUMER: 1}, {})
    await letters.stream.purge()
    assert (await tally.count(await letters.stream.info())).count == 0


@pytest.mark.parametrize("limits", [{"tally.AT_A_TIME": 2}, {"tally.WITHIN": -1, "stubs.AT_ONCE": 2}], ids=str)
async def test_a_count_goes_on_where_it_ended(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    letters = await rejected(stream)
    for name, limit in limits.items():
        monkeypatch.setattr(f"jetstream_handoff.letters.{name}", limit)
    tally, counts = Tally(letters), []
    for _ in range(3):
        count = await tally.count(await letters.stream.info())
        counts.append((count.count, count.complete))
    assert counts == [(2, False), (3, False), (3, True)]
