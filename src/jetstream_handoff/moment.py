"""A moment by two clocks, ours and the server's: either can stand still, or be set, while the other goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo


@dataclass(frozen=True, slots=True)
class Moment:
    """``ours``: seconds of the event loop's clock. ``server``: nanoseconds of the server's.

    Our clock alone is not enough to tell how long the server has waited: while a virtual machine is paused its
    monotonic clock stands still, its connections survive, and the leases on the server end.
    """

    ours: float
    server: int

    @classmethod
    def of(cls, info: ConsumerInfo, ours: float) -> Moment:
        """The moment at which an INFO was answered; ``ours`` is read after its arrival."""
        return cls(ours, time_nanoseconds(info.now))

    def at(self, ours: float) -> Moment:
        """The moment at which our clock showed ``ours``."""
        return Moment(ours, self.server + round((ours - self.ours) * 1e9))

    def age(self, now: Moment) -> float:
        """Seconds from this moment to a later one, by the clock that shows more of them."""
        return max(now.ours - self.ours, (now.server - self.server) / 1e9)
