# SPDX-License-Identifier: Apache-2.0
"""Threshold: when enough messages wait, so that a take hands them on, or a watcher reports them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_count, check_duration, number


@dataclass(frozen=True)
class Threshold:
    """When a wait for messages ends: "a thousand messages or ten minutes".

    min_messages:  the smallest number of messages. Default 1.
    min_bytes:     the smallest size of these messages' payloads together. Default None: any.
    max_wait:      how long the oldest message waits for others: once it was stored this long ago, by the server's
                   clock, any number of messages is enough. So the time goes on while nothing pulls and after a restart.
                   Default None: without end.

    Raises:
        InvalidValue: a value is invalid, or there is a ``max_wait`` although a single message is enough.
    """

    min_messages: int = 1
    min_bytes: int | None = None
    max_wait: timedelta | None = None

    def __post_init__(self) -> None:
        check_count("min_messages", self.min_messages)
        if self.min_bytes is not None:
            check_count("min_bytes", self.min_bytes)
        if self.max_wait is None:
            return
        check_duration("max_wait", self.max_wait, timedelta(seconds=1))
        if self.min_messages == 1 and self.min_bytes is None:
            remedy = "a single message is enough; leave max_wait out, or give min_messages of 2 or more, or min_bytes"
            raise InvalidValue("max_wait", self.max_wait, remedy)

    @property
    def least(self) -> str:
        """What is needed, in words."""
        size = "" if self.min_bytes is None else f" and min_bytes={self.min_bytes}"
        return f"min_messages={self.min_messages}{size}"

    def reached(self, count: int, size: int) -> bool:
        """Whether ``count`` messages with ``size`` bytes are enough, however long they have waited."""
        return count >= self.min_messages and size >= (self.min_bytes or 0)

    def left(self, waited: float) -> float | None:
        """Return for how many more seconds to wait when the oldest message has waited for ``waited`` seconds; 0 if the
        wait is over, None if there is no limit."""
        return None if self.max_wait is None else max(0.0, self.max_wait.total_seconds() - waited)

    def over(self, waited: float) -> bool:
        """Whether any number of messages is enough when the oldest has waited for ``waited`` seconds."""
        return self.left(waited) == 0

    def said(self, count: int, size: int, waited: float) -> str:
        """Return which limit has ended the wait for a batch of ``count`` messages with ``size`` bytes, in words."""
        found = f"{number(count, 'message')} ({number(size, 'byte')})"
        if self.reached(count, size):
            return f"{found} have arrived, and {self.least} are needed"
        if self.max_wait is not None and self.over(waited):
            limit = f"max_wait ({self.max_wait.total_seconds():g} s)"
            return f"the oldest of {found} was stored {waited:.0f} s ago, and {limit} is over before {self.least}"
        return f"{found} have arrived, as many as one batch may have, and {self.least} are needed"
