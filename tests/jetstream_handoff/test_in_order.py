"""Order per key, on a real server: what a take with ordered_by enters, waits for and refuses."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.hold import settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, taking

IN_ORDER: dict[str, Any] = {"ordered_by": "{2}", "claims": 3}


async def publish(stream: Stream, keys: Iterable[object]) -> None:
    """Publish one message for each key, in this order."""
    await asyncio.to_thread(publish_all, stream.js.settings, [(f"{stream.name}.{each}", b"x") for each in keys])


async def take(stream: Stream, run: str = "run", wait: float = 10, **changes: Any) -> list[Claim]:
    work = Take(stream.js, taking(stream, run, **{**IN_ORDER, **changes}))
    await work.prepare()
    try:
        claims = await work.take(wait)
        work.handed_on()
    finally:
        await work.put_back()
    return claims


async def done(stream: Stream, claim: Claim) -> None:
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()


def parts(claims: list[Claim]) -> list[list[int]]:
    return [list(claim.sequences) for claim in claims]


async def test_each_key_is_in_one_claim(stream: Stream) -> None:
    await publish(stream, "abcabdaee")
    claims = await take(stream)
    assert sorted(parts(claims)) == [[1, 4, 7], [2, 3, 5], [6, 8, 9]]
