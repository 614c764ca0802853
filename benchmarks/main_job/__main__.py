"""The main job on Airflow and without it, and how long a message waits at each stage until it is settled.

    python -m benchmarks.main_job [--messages 336776] [--few 1000] [--runs 3] [--rounds 20] [--idle 0.5] [--skip PART …]

Three things are measured:

    main      dags/flight_delays.py with all departures, from the start of its run to the settlement of the last claim
    few       the same DAG with a few messages, which are published when its sensor waits, from then to their settlement
    arriving  dags/flights_arriving.py: one message starts a run, from publishing to its settlement

The first two are done on Airflow with a Spark that each task starts, on Airflow with a Spark Connect server that the
tasks share and with PySpark imported before (warm), and without Airflow in one Spark session that is warm. The last two
take turns, so that a slow moment of the machine affects both: Airflow idles while the work is done without it. Nothing
else may use the machine.
The figures are stored in build/main_job/figures.json, and drawn in build/main_job/stages.svg.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks.main_job.drawn import draw
from benchmarks.main_job.on_airflow import ARRIVING, MAIN, OnAirflow
from benchmarks.main_job.stages import Runs, Timeline
from benchmarks.main_job.without_airflow import WithoutAirflow
from benchmarks.spark import session
from demo.java import java_home
from demo.nats_server import NatsServer
from demo.stack import Stack
from jetstream_client import ConnectionSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "main_job"
POLL = 5.0  # seconds between two looks of the watcher in dags/flights_arriving.py
ON, WARM, WITHOUT = "on Airflow", "on Airflow, warm Spark", "without Airflow"


@dataclass(frozen=True)
class Load:
    """How many messages the main job has, and whether its sensor waits when they are published."""

    part: str
    messages: int
    waiting: bool

    def named(self, where: str) -> str:
        return f"{self.messages:,} messages {where}"


class Job(Protocol):
    """The main job, done once."""

    def __call__(self, messages: int, *, waiting: bool) -> Timeline: ...


def measured(options: argparse.Namespace) -> Iterator[tuple[str, Runs]]:
    """Yield each result with its name."""
    both = (Load("main", options.messages, waiting=False), Load("few", options.few, waiting=True))
    loads = [load for load in both if load.part not in options.skip]
    arriving, starting = "arriving" not in options.skip, loads if "cold" not in options.skip else []
    if arriving or starting:
        with stack(warm=False, idle=options.idle) as cold:
            yield from in_turn({ON: OnAirflow(cold).main_job}, starting, options.runs)
            if arriving:
                yield f"1 message, {ARRIVING}", Runs(list(arrivals(OnAirflow(cold), options.rounds)))
    if loads:
        with ExitStack() as services:
            jobs: dict[str, Job] = {WITHOUT: services.enter_context(without_airflow()).main_job}
            if "warm" not in options.skip:
                jobs[WARM] = OnAirflow(services.enter_context(stack(warm=True, idle=options.idle))).main_job
            for job in jobs.values():
                job(loads[0].messages, waiting=loads[0].waiting)  # from now on both Sparks are warm
            yield from in_turn(jobs, loads, options.runs)


def in_turn(jobs: Mapping[str, Job], loads: list[Load], runs: int) -> Iterator[tuple[str, Runs]]:
    """Yield the runs of each job with each load. The jobs take turns, so that a slow moment of the machine affects all
    of them."""
    for load in loads:
        rounds = [[job(load.messages, waiting=load.waiting) for job in jobs.values()] for _ in range(runs)]
        for where, timelines in zip(jobs, zip(*rounds, strict=True), strict=True):
            yield load.named(where), Runs(timelines)


@contextmanager
def stack(*, warm: bool, idle: float) -> Iterator[Stack]:
    environment = {
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": str(idle),
        "FLIGHT_DELAYS_OUT": str(FOLDER / "delays"),
        "FLIGHTS_ARRIVING_OUT": str(FOLDER / "arriving"),
        "SPARK_SUBMIT_OPTS": "",  # without the demo's options for Java, which users do not have
    }
    with Stack(FOLDER / "stack", ROOT / "dags", environment, warm=warm) as services:
        for dag in (MAIN, ARRIVING):
            services.airflow.wait_for_dag(dag)
        yield services


@contextmanager
def without_airflow() -> Iterator[WithoutAirflow]:
    server = NatsServer(FOLDER / "nats")
    server.start()
    try:
        with session() as spark:
            yield WithoutAirflow(ConnectionSettings(servers=server.url), spark, FOLDER / "without")
    finally:
        server.stop()


def arrivals(bench: OnAirflow, rounds: int) -> Iterator[Timeline]:
    """Publish at moments that are spread evenly between two looks of the watcher."""
    bench.prepare_arriving()
    for number in range(rounds):
        time.sleep(POLL * number / rounds)
        yield bench.arrive()


def table(name: str, runs: Runs) -> str:
    mean = sum(runs.stages.values())
    lines = [f"{name}: median {runs.median:.1f} s, worst {runs.worst:.1f} s of {len(runs.timelines)}"]
    lines += [f"  {stage:<36} {seconds:7.2f} s {seconds / mean:6.1%}" for stage, seconds in runs.stages.items()]
    return "\n".join(lines)


def ratios(results: Mapping[str, Runs]) -> Iterator[str]:
    """How many times as long as without Airflow each job takes on it: the median of the ratios of all rounds."""
    for name, runs in results.items():
        bare = results.get(f"{name.partition(' on ')[0]} {WITHOUT}")
        if bare:
            each = [ours.total / theirs.total for ours, theirs in zip(runs.timelines, bare.timelines, strict=True)]
            rounds = ", ".join(f"{ratio:.2f}" for ratio in each)
            yield f"{name}: {median(each):.2f} times as long as {WITHOUT} (in each round: {rounds})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.main_job", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=336_776, help="messages of the main job; default: all")
    parser.add_argument("--few", type=int, default=1_000, help="a few messages; default: 1000")
    parser.add_argument("--runs", type=int, default=3, help="runs of each job, of which the median counts; default: 3")
    parser.add_argument("--rounds", type=int, default=20, help="messages that arrive one after the other; default: 20")
    parser.add_argument(
        "--idle",
        type=float,
        default=0.5,
        help="scheduler_idle_sleep_time; default: 0.5 (Airflow: 1)",
    )
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=("main", "few", "arriving", "cold", "warm"), help="parts to leave out"
    )
    options = parser.parse_args()
    logging.disable(logging.INFO)  # the story of each claim
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    results: dict[str, Runs] = {}
    for name, runs in measured(options):
        results[name] = runs
        print(table(name, runs), flush=True)
    print("\n".join(ratios(results)))
    figures = {name: [dict(each.stages) for each in runs.timelines] for name, runs in results.items()}
    (FOLDER / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(results, FOLDER / "stages.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
