# SPDX-License-Identifier: Apache-2.0
"""NATS JetStream for Dagster: a message is acknowledged only after the output that it went into has been stored."""

from dagster_nats_jetstream.assets import claimed_asset
from dagster_nats_jetstream.component import ClaimedAssetComponent, JetStreamToTableComponent
from dagster_nats_jetstream.lag import jetstream_lag_sensor
from dagster_nats_jetstream.ops import claimed_op, publish_messages, purge_stream, take_claims
from dagster_nats_jetstream.resource import JetStreamResource
from dagster_nats_jetstream.sensor import jetstream_sensor
from pyspark_jetstream.held_claim import HeldClaim

__all__ = [
    "ClaimedAssetComponent",
    "HeldClaim",
    "JetStreamResource",
    "JetStreamToTableComponent",
    "claimed_asset",
    "claimed_op",
    "jetstream_lag_sensor",
    "jetstream_sensor",
    "publish_messages",
    "purge_stream",
    "take_claims",
]
