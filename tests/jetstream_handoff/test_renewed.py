"""Credentials that expire or are replaced during a take, a hold and a settlement, and are renewed in their file."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from tests.jetstream_client.conftest import serve  # noqa: F401 - a fixture
from tests.jetstream_client.expiring import SHORT, Expiring, reload
from tests.jetstream_client.servers import Serve
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, floor, publish, take, taking

LONG: dict[str, Any] = {"consumer_config": {"ack_wait": timedelta(seconds=60)}}


@pytest.fixture
def expiring(serve: Serve, tmp_path: Path) -> Expiring:  # noqa: F811
    return Expiring(serve, tmp_path)


@pytest.fixture
async def others(expiring: Expiring) -> AsyncIterator[JetStream]:
    """A connection whose credentials do not expire."""
    expiring.renew()
    async with connect(expiring.settings) as js:
        yield js


async def test_a_waiting_take_and_a_hold_go_on(expiring: Expiring, others: JetStream) -> None:
    stream = await others.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    await take(stream, "before", wait=0.1, **LONG)
    await publish(stream, 10)
    (claim,) = await take(stream, "first", **LONG)
    expiring.renew(SHORT)
    async with connect(expiring.settings) as js, connect(expiring.settings) as for_take:
        expiring.renew()
        waiting = Take(for_take, taking(stream, "second", **LONG))
        await waiting.prepare()
        taken = asyncio.create_task(waiting.take(60))
        async with Hold.begin(js, claim, try_number=1) as hold:
            await until(lambda: js.connection.reconnects == for_take.connection.reconnects == 1)
            await publish(stream, 5)
            assert [each.sequences.ranges for each in await taken] == [((11, 15),)]
            waiting.handed_on()
            assert not hold.lost
            await hold.settle("done")
    (receipt,) = await Ledger(others, stream.name, CONSUMER).committed()
    assert receipt.sequences == claim.sequences
    assert await floor(stream) == 10


async def test_a_settlement_goes_on(
    serve: Serve,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The password is replaced between two windows of acknowledgements."""

    def config(secret: str) -> str:
        return f"authorization {{ users: [{{ user: a, password: {secret} }}, {{ user: other, password: other }}] }}"

    path = tmp_path / "password"
    path.write_text("before")
    server = serve(config("before"))
    settings = ConnectionSettings(servers=server.url, user="a", password=path.as_uri())
    tests = 0
    same_life = answers._same_life

    async def replacing(ledger: Ledger, delivered: answers.Delivered) -> bool:
        nonlocal tests
        tests += 1
        if tests == 2:
            path.write_text("after")
            reload(server, config("after"))
            await until(lambda: ledger.js.connection.reconnects == 1)
        return await same_life(ledger, delivered)

    monkeypatch.setattr(answers, "_same_life", replacing)
    count = 2 * answers.WINDOW + 1
    async with connect(replace(settings, user="other", password="other")) as others, connect(settings) as js:
        stream = await others.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        await take(stream, "before", wait=0.1, max_messages=count, **LONG)
        await publish(stream, count)
        (claim,) = await take(stream, max_messages=count, min_messages=count, wait=60, **LONG)
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.settle()
        assert tests > 2
        assert await floor(stream) == count
