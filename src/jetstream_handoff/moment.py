# SPDX-License-Identifier: Apache-2.0
"""A moment on two clocks, the client's and the server's, because each of them can stand still or be set back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on both clocks.

    ours:    seconds on the event loop's clock.
    server:  nanoseconds on the server's clock.

    Our clock alone does not tell how long the server has waited: while a virtual machine is paused, its monotonic clock
    stands still and its connections stay open, but the leases on the server end.
    """

    ours: float
    server: int

    @classmethod
    def of(cls, info: ConsumerInfo, ours: float) -> Moment:
        """Return the moment at which an INFO was answered. ``ours`` is our clock's time after the answer arrived."""
        return cls(ours, time_nanoseconds(info.now))

    def at(self, ours: float) -> Moment:
        """Return the moment at which our clock showed ``ours``."""
        return Moment(ours, self.server + round((ours - self.ours) * 1e9))

    def age(self, now: Moment) -> float:
        """Return the seconds from this moment to a later one, on the clock on which more time has passed."""
        return max(now.ours - self.ours, (now.server - self.server) / 1e9)
