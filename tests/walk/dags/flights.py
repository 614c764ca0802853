"""What the walk uses its connection for: a stream, and messages in it."""

from datetime import UTC, datetime

from airflow.sdk import dag

from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
def flights() -> None:
    stream = JetStreamCreateStreamOperator(
        task_id="stream",
        nats_conn_id="nats_flights",
        config={"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True},
    )
    publish = JetStreamPublishOperator(
        task_id="publish",
        nats_conn_id="nats_flights",
        stream="FLIGHTS",
        messages=[("flights.EWR", b"1"), ("flights.JFK", b"2"), ("flights.LGA", b"3")],
    )
    stream >> publish


flights()
