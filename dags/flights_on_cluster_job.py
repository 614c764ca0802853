"""Write the departures of one claim as Parquet into a folder that no other attempt uses. This runs on the cluster.

Every machine needs pyspark, pyarrow, this package's wheel and the environment variable JETSTREAM_SECRET_NATS_DEFAULT.
A malformed departure fails the job. In production, separate malformed departures with `decoded`.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

DEPARTURE = "carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT, arr_delay INT"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--claim", required=True)  # the operator adds this argument and the next
    arguments.add_argument("--attempt", required=True)
    given = arguments.parse_args()

    spark = SparkSession.builder.getOrCreate()  # without a name, because the operator names the application
    messages = spark.read.format("jetstream").options(connection="nats_default", claim=given.claim).load()
    departure = from_json(col("data").cast("string"), DEPARTURE, {"mode": "FAILFAST"}).alias("departure")
    departures = messages.select("sequence", "subject", departure).select("sequence", "subject", "departure.*")
    departures.write.parquet(f"{given.out}/attempt={given.attempt}")


if __name__ == "__main__":
    main()
