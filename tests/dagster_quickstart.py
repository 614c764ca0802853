"""docs/dagster-quickstart.md, verbatim: its blocks one after the other in one shell, in a copy of what git knows.

`make dagsterquickstart`; most of its processor time is pip's and Dagster's.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from demo.service import Service
from jetstream_client import ConnectionSettings, connect
from tests.quickstart import blocks, clone

SECONDS = 1_800


@pytest.mark.timeout(SECONDS + 60)
async def test_the_quickstart_for_dagster_runs_verbatim(tmp_path: Path) -> None:
    for port in (4222, 3000):
        with socket.socket() as taken:
            assert taken.connect_ex(("127.0.0.1", port)), f"the page needs port {port}; something listens on it"
    folder = clone(tmp_path / "repository")
    *steps, end = blocks(folder / "docs" / "dagster-quickstart.md")
    settled, go_on = tmp_path / "settled", tmp_path / "go_on"
    pause = f"touch {settled}\nuntil [ -e {go_on} ]; do sleep 0.2; done\n"  # until the server was asked
    script = tmp_path / "quickstart.sh"
    script.write_text("set -e -m\n" + "".join(steps) + pause + end)  # -m: jobs, as in a terminal
    ours = ("AIRFLOW", "DAGSTER", "NATS", "PYTEST", "VIRTUAL_ENV")  # what a stranger has not set
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Processes in the background of a shell without job control ignore SIGINT, with which the page ends Dagster.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Service("quickstart", ["bash", str(script)], folder=folder, environment=environment)
    run.launch()
    print(f"\ntail -f {run.log}  # and quickstart/dagster.log next to it")  # noqa: T201 - it takes minutes
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
        log = run.log.read_text()
        assert "There are no open claims" in log
        attempts = re.findall(r"^[0-9a-f]{12}-\d+-[0-9a-f]{8} (\d+)-(\d+)$", log, re.MULTILINE)
        assert attempts == [("1", "500"), ("501", "1000"), ("1001", "1500"), ("1501", "2000")]
        go_on.touch()
        while run.running:
            assert time.monotonic() < deadline, run.tail()
            await asyncio.sleep(0.5)
    finally:
        run.stop()
    shutil.rmtree(folder / "quickstart")  # after a failure its logs tell why
