"""Run benchmarks and list those that are slower than required."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import acknowledge, arrow, consume, decode, publish, spark, tables, take
from benchmarks.comparison import Comparison
from demo.java import java_home
from demo.nats_server import NatsServer

BENCHMARKS: Mapping[str, Sequence[Callable[[str], Comparison]]] = {
    "publish": publish.BENCHMARKS,
    "consume": consume.BENCHMARKS,
    "take": (take.compare,),
    "acknowledge": (acknowledge.compare,),
    "arrow": arrow.BENCHMARKS,
    "spark": spark.BENCHMARKS,
    "decode": decode.BENCHMARKS,
    "tables": tables.BENCHMARKS,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", help=f"benchmarks to run, of {known}; all of them by default")
    names = parser.parse_args().names or [*BENCHMARKS]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}, only {known}")
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    results: list[Comparison] = []
    for compare in (each for name in names for each in BENCHMARKS[name]):
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(Path(folder))
            server.start()
            try:
                results.append(compare(server.url))
            finally:
                server.stop()
        print(results[-1], flush=True)
    slow = [result.what for result in results if result.ratio < result.required]
    if slow:
        print(f"slower than required: {', '.join(slow)}")
    return 1 if slow else 0


sys.exit(main())
