"""The job of `submitted`: it writes the claim's sequences under the attempt's name when the gate is open."""

import argparse
import time
from pathlib import Path

from pyspark.sql import SparkSession

if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    for name in ("--gate", "--out", "--claim", "--attempt"):
        arguments.add_argument(name, required=True)
    given = arguments.parse_args()
    spark = SparkSession.builder.getOrCreate()
    messages = spark.read.format("jetstream").options(connection="nats_default", claim=given.claim).load()
    messages.select("stream", "sequence").coalesce(1).write.json(f"{given.out}/{given.attempt}")
    while not Path(given.gate).exists():
        time.sleep(0.2)
