"""What the barrier of ordered takes costs: how fast messages are processed in order, compared with claims of the same
size without an order, by four workers whose tasks take times that differ more or less. Each task sleeps, so that only
waiting is compared.

    python -m benchmarks.barrier
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

MESSAGES, BATCH, KEYS, WORKERS = 3_200, 800, 500, 4
EACH = 0.02
"""Seconds for each message, multiplied by what the task draws."""
DRAWN: dict[str, Callable[[random.Random], float]] = {
    "half to one and a half times the mean": lambda drawn: drawn.uniform(0.5, 1.5),
    "up to many times the mean (exponential)": lambda drawn: drawn.expovariate(1),
}


async def seconds(settings: ConnectionSettings, claims: int, draw: Any, *, ordered: bool) -> float:
    """How long it takes until all messages are settled."""
    name = "TIED" if ordered else "FREE"  # a consumer of ordered takes stays one
    async with connect(settings) as js:
        await js.create_stream({"name": name, "subjects": [f"{name}.*"], "allow_direct": True, "storage": "memory"})
        subjects = ((f"{name}.{number % KEYS}", b"") for number in range(MESSAGES))
        await asyncio.to_thread(publish_all, settings, subjects)
        queue: asyncio.Queue[Claim] = asyncio.Queue()
        drawn, start = random.Random(1), time.perf_counter()  # noqa: S311 - always the same
        tasks = [asyncio.create_task(_work(js, queue, drawn, draw)) for _ in range(WORKERS)]
        tasks.append(asyncio.create_task(_take(js, name, queue, claims, ordered=ordered)))
        consumer = js.stream(name).consumer("work")
        await tasks[-1]
        while (await consumer.info()).ack_pending:  # noqa: ASYNC110 - the server tells nobody of it
            await asyncio.sleep(0.01)
        spent = time.perf_counter() - start
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await js.delete_stream(name)
    return spent


async def _take(js: JetStream, name: str, queue: asyncio.Queue[Claim], claims: int, *, ordered: bool) -> None:
    how: dict[str, Any] = (
        {"ordered_by": "{2}", "claims": claims} if ordered else {"messages_per_claim": BATCH // claims}
    )
    left = MESSAGES
    while left:
        owner = ("benchmark", str(left))
        gather = timedelta(seconds=0.1)
        take = Take(js, Taking(stream=name, consumer="work", owner=owner, max_messages=BATCH, gather=gather, **how))
        await take.prepare()
        for claim in await take.take(60):
            queue.put_nowait(claim)
            left -= claim.count
        take.handed_on()


async def _work(js: JetStream, queue: asyncio.Queue[Claim], drawn: random.Random, draw: Any) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            claim = await queue.get()
            async with Hold.begin(js, claim, try_number=1) as hold:
                await asyncio.sleep(EACH * claim.count * draw(drawn))
                await hold.settle()


def main() -> None:
    print(f"| Tasks take | claims for {WORKERS} workers | without an order | in order | ratio |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url)
            for what, draw in DRAWN.items():
                for claims in (WORKERS, 2 * WORKERS, 4 * WORKERS):
                    free, tied = (
                        MESSAGES / asyncio.run(seconds(settings, claims, draw, ordered=ordered))
                        for ordered in (False, True)
                    )
                    print(f"| {what} | {claims} | {free:,.0f}/s | {tied:,.0f}/s | {tied / free:.2f} |", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
