"""A DAG for each pipeline: a sensor and a mapped task. Its windows are marked and stretched."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor, pull
from tests.chaos import broken, pipelines, windows
from tests.chaos.held import Halves
from tests.chaos.tables import appending
from tests.chaos.trigger import StretchedTrigger
from tests.chaos.work import read_and_write, with_spark

windows.install()
broken.install()
pull.JetStreamPullTrigger = StretchedTrigger  # type: ignore[attr-defined]

AGAIN: dict[str, Any] = {"retries": 30, "retry_delay": timedelta(seconds=1)}


def define(pipeline: pipelines.Pipeline) -> None:
    @dag(
        dag_id=pipeline.name,
        schedule=None,
        max_active_runs=pipeline.runs,
        dagrun_timeout=timedelta(minutes=8 if pipeline.spark else 4),
        max_consecutive_failed_dag_runs=0,
    )
    def chaos() -> None:
        size: dict[str, Any] = {"messages_per_claim": 20 if pipeline.spark else 10}
        if pipeline.ordered:
            size = {"ordered_by": "{2}", "claims": 2}
        claims = JetStreamPullSensor(
            task_id="claims",
            stream=pipeline.stream,
            consumer=pipelines.CONSUMER,
            max_messages=20,
            **size,
            gather=timedelta(seconds=1),
            hand_off_timeout=timedelta(seconds=40),
            consumer_config={
                "ack_wait": timedelta(seconds=pipeline.ack_wait),
                "max_ack_pending": 80 if pipeline.ordered else 1_000,
            },
            timeout=60,
            nats_conn_id=pipeline.connection,
            **AGAIN,
        )

        if pipeline.held:
            holding(Halves).partial(
                task_id="work",
                attempt="{{ claim.attempt_id }}",
                value="{{ claim.json }}",
                connection=pipeline.connection,
                waits=True,
                nats_conn_id=pipeline.connection,
                **AGAIN,
            ).expand(claim=claims.output)
            return

        # One JVM at a time, because it takes both cores for seconds.
        @task.jetstream(nats_conn_id=pipeline.connection, max_active_tis_per_dag=1 if pipeline.spark else None, **AGAIN)
        def work(claim: Any) -> int:
            if pipeline.spark:
                return with_spark(claim)
            settings = JetStreamHook(pipeline.connection).settings
            append = appending(pipeline, claim)
            return read_and_write(settings, claim.stream, claim.id, claim.attempt_id, claim.sequences, append)

        work.expand(claim=claims.output)

    chaos()


for each in pipelines.read(windows.folder() / "pipelines.json"):
    if each.in_airflow:
        define(each)
