# SPDX-License-Identifier: Apache-2.0
"""Starting Spark sessions that pass a task's connections to Spark's workers without showing any secret.

A session on a Spark Connect server passes nothing: the server and its executors find the settings of a connection in
their own environment, by the connection's id.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote
from pyspark.util import default_api_mode

from jetstream_client.errors import InvalidValue, SettingsMissing
from jetstream_client.wire.settings import ENVIRONMENT_PREFIX, environment_name, shown_address
from pyspark_jetstream.compat import mixed, only_a_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession as RemoteSparkSession

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds in which a Spark Connect server must answer
_OPTIMISE_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Options with which Java optimises a method after ten times as many calls as by default. While Spark starts, it calls
thousands of methods often enough to be optimised by default, which takes longer than it saves in a short job. A long
job reaches the higher numbers soon."""


def start(app_name: str, master: str | None, memory: str | None, config: Mapping[str, str]) -> SparkSession:
    """Return the session of this process, or start one, as :func:`pyspark_jetstream.spark_session` describes."""
    options = {"spark.master": master, "spark.driver.memory": memory}
    options |= {
        f"spark.executorEnv.{name}": os.environ[name] for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)
    }
    given = {name: value for name, value in {**options, **config}.items() if value is not None}
    plain = {name: value for name, value in given.items() if ENVIRONMENT_PREFIX not in name}
    if wrong := mixed():
        log.warning("%s", wrong[0].upper() + wrong[1:])
    if _remote(plain):
        return _on_server(app_name, plain)
    builder = SparkSession.builder.appName(app_name).config(map={**plain})
    from pyspark import SparkConf, SparkContext

    # PySpark would start the JVM with all of this on the command line (pyspark/java_gateway.py), which every user of
    # the machine can read. So the JVM starts without the connections, and receives them through its socket.
    with _options_for_java(_OPTIMISE_LATER):
        SparkContext._ensure_initialized(conf=SparkConf().setAll([("spark.app.name", app_name), *plain.items()]))
    _keep_commands_out_of_logs()
    # The connections are configuration of the context. Spark redacts them, because their names contain "secret".
    # Options of a session would be logged at DEBUG without redaction (org.apache.spark.sql.internal.SharedState).
    SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", app_name), *given.items()]))
    return builder.getOrCreate()


@contextmanager
def _options_for_java(options: str) -> Iterator[None]:
    """Let the JVM start with these options inside the block. The options of the environment and of Spark's
    configuration follow them, and therefore take precedence. If these options were put into the configuration, they
    would replace options there that this process does not know."""
    given = os.environ.get("SPARK_SUBMIT_OPTS")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {given or ''}".strip()
    try:
        yield
    finally:
        if given is None:
            del os.environ["SPARK_SUBMIT_OPTS"]
        else:
            os.environ["SPARK_SUBMIT_OPTS"] = given


def _keep_commands_out_of_logs() -> None:
    """Drop py4j's DEBUG logs, which show everything that Python and the JVM send to each other, including the
    environment."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).addFilter(_is_no_command)


def _is_no_command(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _remote(config: Mapping[str, str]) -> bool:
    """Return whether the session will be on a Spark Connect server, by the rules of
    ``SparkSession.Builder.getOrCreate``."""
    mode = config.get("spark.api.mode") or os.environ.get("SPARK_API_MODE") or default_api_mode()
    return mode.lower() == "connect" or is_remote() or "spark.remote" in config or "SPARK_REMOTE" in os.environ


def _on_server(app_name: str, config: Mapping[str, str]) -> SparkSession:
    """Return a session on a Spark Connect server. The server is checked first, because PySpark's client would retry for
    ten minutes, and its errors would show a token that the address contains."""
    address = config.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    if only_a_client() and not address.startswith("sc:"):
        remedy = (
            "only Spark's client is installed here (pyspark-client), which cannot start Spark; name a Spark Connect "
            "server, for example SPARK_REMOTE=sc://localhost:15002 (or, in Airflow, the task's spark_conn_id), or "
            "uninstall pyspark-client and install airflow-provider-nats-jetstream[spark]"
        )
        raise InvalidValue("SPARK_REMOTE", address or None, remedy)
    if address.startswith("sc:"):
        if master := config.get("spark.master") or os.environ.get("MASTER"):
            remedy = (
                "a Spark Connect server has its own master; leave out the master (or unset MASTER), or name no server "
                "(in SPARK_REMOTE or, in Airflow, in the task's spark_conn_id)"
            )
            raise InvalidValue("master", master, remedy)
        _check_answer(address)
        if "session_id=" not in address:  # a session with a chosen id may also be used by another process
            os.environ.setdefault("SPARK_CONNECT_RELEASE_SESSION_ON_EXIT", "true")
        config = {name: value for name, value in config.items() if name != "spark.driver.memory"}
    return SparkSession.builder.appName(app_name).config(map={**config}).getOrCreate()


def _check_answer(address: str) -> None:
    """Raise InvalidValue if no Spark Connect server answers at the address."""
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as missing:
        remedy = "Spark Connect needs more packages; install airflow-provider-nats-jetstream[connect]"
        raise InvalidValue("SPARK_REMOTE", "…", remedy) from missing
    try:
        builder = DefaultChannelBuilder(address)
        endpoint = shown_address(builder.endpoint)
    except ValueError:
        endpoint = "…"
    if endpoint == "…":
        remedy = (
            "give an address such as sc://localhost:15002 or sc://spark.example.com:443/;use_ssl=true; if the server "
            "needs a token, set SPARK_CONNECT_AUTHENTICATE_TOKEN"
        )
        raise InvalidValue("SPARK_REMOTE", endpoint, remedy)
    if builder.token and not (builder.token.isascii() and builder.token.isprintable()):
        remedy = "the token has characters other than printable ASCII, for example a line break at its end; remove them"
        raise InvalidValue("SPARK_CONNECT_AUTHENTICATE_TOKEN", "…", remedy)
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(_PATIENCE)
        except grpc.FutureTimeoutError:
            remedy = (
                f"no Spark Connect server answered within {_PATIENCE:g} s; start the server, correct its address (if "
                "there is a token, TLS is used for every host but localhost), or name no server (in SPARK_REMOTE "
                "or, in Airflow, in the task's spark_conn_id), so that Spark starts in this task"
            )
            raise InvalidValue("SPARK_REMOTE", endpoint, remedy) from None


def is_on_server(spark: SparkSession | RemoteSparkSession) -> TypeGuard[RemoteSparkSession]:
    """Return whether this session is on a Spark Connect server. This also works if the packages of Spark Connect are
    not installed."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_server(messages: DataFrame, connection: str) -> None:
    """Raise SettingsMissing if a Spark Connect server does not find the settings of the connection."""
    if not is_on_server(messages.sparkSession):
        return
    try:
        messages.schema  # noqa: B018 - the server asks the data source for it, and then keeps it
    except PySparkException as error:
        missing = re.search(rf"\b{SettingsMissing.__name__}: [^:]+: (.+)", str(error))
        if missing is None:
            raise
        raise SettingsMissing("connection", connection, f"on the Spark Connect server, {missing[1]}") from None


def check_environment(spark: SparkSession, connection: str) -> None:
    """Raise InvalidValue if the session's JVM, and so its Python workers, were started without the settings of the
    connection."""
    jvm = getattr(spark, "_jvm", None)
    _keep_commands_out_of_logs()
    name = environment_name(connection)
    if jvm is not None and jvm.System.getenv(name) != os.environ.get(name):
        remedy = (
            "this Spark session was started before this connection was known, or with other settings of the "
            "connection; stop the session, and start another one with spark_session() inside the task's function"
        )
        raise InvalidValue("connection", connection, remedy)
