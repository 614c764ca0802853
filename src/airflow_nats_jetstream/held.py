"""The claim that the body of ``@task.jetstream`` gets: a held claim that Spark can read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from jetstream_handoff import held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_client.sequences import Sequences


class HeldClaim(held.HeldClaim):
    """A claim that this task holds: what the body of ``@task.jetstream`` gets as ``claim``.

    value:          what settling records when :meth:`JetStreamHook.processing` ends.
    trace_context:  W3C's headers of the hold's span, for engines that are told of it; empty where Airflow records no
                    traces.
    connection:     the Airflow connection, which Spark's workers find in their environment.
    """

    value: Any = None
    trace_context: dict[str, str]
    connection: str

    def read(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of exactly the claimed messages: stream, subject, sequence, timestamp, headers, data."""
        from pyspark_jetstream.held import read

        return read(self, spark, self.connection, self.trace_context)

    def reject(
        self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences | DataFrame, reason: str | None = None
    ) -> None:
        """:meth:`jetstream_handoff.held.HeldClaim.reject`, which also accepts a DataFrame.

        sequences: one, or many; or a DataFrame with a column ``sequence``, which is collected here.
        reason:    why, in one line. By default the value of the DataFrame's column ``reason`` for each message, as in
                   the malformed messages of :func:`pyspark_jetstream.decoded`.
        """
        reasons: dict[str, Any] = {reason or "": sequences}
        if "pyspark.sql" in sys.modules:  # otherwise nothing is a DataFrame
            from pyspark.sql import DataFrame

            from pyspark_jetstream.held import by_reason

            reasons = by_reason(sequences, reason) if isinstance(sequences, DataFrame) else reasons
        for why, which in reasons.items():
            super().reject(which, why)
