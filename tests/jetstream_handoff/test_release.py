"""Releasing many claims at once, from the command line: by consumer, by pipeline, and by run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jetstream_client.errors import ConsumerNotFound, InvalidValue
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair.release import Which, chosen, release_all
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.overview import Survey
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, publish, take
from tests.jetstream_handoff.test_commands import run


def of(dag: str, run_id: str = "r1") -> dict[str, Any]:
    return {"owner": (dag, run_id, "claims", -1, 0, ""), "messages_per_claim": 5}


@asynccontextmanager
async def held(stream: Stream, claim: Claim, by: tuple[str | int, ...] = ()) -> AsyncIterator[Hold]:
    async with Hold.begin(stream.js, claim, try_number=1, holder=by) as hold:
        yield hold


async def waiting(stream: Stream) -> set[str]:
    """The ids of the open claims that were not released."""
    record, _ = await Ledger(stream.js, stream.name, CONSUMER).read()
    return {each for each, entry in record.open.items() if not entry.is_released} if record else set()


async def taken(stream: Stream, dag: str, run_id: str = "r1") -> list[Claim]:
    await publish(stream, 10)
    return await take(stream, max_messages=10, **of(dag, run_id))


async def test_claims_are_selected_by_their_owner_and_by_their_holder(stream: Stream) -> None:
    flights, again, orders = [
        await taken(stream, *names) for names in (("flights", "r1"), ("flights", "r2"), ("orders", "r1"))
    ]
    js = stream.js

    async def ids(**which: str) -> set[str]:
        return {seen.id for seen in await chosen(js, Which(**which))}

    assert await ids(consumer=CONSUMER) == {each.id for each in (*flights, *again, *orders)}
    assert await ids(pipeline="flights") == {each.id for each in (*flights, *again)}
    assert await ids(pipeline="flights", run="r2") == {each.id for each in again}
    assert await ids(run="r1") == {each.id for each in (*flights, *orders)}
    async with held(stream, orders[0], ("reports", "r9", "work", -1, 1)):
        assert await ids(pipeline="reports", run="r9") == {orders[0].id}
    with pytest.raises(InvalidValue, match=r"flihgts.*flights / r1, flights / r2, orders / r1"):
        await ids(pipeline="flihgts")
    with pytest.raises(ConsumerNotFound):
        await ids(stream=stream.name, consumer="missing")


async def test_all_claims_of_a_dag_are_released_after_a_preview_in_numbers(stream: Stream) -> None:
    flights, orders = await taken(stream, "flights"), await taken(stream, "orders")
    async with held(stream, flights[0]) as hold:
        said = await run(stream, "release", "--dag", "flights")
        assert said.code == 4
        assert f"release 2 open claims with 10 messages of consumer {CONSUMER} of stream {stream.name}." in said.out
        assert "Attempts hold 1 of them, and 1 of the attempts is alive" in said.out
        assert len(await waiting(stream)) == 4
        said = await run(stream, "release", "--dag", "flights", "--yes")
        assert (said.code, said.out) == (0, "Released: 2 claims. Their 10 messages are redelivered to the next take.\n")
        await until(lambda: bool(hold.lost))
    assert await waiting(stream) == {each.id for each in orders}
    next_take = await take(stream, max_messages=10, **of("flights", "r2"))
    assert sum(each.count for each in next_take) == 10
    said = await run(stream, "release", "--job", "orders", "--run", "r1", "--json")
    assert json.loads(said.out)["selected"] == 2


async def test_the_id_of_a_claim_and_conditions_exclude_each_other(stream: Stream) -> None:
    for arguments in ([], ["5f0c9a7be21d", "--dag", "flights"]):
        said = await run(stream, "release", *arguments)
        assert (said.code, "either give the id of a claim, or select" in said.err) == (1, True)


async def test_a_claim_that_changed_since_it_was_chosen_is_not_released(stream: Stream) -> None:
    first, second = await taken(stream, "flights")
    found = await chosen(stream.js, Which(pipeline="flights"))
    async with held(stream, second):
        done = await release_all(stream.js, found)
        assert [[each.id for each in some] for some in (done.claims, done.changed)] == [[first.id], [second.id]]


async def test_one_change_of_the_ledger_releases_all_claims_of_a_consumer(stream: Stream) -> None:
    await taken(stream, "flights")
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    _, before = await ledger.read()
    await release_all(stream.js, await chosen(stream.js, Which(consumer=CONSUMER)))
    assert (await ledger.read())[1] == before + 1


async def test_what_was_released_is_reported_until_somebody_takes_it(stream: Stream) -> None:
    """Not only after the lease: nothing pulls, so nothing takes the messages."""
    await taken(stream, "flights")
    survey = Survey(stream.js)

    async def kinds() -> list[tuple[str, str]]:
        (view,) = (await survey.look()).streams
        return [(each.kind, each.text) for each in view.consumers[0].findings]

    assert await kinds() == []
    await release_all(stream.js, await inspection.open_claims(stream.js))
    ((kind, text),) = await kinds()
    assert kind == "released"
    assert "2 claims" in text
    assert text.endswith("and no sensor pulls: 10 messages wait.")
    await take(stream, max_messages=10, **of("flights", "r2"))
    assert await kinds() == []
