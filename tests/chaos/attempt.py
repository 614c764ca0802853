"""`python -m tests.chaos.attempt`: one attempt at a claim in a separate process, without Airflow.

Reads JSON from standard input: servers, claim, try_number. The environment names the folder of marks and what to break.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from jetstream_client import ConnectionSettings, connect
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from tests.chaos import broken, windows
from tests.chaos.observer import LEDGER
from tests.chaos.work import read_and_write


async def attempt(servers: str, claim: Claim, try_number: int) -> None:
    settings = ConnectionSettings(servers=servers, shortest_ack_wait=0.5, ledger=LEDGER)
    async with connect(settings) as js, Hold.begin(js, claim, try_number=try_number) as hold:
        work: tuple[Any, ...] = (settings, claim.stream, claim.id, hold.attempt_id, claim.sequences)
        await hold.settle(await asyncio.to_thread(read_and_write, *work))


if __name__ == "__main__":
    windows.install()
    broken.install()
    asked = json.load(sys.stdin)
    asyncio.run(attempt(asked["servers"], Claim.from_json(asked["claim"]), asked["try_number"]))
