# SPDX-License-Identifier: Apache-2.0
"""Links from a task to the Spark master, and to a page about its stream, consumer or claim: in a web console, or in
Airflow itself."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseHook, BaseOperatorLink

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import place_of
from jetstream_handoff.console import console_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


PAGE = "plugin/jetstream"
"""The path of the page "JetStream" below the base path of Airflow. A link to it is relative, because a worker does not
know the base path, and Airflow's pages resolve links against it."""


class JetStreamLink(BaseOperatorLink):
    """The link in the connection's field ``console``, filled in with stream, consumer and claim id. If the field is
    empty, it leads to the page "JetStream" in Airflow: to the task's claim, or to the claims of its consumer, or to its
    stream.

    A task has no link before it knows its stream.
    """

    name = "JetStream"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the address, or an empty string. Airflow calls this in the worker when the task has ended."""
        stream, consumer, claim = place_of(operator)
        if not stream:
            return ""
        conn_id = getattr(operator, "nats_conn_id", JetStreamHook.default_conn_name)
        console = JetStreamHook(conn_id).console
        return console_page(console, stream, consumer, claim) or page_of(conn_id, stream, consumer, claim)


def page_of(connection_id: str, stream: str, consumer: str, claim: str) -> str:
    """Return the address of the page "JetStream", relative to the base path of Airflow.

    connection_id:  the id of the Airflow connection.
    stream:         the name of the stream.
    consumer:       the name of the consumer; empty if there is none.
    claim:          the id of the claim; empty if there is none.
    """
    view = "claim" if claim else "claims" if consumer else "overview"
    query = {"view": view, "connection": connection_id, "stream": stream, "consumer": consumer, "claim": claim}
    return f"{PAGE}?{urlencode({name: value for name, value in query.items() if value})}"


class SparkMasterLink(BaseOperatorLink):
    """The link to the web page of the Spark master, whose address is ``webui`` in the Spark connection's extra."""

    name = "Spark master"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the address, or an empty string. Airflow calls this in the worker when the task has ended."""
        from airflow_nats_jetstream.spark.master import SparkMaster

        conn_id = getattr(operator, "conn_id", None)
        return SparkMaster.of(BaseHook.get_connection(conn_id)).webui if isinstance(conn_id, str) else ""
