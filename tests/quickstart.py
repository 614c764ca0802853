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
from pathlib import Path

import pytest

from demo.service import Service
from jetstream_client import ConnectionSettings, connect

ROOT = Path(__file__).parents[1]
SECONDS = 3_600


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def clone(folder: Path) -> Path:
    """The files that git knows, as they are now."""
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in known.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.timeout(SECONDS + 60)
async def test_the_quickstart_runs_as_it_stands_there(tmp_path: Path) -> None:
    for port in (4222, 8080):
        with socket.socket() as taken:
            assert taken.connect_ex(("127.0.0.1", port)), f"the page needs port {port}; something listens on it"
    folder = clone(tmp_path / "repository")
    *steps, end = blocks(folder / "docs" / "quickstart.md")
    settled, go_on = tmp_path / "settled", tmp_path / "go_on"
    pause = f"touch {settled}\nuntil [ -e {go_on} ]; do sleep 0.2; done\n"  # until the server was asked
    script = tmp_path / "quickstart.sh"
    script.write_text("set -e -m\n" + "".join(steps) + pause + end)  # -m: jobs, as in a terminal
    ours = ("AIRFLOW", "JAVA_HOME", "PYSPARK", "PYTEST", "SPARK", "VIRTUAL_ENV")  # what a stranger has not set
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # What a shell without job control runs in the background ignores SIGINT, and so does all that it starts; the page
    # ends Airflow with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Service("quickstart", ["bash", str(script)], folder=folder, environment=environment)
    run.launch()
    print(f"\ntail -f {run.log}  # and quickstart/airflow.log beside it")  # noqa: T201 - it takes minutes
    try:
        deadline = time.monotonic() + SECONDS
        while not settled.exists():
            assert run.running, run.tail()
            assert time.monotonic() < deadline, run.tail()
            await asyncio.sleep(0.5)
        async with connect(ConnectionSettings(servers="nats://127.0.0.1:4222")) as js:
            assert (await js.stream("ORDERS").info()).state["messages"] == 2_000
            consumer = await js.stream("ORDERS").consumer("revenue").info()
            assert (consumer.floor, consumer.pending, consumer.ack_pending) == (2_000, 0, 0)
            own = await js.stream("PARCELS").consumer("lengths").info()
            assert (own.floor, own.pending, own.ack_pending) == (100, 0, 0)
        written = [json.loads(path.read_text()) for path in (folder / "out" / "orders").glob("*.json")]
        assert len(written) == 4
        assert sum(sum(shops.values()) for shops in written) == 2 * sum(range(1_001))
        assert re.search(r"^[0-9a-f]{12}-\d+-[0-9a-f]{8} 100 890$", run.log.read_text(), re.MULTILINE)
        assert re.search(r"airflow-provider-nats-jetstream *\| *\d", run.log.read_text())
        go_on.touch()
        while run.running:
            assert time.monotonic() < deadline, run.tail()
            await asyncio.sleep(0.5)
    finally:
        run.stop()
    shutil.rmtree(folder / "quickstart")  # a gigabyte and a half; after a failure its logs tell why
