"""Process the orders of each day after midnight, and those of the past thirty days first: runs that have a period.

The first run creates the consumer, which begins at the start date. Each run takes the orders that were stored before
the end of its data interval and that no earlier run has processed. So an order is processed by the run of its day, or,
if that run has failed, by the next one. Mapped tasks process the claims of a day at the same time. Runs of days without
orders are skipped.

Only one run is active at a time, so that a run takes nothing that belongs to an earlier one.
"""

import json
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor

OUT = Path(os.environ.get("ORDERS_DAILY_OUT", "out/orders_daily")).absolute()
START = datetime(2026, 10, 22, tzinfo=UTC)


@dag(schedule="@daily", start_date=START, catchup=True, max_active_runs=1, doc_md=__doc__, tags=["jetstream"])
def orders_daily() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="ORDERS",
        consumer="daily",
        consumer_config={"deliver_policy": "by_start_time", "opt_start_time": START},
        until="{{ data_interval_end }}",
        max_messages=1_000_000,  # more than a day has
        messages_per_claim=100_000,
    )

    @task.jetstream(retries=2)
    def count_by_shop(claim: Any) -> dict[str, int]:  # the claim is held now, and settled when the function returns
        shops = Counter(message.subject.split(".")[1] for message in claim.messages())
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{claim.attempt_id}.json").write_text(json.dumps(shops))
        return dict(shops)

    count_by_shop.expand(claim=claims.output)


orders_daily()
