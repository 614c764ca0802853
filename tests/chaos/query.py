"""The streaming query of a pipeline, which acknowledges and appends to a table: ``python -m tests.chaos.query NAME``.

While there are strikes, it kills itself with all its processes in the middle of some micro-batches.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from pyspark_jetstream import append_batch, spark_session
from tests.chaos import tables, windows
from tests.chaos.pipelines import CONSUMER, PIPELINES, Pipeline
from tests.pyspark_jetstream.streaming import begin

KILLED = 0.05
"""How many micro-batches are not survived."""


def run(pipeline: Pipeline, folder: Path) -> None:
    table = tables.described(pipeline, folder)

    def work(batch: DataFrame, number: int) -> None:
        pause = windows.pause(windows.WORK, f"{pipeline.name} {number}")
        before, after = random.random(), random.random()
        time.sleep(pause / 2)
        _die(pause > 0 and before < KILLED)
        append_batch(table, batch, batch.select("sequence", "timestamp", "data"))
        time.sleep(pause / 2)
        _die(pause > 0 and after < KILLED)

    config = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    spark = spark_session(pipeline.name, master="local[1]", config=config)
    where = {"connection": pipeline.connection, "stream": pipeline.stream, "consumer": CONSUMER}
    messages = spark.readStream.format("jetstream").options(**where, maxOffsetsPerTrigger="40").load()
    state = folder / "queries" / pipeline.name
    begin(messages.writeStream.foreachBatch(work).option("checkpointLocation", str(state))).awaitTermination()


def _die(now: bool) -> None:
    if now:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    run(next(each for each in PIPELINES if each.name == sys.argv[1]), windows.folder())
