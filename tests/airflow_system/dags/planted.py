"""The DAG `planted`: connections with secrets of each kind, accepted or refused; tasks that print all they know."""

import json
import logging
import os
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import dag, task

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.tables import delta_table

KINDS = ("password", "token", "nkey", "credentials", "certificate")
log = logging.getLogger(__name__)


@task.jetstream(nats_conn_id="secret_credentials", retries=1, retry_delay=timedelta(seconds=1))
def work(claim: Any) -> int:
    """Print everything and fail in the first try; return in the second."""
    settings = JetStreamHook("secret_credentials").settings
    if int(claim.attempt_id.split("-")[1]) > 1:
        return int(claim.count)
    for kind in KINDS:
        show(JetStreamHook(f"secret_{kind}"))
        refused(lambda kind=kind: show(JetStreamHook(f"refused_{kind}")))
    refused(lambda: show(JetStreamHook("unreachable_password")))
    rows = claim.arrow(["sequence", "timestamp"]).read_all()
    refused(lambda: claim.append_to(delta_table("secret_lake", "s3://lake/orders"), rows))
    read_by_spark(claim)
    raise ValueError(f"the body fails with what it has: {settings!r} {claim!r} {vars(claim)!r}")


def show(hook: JetStreamHook) -> None:
    """Print everything that a task may print, and send a request."""
    log.info("shown: %r %r %r", hook, hook.settings, hook.get_conn())
    log.info("asked: %r %s", hook.run(asked), hook.test_connection())


async def asked(js: Any) -> Any:
    info = await js.stream("PLANTED").info()
    return js, js.connection, vars(js.connection), info, info.raw["created"]


def refused(function: Any) -> None:
    try:
        function()
    except Exception as error:
        log.exception("refused: %r", error)  # noqa: TRY401 - its repr is to be searched
        log.info("%s", "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    else:
        raise AssertionError("it was not refused")


def read_by_spark(claim: Any) -> None:
    """Read with Spark and an event log. tests/pyspark_jetstream/test_authentication.py has each kind of connection."""
    from pyspark_jetstream import spark_session

    log.info("inherited: %s", sorted(name for name in os.environ if name.startswith("JETSTREAM_SECRET")))
    from jetstream_client.wire.settings import environment_name

    for connection in ("secret_password", "secret_token", "secret_nkey", "secret_certificate", "refused_nkey"):
        os.environ[environment_name(connection)] = JetStreamHook(connection).settings.to_json()
    written_out()
    for name in (
        "py4j",
        "pyspark",
        "nats",
        "airflow_nats_jetstream",
        "jetstream_arrow",
        "jetstream_client",
        "jetstream_handoff",
        "jetstream_tables",
        "pyspark_jetstream",
    ):
        logging.getLogger(name).setLevel(logging.DEBUG)  # as a task may: Airflow's namespace_levels do not apply to it
    events = Path(os.environ["PLANTED_EVENTS"])
    events.mkdir(parents=True, exist_ok=True)
    config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # so that the test can search it
        "spark.eventLog.dir": f"file://{events}",
        "spark.ui.enabled": "false",
    }
    spark = spark_session(master="local[2]", memory="1g", config=config)
    spark.sparkContext.setLogLevel("DEBUG")  # of the JVM; py4j and others are at DEBUG in this stack
    logging.getLogger("py4j.clientserver").info(
        "py4j is heard: %s", logging.getLogger("py4j").isEnabledFor(logging.DEBUG)
    )
    spark.sql("SET -v").collect()
    log.info("SET: %s", spark.sql("SET").collect())

    def read(connection: str) -> int:
        frame = (
            spark.read.format("jetstream").options(connection=connection, stream="PLANTED", minPartitions="1").load()
        )
        frame.explain(True)
        log.info("plan: %s %r", frame._jdf.queryExecution().toString(), frame)
        return int(frame.count())

    for kind in ("password", "nkey", "certificate"):
        log.info("read by Spark with secret_%s: %d", kind, read(f"secret_{kind}"))
    frame = claim.read(spark)
    frame.explain("formatted")

    def fails(batches: Any) -> Any:
        from jetstream_client import ConnectionSettings

        for _ in batches:
            raise ValueError(f"in a worker: {ConnectionSettings.from_environment('secret_nkey')!r}")
        yield

    refused(lambda: frame.mapInArrow(fails, frame.schema).collect())
    refused(lambda: read("refused_nkey"))
    with suppress(Exception):
        spark.stop()


def written_out() -> None:
    """Print connections in the ways in which code prints them by mistake. Airflow must mask the secrets."""
    for kind in ("password", "credentials"):
        text = JetStreamHook(f"written_{kind}").settings.to_json()
        log.info("written out: %s %r %s", text, text, json.dumps({kind: text}))
        for value in json.loads(text).values():
            log.info("written out: %s %r %s %s", value, value, quote(str(value)), {kind: value})
        connection = JetStreamHook.get_connection(f"written_{kind}")
        log.info("written out: %r %s %s", connection.extra, connection.extra, connection.get_uri())
        log.info("written out: %s %r", connection.as_json(), connection.as_json())


@dag(schedule=None)
def planted() -> None:
    def sensor(task_id: str) -> Any:
        return JetStreamPullSensor.partial(
            task_id=task_id, stream="PLANTED", consumer="shown", max_messages=5, gather=timedelta(0), timeout=20
        )

    sensor("shown").expand(nats_conn_id=[f"secret_{kind}" for kind in KINDS])
    sensor("refused").expand(nats_conn_id=["refused_password", "refused_credentials", "unreachable_password"])
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="PLANTED",
        consumer="worked",
        max_messages=20,
        gather=timedelta(0),
        consumer_config={"ack_wait": timedelta(seconds=60)},
        nats_conn_id="secret_credentials",
    )
    work.expand(claim=claims.output)


planted()
