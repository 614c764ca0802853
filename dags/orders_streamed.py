"""Orders in a table of Delta Lake by a streaming query of Spark: each run reads what was published since the last run.

Each micro-batch is acknowledged when Spark's checkpoint contains that it is committed, and the table contains each
order once, whatever is killed, retried or cleared. It needs Spark 4.2 or newer. The orders are published by the DAG
`orders`. See docs/how-to/streaming-query.md.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pendulum
from airflow.sdk import dag, task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUT = Path(os.environ.get("ORDERS_STREAMED_OUT", "out/orders_streamed")).absolute()


@dag(
    schedule=timedelta(hours=1),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,  # a query runs once at a time
    doc_md=__doc__,
    tags=["jetstream", "spark", "table"],
)
def orders_streamed() -> None:
    @task(retries=2)
    def orders() -> int:
        """Append the new orders to the table, and return how many there were."""
        from airflow_nats_jetstream.hooks import JetStreamHook
        from jetstream_tables import DeltaTable
        from pyspark_jetstream import append_batch, decoded, spark_session

        table, malformed = DeltaTable(f"{OUT}/orders"), DeltaTable(f"{OUT}/malformed")

        def work(batch: "DataFrame", _: int) -> None:
            batch.persist()
            good, bad = decoded(batch.drop("headers"), "shop STRING NOT NULL, amount INT NOT NULL")
            append_batch(table, batch, good.select("sequence", "timestamp", "shop", "amount"), every_message=False)
            append_batch(malformed, batch, bad.select("sequence", "timestamp", "data", "reason"), every_message=False)
            batch.unpersist()

        where = {"connection": JetStreamHook().export_settings(), "stream": "ORDERS", "consumer": "streamed"}
        query = (
            spark_session()
            .readStream.format("jetstream")
            .options(**where)
            .load()
            .writeStream.foreachBatch(work)
            .option("checkpointLocation", f"{OUT}/checkpoint")
            .trigger(availableNow=True)  # read up to the current end of the stream, then end the query
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    orders()


orders_streamed()
