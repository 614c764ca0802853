"""The DAG `submitted`: a claim for a job on a Spark cluster, which reads it and then waits for a gate."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag

from airflow_nats_jetstream.operators.spark_submit import JetStreamSparkSubmitOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Submitting(JetStreamSparkSubmitOperator):
    """With `dies`, the worker dies in the first try, after it submitted the job and before it defers."""

    template_fields = (*JetStreamSparkSubmitOperator.template_fields, "dies")

    def __init__(self, *, dies: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dies = dies

    def defer(self, **kwargs: Any) -> Any:
        if self.dies == "True" and self._ti.try_number == 1:
            os.kill(os.getppid(), signal.SIGKILL)  # its supervisor, which would report its death
            os.kill(os.getpid(), signal.SIGKILL)
        super().defer(**kwargs)


@dag(schedule=None, params={"stream": "", "gate": "", "dies": False})
def submitted() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="{{ params.stream }}",
        consumer="work",
        gather=timedelta(seconds=1),
        consumer_config={"ack_wait": timedelta(seconds=60)},
        deferrable=False,
        timeout=60,
    )
    Submitting.partial(
        task_id="work",
        application=str(Path(__file__).absolute().with_name("submitted_job.py")),
        application_args=["--gate", "{{ params.gate }}", "--out", os.environ.get("HANDOFF_OUT", "out/submitted")],
        conf={
            **{f"spark.{part}.memory": "512m" for part in ("driver", "executor")},
            **{f"spark.{part}.extraJavaOptions": SMALL for part in ("driver", "executor")},
            "spark.cores.max": 1,
            "spark.ui.enabled": False,
        },
        status_poll_interval=timedelta(seconds=1),
        dies="{{ params.dies }}",
        retries=2,
        retry_delay=timedelta(seconds=1),
    ).expand(claim=claims.output)


submitted()
