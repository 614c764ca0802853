# SPDX-License-Identifier: Apache-2.0
"""The Spark application or driver that works on a claim, which a task reports in an XCom for the page "JetStream"."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

XCOM_KEY = "jetstream_spark"
"""The key of the XCom: ``{"application": id of the application or of its driver, "url": address of its page}``."""


def report(spark: SparkSession) -> None:
    """Report the application of a session, if this is called in a task."""
    _push(lambda: application(spark))


def report_driver(driver: str, page: str) -> None:
    """Report a driver, if this is called in a task.

    driver:  its id.
    page:    the address of a page that shows it; empty if it is unknown.
    """
    _push(lambda: {"application": driver, "url": page})


def _push(value: Callable[[], dict[str, str]]) -> None:
    """Push the XCom. Errors are only logged, because no work depends on it."""
    from airflow.sdk import get_current_context

    try:
        get_current_context()["ti"].xcom_push(XCOM_KEY, value())
    except RuntimeError:  # not in a task
        return
    except Exception:
        log.exception("the Spark application could not be reported for the page JetStream")


def application(spark: SparkSession) -> dict[str, str]:
    """Return the id of a session's application and the address of its page; the address is empty if it is unknown, as
    with Spark Connect."""
    from pyspark_jetstream.session import is_on_server

    if is_on_server(spark):
        return {"application": str(spark.conf.get("spark.app.id", spark.session_id)), "url": ""}
    context = spark.sparkContext
    return {"application": str(context.applicationId), "url": str(context.uiWebUrl or "")}
