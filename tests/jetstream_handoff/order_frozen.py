"""A take that stands still, as a process that is stopped for a while, and then goes on."""

import asyncio
import random

from jetstream_client.context import JetStream
from jetstream_handoff.claim import Claim
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.take.enter import Entered
from jetstream_handoff.take.gather import Batch, GatherWindow
from jetstream_handoff.take.in_order import InOrder
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking


class FrozenTake(Take):
    """A take that stands still at one of its steps, for longer than its leases last, or almost as long."""

    def __init__(self, js: JetStream, taking: Taking) -> None:
        super().__init__(js, taking)
        self._step = random.choice(["count", "write", "lease", "bury"])

    async def _freeze(self, step: str) -> None:
        if step == self._step:
            await asyncio.sleep(random.uniform(0.5, 2) * self._ack_wait)

    async def _complete(self, window: GatherWindow, order: InOrder, deadline: float) -> None:
        await self._freeze("count")
        await super()._complete(window, order, deadline)

    async def _write(self, batch: Batch) -> tuple[Record | None, Entered]:
        await self._freeze("write")
        return await super()._write(batch)

    async def _lease(self, claims: list[Claim]) -> None:
        await self._freeze("lease")
        await super()._lease(claims)

    async def _bury(self, record: Record, entered: Entered, created: str) -> None:
        await self._freeze("bury")
        await super()._bury(record, entered, created)
