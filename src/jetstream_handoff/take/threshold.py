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

    def enough(self, count: int, size: int, waited: float) -> bool:
        """Whether ``count`` messages with ``size`` bytes, the oldest of which has waited for ``waited`` seconds, are
        enough."""
        return count > 0 and (self.reached(count, size) or self.over(waited))

    def waiting(self, count: int, waited: float) -> str:
        """Return why a wait for messages goes on, in words. The parameters are those of :meth:`enough`."""
        limit = self.max_wait.total_seconds() if self.max_wait and count else None
        since = "" if limit is None else f", the oldest for {waited:.0f} of {limit:g} s"
        return f"{count} of {self.min_messages} messages wait{since}"

    def said(self, count: int, size: int | None, waited: float) -> str:
        """Return which limit has ended a wait, in words.

        count, waited:  as for :meth:`enough`.
        size:           the number of bytes; None if unknown.
        """
        found = number(count, "message") + ("" if size is None else f" ({number(size, 'byte')})")
        if self.reached(count, size or 0):
            return f"{found} reach {self.least}"
        if self.max_wait is not None and self.over(waited):
            limit = f"max_wait ({self.max_wait.total_seconds():g} s)"
            return f"the oldest of {found} was stored {waited:.0f} s ago, and {limit} is over before {self.least}"
        return f"{found} are as many as one batch may have, although they do not reach {self.least}"
