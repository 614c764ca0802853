"""Process departures as they arrive: an event-driven DAG.

Messages are published to the stream FLIGHTS at any time. The watcher looks at the consumer, and gives notice when
messages wait to be claimed. The asset's event starts a run, whose sensor takes the claims. A notice contains no message
and acknowledges none, so a lost or repeated notice does no harm. A run that finds no messages is skipped.

Only one run is active at a time. Messages that arrive during a run are left for the next run.

In production, the counts of settled attempts become a table, as in `orders_merged`, and Spark reads large claims.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger

OUT = Path(os.environ.get("FLIGHTS_ARRIVING_OUT", "out/flights_arriving")).absolute()

arrivals = Asset(
    "flights",
    "nats://nats.example.com/FLIGHTS/flights.>",
    watchers=[AssetWatcher(name="flights", trigger=JetStreamNoticeTrigger("FLIGHTS", "arrivals"))],
)


@dag(schedule=[arrivals], max_active_runs=1, doc_md=__doc__, tags=["jetstream"])
def flights_arriving() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="FLIGHTS",
        consumer="arrivals",
        max_failures=3,  # otherwise a message that cannot be processed would start runs without end
        deferrable=False,  # the messages have already arrived
        timeout=60,
        soft_fail=True,  # another run may have taken the messages first
    )

    @task.jetstream(retries=2)
    def count_by_carrier(claim: Any) -> dict[str, int]:  # the claim is held now, and settled when the function returns
        carriers = Counter(message.subject.split(".")[2] for message in claim.messages())  # too few for Spark
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{claim.attempt_id}.json").write_text(json.dumps(carriers))
        return dict(carriers)

    count_by_carrier.expand(claim=claims.output)


flights_arriving()
