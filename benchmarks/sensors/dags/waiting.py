"""The DAG `waiting`: sensors, each with a separate consumer. The environment variable SENSORS is their number."""

import os

from airflow.sdk import dag

from airflow_nats_jetstream.sensors import JetStreamPullSensor


@dag(schedule=None)
def waiting() -> None:
    sensor = JetStreamPullSensor.partial(task_id="sensor", stream="WAITING", max_messages=1)
    sensor.expand(consumer=[f"w{number}" for number in range(int(os.environ["SENSORS"]))])


waiting()
