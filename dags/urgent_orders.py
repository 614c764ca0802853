"""Process the orders of one shop before all others, with a separate consumer, a high priority and up to three runs.

Every consumer receives every message that its filter matches, so this DAG does not affect `orders`, which processes the
same messages. A run that finds no message within a minute is skipped. Missed runs are not repeated, because the next
run claims all messages that are waiting.

`pick` only counts the orders; put your own work there. In production, give it a pool that no other task can fill:
`airflow pools set urgent 4 "urgent orders"`. The example uses the pool that every Airflow has.
"""

from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor

RUNS = 3  # how many runs are active at once, including runs that wait for a retry
MESSAGES = 1_000


@dag(
    schedule=timedelta(minutes=5),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=RUNS,
    doc_md=__doc__,
    tags=["jetstream"],
)
def urgent_orders() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="ORDERS",
        consumer="urgent",
        max_messages=MESSAGES,
        messages_per_claim=MESSAGES // 4,
        max_failures=3,
        consumer_config={"filter_subject": "orders.west", "max_ack_pending": RUNS * MESSAGES},
        timeout=60,
        soft_fail=True,
    )

    @task.jetstream(retries=2, pool="default_pool", priority_weight=10)
    def pick(claim: Any) -> int:
        return int(claim.count)

    pick.expand(claim=claims.output)


urgent_orders()
