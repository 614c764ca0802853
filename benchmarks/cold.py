"""Where the time of a task goes that starts Spark: the steps of a first job, and the same job again.

    python -m benchmarks.cold [--messages 100000] [--runs 3]

Each run is a new process that reads departures and writes them as Parquet, as a mapped task of dags/flight_delays.py
does, but without Airflow. Processor seconds are those of the process, Java and Spark's workers together; they depend
less than the time on what else the machine does. SPARK_SUBMIT_OPTS and SPARK_CONF_DIR have their effect.

The runs with the installed pyspark are followed by others with a home that pyspark_jetstream.prepare makes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from statistics import median

import psutil

from benchmarks.main_job.messages import STREAM, publish, recreate
from demo.java import java_home
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings

STEPS = "steps.json"


class Step(StrEnum):
    """The steps in their order. The values are their names."""

    IMPORT = "pyspark is imported"
    JVM = "the JVM starts"
    SESSION = "the session starts"
    LOOKUP = "Spark finds the data source"
    FIRST = "the first job"
    AGAIN = "the same job again"


def job(url: str, out: Path) -> dict[Step, tuple[float, float]]:
    """Do the work twice in this process. Returns the seconds and the processor seconds of each step."""
    from dags.flight_delays import parsed  # imports Airflow, as every task has done before it begins

    moments = [(time.perf_counter(), processor_seconds())]

    def passed() -> None:
        moments.append((time.perf_counter(), processor_seconds()))

    from pyspark.core import context

    passed()
    launch = vars(context)["launch_gateway"]

    def launched(*arguments: object) -> object:
        gateway = launch(*arguments)
        passed()
        return gateway

    vars(context)["launch_gateway"] = launched
    from pyspark_jetstream import spark_session

    spark = spark_session(config={"spark.ui.showConsoleProgress": "false"})
    passed()
    source = spark.read.format("jetstream").option("servers", url).option("stream", STREAM)
    messages = source.load()
    passed()
    messages.transform(parsed).write.parquet(str(out / "first"))
    passed()
    source.load().transform(parsed).write.parquet(str(out / "again"))
    passed()
    steps = [(end[0] - begin[0], end[1] - begin[1]) for begin, end in itertools.pairwise(moments)]
    return dict(zip(Step, steps, strict=True))


def processor_seconds() -> float:
    """Return how long this process and its descendants have used a processor."""
    this = psutil.Process()
    used = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used += sum(process.cpu_times()[:4])
    return used


def measured(url: str, environment: Mapping[str, str]) -> dict[Step, tuple[float, float]]:
    """Do the job in a new process with these variables in addition."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks.cold", "--job", url, out]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, **environment})
        found = json.loads((Path(out) / STEPS).read_text())
    return {step: found[step] for step in Step}


def prepared(home: Path) -> dict[str, str]:
    """Return the variables for a prepared home."""
    from pyspark_jetstream.prepare import prepare  # imports pyspark, which the other functions time

    options = f"-XX:SharedArchiveFile={prepare(home)} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options.strip()}


def table(runs: Sequence[Mapping[Step, tuple[float, float]]]) -> str:
    """Return the medians of each step, and of all steps of the first job together."""
    rows = {str(step): [run[step] for run in runs] for step in Step}
    first = [step for step in Step if step is not Step.AGAIN]
    rows["together, without the last"] = [
        (sum(run[step][0] for step in first), sum(run[step][1] for step in first)) for run in runs
    ]
    lines = []
    for name, values in rows.items():
        seconds, used = (median(column) for column in zip(*values, strict=True))
        lines.append(f"{name:<30} {seconds:6.2f} s, {used:6.2f} processor seconds")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=100_000, help="messages of the job; default: 100000")
    parser.add_argument("--runs", type=int, default=3, help="processes, of which the median counts; default: 3")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        url, out = options.job
        (Path(out) / STEPS).write_text(json.dumps(job(url, Path(out))))
        return
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("AIRFLOW_HOME", str(Path("build/benchmarks/airflow").absolute()))
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder) / "nats")
        server.start()
        try:
            settings = ConnectionSettings(servers=server.url)
            recreate(settings)
            publish(settings, options.messages)
            for home, environment in (("installed", {}), ("prepared", prepared(Path(folder) / "spark"))):
                runs = [measured(server.url, environment) for _ in range(options.runs)]
                print(f"{home}:\n{table(runs)}", flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
