"""The loop of reopening and resuming: the errors after which another attempt follows, and when it gives up."""

import logging

import pytest

from jetstream_client.errors import (
    ApiError,
    AuthenticationFailed,
    ConnectionDenied,
    ConnectionFailed,
    ConnectionLost,
    JetStreamError,
    JetStreamNotEnabled,
    LeadershipChanged,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
    TooManyRequests,
)
from jetstream_client.wire import attempts
from jetstream_client.wire.attempts import Attempts

LOST = ConnectionLost("the server closed the connection")


class Clock:
    """Time that passes when something sleeps, or is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def work(errors: list[Exception | None], *, patient: bool = True, every: float = 0, moving: bool = False) -> int:
    """The number of attempts until one succeeds; each lasts ``every`` seconds."""
    clock = Clock()
    trying = Attempts(lambda: "work was interrupted", patient=patient, clock=clock, sleep=clock.sleep)
    for number, error in enumerate(errors):
        with trying:
            clock.sleep(every)
            if moving:
                assert trying.reached(number)
            if error is not None:
                raise error
            return number + 1
    raise AssertionError("there were not enough errors")


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        ConnectionFailed("no server"),
        RequestTimeout("no answer"),
        LeadershipChanged(409, "Leadership Change"),
        JetStreamNotEnabled(503, 0, "nobody answers"),
        ApiError(503, 10008, "no leader"),
        TooManyRequests(429, 10167, "too many requests"),
    ],
)
def test_another_attempt_follows_what_passes(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert work([error, error, None]) == 3
    logged = [(record.levelno, record.message) for record in caplog.records]
    assert logged == [(logging.WARNING, f"work was interrupted: {error}")] * 2


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailed("wrong password"),
        ConnectionDenied("no"),
        PermissionDenied("a.b", "publish on"),
        StreamNotFound(404, 10059, "stream not found"),
        ApiError(500, 10118, "stream is offline"),
        JetStreamError("out of order"),
        KeyError("a mistake"),
    ],
)
def test_what_does_not_pass_ends_the_first_attempt(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(error)):
        work([error, None])
    assert not caplog.records


def test_the_patience_ends_without_progress_and_begins_anew_with_it() -> None:
    errors: list[Exception | None] = [*([LOST] * 20), None]
    within = attempts.RESUMED_WITHIN
    with pytest.raises(ConnectionLost) as lost:
        work(errors, every=within / 10)
    assert lost.value is LOST
    assert work(errors, every=within / 10, moving=True) == 21
    assert work(errors, every=within, moving=True) == 21  # however long an attempt lasts, if it makes progress
    with pytest.raises(ConnectionLost):
        work(errors, every=within * 1.01)


def test_without_patience_the_first_error_ends_it_unless_there_was_progress() -> None:
    with pytest.raises(ConnectionLost):
        work([LOST, None], patient=False)
    assert work([LOST, None], patient=False, moving=True) == 2


def test_the_same_position_again_is_no_progress() -> None:
    clock = Clock()
    trying = Attempts(lambda: "", clock=clock, sleep=clock.sleep)
    steps = []
    for seconds, position in ((0, 0), (attempts.RESUMED_WITHIN, 0), (1, 0), (0, 1)):
        clock.sleep(seconds)
        steps.append((trying.reached(position), trying.exhausted))
    assert steps == [(True, False), (False, False), (False, True), (True, False)]
