"""A Spark program that reads a claim and writes its messages. It knows neither Airflow nor the hand-off."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--claim")
parser.add_argument("--out")


def main() -> None:
    from pyspark.sql import SparkSession

    arguments = parser.parse_args()
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    messages = spark.read.format("jetstream").option("claim", arguments.claim).option("connection", "nats_default")
    messages.load().select("sequence").write.json(arguments.out)


if __name__ == "__main__":
    main()
