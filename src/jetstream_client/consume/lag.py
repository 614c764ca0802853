# SPDX-License-Identifier: Apache-2.0
"""The lag of a consumer: messages that are not delivered yet, and messages that are delivered but not acknowledged."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name

if TYPE_CHECKING:
    from jetstream_client.context import JetStream

PATIENCE = 60.0
"""Measuring the lag fails after this many seconds without an answer from the server."""


@dataclass(frozen=True, slots=True)
class Lag:
    """``pending`` is the number of messages that are not delivered yet. ``unacknowledged`` is the number of messages
    that are delivered but not acknowledged, including those in claims."""

    pending: int
    unacknowledged: int

    @property
    def total(self) -> int:
        return self.pending + self.unacknowledged

    def to_json(self) -> dict[str, int]:
        return {"lag": self.total, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A condition on a consumer's lag: it must be either ``below`` or ``above`` a number of messages.

    Raises:
        InvalidValue: neither ``below`` nor ``above`` is set, or both are; a number is negative, ``below`` is 0, or
            JetStream forbids a name.
    """

    stream: str
    consumer: str
    below: int | None = None
    above: int | None = None

    def __post_init__(self) -> None:
        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        if (self.below is None) == (self.above is None):
            raise InvalidValue("below, above", (self.below, self.above), "set exactly one of 'below' and 'above'")
        if self.below is not None and self.below < 1:
            raise InvalidValue("below", self.below, "must be 1 or more; the lag is below 1 when no messages are left")
        if self.above is not None and self.above < 0:
            raise InvalidValue(
                "above", self.above, "must be 0 or more; the lag is above 0 when at least one message is left"
            )

    def __str__(self) -> str:
        return f"below {self.below}" if self.below is not None else f"above {self.above}"

    def holds(self, lag: Lag) -> bool:
        return lag.total < self.below if self.below is not None else lag.total > (self.above or 0)

    async def measure(self, js: JetStream) -> Lag | None:
        """The current lag if it meets the condition, else None. Raises StreamNotFound, ConsumerNotFound."""
        info = await js.stream(self.stream).consumer(self.consumer).info(patience=PATIENCE)
        lag = Lag(info.pending, info.ack_pending)
        return lag if self.holds(lag) else None

    async def wait(self, js: JetStream, seconds: float, every: float) -> Lag | None:
        """Measure at intervals of ``every`` seconds for up to ``seconds``, at least once. Returns the lag that meets
        the condition, or None."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while True:
            if (lag := await self.measure(js)) is not None:
                return lag
            left = end - clock()
            if left <= 0:
                return None
            await asyncio.sleep(min(left, max(1.0, every)))
