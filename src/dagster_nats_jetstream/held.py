# SPDX-License-Identifier: Apache-2.0
"""The held claim that the function of an asset or op receives, with the methods for Spark and for Dagster Pipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

from jetstream_client.wire.settings import environment_name
from jetstream_handoff.hold import held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_client.sequences import Sequences


class HeldClaim(held.HeldClaim):
    """A claim that this step holds. The function of an asset or op receives it as ``claim``.

    The step ends the claim. Do not call ``settle``, ``fail``, ``release``, ``hand_over`` or ``kill`` in the function:
    they end the claim before Dagster has stored the output, and then the step fails. After ``settle``, the messages are
    acknowledged although the step has failed. To make the claim fail, raise an error.

    connection:  the key of the resource. Spark finds the resource's settings under this name in its environment.
    """

    connection: str

    def read(self, spark: SparkSession) -> DataFrame:
        """Return exactly the claimed messages as a DataFrame with the columns ``stream``, ``subject``, ``sequence``,
        ``timestamp``, ``headers`` and ``data``. The parameter ``missing`` of the asset or op says what happens to
        messages that no longer exist.

        spark:  the Spark session, for example that of :func:`pyspark_jetstream.spark_session`.
        """
        from pyspark_jetstream.held import read

        return read(self, spark, self.connection, {})

    def reject(
        self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences | DataFrame, reason: str | None = None
    ) -> None:
        """Reject messages that cannot be processed: when the claim is settled, they become dead letters.

        sequences:  one or more stream sequences, or a DataFrame with a column ``sequence``, which is collected now.
        reason:     why they are rejected, in one line. Default None: the DataFrame's column ``reason``.

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

    @property
    def extras(self) -> dict[str, Any]:
        """The claim for a Pipes process, as ``extras`` of a Pipes client: ``claim``, the JSON of
        :meth:`jetstream_handoff.claim.Claim.from_json`; ``attempt_id``; and ``connection``."""
        return {"claim": self.claim.to_json(), "attempt_id": self.attempt_id, "connection": self.connection}

    @property
    def environment(self) -> dict[str, str]:
        """The resource's settings, with its secrets, for the environment of a Pipes process (``env``). There, for
        example :func:`pyspark_jetstream.read_claim` finds them by the name of the connection."""
        return {environment_name(self.connection): self._hold.settings.to_json()}
