"""Departures through a Spark cluster: while a job works on a claim, no worker waits for it.

The stream is that of `flight_delays`. Each claim is a job on a standalone cluster, its driver included: the program
`flights_on_cluster_job.py`, which the cluster's workers find at the same path. The task is deferred meanwhile, and a
trigger holds the claim and watches the job. When the job has finished, the claim is settled with the name of the
attempt under which its output is; when it has not, the messages come again.
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
        messages_per_claim=200_000,  # two jobs: each driver takes a core, too
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
