# SPDX-License-Identifier: Apache-2.0
"""Links from a task to the Spark master, and to the page about its stream, consumer or claim in a web console."""

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
    """The link in the connection's field ``console``, filled in with stream, consumer and claim id.

    A task has no link while that field is empty, or before the task knows its stream.
    """

    name = "JetStream"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the address, or an empty string. Airflow calls this in the worker when the task has ended."""
        stream = getattr(operator, "stream", None)
        if not isinstance(stream, str) or not stream:
            return ""
        consumer = getattr(operator, "consumer", None)
        conn_id = getattr(operator, "nats_conn_id", JetStreamHook.default_conn_name)
        claim = claimed(getattr(operator, "claim", None), "id")
        console = JetStreamHook(conn_id).console
        return console_page(console, stream, consumer if isinstance(consumer, str) else "", claim or "")


class SparkMasterLink(BaseOperatorLink):
    """The link to the web page of the Spark master, whose address is ``webui`` in the Spark connection's extra."""

    name = "Spark master"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the address, or an empty string. Airflow calls this in the worker when the task has ended."""
        from airflow_nats_jetstream.spark_master import SparkMaster

        conn_id = getattr(operator, "conn_id", None)
        return SparkMaster.of(BaseHook.get_connection(conn_id)).webui if isinstance(conn_id, str) else ""
