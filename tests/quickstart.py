"""docs/quickstart.md, verbatim: its blocks one after the other in one shell, in a copy of what git knows.

`make quickstart`; most of its processor time is pip's and Spark's.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from demo.service import Service
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream

ROOT = Path(__file__).parents[1]
SECONDS = 3_600
A_STRANGER_LACKS = ("AIRFLOW", "DAGSTER", "JAVA_HOME", "NATS", "PYSPARK", "PYTEST", "SPARK", "VIRTUAL_ENV")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def clone(folder: Path) -> Path:
    """The files that git knows, as they are now."""
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in known.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


async def progress(js: JetStream, stream: str, consumer: str) -> tuple[int, int, int]:
    """The consumer's acknowledgement floor, and its numbers of pending and of unacknowledged messages."""
    info = await js.stream(stream).consumer(consumer).info()
    return info.floor, info.pending, info.ack_pending


@asynccontextmanager
async def followed(
    page: str, folder: Path, *ports: int, until: float
) -> AsyncIterator[tuple[JetStream, Service, Path]]:
    """Follow the page in a clone below ``folder``, up to its last block: a connection, the shell, and the clone.

    The last block, which stops what the page has started, follows when the body has ended.

    until:  how long the whole page may take, in seconds.
    """
    for port in (4222, *ports):
        with socket.socket() as taken:
            assert taken.connect_ex(("127.0.0.1", port)), f"the page needs port {port}; something listens on it"
    repository = clone(folder / "repository")
    *steps, end = blocks(repository / "docs" / page)
    arrived, go_on = folder / "arrived", folder / "go_on"
    pause = f"touch {arrived}\nuntil [ -e {go_on} ]; do sleep 0.2; done\n"  # while the body asks the server
    script = folder / "page.sh"
    script.write_text("set -e -m\n" + "".join(steps) + pause + end)  # -m: jobs, as in a terminal
    environment = {name: value for name, value in os.environ.items() if not name.startswith(A_STRANGER_LACKS)}
    # What a shell without job control runs in the background ignores SIGINT, and so does all that it starts; the page
    # ends its services with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Service("quickstart", ["bash", str(script)], folder=repository, environment=environment)
    run.launch()
    print(f"\ntail -f {run.log}  # the folder quickstart has more logs")  # noqa: T201 - it takes minutes
    try:
        deadline = time.monotonic() + until
        while not arrived.exists():
            assert run.running, run.tail()
            assert time.monotonic() < deadline, run.tail()
            await asyncio.sleep(0.5)
        async with connect(ConnectionSettings(servers="nats://127.0.0.1:4222")) as js:
            yield js, run, repository
        go_on.touch()
        while run.running:
            assert time.monotonic() < deadline, run.tail()
            await asyncio.sleep(0.5)
    finally:
        run.stop()
    shutil.rmtree(repository / "quickstart")  # a gigabyte and a half; after a failure its logs tell why


@pytest.mark.timeout(SECONDS + 60)
async def test_the_quickstart_runs_as_it_stands_there(tmp_path: Path) -> None:
    async with followed("quickstart.md", tmp_path, 8080, until=SECONDS) as (js, run, repository):
        assert (await js.stream("ORDERS").info()).state["messages"] == 2_000
        assert await progress(js, "ORDERS", "revenue") == (2_000, 0, 0)
        assert await progress(js, "PARCELS", "lengths") == (100, 0, 0)
        written = [json.loads(path.read_text()) for path in (repository / "out" / "orders").glob("*.json")]
        assert len(written) == 4
        assert sum(sum(shops.values()) for shops in written) == 2 * sum(range(1_001))
        assert re.search(r"^[0-9a-f]{12}-\d+-[0-9a-f]{8} 100 890$", run.log.read_text(), re.MULTILINE)
        assert re.search(r"airflow-provider-nats-jetstream *\| *\d", run.log.read_text())
