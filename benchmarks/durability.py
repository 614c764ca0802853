"""What ``sync_interval: always`` costs: publishing in bulk, taking and settling, on two servers side by side.

python -m benchmarks.durability [number of messages, default: 10,000]

The servers differ only in this setting, and store on the same disk. They take turns, so that a slow moment of the
machine affects both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.arguments import numbers
from benchmarks.comparison import ROUNDS
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all, publish_fast
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

CONFIGS = {"default": "", "always": "jetstream { sync_interval: always }"}
SIZE = 128  # bytes
STEPS = ("publish in bulk", "publish as a fast batch", "publish one message", "take", "settle")
SINGLE = 20


async def measure(url: str, name: str, count: int) -> dict[str, float]:
    """Return the seconds of each step, for a stream and a consumer of this name."""
    settings = ConnectionSettings(servers=url)
    seconds = {}
    async with connect(settings) as js:
        await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "allow_batched": True})
        messages = [(f"{name}.{number % 100}", b"x" * SIZE) for number in range(count)]
        start = time.perf_counter()
        await asyncio.to_thread(publish_fast, settings, messages)
        seconds["publish as a fast batch"] = time.perf_counter() - start
        await js.stream(name).purge()
        start = time.perf_counter()
        await asyncio.to_thread(publish_all, settings, messages)
        seconds["publish in bulk"] = time.perf_counter() - start
        taking = Taking(
            stream=name, consumer="work", owner=("dag", "run", "task", -1, 1), max_messages=count, gather=timedelta(60)
        )
        take = Take(js, taking)
        await take.prepare()
        start = time.perf_counter()
        (claim,) = await take.take(60)
        seconds["take"] = time.perf_counter() - start
        take.handed_on()
        async with Hold.begin(js, claim, try_number=1) as hold:
            await asyncio.sleep(1.5)  # an entry that is younger than a second is not settled
            start = time.perf_counter()
            await hold.settle()
            seconds["settle"] = time.perf_counter() - start
        assert (await js.stream(name).consumer("work").info()).floor == 2 * count
        start = time.perf_counter()
        for _ in range(SINGLE):
            await js.publish(f"{name}.one", b"x" * SIZE)
        seconds["publish one message"] = (time.perf_counter() - start) / SINGLE
    return seconds


def sync_time(folder: Path) -> float:
    """Return the seconds in which the disk stores four KiB."""
    with (folder / "probe").open("wb") as file:
        start = time.perf_counter()
        for _ in range(100):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - start) / 100


def main() -> None:
    logging.getLogger("jetstream_handoff").setLevel(logging.ERROR)  # each created consumer is a warning
    (count,) = numbers("benchmarks.durability", __doc__, messages=10_000)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONFIGS}
    with tempfile.TemporaryDirectory() as folder:
        servers = {name: NatsServer(Path(folder) / name, config) for name, config in CONFIGS.items()}
        try:
            for server in servers.values():
                server.start()
            for number in range(ROUNDS):
                for name, server in servers.items():
                    found[name].append(asyncio.run(measure(server.url, f"S{number}", count)))
        finally:
            for server in servers.values():
                server.stop()
        print(f"{count:,} messages of {SIZE} B; the disk syncs four KiB in {sync_time(Path(folder)) * 1e3:.1f} ms")
    for step in STEPS:
        usual, always = (statistics.median(each[step] for each in found[name]) for name in CONFIGS)
        print(f"{step}: {usual:.4f} s, with always {always:.4f} s, {always / usual:.1f} times as long")


main()
