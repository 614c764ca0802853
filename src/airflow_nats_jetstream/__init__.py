# SPDX-License-Identifier: Apache-2.0
"""The Airflow provider for NATS JetStream: streams, claims and jobs on Spark."""

__version__ = "0.1.0"
