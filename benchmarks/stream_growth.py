"""How time and memory of reading grow with the stream, from 10,000 messages on.

    python -m benchmarks.stream_growth [largest number of messages, default: 10,000,000]

Prints a line for each size and draws build/benchmarks.stream_growth.svg.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.arguments import numbers
from benchmarks.spark import BYTES, STREAM, create, drained, session
from demo.java import java_home
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all

SIZE = 128
MIB = 1 << 20


@contextmanager
def largest_worker() -> Iterator[list[int]]:
    """Measure the memory of Spark's largest Python worker so far: a list with one element, in bytes."""
    largest, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for daemon in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if "pyspark.daemon" in " ".join(daemon.cmdline()):
                        largest[0] = max(largest[0], daemon.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        ended.set()
        thread.join()


def measured(url: str, most: int) -> Iterator[tuple[int, float, int]]:
    """Yield messages, seconds and bytes, first for 10,000 messages and then for ten times as many each time."""
    asyncio.run(create(url))
    data = os.urandom(SIZE)
    with session() as spark:
        stored, count = 0, 10_000
        while count <= most:
            messages = ((f"{STREAM}.{number % 16}", data) for number in range(stored, count))
            publish_all(ConnectionSettings(servers=url), messages)
            events = spark.read.format("jetstream").schema(BYTES).option("servers", url).option("stream", STREAM)
            if not stored:
                drained(events.load(), count)  # the first read starts the workers
            stored = count
            with largest_worker() as largest:
                start = time.perf_counter()
                drained(events.load(), count)
                seconds = time.perf_counter() - start
            yield count, seconds, largest[0]
            count *= 10


def drawn(points: list[tuple[int, float, int]], path: Path) -> None:
    from matplotlib.figure import Figure

    counts, seconds, memory = zip(*points, strict=True)
    figure = Figure(figsize=(9, 4), layout="constrained")
    time_taken, held = figure.subplots(1, 2)
    time_taken.loglog(counts, seconds, "o-", label="measured")
    time_taken.loglog(counts, [seconds[-1] * count / counts[-1] for count in counts], ":", label="in proportion")
    time_taken.set(xlabel="messages of 128 B", ylabel="seconds", title="Reading a stream into Spark")
    time_taken.legend()
    held.semilogx(counts, [each / MIB for each in memory], "o-")
    held.set(xlabel="messages of 128 B", ylabel="MiB", title="Largest Python worker", ylim=(0, 300))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (most,) = numbers("benchmarks.stream_growth", __doc__, messages=10_000_000)
    points = []
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            for count, seconds, memory in measured(server.url, most):
                points.append((count, seconds, memory))
                print(
                    f"{count:,} messages: {seconds:.1f} s, {count / seconds:,.0f}/s, {memory / MIB:.0f} MiB", flush=True
                )
        finally:
            server.stop()
    path = Path("build/benchmarks.stream_growth.svg")
    drawn(points, path)
    print(path)


if __name__ == "__main__":
    main()
