"""The link from a task to the page about its stream, consumer or claim, in whatever the site watches JetStream with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, BaseOperatorLink

from airflow_nats_jetstream.airflow_connection import console_page
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import claimed

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class JetStreamLink(BaseOperatorLink):
    """The connection's field ``console`` with the names of stream and consumer and the claim's id in it; no link where
    it is empty, or before the task knows its stream."""

    name = "JetStream"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Airflow calls it in the worker when the task has ended, well or not."""
        stream = getattr(operator, "stream", None)
        if not isinstance(stream, str) or not stream:
            return ""
        consumer = getattr(operator, "consumer", None)
        conn_id = getattr(operator, "nats_conn_id", JetStreamHook.default_conn_name)
        claim = claimed(getattr(operator, "claim", None), "id")
        console = JetStreamHook(conn_id).console
        return console_page(console, stream, consumer if isinstance(consumer, str) else "", claim or "")


class SparkMasterLink(BaseOperatorLink):
    """The page of the Spark master, where the connection's extra names it as ``webui``."""

    name = "Spark master"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        from airflow_nats_jetstream.spark_master import SparkMaster

        conn_id = getattr(operator, "conn_id", None)
        return SparkMaster.of(BaseHook.get_connection(conn_id)).webui if isinstance(conn_id, str) else ""
