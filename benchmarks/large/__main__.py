"""One large job on a cluster of three nats-servers and a standalone Spark, while processes are killed.

    python -m benchmarks.large [--messages 10000000] [--size 128] [--claim 500000] [--no-kills]

The messages are published to a stream with three replicas on file, taken, worked on claim by claim by a driver in a
separate process, with a master and two workers of one core each, and settled. Meanwhile the nats-server that leads the
stream, a Spark executor and the driver are killed, each while a claim is being worked on. What it took is printed as
Markdown. The work on the first claim of a driver includes the start of its executors. The exit status is 1 unless each
message is in exactly one result that counts, and is settled.

The data are in build/large and are deleted at the end. The logs stay there if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.large.driver import Job
from benchmarks.large.journal import FINISHED, steps
from benchmarks.large.messages import SMALLEST, STREAM, create, faults, publish
from benchmarks.large.observer import Observer
from benchmarks.large.report import Report
from benchmarks.large.strikes import Strikes
from demo.java import java_home
from demo.service import Service, ServiceFailed
from demo.spark_home import spark_home
from jetstream_client import ConnectionSettings
from tests.cluster.standalone import Standalone
from tests.jetstream_client.cluster import Cluster

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "large"
TAIL = 60  # lines of the log of a driver that failed


def run(options: argparse.Namespace) -> list[str]:
    """Do the job and print what it took. Returns what is wrong at the end."""
    with ExitStack() as stack:
        nats = Cluster(FOLDER / "nats")
        for node in nats.nodes:
            stack.callback(shutil.rmtree, node.store, ignore_errors=True)
        stack.enter_context(nats)
        settings = ConnectionSettings(servers=nats.url)
        asyncio.run(create(settings))
        with Observer(settings) as observer:
            observer.services += [(node, f"nats-server {number}") for number, node in enumerate(nats.nodes)]
            publishing = publish(settings, options.messages, options.size)
            disk = {"stream on the disk of one server, after publishing": stored(nats, f"streams/{STREAM}")}
            spark = Standalone(FOLDER / "spark", spark_home(), cores=1)
            stack.callback(spark.stop)
            spark.start()
            observer.services += [(each, f"Spark {each.name.rstrip('12')}") for each in spark.services]
            strikes = Strikes(nats, spark, FOLDER, options.messages if options.kills else 0)
            stack.callback(strikes.end)
            job = Job(nats.url, spark.url, str(FOLDER), options.messages, options.claim)
            working = drive(job, observer, strikes, stack)
        disk["stream on the disk of one server, at the end"] = stored(nats, f"streams/{STREAM}")
        disk["everything on the disk of one server, at the end"] = stored(nats, "jetstream")
        print(f"{options.messages:,} messages of {options.size} B, in claims of {options.claim:,}:")
        print(Report(options.messages, publishing, working, steps(FOLDER), strikes.made, disk, observer), flush=True)
        wrong = asyncio.run(faults(settings, job.results, options.messages, options.size))
        return wrong + [f"not killed: {what}" for what in strikes.left]


def drive(job: Job, observer: Observer, strikes: Strikes, stack: ExitStack) -> float:
    """Start a driver, and another one when it was killed, until the job is finished. Returns how long that took."""
    start = time.perf_counter()
    for try_number in (1, 2):
        driver = Service(
            f"driver{try_number}",
            [sys.executable, "-m", "benchmarks.large.driver", job.to_json(try_number)],
            folder=FOLDER / "drivers",
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        stack.callback(driver.stop)
        driver.start()
        observer.services.append((driver, "driver's Python"))
        while driver.running:
            strikes.strike(driver)
            time.sleep(0.05)
        if all(kill.pid != driver.pid for kill in strikes.made):
            break
    strikes.end()
    if not (known := steps(FOLDER)) or known[-1].name != FINISHED:
        raise ServiceFailed(f"{driver.name} ended:\n{driver.tail(TAIL)}")
    return time.perf_counter() - start


def stored(nats: Cluster, folder: str) -> int:
    """The bytes of the files below the folder with this name, on the server that has the most of them."""
    sizes = []
    for node in nats.nodes:
        files = (file for found in node.store.rglob(folder) for file in found.rglob("*"))
        sizes.append(sum(file.stat().st_size for file in files if file.is_file()))
    return max(sizes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=10_000_000, help="number of messages; default: 10,000,000")
    parser.add_argument("--size", type=int, default=128, help=f"bytes of a message, from {SMALLEST}; default: 128")
    parser.add_argument("--claim", type=int, default=500_000, help="messages of a claim; default: 500,000")
    parser.add_argument("--no-kills", dest="kills", action="store_false", help="kill nothing")
    options = parser.parse_args()
    if options.size < SMALLEST:
        parser.error(f"--size: give at least {SMALLEST}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # everything that was started is killed
    java, home = str(java_home()), str(spark_home())
    os.environ |= {"JAVA_HOME": java, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    wrong = run(options)
    print("\n".join(wrong) or "Each message is in exactly one result that counts, and is settled.")
    if not wrong:
        shutil.rmtree(FOLDER)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
