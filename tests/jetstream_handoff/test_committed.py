"""The list of what is settled: many receipts with few requests, and never less than the leader has."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client.errors import DirectGetDisabled, InvalidValue, JetStreamError
from jetstream_client.publish.bulk import publish_all
from jetstream_client.read import stored
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.trace import Trace
from jetstream_handoff.claim import new_claim_id
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER


async def written(ledger: Ledger, receipts: Iterable[Receipt]) -> None:
    messages = [(ledger.receipts.subject(each.claim_id), json.dumps(each.to_json()).encode()) for each in receipts]
    await asyncio.to_thread(publish_all, ledger.js.settings, messages)


async def settled(stream: Stream, count: int) -> list[Receipt]:
    """Receipts of so many claims, in a new ledger."""
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await ledger.create()
    receipts = [
        Receipt(
            new_claim_id(),
            "done",
            stream.name,
            CONSUMER,
            Sequences.of([number]),
            "1-aaaa",
            number,
            at="2026-11-21T03:00:05Z",
        )
        for number in range(1, count + 1)
    ]
    await written(ledger, receipts)
    return receipts


async def test_many_receipts_are_read_with_few_requests(stream: Stream) -> None:
    receipts = await settled(stream, 1_500)
    asked: Counter[str] = Counter()
    js = stream.js.with_options(trace=Trace(lambda event: asked.update([event.subject])))
    ledger = Ledger(js, stream.name, CONSUMER)
    assert await ledger.committed() == receipts
    _, bucket = ledger.buckets.names
    assert asked[f"$JS.API.DIRECT.GET.KV_{bucket}"] == 2
    assert (
        asked[f"$JS.API.STREAM.MSG.GET.KV_{bucket}"] == 3
    )  # with which receipt each page begins, and whether the leader has more
    assert asked.total() <= 8


async def test_receipts_that_cannot_be_read_by_direct_get_are_read_from_the_leader(stream: Stream) -> None:
    receipts = await settled(stream, 5)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await stream.js.update_stream({"name": f"KV_{ledger.buckets.names[1]}", "allow_direct": False})
    assert await ledger.committed() == receipts


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"max_msgs": 10, "discard": "new"}, range(1, 11)), ({"max_msgs": 3, "discard": "old"}, range(8, 11))],
    ids=["lags behind", "leaves keys out"],
)
async def test_a_mirror_that_has_less_than_the_leader_does_not_decide(
    stream: Stream, limits: dict[str, Any], kept: range
) -> None:
    """A mirror that answers direct gets stands for a slow replica: both have the same sequences, as far as they go."""
    receipts = await settled(stream, 10)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    origin = f"KV_{ledger.buckets.names[1]}"
    config = {"name": f"OTHER_{stream.name}", "mirror": {"name": origin}, "mirror_direct": True}
    await stream.js.create_stream(config | limits)
    await stream.js.update_stream({"name": origin, "allow_direct": False})  # so that the mirror alone answers

    async def answered() -> list[int]:
        with suppress(DirectGetDisabled):
            return [each.sequence async for each in stream.js.stream(origin).get_messages()]
        return []

    async def by_the_mirror() -> bool:
        return await answered() == [*kept]

    await until(by_the_mirror)
    receipts[0] = replace(receipts[0], token="2-bbbb", value="again")
    await written(ledger, receipts[:1])
    assert await ledger.committed() == receipts
    assert len(await answered()) == len(kept)


async def test_each_page_may_be_answered_by_another_server(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page is that of the stream itself, and the second one that of a mirror which has only the newest. The
    server lets a mirror answer if its origin allows direct get."""
    receipts = await settled(stream, 1_500)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    origin = stream.js.stream(f"KV_{ledger.buckets.receipts}")
    config = {"name": f"OTHER_{stream.name}", "mirror": {"name": origin.name}, "mirror_direct": True}
    page, asked = stored._page, list[Any]()

    async def by_turns(of: Stream, *arguments: Any) -> Any:
        if asked:
            await stream.js.create_stream({**config, "max_msgs": 100, "discard": "old"})
            await stream.js.update_stream({"name": origin.name, "allow_direct": False})
            await until(the_mirror_answers)
        asked.append(of)
        return await page(of, *arguments)

    async def the_mirror_answers() -> bool:
        with suppress(JetStreamError):
            return bool((await page(origin, {"seq": 1, "batch": 1}, 0))[0][0].sequence == 1_401)
        return False

    monkeypatch.setattr(stored, "_page", by_turns)
    assert await ledger.committed() == receipts
    assert len(asked) == 2


async def test_what_was_settled_since_a_time(stream: Stream) -> None:
    """Receipts that were written again later, or belong to other consumers, are not among them."""
    early = [
        replace(each, claim_id=new_claim_id(), at="2026-11-21T02:00:00Z", sequences=Sequences.of([100 + number]))
        for number, each in enumerate(await settled(stream, 5))
    ]
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    await written(ledger, early)
    other = Ledger(stream.js, stream.name, "other")
    await written(other, [replace(early[0], claim_id=new_claim_id(), consumer="other")])
    both = await ledger.committed()
    assert len(both) == 10
    assert await ledger.committed(datetime(2026, 11, 21, 2, 30, tzinfo=UTC)) == both[:5]
    assert await ledger.committed(datetime(2020, 1, 1, tzinfo=UTC)) == both
    assert await ledger.committed(datetime.now(UTC)) == []
    for mistaken in (datetime(2026, 11, 21), "2026-11-21T02:30:00Z"):  # noqa: DTZ001 - the mistake
        with pytest.raises(InvalidValue, match="give a datetime with a time zone"):
            await ledger.committed(mistaken)  # type: ignore[arg-type]


async def test_other_consumers_receipts_are_not_read(stream: Stream) -> None:
    receipts = await settled(stream, 3)
    other = Ledger(stream.js, stream.name, "other")
    await written(other, [replace(receipts[0], claim_id=new_claim_id(), consumer="other") for _ in range(2_500)])
    asked: Counter[str] = Counter()
    js = stream.js.with_options(trace=Trace(lambda event: asked.update([event.subject])))
    ledger = Ledger(js, stream.name, CONSUMER)
    assert await ledger.committed() == receipts
    assert asked[f"$JS.API.DIRECT.GET.KV_{ledger.buckets.receipts}"] == 1


async def test_the_clock_of_the_receipts_server_may_be_behind(stream: Stream) -> None:
    """The server of the consumer says when a claim was settled, and that of the bucket when its receipt was stored. If
    the clock of the latter is behind, a reader that asks for what was settled since its last visit must not miss it."""
    (receipt,) = await settled(stream, 1)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    ahead = datetime.now(UTC) + timedelta(seconds=30)
    late = replace(receipt, claim_id=new_claim_id(), at=ahead.isoformat().replace("+00:00", "Z"))
    await written(ledger, [late])
    assert await ledger.committed(ahead - timedelta(seconds=10)) == [late]
    assert await ledger.committed(ahead + timedelta(seconds=10)) == []
