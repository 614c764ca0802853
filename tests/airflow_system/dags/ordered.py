"""The DAG `ordered`: a sensor that is mapped over the partitions of the stream ORDERED, each of which has its own order
per key.

`book` fails once with each message of a key whose name begins with `bad`, and notes the keys and payloads that it has
settled, in the order of the messages.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.operators.partitions import JetStreamPartitionStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

OUT = Path(os.environ.get("HANDOFF_OUT", "out/handoff"))


@task.jetstream(retries=1, retry_delay=timedelta(seconds=1))
def book(claim: Any) -> list[list[str]]:
    messages = [(message.subject.split(".")[2], message.data.decode()) for message in claim.messages()]
    if get_current_context()["ti"].try_number == 1 and any(key.startswith("bad") for key, _ in messages):
        raise ValueError("a key is bad")
    return [list(each) for each in messages]


@dag(schedule=None)
def ordered() -> None:
    partitions = JetStreamPartitionStreamOperator(
        task_id="partitions",
        stream="ORDERED",
        group="booking",
        subject="ORDERED.*.*",
        partitions=3,
        ordered_by="{3}",
    )
    claims = JetStreamPullSensor.partial(
        task_id="claims",
        stream="ORDERED",
        ordered_by="{3}",
        claims=2,
        create_consumer=False,
        timeout=60,
        soft_fail=True,
    ).expand(consumer=partitions.output)
    book.expand(claim=all_claims(claims.output))


ordered()
