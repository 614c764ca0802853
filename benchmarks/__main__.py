"""Run every benchmark and say for each whether it is as fast as is required."""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import acknowledge, consume, publish, spark
from benchmarks.comparison import Comparison
from demo.java import java_home
from demo.nats_server import NatsServer

BENCHMARKS: Sequence[Callable[[str], Comparison]] = (
    *publish.BENCHMARKS,
    *consume.BENCHMARKS,
    acknowledge.compare,
    *spark.BENCHMARKS,
)


def main() -> int:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    results: list[Comparison] = []
    for compare in BENCHMARKS:
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
