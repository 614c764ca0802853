"""A consumer's lag: what is not delivered yet, and what is delivered and not acknowledged."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name

if TYPE_CHECKING:
    from jetstream_client.context import JetStream

PATIENCE = 60.0
"""Seconds without an answer of the server, before that is an error."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages not delivered yet, and those delivered and not acknowledged: what is claimed is among them."""

    pending: int
    unacknowledged: int

    @property
    def total(self) -> int:
        return self.pending + self.unacknowledged

    def to_json(self) -> dict[str, int]:
        return {"lag": self.total, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Of a consumer's lag: it is to be ``below`` a number of messages, or ``above`` one.

    Raises:
        InvalidValue: none of them or both, a negative number, ``below=0``, or a name that JetStream forbids.
    """

    stream: str
    consumer: str
    below: int | None = None
    above: int | None = None

    def __post_init__(self) -> None:
        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        if (self.below is None) == (self.above is None):
            raise InvalidValue("below, above", (self.below, self.above), "give one of them")
        if self.below is not None and self.below < 1:
            raise InvalidValue("below", self.below, "give 1 (nothing is left) or more")
        if self.above is not None and self.above < 0:
            raise InvalidValue("above", self.above, "give 0 (there is something) or more")

    def __str__(self) -> str:
        return f"below {self.below}" if self.below is not None else f"above {self.above}"

    def holds(self, lag: Lag) -> bool:
        return lag.total < self.below if self.below is not None else lag.total > (self.above or 0)

    async def measure(self, js: JetStream) -> Lag | None:
        """The lag if it is within the bound now. Raises StreamNotFound, ConsumerNotFound."""
        info = await js.stream(self.stream).consumer(self.consumer).info(patience=PATIENCE)
        lag = Lag(info.pending, info.ack_pending)
        return lag if self.holds(lag) else None

    async def wait(self, js: JetStream, seconds: float, every: float) -> Lag | None:
        """Measure every so many seconds, once at least; None when the lag was never within the bound."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while True:
            if (lag := await self.measure(js)) is not None:
                return lag
            left = end - clock()
            if left <= 0:
                return None
            await asyncio.sleep(min(left, max(1.0, every)))
