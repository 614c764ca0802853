# SPDX-License-Identifier: Apache-2.0
"""The Airflow provider for NATS JetStream: tasks that manage streams and publish to them, tasks that process claims,
and Spark jobs."""

__version__ = "0.1.0"
