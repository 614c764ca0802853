"""The DAG `publishing`: a task whose process is killed in its first try, to a stream that soon forgets ids."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import dag, get_current_context

from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator


def numbers() -> Iterator[tuple[str, bytes]]:
    """Publish forwards until the process is killed; in the retry, publish backwards, and more messages."""
    if get_current_context()["ti"].try_number > 1:
        time.sleep(0.5)  # the duplicate window is over
        for number in reversed(range(5_000)):
            yield f"PUBLISHING.{number}", b""
        return
    for number in range(3_000):
        yield f"PUBLISHING.{number}", b""
    os.kill(os.getpid(), signal.SIGKILL)


@dag(schedule=None)
def publishing() -> None:
    JetStreamPublishOperator(
        task_id="publish", stream="PUBLISHING", messages=numbers, retries=1, retry_delay=timedelta(seconds=1)
    )


publishing()
