# SPDX-License-Identifier: Apache-2.0
"""Pace: the largest size of a take's next batch, after batches whose messages could not be kept leased.

No I/O: :mod:`.take` reports the outcome of each batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetstream_handoff.take.taking import Taking

_HOPELESS = 3  # batches in a row: a network or a machine may stand still during one batch


@dataclass(frozen=True)
class Pace:
    """The outcome of the last batches of a take.

    limit:    the largest number of messages in the next batch; 0 for ``max_messages``.
    dropped:  how many batches in a row were dropped.
    too_few:  how many of these batches, counted back from the last one, grew too old with fewer than ``min_messages``
              messages.
    size:     the number of messages of the last dropped batch; 0 if no batch was dropped.

    Both counts begin again at 0 after a batch that was entered, or that was kept leased and had at least ``size``
    messages. A smaller batch does not show that ``size`` messages can be kept leased, because after a drop the messages
    whose leases end first are redelivered first.
    """

    limit: int = 0
    dropped: int = 0
    too_few: int = 0
    size: int = 0

    @property
    def hopeless(self) -> bool:
        """Whether ``min_messages`` messages cannot be kept leased."""
        return self.too_few >= _HOPELESS

    def most(self, taking: Taking) -> int:
        """Return the largest number of messages in the next batch."""
        return min(max(self.limit, taking.min_messages), taking.max_messages) if self.limit else taking.max_messages

    def after_drop(self, taking: Taking, size: int, *, too_few: bool) -> Pace:
        """Return the pace after a batch of ``size`` messages was dropped.

        too_few:  whether it grew too old with fewer than ``min_messages``.
        """
        limit = self.limit
        if self.dropped:  # a single drop may be due to a pause of the machine or the network
            limit = max(1, min(size, self.most(taking)) // 2)
        return Pace(limit, self.dropped + 1, self.too_few + 1 if too_few else 0, size)

    def after_kept(self, size: int) -> Pace:
        """Return the pace after a batch of ``size`` messages was kept leased, but not entered."""
        return Pace(self.limit) if size >= self.size else self

    def after_entered(self, taking: Taking) -> Pace:
        """Return the pace after a batch was entered."""
        return Pace(min(2 * self.limit, taking.max_messages))

    def to_json(self) -> dict[str, int]:
        """Return the pace as JSON. A rescheduled sensor stores it between two calls."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Pace:
        """Read the return value of :meth:`to_json`. Any other value gives the pace of a new take."""
        numbers: list[Any] = [value.get(each.name) for each in fields(cls)] if isinstance(value, Mapping) else [None]
        return cls(*numbers) if all(type(number) is int and number >= 0 for number in numbers) else cls()
