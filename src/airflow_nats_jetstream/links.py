"""The link from a task to the page about its stream, consumer or claim, in whatever the site watches JetStream with."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseHook, BaseOperatorLink

from airflow_nats_jetstream.template import claimed
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class JetStreamLink(BaseOperatorLink):
    """The connection's field ``console`` with the names of stream and consumer and the claim's id in it; no link where
    it is empty, or before the task knows its stream."""

    name = "JetStream"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Airflow calls it in the worker when the task has ended, well or not."""
        from airflow_nats_jetstream.hooks import JetStreamHook

        stream = getattr(operator, "stream", None)
        if not isinstance(stream, str) or not stream:
            return ""
        consumer = getattr(operator, "consumer", None)
        conn_id = getattr(operator, "nats_conn_id", JetStreamHook.default_conn_name)
        claim = claimed(getattr(operator, "claim", None), "id")
        return page(JetStreamHook(conn_id).console, stream, consumer if isinstance(consumer, str) else "", claim or "")


class SparkMasterLink(BaseOperatorLink):
    """The page of the Spark master, where the connection's extra names it as ``webui``."""

    name = "Spark master"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        from airflow_nats_jetstream.spark_master import SparkMaster

        conn_id = getattr(operator, "conn_id", None)
        return SparkMaster.of(BaseHook.get_connection(conn_id)).webui if isinstance(conn_id, str) else ""


def page(console: str, stream: str, consumer: str, claim: str) -> str:
    """The address of the page; empty without a console."""
    for name, value in (("{stream}", stream), ("{consumer}", consumer), ("{claim}", claim)):
        console = console.replace(name, quote(value, safe=""))
    return console


def check_console(console: object) -> str:
    """The field itself, empty for none. It is shown to whoever sees the task.

    Raises:
        InvalidValue: no address of a page, one with a password in it, or with something else to fill in.
    """
    if console is None:
        return ""
    remedy = "an address such as https://nats.example.com/streams/{stream}?consumer={consumer}, without a password"
    rest = page(str(console), "", "", "")
    try:
        parts = urlsplit(rest)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or {"{", "}"}.intersection(rest):
        raise InvalidValue("console", "…", f"give {remedy}")
    return str(console)
