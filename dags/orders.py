"""Publish a thousand orders, claim them, and add them up with Spark: the DAG of the quickstart.

Each run publishes another thousand orders. Its sensor claims them, and each task settles its claim when it returns.

In production, other systems publish the orders, and the result is a table of orders, as in `orders_to_table`: the sum
of a claim cannot be corrected if some of its messages are processed again.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

OUT = Path(os.environ.get("ORDERS_OUT", "out/orders")).absolute()


def new_orders() -> Iterator[tuple[str, bytes]]:
    """Yield orders with amounts from 1 to 1,000 as JSON, with a subject for each shop."""
    for number in range(1, 1_001):
        shop = ("north", "south", "west")[number % 3]
        yield f"orders.{shop}", json.dumps({"shop": shop, "amount": number}).encode()


@dag(schedule=None, default_args={"retries": 2, "retry_delay": 10}, doc_md=__doc__, tags=["jetstream", "spark"])
def orders() -> None:
    stream = JetStreamCreateStreamOperator(
        task_id="stream", config={"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}
    )
    publish = JetStreamPublishOperator(task_id="publish", stream="ORDERS", messages=new_orders)
    claims = JetStreamPullSensor(
        task_id="claims", stream="ORDERS", consumer="revenue", max_messages=1_000, messages_per_claim=500
    )

    @task.jetstream(retries=2, max_active_tis_per_dag=1)
    def revenue(claim: Any) -> dict[str, int]:  # the claim is held now, and settled when the function returns
        from pyspark_jetstream import decoded, spark_session

        good, malformed = decoded(claim.read(spark_session()), "shop STRING, amount INT")
        claim.reject(malformed)
        by_shop = {shop: int(total) for shop, total in good.groupBy("shop").sum("amount").collect()}
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{claim.attempt_id}.json").write_text(json.dumps(by_shop))
        return by_shop

    stream >> publish >> claims
    revenue.expand(claim=claims.output)


orders()
