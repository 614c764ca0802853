"""Process departures on a Spark cluster, while no Airflow worker waits for the job.

The stream is that of `flight_delays`. For each claim, a job runs on a standalone cluster, together with its driver. Its
program is `flights_on_cluster_job.py`, which the cluster's workers find at the same path. Meanwhile the task is
deferred, and a trigger holds the claim and watches the job. When the job has succeeded, the claim is settled, and the
settlement records the name of the attempt that wrote the output. Otherwise the messages are redelivered.

In production, `OUT` is in an object store for all machines of the cluster, and a merge then reads only the output of
settled attempts, as in `orders_merged`. Here, `value["attempt"]` of a settled claim names its output folder.
"""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag

from airflow_nats_jetstream.operators.spark_submit import JetStreamSparkSubmitOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

JOB = Path(__file__).absolute().with_name("flights_on_cluster_job.py")
OUT = Path(os.environ.get("FLIGHTS_ON_CLUSTER_OUT", "out/flights_on_cluster")).absolute()


@dag(schedule=None, doc_md=__doc__, tags=["jetstream", "spark"])
def flights_on_cluster() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="FLIGHTS",
        consumer="cluster",
        max_messages=400_000,
        messages_per_claim=200_000,  # only two jobs, because each driver also takes a core
    )
    JetStreamSparkSubmitOperator.partial(
        task_id="delays",
        application=str(JOB),
        application_args=["--out", str(OUT)],
        conf={"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": 1},
        retries=2,
        execution_timeout=timedelta(hours=2),
    ).expand(claim=claims.output)


flights_on_cluster()
