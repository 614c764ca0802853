"""The DAG `arriving`: messages in the stream ARRIVING start it. Two watchers of one asset watch one consumer."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.watcher import JetStreamNoticeTrigger

OUT = Path(os.environ.get("HANDOFF_OUT", "out/arriving"))
QUICKLY: dict[str, Any] = {"poll_interval": timedelta(seconds=0.5), "remind_after": timedelta(seconds=8)}

arrived = Asset(
    "arriving",
    "nats://nats.example.com/ARRIVING",
    watchers=[
        AssetWatcher("arriving", JetStreamNoticeTrigger("ARRIVING", "work", **QUICKLY)),
        AssetWatcher(
            "arriving in crowds",
            MessageQueueTrigger(scheme="nats", stream="ARRIVING", consumer="work", min_messages=1_000, **QUICKLY),
        ),
    ],
)


@dag(schedule=[arrived], max_active_runs=1)
def arriving() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="ARRIVING",
        consumer="work",
        gather=timedelta(seconds=1),
        consumer_config={"ack_wait": timedelta(seconds=2)},
        deferrable=False,
        timeout=10,
        soft_fail=True,
    )

    @task.jetstream(retries=3, retry_delay=timedelta(seconds=1))
    def work(claim: Any) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = OUT / claim.stream / f"attempt={claim.attempt_id}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"sequence": list(claim.sequences)}), folder / "part.parquet")
        return int(claim.count)

    work.expand(claim=claims.output)


arriving()
