"""The DAG `sensing`: sensors of one stream that need no worker while they wait, each with a separate consumer, and a
mapped sensor of two more."""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.compat import triggers_know_their_run
from airflow_nats_jetstream.sensors import JetStreamPullSensor

THREE: dict[str, Any] = {"stream": "SENSING", "min_messages": 3, "max_messages": 3, "timeout": 240}


@task.jetstream
def count(claim: Any) -> int:
    return int(claim.count)


@dag(schedule=None)
def sensing() -> None:
    JetStreamPullSensor(
        task_id="looks",
        consumer="looks",
        deferrable=False,
        mode="reschedule",
        poke_interval=timedelta(seconds=10),
        **THREE,
    )
    JetStreamPullSensor(task_id="starts", consumer="starts", start_from_trigger=triggers_know_their_run, **THREE)
    each = JetStreamPullSensor.partial(task_id="each", messages_per_claim=2, **THREE).expand(consumer=["east", "west"])
    count.expand(claim=all_claims(each.output))


sensing()
