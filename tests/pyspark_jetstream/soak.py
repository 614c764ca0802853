"""Let a streaming query that acknowledges run for a time, and strike once a minute: `make streaming-soak MINUTES=60`.

A strike kills a process of the query at a point of a micro-batch, the whole session there, or the server, or freezes
the session for three times ack_wait. Messages are published all the time. At the end, each message of the stream must
be in the table once, and settled once.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from demo.java import java_home
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.wire.settings import environment_name
from jetstream_testing.service import Service, session
from tests.pyspark_jetstream import kills
from tests.pyspark_jetstream.dying import POINTS, Chain

EVERY = 60.0  # seconds between two strikes
FROZEN = 30.0  # seconds: three times ack_wait
STRIKES = ("process", "session", "server", "freeze")


def run(chain: Chain, server: NatsServer, minutes: float, seed: int) -> Counter[str]:
    """Returns how often each strike came."""
    chosen = random.Random(seed)
    command = [sys.executable, "-m", "tests.pyspark_jetstream.kills", "--on", chain.retention, chain.sink]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    query = Service("query", [*command, str(chain.folder)], folder=chain.folder, environment=environment)
    over = threading.Event()
    publisher = threading.Thread(target=publish, args=(chain, over))
    publisher.start()
    struck: Counter[str] = Counter()
    try:
        query.start()
        ends = time.monotonic() + minutes * 60
        while time.monotonic() < ends:
            kind = chosen.choice(STRIKES)
            struck[kind] += 1
            strike(kind, chain, server, query, chosen.choice(POINTS))
            watch(chain, query, time.monotonic() + EVERY)
    finally:
        over.set()
        publisher.join()
        query.kill()
    chain.restore()
    (chain.folder / "mark").unlink(missing_ok=True)
    return struck


def publish(chain: Chain, over: threading.Event) -> None:
    """Publish some messages each second."""
    while not over.wait(1.0):
        chain.publish(40)


def strike(kind: str, chain: Chain, server: NatsServer, query: Service, point: str) -> None:
    kills.say(f"{kind} {point if kind in ('process', 'session') else ''}")
    if kind == "server":
        server.restart()
    elif kind == "freeze":
        processes = session(query.pid)
        for how, seconds in ((signal.SIGSTOP, FROZEN), (signal.SIGCONT, 0.0)):
            for process in processes:
                if process.is_running():
                    process.send_signal(how)
            time.sleep(seconds)
    else:
        chain.mark(point, query.pid if kind == "session" else None)


def watch(chain: Chain, query: Service, until: float) -> None:
    """Start the query again when it has ended."""
    while time.monotonic() < until:
        if not query.running:
            query.kill()  # what is left of its processes
            chain.restore()
            query.start()
        time.sleep(1.0)


async def last(chain: Chain) -> int:
    async with connect(chain.settings) as js:
        return int((await js.stream(chain.stream).info()).state["last_seq"])


def main() -> int:
    minutes, seed = float(os.environ.get("MINUTES", "60")), int(os.environ.get("SEED", "1"))
    retention, sink = sys.argv[1:] or ("workqueue", "delta")
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder) / "server")
        server.start()
        settings = ConnectionSettings(servers=server.url, shortest_ack_wait=1)
        os.environ[environment_name(kills.CONNECTION)] = settings.to_json()
        try:
            chain = Chain(retention, sink, Path(folder) / "soak", kills.CONNECTION)
            chain.folder.mkdir()
            chain.create()
            struck = run(chain, server, minutes, seed)
            spark = kills.session()
            chain.run(spark)
            count = asyncio.run(last(chain))
            chain.check(spark, count)
        finally:
            server.stop()
    kills.say(f"{retention}, {sink}: {sum(struck.values())} strikes {dict(struck)}, {count} messages: lost 0, twice 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
