"""How long a task without Spark needs for a claim of 1,000 messages: connect, hold, ``claim.arrow()``, work, settle.

    python -m benchmarks.small_claim [rounds]

Each round is a new process, as each task of Airflow is one, which has loaded the hook and pyarrow, and gets the claim
as JSON. Prints the milliseconds from then until each step has ended, as medians: of the first claim of each process,
for which the other modules are imported, and of a second one, for which it connects anew, but imports nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.arguments import numbers
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

MESSAGES = 1_000
ROUNDS = 20
AGE = 2.0
"""Seconds from the take until the task gets the claim. Airflow needs as long to start it."""

Steps = Mapping[str, float]
"""The milliseconds until the end of each step."""


def tasks() -> None:
    """The process of a task: work on each claim that is given on a line, and print its steps."""
    import pyarrow.acero  # noqa: F401 - group_by imports it
    import pyarrow.compute as pc

    from airflow_nats_jetstream.hooks import JetStreamHook

    for line in sys.stdin:
        steps, began = dict[str, float](), time.perf_counter()

        def ended(step: str, steps: dict[str, float] = steps, began: float = began) -> None:
            steps[step] = 1_000 * (time.perf_counter() - began)

        with JetStreamHook().processing(json.loads(line)) as held:
            ended("held")
            messages = held.arrow().read_all()
            ended("read")
            sized = messages.append_column("bytes", pc.binary_length(messages["data"]))
            held.value = dict(sized.group_by("subject").aggregate([("bytes", "sum")]).to_pylist()[0])
            ended("worked")
        ended("settled")
        assert messages.num_rows == MESSAGES
        print(json.dumps(steps), flush=True)


async def taken(settings: ConnectionSettings) -> Mapping[str, Any]:
    """Publish messages, take them, and return the claim."""
    messages = ((f"orders.{each % 10}", b"x" * 128) for each in range(MESSAGES))
    await asyncio.to_thread(publish_all, settings, messages)
    owner = ("benchmark", time.monotonic_ns())
    async with connect(settings) as js:
        work = Take(js, Taking(stream="ORDERS", consumer="work", owner=owner, max_messages=MESSAGES))
        await work.prepare()
        (claim,) = await work.take(60)
        work.handed_on()
        return claim.to_json()


def measured(settings: ConnectionSettings) -> list[Steps]:
    """The steps of the first and of the second claim of one process."""
    connection = json.dumps({"conn_type": "nats", "extra": {"servers": settings.servers[0], "ledger": settings.ledger}})
    environment = {**os.environ, "AIRFLOW_CONN_NATS_DEFAULT": connection}
    claims = [asyncio.run(taken(settings)) for _ in range(2)]
    time.sleep(AGE)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.small_claim", "tasks"],
        input="".join(f"{json.dumps(claim)}\n" for claim in claims),
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]  # Airflow logs to it, too


async def create(settings: ConnectionSettings) -> None:
    async with connect(settings) as js:
        await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})


def main() -> None:
    if sys.argv[1:] == ["tasks"]:
        tasks()
        return
    (rounds,) = numbers("benchmarks.small_claim", __doc__, rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url)
            asyncio.run(create(settings))
            of = [measured(settings) for _ in range(rounds)]
        finally:
            server.stop()
    for name, claims in zip(("with imports", "without imports"), zip(*of, strict=True), strict=True):
        figures = ", ".join(f"{step} {median(each[step] for each in claims):.0f} ms" for step in claims[0])
        print(f"{name}: {figures} (worst {max(each['settled'] for each in claims):.0f} ms)")


if __name__ == "__main__":
    main()
