"""Spark sessions that carry a task's connections to their workers, without showing them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from airflow_nats_jetstream.client.errors import InvalidValue
from airflow_nats_jetstream.client.settings import ENVIRONMENT_PREFIX, environment_name

if TYPE_CHECKING:
    from collections.abc import Mapping


def start(app_name: str, master: str | None, memory: str | None, config: Mapping[str, str]) -> SparkSession:
    """See :func:`pyspark_jetstream.spark_session`."""
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    if memory is not None:
        builder = builder.config("spark.driver.memory", memory)
    for name, value in os.environ.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            builder = builder.config(f"spark.executorEnv.{name}", value)  # redacted: its name contains "secret"
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_environment(spark: SparkSession, connection: str) -> None:
    """Raises InvalidValue for a session whose JVM, and with it its Python workers, started without the connection."""
    jvm = getattr(spark, "_jvm", None)
    name = environment_name(connection)
    if jvm is not None and jvm.System.getenv(name) != os.environ.get(name):
        remedy = (
            "this Spark session was started before the connection was known here, or for other settings: stop it, and "
            "start it with spark_session() inside the body"
        )
        raise InvalidValue("connection", connection, remedy)
