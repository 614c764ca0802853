"""One piece of work for a claim: another one neither takes it over nor takes its settlement for its own success."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.stream import Stream
from jetstream_handoff.claim import KEEPER, Claim
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, OtherWork
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.hold.keep import keep
from jetstream_handoff.hold.reprocess import Reprocess
from jetstream_handoff.ledger.ledger import Ledger
from tests.jetstream_handoff.steps import publish, rewrite, take

PARQUET = ("dag", "run", "parquet", 3, 1)
WAREHOUSE = ("dag", "run", "warehouse", 3, 1)
RETRY = (*PARQUET[:-1], 2)
OTHERS = [
    WAREHOUSE,
    ("dag", "run", "parquet", 4, 1),  # another instance of a cross product
    ("dag", "another run", "parquet", 3, 1),
    ("copy", "run", "parquet", 3, 1),
    (),  # a script
]


async def one(stream: Stream, count: int = 5) -> Claim:
    await publish(stream, count)
    (claim,) = await take(stream, max_messages=count)
    return claim


async def begin(stream: Stream, claim: Claim, holder: Any, **options: Any) -> None:
    async with Hold.begin(stream.js, claim, try_number=2, holder=holder, **options):
        pass


async def refused(stream: Stream, claim: Claim, others: Any, kind: Any = Hold) -> list[str]:
    """Hold the claim for other pieces of work at the same time, and return what each is told."""

    async def told(other: Any) -> str:
        with pytest.raises(OtherWork) as said:
            async with kind.begin(stream.js, claim, try_number=2, holder=other):
                pass
        return str(said.value)

    return await asyncio.gather(*map(told, others))


async def test_what_one_work_holds_no_other_takes_over(stream: Stream) -> None:
    claim = await one(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as hold:
        for said in await refused(stream, claim, OTHERS):
            assert f"claim {claim.id} belongs to dag / run / parquet[3], try 1, and" in said
            assert "give the second task a separate consumer" in said
        await hold.settle("parquet")
    (receipt,) = await Ledger(stream.js, claim.stream, claim.consumer).committed()
    assert receipt.value == "parquet"


async def test_what_waits_for_a_retry_no_other_takes_over(stream: Stream) -> None:
    claim = await one(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as hold:
        await hold.release(timedelta(minutes=5))
    with pytest.raises(OtherWork):
        await begin(stream, claim, WAREHOUSE)
    async with Hold.begin(stream.js, claim, try_number=2, holder=RETRY) as hold:
        await hold.settle()


async def test_what_one_work_settled_is_no_success_of_another(stream: Stream) -> None:
    claim = await one(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as hold:
        await hold.settle("parquet")
    for kind in (Hold, Reprocess):
        for said in await refused(stream, claim, OTHERS[:-1], kind):
            assert f"claim {claim.id} was settled by dag / run / parquet[3], try 1 at 20" in said
            assert "has not processed its messages" in said
    with pytest.raises(AlreadyDone) as done:
        await begin(stream, claim, RETRY)
    assert done.value.value == "parquet"
    async with Reprocess.begin(stream.js, claim, try_number=2, holder=RETRY) as again:
        await again.settle("again")
    with pytest.raises(AlreadyDone, match="2-"):
        await begin(stream, claim, (*PARQUET[:-1], 3))


async def test_a_work_that_was_settled_by_another_meanwhile_has_not_succeeded(stream: Stream) -> None:
    """The claim was handed on again, so that its work was free, and the other work came first."""
    claim = await one(stream)
    async with Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as slow:
        ledger = Ledger(stream.js, claim.stream, claim.consumer)

        def handed_on(record: Any, info: Any) -> Any:
            entry = record.open[claim.id].handed_on(record.open[claim.id].owner, info.now)
            return replace(record, open={claim.id: entry})

        await rewrite(ledger, handed_on)
        async with Hold.begin(stream.js, claim, try_number=1, holder=WAREHOUSE) as fast:
            await fast.settle("warehouse")
        with pytest.raises(OtherWork, match="was settled by dag / run / warehouse"):
            await slow.settle("parquet")


async def test_a_name_of_its_own_makes_attempts_of_other_runs_the_same_work(stream: Stream) -> None:
    claim = await one(stream)
    piece = ("job", "first run", "step", -1, "dagster")
    async with Hold.begin(stream.js, claim, try_number=1, holder=("job", "run 1", "step", -1, 1), piece=piece) as hold:
        await hold.settle(1)
    with pytest.raises(AlreadyDone):
        await begin(stream, claim, ("job", "run 2", "step", -1, 1), piece=piece)


async def test_a_keeper_is_no_work(stream: Stream) -> None:
    claim = await one(stream)
    hold_task = ("dag", "run", "hold", 3, 1)
    async with (
        Hold.begin(stream.js, claim, try_number=KEEPER, holder=hold_task),
        Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as hold,
    ):
        with pytest.raises(HeldByAnother):
            await keep_once(stream, claim, hold_task)
        await hold.settle()
    assert await keep(stream.js, claim, 10, hold_task) == "done"


async def keep_once(stream: Stream, claim: Claim, holder: Any) -> None:
    async with Hold.begin(stream.js, claim, try_number=KEEPER, holder=holder):
        pass


@pytest.mark.parametrize("known", [True, False])
async def test_what_an_older_release_wrote_is_judged_by_its_attempts(stream: Stream, known: bool) -> None:
    """It writes no name of a work. Where the attempts were left out, too, the settlement may be anybody's."""
    claim = await one(stream)
    ledger = Ledger(stream.js, claim.stream, claim.consumer)
    async with Hold.begin(stream.js, claim, try_number=1, holder=PARQUET) as hold:
        await rewrite(ledger, lambda record, _: older(record, known))
        if known:
            with pytest.raises(OtherWork, match="belongs to dag / run / parquet"):
                await begin(stream, claim, WAREHOUSE)
        await hold.settle("parquet")
    await rewrite(ledger, lambda record, _: older(record, known))
    await ledger.receipts.change(claim.id, lambda old: older_receipt(old, known))
    with pytest.raises(OtherWork, match="was settled by dag" if known else "whose name is no longer known|by another"):
        await begin(stream, claim, WAREHOUSE)
    with pytest.raises(AlreadyDone if known else OtherWork):
        await begin(stream, claim, RETRY)
    with pytest.raises(AlreadyDone):
        await begin(stream, claim, ())


def older(record: Any, known: bool) -> Any:
    value = record.to_json()
    for entry in (*value["open"].values(), *value["done"].values()):
        entry.pop("work", None)
        if not known:
            entry.pop("history", None)
    return type(record).from_json(json.loads(json.dumps(value)))


def older_receipt(receipt: Any, known: bool) -> Any:
    value = receipt.to_json()
    value.pop("work", None)
    if not known:
        value.pop("history", None)
    return type(receipt).from_json(receipt.claim_id, json.loads(json.dumps(value)))
