"""The errors of the provider: the part of the tree of :mod:`jetstream_client.errors` below ``SparkError``.

SparkError                        a Spark cluster that works on a claim
├── SparkMasterUnavailable        no master answers, or none is in charge
├── SparkMasterRefused            it answers, and does not do it
└── SparkJobFailed                a job that did not succeed; carries its driver and state
"""

from __future__ import annotations

from jetstream_client.errors import JetStreamError


class SparkError(JetStreamError):
    """A Spark cluster that works on a claim, or should."""


class SparkMasterUnavailable(SparkError, ConnectionError):
    """No Spark master answers, or none of those that do is in charge: a job that runs goes on meanwhile."""


class SparkMasterRefused(SparkError):
    """The Spark master's own refusal, in its words."""


class SparkJobFailed(SparkError):
    """A job on a Spark cluster ended, and not well. ``state`` is the driver's: ``FAILED``, ``KILLED``, ``ERROR``, or
    ``LOST`` when the master does not know it any more."""

    def __init__(self, driver: str, state: str) -> None:
        super().__init__(f"Spark driver {driver} is {state}: stdout and stderr in its worker's folder {driver} say why")
        self.driver = driver
        self.state = state
