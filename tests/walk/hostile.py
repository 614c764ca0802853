"""Claims and dead letters in which every string that somebody else can choose is hostile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.history import Attempt
from tests.airflow_nats_jetstream.page.api_server import HOSTILE as PRINTABLE
from tests.airflow_nats_jetstream.page.api_server import RUN
from tests.airflow_nats_jetstream.page.world import hold_silently
from tests.jetstream_handoff.steps import take

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim
    from tests.airflow_nats_jetstream.page.world import World

LEDGER = "hostile"
HOSTILE = f"{PRINTABLE}\u202egpj.exe\x1b[31m\x00"
NAME = "<svg\u202eonload='harmed=1'\"&lt;\u200b"
"""The name of the stream, and the beginning of that of the consumer. JetStream forbids > and white space."""
SUBJECT = "hostile.<img/src=x/onerror=globalThis.harmed=1>\u202e\x1b[31m"
HUGE = HOSTILE * 40
PAYLOADS = [
    HOSTILE.encode(),
    b"\x00\x1b[2J\xff\xfe" + HOSTILE.encode(),
    HUGE.encode() * 100,
    b"",
    "\u202e\u0000".encode(),
]
TASK = (PRINTABLE, RUN, PRINTABLE, -1, 1)
UNKNOWN = (HUGE[:200], HUGE[:200], HUGE[:200], -1, 1)


def fill(world: World) -> dict[str, str]:
    """Return the ids of the claims by their states: ``done``, ``failed``, ``held`` and ``unknown``, whose tasks Airflow
    does not know."""
    return world.run(_fill, ledger=LEDGER)


async def _fill(js: JetStream) -> dict[str, str]:
    handle = await js.create_stream(
        {"name": NAME, "subjects": ["hostile.>"], "allow_direct": True, "description": HOSTILE}
    )
    headers = {"X-Hostile": HOSTILE.replace("\x00", ""), "X-<script>": "\u202e\x1b[31m", "X-Huge": "\u202e" * 3_000}

    async def taken(owner: tuple[str | int, ...]) -> Claim:
        messages = [(f"{SUBJECT}{number}", payload, headers) for number, payload in enumerate(PAYLOADS)]
        await asyncio.to_thread(publish_all, js.settings, messages)
        (claim,) = await take(handle, owner=owner, max_messages=len(messages), consumer=NAME + "x" * 150)
        return claim

    done = await taken((*TASK[:4], 0, ""))
    async with Hold.begin(js, done, try_number=1, holder=TASK) as hold:
        await hold.reject(done.sequences, HUGE)
        await hold.settle({HOSTILE: [HUGE, {"__proto__": HOSTILE}], "number": 10**30})
    failed = await taken((*TASK[:4], 1, ""))
    async with Hold.begin(js, failed, try_number=1, holder=TASK) as hold:
        await hold.fail(HUGE)
    held, unknown = await taken((*TASK[:4], 2, "")), await taken((*UNKNOWN[:4], 3, ""))
    for claim, holder in ((held, TASK), (unknown, UNKNOWN)):
        await hold_silently(js, claim, Attempt(f"1-{HOSTILE[:60]}", "", holder))
    await js.publish(f"dead.{NAME}.<script>.x", HUGE.encode(), headers=headers)  # this is no dead letter
    return {"done": done.id, "failed": failed.id, "held": held.id, "unknown": unknown.id}
