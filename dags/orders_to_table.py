"""Orders in a table of Delta Lake: a stream into a table, without a function and without Spark.

The table contains each order once, whatever is killed, retried, cleared or reset. What is no order becomes a dead
letter. The orders are published by the DAG `orders`. See docs/how-to/stream-to-table.md.
"""

import os
from pathlib import Path

from airflow.sdk import dag

from airflow_nats_jetstream.operators.to_table import JetStreamToTableOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_tables import DeltaTable

OUT = Path(os.environ.get("ORDERS_TO_TABLE_OUT", "out/orders_to_table")).absolute()


@dag(schedule=None, doc_md=__doc__, tags=["jetstream", "table"])
def orders_to_table() -> None:
    claims = JetStreamPullSensor(task_id="claims", stream="ORDERS", consumer="table", messages_per_claim=500)
    JetStreamToTableOperator.partial(
        task_id="to_table",
        table=DeltaTable(f"{OUT}/orders"),  # in production, in an object store
        schema="shop STRING NOT NULL, amount INT NOT NULL",
        retries=2,
    ).expand(claim=claims.output)


orders_to_table()
