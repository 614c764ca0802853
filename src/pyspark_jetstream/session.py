"""Spark sessions that carry a task's connections to their workers, without showing them."""

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
    """See :func:`pyspark_jetstream.spark_session`."""
    options = {"spark.master": master, "spark.driver.memory": memory}
    options |= {
        f"spark.executorEnv.{name}": os.environ[name] for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)
    }
    given = {name: value for name, value in {**options, **config}.items() if value is not None}
    plain = {name: value for name, value in given.items() if ENVIRONMENT_PREFIX not in name}
    builder = SparkSession.builder.appName(app_name).config(map={**plain})
    if _remote(plain):
        return builder.getOrCreate()  # the executors are the Connect server's, and their environment is its own
    from pyspark import SparkConf, SparkContext

    # PySpark would start the JVM with all of this on the command line (pyspark/java_gateway.py), which everybody on the
    # machine can read. So the JVM starts without the connections, and hears of them through its socket.
    SparkContext._ensure_initialized(conf=SparkConf().setAll([("spark.app.name", app_name), *plain.items()]))
    _keep_commands_out_of_logs()
    # As configuration of the context, which Spark redacts where it shows it, since the names contain "secret". Options
    # of a session are logged by the JVM at DEBUG without redaction (org.apache.spark.sql.internal.SharedState).
    SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", app_name), *given.items()]))
    return builder.getOrCreate()


def _keep_commands_out_of_logs() -> None:
    """Drop what py4j logs at DEBUG: every command and answer between Python and the JVM, the environment included."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_is_no_command)


def _is_no_command(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _remote(config: Mapping[str, str]) -> bool:
    """Whether the session will be Spark Connect's, decided as SparkSession.Builder.getOrCreate does."""
    mode = config.get("spark.api.mode") or os.environ.get("SPARK_API_MODE") or default_api_mode()
    return mode.lower() == "connect" or is_remote() or "spark.remote" in config or "SPARK_REMOTE" in os.environ


def check_environment(spark: SparkSession, connection: str) -> None:
    """Raises InvalidValue for a session whose JVM, and with it its Python workers, started without the connection."""
    jvm = getattr(spark, "_jvm", None)
    _keep_commands_out_of_logs()
    name = environment_name(connection)
    if jvm is not None and jvm.System.getenv(name) != os.environ.get(name):
        remedy = (
            "this Spark session was started before the connection was known here, or for other settings: stop it, and "
            "start it with spark_session() inside the body"
        )
        raise InvalidValue("connection", connection, remedy)
