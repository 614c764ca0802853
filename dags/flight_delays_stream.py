"""Read the departures of `flight_delays` as a stream: each run reads the messages published since the previous run.

Spark's checkpoint records how far the query has read, so this DAG needs no consumer, claim or ledger. The retry of a
killed run continues after the last committed batch. Use a streaming query if Spark should keep track of the progress,
and claims if a JetStream consumer should.

In production, `OUT` is in an object store, together with the checkpoint. Only Spark knows which Parquet files of the
folder are committed: write to a Delta Lake or Iceberg table if other programs read the departures.
"""

import os
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import dag, task

OUT = Path(os.environ.get("FLIGHT_DELAYS_STREAM_OUT", "out/flight_delays_stream")).absolute()
DELAYED = "carrier STRING, origin STRING, dest STRING, dep_delay INT"


@dag(
    schedule=timedelta(minutes=10),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["jetstream", "spark"],
)
def flight_delays_stream() -> None:
    @task(retries=2)
    def delays() -> int:
        """Add the new departures, and return how many there were."""
        from pyspark.sql.functions import col, from_json

        from airflow_nats_jetstream.hooks import JetStreamHook
        from pyspark_jetstream import spark_session

        where = {"servers": ",".join(JetStreamHook().settings.servers), "stream": "FLIGHTS"}
        messages = spark_session().readStream.format("jetstream").options(**where, startingOffsets="earliest").load()
        departure = from_json(col("data").cast("string"), DELAYED, {"mode": "FAILFAST"}).alias("departure")
        departures = messages.select("sequence", departure).select("sequence", "departure.*")
        query = (
            departures.writeStream.format("parquet")
            .option("checkpointLocation", str(OUT / "checkpoint"))
            .trigger(availableNow=True)  # read up to the current end of the stream, then end the query
            .start(str(OUT / "departures"))
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    delays()


flight_delays_stream()
