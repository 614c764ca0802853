"""Run benchmarks, print a table of their rates, and list those that are slower than required.

Each benchmark runs in a separate process, whose output is in build/benchmarks: one that dies, for example because
Java has too little memory, is a row of the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import acknowledge, arrow, consume, decode, publish, spark, streaming, tables, take
from benchmarks.comparison import HEAD, Comparison
from demo.java import java_home
from demo.nats_server import NatsServer

FOLDER = Path("build/benchmarks")
BENCHMARKS: Mapping[str, Sequence[Callable[[str], Comparison]]] = {
    "publish": publish.BENCHMARKS,
    "consume": consume.BENCHMARKS,
    "take": (take.compare,),
    "acknowledge": (acknowledge.compare,),
    "arrow": arrow.BENCHMARKS,
    "spark": spark.BENCHMARKS,
    "streaming": streaming.BENCHMARKS,
    "decode": decode.BENCHMARKS,
    "tables": tables.BENCHMARKS,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", help=f"benchmarks to run, of {known}; all of them by default")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # the process of one benchmark: "spark 0"
    given = parser.parse_args()
    if given.into:
        name, index = given.names
        given.into.write_text(json.dumps(asdict(measured(BENCHMARKS[name][int(index)]))))
        return 0
    names = given.names or [*BENCHMARKS]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}, only {known}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    slow, dead = [], []
    for name in names:
        for index in range(len(BENCHMARKS[name])):
            if result := alone(name, index):
                print(result.row(), flush=True)
                slow += [result.what] if result.ratio < result.required else []
            else:
                dead.append(f"{FOLDER}/{name}-{index}.log")
                print(f"| {name} {index} | cannot: see {dead[-1]} |", flush=True)
    for title, some in (("slower than required", slow), ("ended without a result", dead)):
        if some:
            print(f"{title}: {', '.join(some)}")
    return 1 if slow or dead else 0


def alone(name: str, index: int) -> Comparison | None:
    """The result of a benchmark in a separate process; None if it has none."""
    log, into = FOLDER / f"{name}-{index}.log", FOLDER / f"{name}-{index}.json"
    into.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "--into", str(into), name, str(index)]
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
    return Comparison(**json.loads(into.read_text())) if done.returncode == 0 else None


def measured(compare: Callable[[str], Comparison]) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            return compare(server.url)
        finally:
            server.stop()


sys.exit(main())
