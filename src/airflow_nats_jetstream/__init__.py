# SPDX-License-Identifier: Apache-2.0
"""The Airflow provider for NATS JetStream: tasks on streams, tasks that process claims, and jobs on Spark."""

__version__ = "0.1.0"
