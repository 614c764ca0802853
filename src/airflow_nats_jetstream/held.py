# SPDX-License-Identifier: Apache-2.0
"""The held claim that the function of ``@task.jetstream`` receives, with the methods for Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from airflow_nats_jetstream.spark_application import report
from jetstream_handoff.hold import held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_client.sequences import Sequences


class HeldClaim(held.HeldClaim):
    """A claim that this task holds. The function of ``@task.jetstream`` receives it as ``claim``.

    value:          the value that is recorded with the settlement at the end of :meth:`JetStreamHook.processing`.
                    Default None.
    trace_context:  the W3C trace context headers of the hold's span, to pass on to another engine; empty if Airflow
                    records no traces.
    connection:     the id of the Airflow connection. Spark's workers find its settings in their environment.
    """

    value: Any = None
    trace_context: dict[str, str]
    connection: str
    _reported = False

    def read(self, spark: SparkSession) -> DataFrame:
        """Return exactly the claimed messages as a DataFrame with the columns ``stream``, ``subject``, ``sequence``,
        ``timestamp``, ``headers`` and ``data``. The task's parameter ``missing`` says what happens to messages that no
        longer exist.

        spark:  the Spark session.
        """
        from pyspark_jetstream.held import read

        messages = read(self, spark, self.connection, self.trace_context)
        if not self._reported:
            self._reported = True
            report(spark)
        return messages

    def reject(
        self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences | DataFrame, reason: str | None = None
    ) -> None:
        """Reject messages that cannot be processed.

        When the work succeeds, they are copied with the reason to the dead-letter stream, and all other messages are
        acknowledged. When the work fails, nothing is rejected.

        sequences:  one or more stream sequences, or a DataFrame with a column ``sequence``. The DataFrame is collected
                    when this method is called.
        reason:     why the messages are rejected, in one line. Default None: the column ``reason`` of the DataFrame
                    contains the reason for each message, as in the malformed messages of
                    :func:`pyspark_jetstream.decoded`.

        Raises:
            InvalidValue: a sequence does not belong to this claim, or a reason is missing.
            DeadLettersUnsuitable: the dead-letter stream breaks a rule.
            HoldLost: the claim is no longer held.
        """
        reasons: dict[str, Any] = {reason or "": sequences}
        if "pyspark.sql" in sys.modules:  # without this module no object is a DataFrame
            from pyspark_jetstream.held import by_reason

            reasons = by_reason(sequences, reason)
        for why, which in reasons.items():
            super().reject(which, why)
