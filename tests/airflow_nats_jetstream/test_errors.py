"""Errors of a trigger, which its task raises again."""

import pytest

from airflow_nats_jetstream.errors import SparkJobFailed, event_of, reported
from jetstream_client.errors import DirectGetDisabled, InvalidValue, JetStreamError
from jetstream_handoff.errors import Superseded


@pytest.mark.parametrize(
    "error",
    [
        DirectGetDisabled("stream ORDERS does not allow it"),
        InvalidValue("batch", 0, "give at least 1"),
        SparkJobFailed("driver-1", "FAILED"),
        Superseded("claim 00000000 is gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_this_package_keeps_its_type(error: JetStreamError) -> None:
    again = reported(event_of(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_another_error_names_its_type() -> None:
    again = reported(event_of(LookupError("no such connection")))
    assert (type(again), str(again)) == (JetStreamError, "LookupError: no such connection")


def test_an_event_of_an_earlier_release() -> None:
    again = reported({"status": "error", "error": "StreamNotFound: no stream"})
    assert (type(again), str(again)) == (JetStreamError, "StreamNotFound: no stream")
