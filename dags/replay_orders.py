"""Process all orders since a given time again: reset the consumer to the first message stored then or later.

The next run of `orders` claims the redelivered messages. Messages stored before that time stay settled.

In production, also repeat the work that used the older output. A merge as in `orders_merged` replaces older rows.
"""

from airflow.sdk import dag

from airflow_nats_jetstream.operators.consumer import JetStreamResetConsumerOperator
from airflow_nats_jetstream.operators.message import JetStreamGetMessageOperator


@dag(schedule=None, doc_md=__doc__, params={"since": "2026-11-21T00:00:00Z"}, tags=["jetstream"])
def replay_orders() -> None:
    first = JetStreamGetMessageOperator(task_id="first", stream="ORDERS", start_time="{{ params.since }}")
    reset = JetStreamResetConsumerOperator(
        task_id="reset",
        stream="ORDERS",
        consumer="revenue",
        sequence="{{ ti.xcom_pull('first')['sequence'] }}",
    )
    first >> reset


replay_orders()
