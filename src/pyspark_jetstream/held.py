# SPDX-License-Identifier: Apache-2.0
"""Using a held claim with Spark: reading its messages, and collecting from a DataFrame the sequences to reject."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from pyspark_jetstream import read_claim
from pyspark_jetstream.session import is_on_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_handoff.hold.held import HeldClaim

log = logging.getLogger(__name__)


def read(held: HeldClaim, spark: SparkSession, connection: str, local_properties: Mapping[str, str]) -> DataFrame:
    """Return a DataFrame of exactly the claimed messages. ``held.missing`` says what to do with those that no longer
    exist.

    When the claim is lost or the task is killed, all jobs of the Spark application are cancelled. With Spark Connect,
    only jobs that this thread has started after this call are cancelled, because the session and the server may also
    work on other claims.

    connection:        the name of the connection whose settings are in the environment.
    local_properties:  Spark properties to set for the jobs of this thread. Spark Connect does not support them.
    """
    messages = read_claim(spark, held.claim, connection=connection, missing=held.missing, attempt=held.attempt_id)
    if is_on_server(spark):
        where, tag = f"session {spark.session_id} of Spark Connect", f"jetstream-{held.attempt_id}"
        spark.addTag(tag)
        held.on_end(partial(spark.removeTag, tag))
        held.on_stop(partial(_quietly, partial(spark.interruptTag, tag)))
    else:
        context = spark.sparkContext
        where = f"application {context.applicationId}"
        held.on_stop(partial(_quietly, context.cancelAllJobs))
        for name, value in local_properties.items():
            context.setLocalProperty(name, value)
    log.info("claim %s is read by Spark in %s: %d messages", held.id, where, held.count)
    return messages


def by_reason(rejected: Any, reason: str | None) -> dict[str, Any]:
    """Return the sequences to reject by reason. The reason is ``reason``, or, if that is None, the value in the column
    ``reason`` of a DataFrame.

    rejected:  a DataFrame with a column ``sequence``, which is collected; anything else is returned as it is.

    Raises:
        InvalidValue: the DataFrame lacks a column.
    """
    from pyspark.sql import DataFrame

    if not isinstance(rejected, DataFrame):
        return {reason or "": rejected}
    columns = ["sequence", "reason"] if reason is None else ["sequence"]
    for name in columns:
        if name not in rejected.columns:
            remedy = f"the DataFrame has only these columns; it needs a column named {name!r}"
            if name == "reason":
                remedy += ", or call reject() with one reason for all messages"
            raise InvalidValue("sequences", rejected.columns, remedy)
    reasons: dict[str, list[int]] = {} if reason is None else {reason: []}
    for sequence, *of_row in rejected.select(*columns).collect():
        reasons.setdefault(of_row[0] or "" if reason is None else reason, []).append(sequence)
    return reasons


def _quietly(cancel: Callable[[], object]) -> None:
    with suppress(Exception):  # the session may have ended, and its jobs with it
        cancel()
