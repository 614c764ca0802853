"""A driver in a separate process. Spark decides where it runs, its workers get the connection without showing it, and
another driver goes on where a killed one ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from tests.pyspark_jetstream.streaming import run_to_the_end

COUNT = 200_000
BATCH = 1_000
SCRIPT = """
import os
import sys
import psutil
from pyspark_jetstream import spark_session
from tests.pyspark_jetstream.streaming import begin

name = "JETSTREAM_SECRET_NATS_TESTS"
spark = spark_session(config={"spark.ui.enabled": "false", "spark.log.level": "FATAL"})
print("master", spark.sparkContext.master)
print("worker", spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get(name) == "hidden").collect())
print("shown", [tuple(row) for row in spark.sql("SET").collect() if name in row.key])
command = " ".join(psutil.Process(spark.sparkContext._gateway.proc.pid).cmdline())
print("jvm", "pyspark-shell" in command)
print("argument", os.environ[name] in command)
sys.stdout.flush()

servers, folder = sys.argv[1:]
options = {"servers": servers, "stream": "S", "startingOffsets": "earliest"}
messages = spark.readStream.format("jetstream").options(**options).load().select("sequence")
query = messages.writeStream.format("parquet").option("checkpointLocation", f"{folder}/state")
begin(query, f"{folder}/out").awaitTermination()
"""


@dataclass(frozen=True)
class Driver:
    """A process that reads stream ``S`` of ``server`` into ``folder``."""

    process: subprocess.Popen[bytes]
    server: NatsServer
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()

    def committed(self) -> int:
        """The last sequence of the committed batches."""
        state = self.folder / "state"
        batches = [int(each.name) for each in (state / "commits").glob("*") if each.name.isdigit()]
        if not batches:
            return 0
        return int(json.loads((state / "offsets" / str(max(batches))).read_text().splitlines()[-1])["sequence"])

    def reads(self, sequence: int) -> bool:
        assert self.process.poll() is None, self.log
        return self.committed() >= sequence

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, spark_environment: None) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("driver")
    server = NatsServer(folder / "server")
    server.start()
    settings = ConnectionSettings(servers=server.url)
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": "--master local[3] pyspark-shell",
        "JETSTREAM_SECRET_NATS_TESTS": "hidden",
    }

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream({"name": "S", "subjects": ["s"], "allow_direct": True})

    try:
        asyncio.run(create())
        command = [sys.executable, "-c", SCRIPT, server.url, str(folder)]
        with (folder / "driver.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
        driver = Driver(process, server, folder)
        try:
            for count in (BATCH, 2 * BATCH):
                publish_all(settings, (("s", b"x") for _ in range(BATCH)))
                until("it reads", partial(driver.reads, count), seconds=240)
            publish_all(settings, (("s", b"x") for _ in range(COUNT - 3 * BATCH)))
        finally:
            driver.kill()
        publish_all(settings, (("s", b"x") for _ in range(BATCH)))  # it may have read all others
        yield driver
    finally:
        server.stop()


@pytest.mark.slow
def test_where_spark_runs_is_not_overridden_and_the_connection_is_carried_unseen(driver: Driver) -> None:
    said = dict(line.split(" ", 1) for line in driver.log.splitlines() if " " in line)
    assert said["master"] == "local[3]"
    assert said["worker"] == "[True]"
    assert "redacted" in said["shown"]
    # Every user of the machine can read command lines.
    assert (said["jvm"], said["argument"]) == ("True", "False")
    assert "hidden" not in driver.log


@pytest.mark.slow
def test_a_driver_killed_and_started_again_gives_the_exact_set(spark: SparkSession, driver: Driver) -> None:
    """The driver that goes on is in this process, and knows only the checkpoint."""
    assert driver.process.returncode == -signal.SIGKILL
    committed = driver.committed()
    driver.server.restart()
    writer = (
        spark.readStream.format("jetstream")
        .options(servers=driver.server.url, stream="S", startingOffsets="earliest")
        .load()
        .select("sequence")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{driver.folder}/state")
    )

    def run() -> int:
        query = run_to_the_end(writer, f"{driver.folder}/out")
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    read = 0
    while driver.committed() < COUNT:  # on Spark 4.0 and 4.1, a run that repeats a micro-batch ends with it
        read += run()
    assert BATCH <= read <= COUNT - committed  # less if the killed driver had written a batch and not committed it
    rows = spark.read.parquet(f"{driver.folder}/out").collect()
    assert sorted(row.sequence for row in rows) == list(range(1, COUNT + 1))
