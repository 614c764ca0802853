"""Work over connections that may be lost: each loss is followed by another attempt, until nothing moves any more."""

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
"""Seconds without progress, over however many connections, after which the work is given up."""
PAUSE = 0.2
"""Seconds between two attempts."""
PASSING = (429, NO_RESPONDERS)
"""Codes of a server that has too much to do, or whose stream has no leader."""


def is_passing(error: BaseException | None) -> bool:
    """Whether another attempt may succeed where this error ended one."""
    if isinstance(error, ApiError):
        return error.code in PASSING
    return isinstance(error, ConnectionFailed | RequestTimeout | PullError) and not isinstance(error, ConnectionDenied)


class Attempts:
    """A context manager for each attempt at one piece of work::

        attempts = Attempts(lambda: "reading was interrupted")
        while True:
            with attempts, Wire.open(settings) as wire:
                ...
                attempts.reached(sequence)
                ...
                return

    A passing error is logged behind what ``interrupted`` says, and after a pause the loop goes on. Any other error ends
    it, and so does a passing one when there was no progress for :data:`RESUMED_WITHIN` seconds.

    patient:  False: until the first progress, every error ends it.
    """

    def __init__(
        self,
        interrupted: Callable[[], str],
        *,
        patient: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interrupted = interrupted
        self._clock = clock
        self._sleep = sleep
        self._position: int | None = None
        self._moved = clock() if patient else -math.inf

    def reached(self, position: int) -> bool:
        """Whether this is another position than before: that is progress."""
        moved = position != self._position
        if moved:
            self._position, self._moved = position, self._clock()
        return moved

    @property
    def exhausted(self) -> bool:
        return self._clock() - self._moved > RESUMED_WITHIN

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not is_passing(error) or self.exhausted:
            return False
        log.warning("%s: %s", self._interrupted(), error)
        self._sleep(PAUSE)
        return True
