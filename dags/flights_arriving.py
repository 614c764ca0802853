"""Departures, processed as they arrive: an event-driven DAG.

Something publishes to the stream FLIGHTS at any time. The watcher looks at the consumer and gives notice when messages
wait to be claimed; the asset's event starts a run, and the run's sensor takes the claims. The notice carries no message
and acknowledges none, so a lost or repeated one does no harm. A run that comes too late finds nothing, and is skipped.

One run works at a time. What arrives meanwhile is claimed by the next, which needs one notice, however much it is.
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
        max_failures=3,  # a message that cannot be processed does not start runs for ever
        deferrable=False,  # what it waits for is there
        timeout=60,
        soft_fail=True,  # nothing is: another run was faster
    )

    @task.jetstream(retries=2)
    def count_by_carrier(claim: Any) -> dict[str, int]:  # arrives held; is settled when the function returns
        carriers = Counter(message.subject.split(".")[2] for message in claim.messages())  # few: Spark takes longer
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{claim.attempt_id}.json").write_text(json.dumps(carriers))
        return dict(carriers)

    count_by_carrier.expand(claim=claims.output)


flights_arriving()
