# SPDX-License-Identifier: Apache-2.0
"""Starting Spark sessions that pass a task's connections to Spark's workers without showing them."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote
from pyspark.util import default_api_mode

from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ENVIRONMENT_PREFIX, environment_name

if TYPE_CHECKING:
    from collections.abc import Mapping


def start(app_name: str, master: str | None, memory: str | None, config: Mapping[str, str]) -> SparkSession:
    """Start or get a session, as :func:`pyspark_jetstream.spark_session` describes."""
    options = {"spark.master": master, "spark.driver.memory": memory}
    options |= {
        f"spark.executorEnv.{name}": os.environ[name] for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)
    }
    given = {name: value for name, value in {**options, **config}.items() if value is not None}
    plain = {name: value for name, value in given.items() if ENVIRONMENT_PREFIX not in name}
    builder = SparkSession.builder.appName(app_name).config(map={**plain})
    if _remote(plain):
        return builder.getOrCreate()  # the Connect server sets the environment of its executors
    from pyspark import SparkConf, SparkContext

    # PySpark would start the JVM with all of this on the command line (pyspark/java_gateway.py), which every user of
    # the machine can read. So the JVM starts without the connections, and receives them through its socket.
    SparkContext._ensure_initialized(conf=SparkConf().setAll([("spark.app.name", app_name), *plain.items()]))
    _keep_commands_out_of_logs()
    # The connections are configuration of the context. Spark redacts it, because the names contain "secret". Options of
    # a session would be logged at DEBUG without redaction (org.apache.spark.sql.internal.SharedState).
    SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", app_name), *given.items()]))
    return builder.getOrCreate()


def _keep_commands_out_of_logs() -> None:
    """Drop py4j's DEBUG logs, which show all that Python and the JVM send to each other, also the environment."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_is_no_command)


def _is_no_command(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _remote(config: Mapping[str, str]) -> bool:
    """Return whether the session will be one of Spark Connect, as SparkSession.Builder.getOrCreate decides it."""
    mode = config.get("spark.api.mode") or os.environ.get("SPARK_API_MODE") or default_api_mode()
    return mode.lower() == "connect" or is_remote() or "spark.remote" in config or "SPARK_REMOTE" in os.environ


def check_environment(spark: SparkSession, connection: str) -> None:
    """Raise InvalidValue if the session's JVM, and so its Python workers, were started without the connection."""
    jvm = getattr(spark, "_jvm", None)
    _keep_commands_out_of_logs()
    name = environment_name(connection)
    if jvm is not None and jvm.System.getenv(name) != os.environ.get(name):
        remedy = (
            "this Spark session was started before this connection was known, or with other settings of it; stop the "
            "session, and start another one with spark_session() inside the task's function"
        )
        raise InvalidValue("connection", connection, remedy)
