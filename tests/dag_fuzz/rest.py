"""The clean-up: a script takes the messages that a DAG left, with the same ledger, and leaves evidence."""

import asyncio
from datetime import timedelta
from typing import Any

from jetstream_client import ConnectionSettings, connect
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.dag_fuzz.build import CONSUMER
from tests.dag_fuzz.rules import CLEAN_UP


def process_the_rest(url: str, stream: str) -> list[dict[str, Any]]:
    """Take, hold and settle what the server delivers now. Returns evidence."""
    return asyncio.run(_rest(url, stream))


async def _rest(url: str, stream: str) -> list[dict[str, Any]]:
    evidence = []
    taking = Taking(stream=stream, consumer=CONSUMER, owner=(CLEAN_UP, stream), max_messages=1000, gather=timedelta(0))
    async with connect(ConnectionSettings(servers=(url,), ledger="airflow", shortest_ack_wait=1)) as js:
        take = Take(js, taking)
        await take.prepare()
        while claims := await take.look():
            take.handed_on()
            for claim in claims:
                async with Hold.begin(js, claim, try_number=1) as hold:
                    evidence.append({"what": "done", "task": CLEAN_UP, "run": "", "index": -1, "claim": claim.id})
                    await hold.settle()
    return evidence
