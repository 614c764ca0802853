"""Everything since a time is processed again: the first message that was stored then or later, and a reset to it.

The next run of `orders` claims what comes again. What was settled before that time stays settled.
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
