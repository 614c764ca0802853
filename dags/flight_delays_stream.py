"""The departures of `flight_delays`, read as a stream: each run reads what was published since the last one.

Spark's checkpoint knows how far the query came; no consumer, no claim and no ledger take part. A run that is killed
goes on, in its retry, after the last batch that was committed. Use it where Spark is the one that has to know, and
claims where JetStream's consumer is.
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
        """How many departures were added."""
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
            .trigger(availableNow=True)  # up to where the stream ends now; then the query ends, too
            .start(str(OUT / "departures"))
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    delays()


flight_delays_stream()
