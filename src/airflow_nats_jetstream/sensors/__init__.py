"""Sensors: for messages, which are handed on as claims, for a consumer's lag, and for the end of a claim."""

from airflow_nats_jetstream.sensors.hold import JetStreamHoldSensor
from airflow_nats_jetstream.sensors.lag import JetStreamLagSensor
from airflow_nats_jetstream.sensors.pull import JetStreamPullSensor

__all__ = ["JetStreamHoldSensor", "JetStreamLagSensor", "JetStreamPullSensor"]
