# SPDX-License-Identifier: Apache-2.0
"""The errors of the provider: the part of the tree of :mod:`jetstream_client.errors` below ``SparkError``.

SparkError                        any error of a Spark cluster that works on a claim
├── SparkMasterUnavailable        no Spark master answered, or none of them is active
├── SparkMasterRefused            the Spark master answered and refused the request
└── SparkJobFailed                a job did not succeed; carries its driver and the driver's state
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jetstream_client.errors import JetStreamError


def event_of(error: Exception) -> dict[str, Any]:
    """Return the event with which a trigger reports an error to its task."""
    return {"status": "error", "type": type(error).__name__, "error": str(error)}


def reported(event: dict[str, Any]) -> JetStreamError:
    """Return the error that a trigger's event reports: with its type if that is one of this package, with its message
    and without its attributes."""
    import jetstream_handoff.errors  # noqa: F401 - so that its types are found

    name, text = event.get("type"), event["error"]
    kind = next((each for each in _kinds(JetStreamError) if each.__name__ == name), None)
    if kind is None:  # an error of Airflow, or an event of a release before this one, whose text begins with the type
        return JetStreamError(f"{name}: {text}" if name else text)
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def _kinds(kind: type[JetStreamError]) -> Iterator[type[JetStreamError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


class SparkError(JetStreamError):
    """Any error of a Spark cluster that works on a claim, or that received a request to do so."""


class SparkMasterUnavailable(SparkError, ConnectionError):
    """No Spark master answered, or none of the masters that answered is active. A job that is running is not
    affected."""


class SparkMasterRefused(SparkError):
    """The Spark master refused a request. The error message contains the master's own words."""


class SparkJobFailed(SparkError):
    """A job on a Spark cluster ended without success.

    driver:  the id that the Spark master gave to the job's driver.
    state:   the state in which the driver ended: ``FAILED``, ``KILLED``, ``ERROR``, or ``LOST`` when the master no
             longer knows the driver.
    """

    def __init__(self, driver: str, state: str) -> None:
        super().__init__(
            f"the Spark job did not succeed: its driver {driver} is in state {state}. Read the files stdout and "
            f"stderr in the folder {driver} on the Spark worker that ran the driver"
        )
        self.driver = driver
        self.state = state
