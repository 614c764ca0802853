# SPDX-License-Identifier: Apache-2.0
"""Repeating an operation, such as reading or publishing, after a lost connection or another passing error. The
operation is repeated as long as it makes progress."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from jetstream_client.errors import ApiError, ConnectionDenied, ConnectionFailed, PullError, RequestTimeout
from jetstream_client.wire.protocol import NO_RESPONDERS

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

RESUMED_WITHIN = 60.0
"""After this many seconds without progress, no other attempt is made. A new connection alone is no progress."""
PAUSE = 0.2
"""Seconds between two attempts."""
PASSING = (429, NO_RESPONDERS)
"""Status codes that mean that the server is overloaded, or that a stream has no leader."""


def is_passing(error: BaseException | None) -> bool:
    """Whether another attempt may succeed after this error."""
    if isinstance(error, ApiError):
        return error.code in PASSING
    return isinstance(error, ConnectionFailed | RequestTimeout | PullError) and not isinstance(error, ConnectionDenied)


class Attempts:
    """A context manager that is entered once for each attempt::

        attempts = Attempts(lambda: "reading was interrupted")
        while True:
            with attempts, Wire.open(settings) as wire:
                ...
                attempts.reached(sequence)
                ...
                return

    If another attempt may succeed after an error, the error is logged, and the loop continues after a pause. The log
    line begins with the text that ``interrupted`` returns. Any other error is raised. After :data:`RESUMED_WITHIN`
    seconds without progress, every error is raised.

    patient:  if False, every error is raised until there has been progress. Default True.
    stop:     called after each failed attempt; if it returns True, the error is raised. Default None.
    """

    def __init__(
        self,
        interrupted: Callable[[], str],
        *,
        patient: bool = True,
        stop: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interrupted = interrupted
        self._stop = stop
        self._clock = clock
        self._sleep = sleep
        self._position: int | None = None
        self._moved = clock() if patient else -math.inf

    def reached(self, position: int) -> bool:
        """Record a position. Returns whether it differs from the previous position. A new position counts as
        progress."""
        moved = position != self._position
        if moved:
            self._position, self._moved = position, self._clock()
        return moved

    @property
    def stopped(self) -> bool:
        return self._stop is not None and self._stop()

    @property
    def exhausted(self) -> bool:
        return self._clock() - self._moved > RESUMED_WITHIN

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not is_passing(error) or self.exhausted or self.stopped:
            return False
        log.warning("%s: %s", self._interrupted(), error)
        self._sleep(PAUSE)
        return True
