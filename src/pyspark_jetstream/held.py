# SPDX-License-Identifier: Apache-2.0
"""Using a held claim with Spark: reading its messages, and collecting the sequences to reject from a DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from pyspark_jetstream import read_claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_handoff.held import HeldClaim

log = logging.getLogger(__name__)


def read(held: HeldClaim, spark: SparkSession, connection: str, local_properties: Mapping[str, str]) -> DataFrame:
    """Return a DataFrame of exactly the claimed messages.

    The session's jobs are cancelled when the claim is lost or the task killed.

    connection:        the id of the Airflow connection.
    local_properties:  Spark properties to set for the jobs of this thread. Spark Connect does not support them.
    """
    held.on_stop(partial(_cancel_jobs, spark))
    messages = read_claim(spark, held.claim, connection=connection)
    log.info("claim %s is read by Spark, %s: %d messages", held.id, _application(spark), held.count)
    for name, value in local_properties.items():
        with suppress(Exception):
            spark.sparkContext.setLocalProperty(name, value)
    return messages


def by_reason(rejected: DataFrame, reason: str | None) -> dict[str, list[int]]:
    """Collect the sequences for each reason: the given one, or those in the column ``reason``. Raises InvalidValue."""
    columns = ["sequence", "reason"] if reason is None else ["sequence"]
    for name in columns:
        if name not in rejected.columns:
            raise InvalidValue("sequences", rejected.columns, f"the DataFrame needs a column {name}")
    reasons: dict[str, list[int]] = {} if reason is None else {reason: []}
    for sequence, *of_row in rejected.select(*columns).collect():
        reasons.setdefault(of_row[0] or "" if reason is None else reason, []).append(sequence)
    return reasons


def _application(spark: SparkSession) -> str:
    """Return the name of this session in Spark's pages and logs."""
    try:
        return f"application {spark.sparkContext.applicationId}"
    except Exception:  # noqa: BLE001 - Spark Connect has no context and raises an error of its JVM
        return "a Connect session"


def _cancel_jobs(spark: SparkSession) -> None:
    with suppress(Exception):  # the session may have ended, and its jobs with it
        spark.sparkContext.cancelAllJobs()
