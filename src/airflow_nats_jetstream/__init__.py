# SPDX-License-Identifier: Apache-2.0
"""The Airflow provider for NATS JetStream: tasks that manage streams and publish to them, tasks that process claims,
and Spark jobs."""

from jetstream_handoff import orchestrator

__version__ = "0.1.0"

orchestrator.program = "airflow jetstream"
orchestrator.pipeline = "DAG"
orchestrator.obstacles = "its queue, its pool, and whether the DAG is paused"
