# SPDX-License-Identifier: Apache-2.0
"""Sensors that take messages as claims, wait for a consumer's lag or for a key, and hold a claim until it ends."""

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what the sensors import

# isort: split

from airflow_nats_jetstream.sensors.hold import JetStreamHoldSensor
from airflow_nats_jetstream.sensors.key import JetStreamKeySensor
from airflow_nats_jetstream.sensors.lag import JetStreamLagSensor
from airflow_nats_jetstream.sensors.pull import JetStreamPullSensor

__all__ = ["JetStreamHoldSensor", "JetStreamKeySensor", "JetStreamLagSensor", "JetStreamPullSensor"]
