"""`python -m demo run | up | down | dagster`: run the flights demo from nothing to a table, in Airflow or Dagster, or
start and stop its stack."""

import asyncio
import json
import shutil
import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from demo import report
from demo.airflow import FINISHED
from demo.service import ServiceFailed
from demo.stack import USER, Stack, addresses, stop

ROOT = Path(__file__).parent.parent
DEMO, UP, IN_DAGSTER = ROOT / "build" / "demo", ROOT / "build" / "up", ROOT / "build" / "dagster-demo"
DAGS = ROOT / "dags"
DAG = "flight_delays"
LONGEST_RUN = 900  # seconds; a run takes a tenth of that
OTHERS = """\
The other examples are paused. To run one, unpause it with the switch next to its name, then trigger it. An example with
a schedule starts without a trigger. flights_arriving starts about half a minute after messages arrive."""


class Clock:
    """Prints lines, each with the seconds since the clock was created."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def say(self, line: str) -> None:
        print(f"{self.seconds:7.1f} s  {line}", flush=True)


def run() -> int:
    """Run the demo from an empty folder, and stop everything. Returns 1 if the run fails or the counts differ."""
    clock = Clock()
    stop(DEMO / "stack")
    shutil.rmtree(DEMO, ignore_errors=True)
    clock.say("starting nats-server, Postgres, Spark and Airflow")
    with Stack(DEMO / "stack", DAGS, {"FLIGHT_DELAYS_OUT": str(DEMO / "out")}, guarded=True, warm=True) as stack:
        clock.say(f"Airflow is up at {stack.airflow.url}, nats-server at {stack.nats.url}")
        print(_login(stack.password))
        stack.airflow.wait_for_dag(DAG)
        run_id = stack.airflow.trigger(DAG)
        state = follow(stack, run_id, clock)
        counts = asyncio.run(report.counts(stack.nats_url))
        if state != "success":
            print(f"\n{stack.airflow.story(DAG, run_id)}")
            return 1
        return 0 if conclude(counts, DEMO, clock) else 1


def run_in_dagster() -> int:
    """Run the same flights in Dagster from an empty folder, and stop everything. As `run`."""
    from demo.flights_in_dagster import Flights  # imports Dagster

    clock = Clock()
    shutil.rmtree(IN_DAGSTER, ignore_errors=True)
    clock.say("starting nats-server, Spark, and Dagster's code server and daemon")
    with Flights(IN_DAGSTER) as flights:
        clock.say(f"Dagster is up with the sensor of {flights.definitions.name}, nats-server at {flights.nats.url}")
        known: dict[str, str] = {}
        while clock.seconds < LONGEST_RUN:
            counts = asyncio.run(report.counts(flights.nats_url, ledger="jetstream"))
            for what, now in {**flights.states(), **_states(counts)}.items():
                if known.get(what) != now:
                    known[what] = now
                    clock.say(f"{what:<24} {now}")
            if failure := flights.failure():
                print(failure)
                return 1
            if counts.done and not (counts.pending or counts.ack_pending or flights.unfinished):
                return 0 if conclude(counts, IN_DAGSTER, clock) else 1
            time.sleep(0.5)
    raise TimeoutError(f"The runs did not end within {LONGEST_RUN} s. Their logs are in {IN_DAGSTER}/dagster")


def _states(counts: report.Counts) -> dict[str, str]:
    states = {}
    if counts.messages:
        states["stream"] = f"{counts.messages:,} messages"
    if counts.pending or counts.ack_pending or counts.done:
        states["consumer"] = f"{counts.pending:,} messages pending, {counts.ack_pending:,} unacknowledged"
    if counts.done:
        states["ledger"] = f"{len(counts.done)} claims settled"
    return states


def follow(stack: Stack, run_id: str, clock: Clock) -> str:
    """Print changes until the run ends. Returns the state in which it ended."""
    known: dict[str, str] = {}

    def changed(what: str, now: str) -> None:
        if known.get(what) != now:
            known[what] = now
            clock.say(f"{what:<10} {now}")

    while clock.seconds < LONGEST_RUN:
        stack.check()
        for task in stack.airflow.tasks(DAG, run_id):
            if task.state:
                again = f", try {task.try_number}" if task.try_number > 1 else ""
                changed(task.name, task.state + again)
        counts = asyncio.run(report.counts(stack.nats_url))
        if counts.messages:
            changed("messages", f"{counts.messages:,} messages")
        if counts.ack_pending or "consumer" in known:
            changed("consumer", f"{counts.pending:,} messages pending, {counts.ack_pending:,} unacknowledged")
        if counts.done:
            changed("ledger", f"{len(counts.done)} claims settled")
        state = stack.airflow.state(DAG, run_id)
        if state in FINISHED:
            return state
        time.sleep(0.5)
    raise TimeoutError(f"The run did not end within {LONGEST_RUN} s. Its logs are in {stack.folder}/airflow/logs")


def conclude(counts: report.Counts, folder: Path, clock: Clock) -> bool:
    """Write and show table, chart and report.json of the output in a folder.

    Returns whether all messages were processed and settled once.
    """
    departures = report.Departures(folder / "out")
    (rows, sequences), table = departures.check, departures.delays()
    delays_csv, chart_png = folder / "delays.csv", folder / "delays.png"
    report.write_csv(table, delays_csv)
    report.draw(table, chart_png)
    figures = {
        "published": counts.messages,
        "processed": rows,
        "distinct_sequences": sequences,
        "claims": len(counts.done),
        "pending": counts.pending,
        "ack_pending": counts.ack_pending,
        "settled_twice": counts.settled_twice,
        "seconds": round(clock.seconds, 1),
    }
    files_written = {
        "parquet": [str(file) for file in departures.files],
        "delays_csv": str(delays_csv),
        "chart_png": str(chart_png),
    }
    (folder / "report.json").write_text(json.dumps({**figures, **files_written}, indent=1) + "\n")

    print(
        f"\n{report.show(table)}\n\nchart     {chart_png}\ndelays    {delays_csv}\nreport    {folder / 'report.json'}\n"
    )
    print(f"stream    {counts.messages:,} messages published")
    print(f"table     {rows:,} rows, {sequences:,} different sequences: {report.CHECK}")
    print(f"consumer  {counts.pending:,} messages pending, {counts.ack_pending:,} unacknowledged")
    print(f"ledger    {len(counts.done)} claims settled, {counts.settled_twice:,} messages settled twice")
    processed = counts.messages == rows == sequences > 0
    complete = processed and not (counts.pending or counts.ack_pending or counts.settled_twice)
    if not complete:
        print(
            "Not every message was processed and settled exactly once. The counts above show the difference.",
            file=sys.stderr,
        )
    return complete


def up() -> int:
    """Start the stack and leave it running."""
    if found := addresses(UP):
        print(f"The stack is already running: {found['url']} (nats-server: {found['nats']}). `make down` stops it.")
        print(_login(found["password"]))
        return 0
    clock = Clock()
    clock.say("starting nats-server, Postgres, Spark and Airflow")
    stack = Stack(UP, DAGS, {"FLIGHT_DELAYS_OUT": str(UP / "out")}, guarded=True, warm=True)
    stack.start()
    stack.airflow.wait_for_dag(DAG)
    stack.airflow.pause(DAG, False)
    clock.say(f"{stack.airflow.url}/dags/{DAG} is ready to trigger. nats-server: {stack.nats.url}")
    print(_login(stack.password))
    print(OTHERS)
    print(f"Logs, data and output are in {UP}. `make down` stops everything.")
    return 0


def _login(password: str) -> str:
    return f"Log in to Airflow and to the nats-server as {USER}, password {password}"


def down() -> int:
    """Stop the stack that `up` started."""
    ended = stop(UP)
    print(f"Stopped {ended} processes." if ended else "Nothing was running.")
    return 0


def _interrupted(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("command", choices=["run", "up", "down", "dagster"])
    command = {"run": run, "up": up, "down": down, "dagster": run_in_dagster}[parser.parse_args().command]
    # A demo that is terminated must also stop its services.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return command()
    except (ServiceFailed, TimeoutError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
