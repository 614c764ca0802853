"""Claims in JetStream domains: hub and leaf node have the same names, and only the right side changes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume import address
from jetstream_client.consume.address import account_hash
from jetstream_client.context import JetStream
from jetstream_client.errors import AddressUnknown, RequestTimeout, StreamNotFound
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ClaimInvalid, Superseded
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters import dead_letters
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.watch.doctor import Scope, examine
from tests.jetstream_handoff.domains import Domains, clear, contents
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, floor, take

STREAM = "S"
ACCOUNTS = {"hub": "CORE", "leaf": "EDGE"}
LONG = {"ack_wait": timedelta(seconds=60)}

pytestmark = pytest.mark.server("2.14")
"""Consumers of older servers do not listen on subjects with their domain, so `AddressUnknown` refuses a claim."""


@pytest.fixture(scope="module")
def domains(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Domains]:
    """Both servers; with the parameter True they write replies of eleven tokens."""
    servers = Domains(tmp_path_factory.mktemp("domains"), eleven_tokens=getattr(request, "param", False))
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
async def sides(domains: Domains) -> AsyncIterator[dict[str, JetStream]]:
    """A connection to each server, in that server's domain. Both have streams and consumers of the same names."""
    async with connect(domains.settings("hub")) as hub, connect(domains.settings("leaf")) as leaf:
        sides = {"hub": hub, "leaf": leaf}
        for side, js in sides.items():
            await fill(js, side)
        yield sides
        for js in sides.values():
            await clear(js)


async def fill(js: JetStream, side: str, count: int = 30) -> None:
    """Create the stream, which differs only in its subjects, with its messages."""
    await js.create_stream({"name": STREAM, "subjects": [f"{side}.>"], "allow_direct": True})
    for number in range(count):
        await js.publish(f"{side}.{number}", side.encode())


async def occupied(side: JetStream) -> None:
    """Let another pipeline work in this domain: all messages are claimed and unacknowledged, the buckets exist."""
    (claim,) = await take(side.stream(STREAM), consumer_config=LONG)
    assert claim.count == 30


async def settled(js: JetStream, claim: Claim) -> None:
    async with Hold.begin(js, claim, try_number=1) as hold:
        await asyncio.sleep(ACK_WAIT.total_seconds() / 3)  # a heartbeat
        await hold.settle(claim.count)


async def failed(js: JetStream, claim: Claim) -> None:
    async with Hold.begin(js, claim, try_number=1) as hold:
        await hold.fail()


async def released(js: JetStream, claim: Claim) -> None:
    async with Hold.begin(js, claim, try_number=1) as hold:
        await hold.release(timedelta(seconds=0.5))


@pytest.mark.parametrize(
    ("domains", "server", "domain", "inside"),
    [
        (False, "leaf", "hub", "hub"),
        (False, "leaf", None, "leaf"),
        (False, "hub", None, "hub"),
        (False, "hub", "leaf", "leaf"),
        (True, "leaf", "hub", "hub"),
        (True, "leaf", None, "leaf"),
    ],
    indirect=["domains"],
)
async def test_only_the_domain_of_the_stream_changes(
    domains: Domains, sides: dict[str, JetStream], server: str, domain: str | None, inside: str
) -> None:
    outside = next(side for side in sides if side != inside)
    await occupied(sides[outside])
    before = await contents(sides[outside])
    async with connect(domains.settings(server, domain)) as js:
        stream = js.stream(STREAM)
        (message,) = await (await stream.create_consumer({"ack_policy": "none"})).fetch(1)
        assert message.metadata.tokens == domains.reply_tokens
        claims = await take(stream, messages_per_claim=10)
        prefix = f"$JS.ACK.{inside}.{account_hash(ACCOUNTS[inside])}.{STREAM}.{CONSUMER}"
        assert [claim.to_json()["ack_prefix"] for claim in claims] == [prefix] * 3
        await asyncio.gather(settled(js, claims[0]), failed(js, claims[1]), released(js, claims[2]))
        assert (await sides[inside].stream(STREAM).consumer(CONSUMER).info()).floor == claims[0].sequences.last
        (again,) = await take(stream, "again", min_messages=20)
        assert again.count == 20
    assert await committed(sides[inside]) == [list(range(1, 11))]
    assert await contents(sides[outside]) == before


async def test_a_claim_of_another_place_is_refused(domains: Domains, sides: dict[str, JetStream]) -> None:
    await occupied(sides["leaf"])
    async with connect(domains.settings("leaf", "hub")) as js:
        (claim,) = await take(js.stream(STREAM), consumer_config=LONG)
        before = [await contents(side) for side in sides.values()]
        for forged in (
            replace(claim, domain="", account=""),
            replace(claim, domain="leaf", account=account_hash("EDGE")),
            replace(claim, domain="leaf"),
            replace(claim, account=account_hash("EDGE")),
        ):
            with pytest.raises(ClaimInvalid, match="ack_prefix"):
                async with Hold.begin(js, Claim.from_json(forged.to_json()), try_number=1):
                    pass
    assert [await contents(side) for side in sides.values()] == before


async def test_least_privilege_suffices(domains: Domains, sides: dict[str, JetStream]) -> None:
    hub = sides["hub"].stream(STREAM)
    (first,) = await take(hub, max_messages=10)  # creates the consumer and the buckets
    async with connect(domains.settings("leaf", "hub", user="least")) as js:
        (second,) = await take(js.stream(STREAM), "second", max_messages=10)
        await asyncio.gather(settled(js, first), settled(js, second))
    assert (await floor(hub), len(await committed(sides["hub"]))) == (20, 2)


async def test_an_account_that_is_not_told_is_refused(domains: Domains, sides: dict[str, JetStream]) -> None:
    async with connect(domains.settings("leaf", "hub", user="mute")) as js:
        with pytest.raises(AddressUnknown, match=r"'\$SYS.REQ.USER.INFO'; grant it.*connect to a server"):
            await take(js.stream(STREAM))
    (consumer,) = (await sides["hub"].api(f"CONSUMER.LIST.{STREAM}"))["consumers"]
    assert consumer["delivered"]["stream_seq"] == 0


async def test_an_account_without_the_consumer_is_refused(
    domains: Domains, sides: dict[str, JetStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "FOUND_WITHIN", 0.5)
    with pytest.raises(AddressUnknown, match="no consumer listens"):
        await address.find(sides["hub"].stream(STREAM), "absent")


async def test_a_dead_letter_of_another_domain_is_no_dead_letter(
    domains: Domains, sides: dict[str, JetStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaf node's dead-letter stream listens on the same subject and answers; the hub's was deleted after its
    rules were checked."""
    monkeypatch.setattr(dead_letters, "_ANSWERED_WITHIN", 0.3)
    monkeypatch.setattr(dead_letters, "PATIENCE", 0.3)
    write = DeadLetters._write

    async def too_late(*arguments: Any) -> None:
        with suppress(StreamNotFound):
            await sides["hub"].stream(f"DEAD_{STREAM}").delete()
        await write(*arguments)

    monkeypatch.setattr(DeadLetters, "_write", too_late)
    await DeadLetters(sides["leaf"], STREAM).ensure()
    async with connect(domains.settings("leaf", "hub")) as js:
        (claim,) = await take(js.stream(STREAM), consumer_config=LONG)
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.reject(Sequences.of([3]), "no date")
            with pytest.raises(RequestTimeout):
                await hold.settle()
    assert (await sides["leaf"].stream(f"DEAD_{STREAM}").info()).state["messages"] == 1
    assert (await sides["hub"].stream(STREAM).consumer(CONSUMER).info()).ack_pending == 30


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Domains]:
    """Servers for one test, which kills them."""
    servers = Domains(tmp_path)
    servers.start()
    yield servers
    servers.stop()


async def drained(settings: ConnectionSettings) -> None:
    """Run sensors and tasks until the consumer has no messages: redelivered ones are recognised or processed."""
    async with connect(settings) as js:
        consumer = js.stream(STREAM).consumer(CONSUMER)
        while (info := await consumer.info(patience=20)).ack_pending or info.pending:
            for claim in await take(js.stream(STREAM), "later", wait=2):
                await settled(js, claim)


@pytest.mark.killed
@pytest.mark.parametrize("server", ["hub", "leaf"])
async def test_the_way_to_the_domain_is_cut_and_restored(cut: Domains, server: str) -> None:
    """Killed while a claim is held and others are at each step of settling: nothing is lost or settled twice."""
    far = cut.settings("leaf", "hub")
    async with connect(cut.settings("hub")) as hub, connect(cut.settings("leaf")) as leaf:
        await fill(hub, "hub")
        await fill(leaf, "leaf")
        await occupied(leaf)
    async with connect(cut.settings("leaf")) as leaf:
        before = await contents(leaf)

    async def work(claim: Claim, seconds: float) -> bool:
        async with Hold.begin(js, claim, try_number=1) as hold:
            await asyncio.sleep(seconds)
            try:
                await hold.settle(claim.count)
            except Superseded:  # a killed server forgets its last moments, so these messages are redelivered
                return False
        return True

    async with connect(far) as js:
        claims = await take(js.stream(STREAM), messages_per_claim=3)
        tasks = [asyncio.create_task(work(claim, 1.0 + number * 0.02)) for number, claim in enumerate(claims[:-1])]
        held = asyncio.create_task(work(claims[-1], 2.5))
        await asyncio.sleep(1.15)
        victim = cut.hub if server == "hub" else cut.leaf
        victim.kill()
        unfinished = [task for task in tasks if not task.done()]
        await asyncio.sleep(1.2)
        victim.start()
        outcomes = await asyncio.gather(*tasks, held)
    assert unfinished
    await drained(far)
    async with connect(cut.settings("hub")) as hub, connect(cut.settings("leaf")) as leaf:
        assert await floor(hub.stream(STREAM)) == 30
        done = await committed(hub)
        assert sorted(sequence for receipt in done for sequence in receipt) == list(range(1, 31))
        assert all(list(claim.sequences) in done for claim, said in zip(claims, outcomes, strict=True) if said)
        assert await contents(leaf) == before


async def committed(js: JetStream) -> list[list[int]]:
    return [list(receipt.sequences) for receipt in await Ledger(js, STREAM, CONSUMER).committed()]


async def test_a_stream_handle_knows_its_domain(sides: dict[str, JetStream]) -> None:
    streams: list[Stream] = [side.stream(STREAM) for side in sides.values()]
    assert [(await stream.info()).domain for stream in streams] == ["hub", "leaf"]


async def test_the_doctor_asks_the_domain(domains: Domains, sides: dict[str, JetStream]) -> None:
    await occupied(sides["hub"])
    before = [await contents(js) for js in sides.values()]
    scope = Scope(STREAM, CONSUMER, ("sensor",))
    for user, problems in (("least", 0), ("mute", 1)):
        sections = await examine(domains.settings("leaf", "hub", user=user), scope)
        to_do = [each.text for found in sections.values() for each in found if each.state == "to do"]
        assert len(to_do) == problems, to_do
        assert all("no permission to publish on '$SYS.REQ.USER.INFO'" in each for each in to_do)
    assert [await contents(js) for js in sides.values()] == before
