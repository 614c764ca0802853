"""Kill a streaming query that acknowledges, at each point of a micro-batch, for each retention and each sink: `make
streaming-kills REPEAT=10`.

First single processes are killed, each time at all points one after the other, then whole sessions of Spark. An
argument selects the chains whose names contain it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from demo.java import java_home
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.errors import JetStreamError
from jetstream_client.wire.settings import environment_name
from pyspark_jetstream import spark_session
from tests.pyspark_jetstream.dying import BATCH, POINTS, RETENTIONS, SINKS, Chain

CONNECTION = "kills"
PUBLISHED = 2 * BATCH + 10  # messages before each kill
STARTS = 5  # a start of Spark may fail on a busy machine, before it reaches the point


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def session() -> SparkSession:
    spark = spark_session("kills", master="local[2]", config={"spark.ui.enabled": "false", "spark.log.level": "FATAL"})
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def processes_killed(chain: Chain, spark: SparkSession) -> int:
    for point in POINTS:
        chain.publish(PUBLISHED)
        chain.killed_in(spark, point)
    return len(POINTS) * PUBLISHED


def sessions_killed(chain: Chain, _: SparkSession) -> int:
    for point in POINTS:
        chain.publish(PUBLISHED)
        for _start in range(STARTS):
            if not killed(chain, point):
                break
        else:
            raise AssertionError(f"no session has reached the point {point!r}")
    if killed(chain, ""):
        raise AssertionError("the last session did not end")
    return len(POINTS) * PUBLISHED


def killed(chain: Chain, point: str) -> bool:
    """Start a session that is killed at a point. Returns whether the mark is left: it did not get there."""
    command = [sys.executable, "-m", "tests.pyspark_jetstream.kills", "--session"]
    with (chain.folder / "session.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, chain.retention, chain.sink, str(chain.folder)], start_new_session=True, stdout=log, stderr=log
        )
        if point:
            chain.mark(point, process.pid)
        ended = process.wait(timeout=600)
    chain.restore()
    left = (chain.folder / "mark").exists()
    (chain.folder / "mark").unlink(missing_ok=True)
    return left or (not point and ended != 0)


def in_session(how: str, retention: str, sink: str, folder: str) -> None:
    """The program of a session. If its query fails, the session is killed.

    how:  ``--session`` processes what is available now, ``--on`` goes on.
    """
    chain = Chain(retention, sink, Path(folder), CONNECTION)
    try:
        if how == "--on":
            chain.go_on(session())
        else:
            chain.run(session())
    except PySparkException:
        traceback.print_exc()
        os.killpg(0, signal.SIGKILL)


def tried(way: Callable[[Chain, SparkSession], int], retention: str, sink: str, spark: SparkSession) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        chain = Chain(retention, sink, Path(folder), CONNECTION)
        chain.create()
        try:
            chain.check(spark, way(chain, spark))
        except (AssertionError, PySparkException, JetStreamError):
            traceback.print_exc()
            shutil.copytree(folder, Path("build/streaming-kills") / chain.stream, dirs_exist_ok=True)
            return False
    return True


def main() -> int:
    if sys.argv[1:2] in (["--session"], ["--on"]):
        in_session(*sys.argv[1:])
        return 0
    repeat = int(os.environ.get("REPEAT", "10"))
    failed = 0
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        settings = ConnectionSettings(servers=server.url, shortest_ack_wait=1)
        os.environ[environment_name(CONNECTION)] = settings.to_json()
        try:
            spark = session()
            say(f"{'killed at seven points each':44}{'runs':>6}{'well':>6}{'seconds':>12}")
            for way in (processes_killed, sessions_killed):
                for retention in RETENTIONS:
                    for sink in SINKS:
                        name = f"{way.__name__.replace('_', ' ')}: {retention}, {sink}"
                        if not all(word in name for word in sys.argv[1:]):
                            continue
                        began, well = time.monotonic(), 0
                        for _ in range(repeat):
                            well += tried(way, retention, sink, spark)
                        failed += repeat - well
                        say(f"{name:44}{repeat:6}{well:6}{(time.monotonic() - began) / repeat:12.0f}")
        finally:
            server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
