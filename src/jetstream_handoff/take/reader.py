# SPDX-License-Identifier: Apache-2.0
"""Reading a consumer batch by batch, for a program whose own checkpoint decides what is processed (docs/handoff.md).

Each batch is a claim. The program writes the position after a batch into its checkpoint before it processes the batch,
and the batch is settled when the checkpoint says that it is committed. After a restart, the program repeats the batch
that it has logged and not committed, with exactly the same messages.

While a batch is processed, the one before is settled and acknowledged, and the one after is taken if it is full.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamError
from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.errors import (
    AlreadyDone,
    CheckpointRefused,
    ConsumerReserved,
    HeldByAnother,
    HoldLost,
    Superseded,
)
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.reservation import owner_of_batch
from jetstream_handoff.take.committed import Committed
from jetstream_handoff.take.pace import Pace
from jetstream_handoff.take.position import Position, sequences_of
from jetstream_handoff.take.reader_run import ReaderRun
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.take.waiting import EVERY, Waiting

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.claim import Claim

log = logging.getLogger(__name__)

GATHER = timedelta(seconds=1)
"""How long a batch waits for more messages after its first one."""
_LOOK_EVERY = 1.0  # seconds between two pulls while nothing is pending and messages are leased, or none is delivered
_COUNT_EVERY = 10.0  # seconds between two questions whether there are messages that the server does not count
_IDLE = 0.1  # seconds between two questions whether messages wait
_LONGER = 10.0
"""Seconds beyond ack_wait that a reader of what is available now waits for leased messages, and seconds until a reader
says why pending messages are not delivered."""


class _JustTaken(Hold):
    leased = True


class ConsumerReader:
    """One run of a reader. Its methods are called one at a time.

    js:        the JetStream context.
    stream, consumer:  what to read. A consumer that does not exist is created for the first batch.
    most:      the largest number of messages in a batch.
    replaces:  the id of the reader whose place this one takes; default: none.
    """

    def __init__(self, js: JetStream, stream: str, consumer: str, most: int, replaces: str = "") -> None:
        self._js = js
        self._ledger = Ledger(js, stream, consumer)
        self._most = most
        self._run = ReaderRun(self._ledger, replaces)
        self._found = Position(stream, consumer, "")
        """The last position whose batch this run has found committed."""
        self._settling: Position | None = None
        """That position, while its batch is not settled and acknowledged."""
        self._task: asyncio.Task[None] | None = None  # settles and acknowledges it
        self._committed = Committed(self._ledger.stream)
        self._next: Position | None = None
        self._ahead: tuple[str, asyncio.Task[Claim | None]] | None = None
        """The claim of a batch that is processed, and the take of the batch after it."""
        self._holds: dict[str, tuple[Hold, AsyncExitStack]] = {}
        """The claims that are held: of the batches that are settled, processed, and taken."""
        self._pace = Pace()
        self._clock = asyncio.get_running_loop().time
        self._looked = 0.0  # when messages were last looked for; 0 before the first time
        self._pending = 0  # how many were pending then
        self._counted = -math.inf  # when the stream was last asked whether there are messages that are not pending
        self._vain: float | None = None  # when to log why pending messages are not delivered; None while they are
        self._began = 0.0  # when the last take began
        self._last: int | None = None
        self._ack_wait = 60.0

    @property
    def consumer(self) -> str:
        return self._ledger.consumer.name

    async def next(self, start: Position) -> Position:
        """Begin to settle the batch that ends at ``start``, which the checkpoint has committed, and take the next one.

        Returns the position after it, which must be logged before its messages are processed. Returns ``start`` if no
        messages can be delivered now; then everything that is committed is settled and acknowledged.

        Raises:
            ConsumerReserved: the consumer is reserved for another reader.
            CheckpointRefused: messages would be missing if the reader went on with this checkpoint.
            HeldByAnother: another run of this reader has begun.
            LedgerUnavailable, ConsumerUnsuitable, JetStreamError: as :meth:`~.take.Take.take`.
        """
        with self._run.checked(start):
            return await self._after(start)

    async def _after(self, start: Position) -> Position:
        if self._next is not None and self._next.after == start.id and self._next.reader == start.reader:
            return self._next  # it was not logged
        if self._last is None and self._is_idle(start) and not await self._may_look(start):
            await asyncio.sleep(_IDLE)
            return start
        await self._run.begin(start)
        await self._commit(start)
        since = self._clock()
        claim = await self._taken_ahead(start) or await self._look(start)
        while claim is None:
            await self._settled()
            if self._last is None or await self._exhausted(start, since):
                return start
            await asyncio.sleep(_IDLE)
            claim = await self._look(start)
        if claim.id not in self._holds:
            await self._hold(claim, start.batch + 1, start.reader)
        owed = await self._committed.owed_in(claim)
        self._next = replace(start, batch=start.batch + 1, claim=claim, owed=owed, after=start.id)
        return self._next

    async def end_with_the_present(self) -> None:
        """Let :meth:`next` return no messages when those that are in the stream now are processed."""
        self._last = int((await self._ledger.stream.info(patience=PATIENCE)).state["last_seq"])

    async def logged(self, start: Position, end: Position) -> None:
        """Make sure that the batch from ``start`` to ``end``, which is in the checkpoint, can be processed: reserve the
        consumer with the first batch, and after a restart hold the batch again. A process that reads messages of
        the first batch marks that (:func:`~jetstream_handoff.ledger.first_read.mark_read`).

        Raises:
            ConsumerReserved, CheckpointRefused, HeldByAnother: as :meth:`next`.
        """
        with self._run.checked(end):
            await self._process(start, end)

    async def _process(self, start: Position, end: Position) -> None:
        if end.batch == 1:
            start = Position(end.stream, end.consumer, end.reader)  # the initial position is not in the checkpoint
        if (start.reader, start.batch + 1, start.id) != (end.reader, end.batch, end.after):
            raise CheckpointRefused(self.consumer, end.reader, f"its batch {end.batch} does not follow the one before")
        try:
            await self._run.begin(start, logged=end)
        except (ConsumerReserved, HeldByAnother, CheckpointRefused):
            await self.release()
            raise
        if end.claim is None:
            return
        if end.id in self._holds:
            await self._run.plan(end)
        else:
            if start.batch:
                await self._commit(start, again=True)
                await self._settled()
                self._committed.settled(sequences_of(end.owed) | end.claim.sequences)
            await self._run.plan(end)
            await self._hold(end.claim, end.batch, end.reader, again=True)
            self._next = None
        if self._ahead is None or self._ahead[0] != end.id:
            self._ahead = end.id, asyncio.create_task(self._take_ahead(end))

    async def release(self) -> None:
        """Settle what is committed, and release the batches that are held, because the reader does not process them."""
        ahead, self._ahead, self._next = self._ahead, None, None
        if ahead is not None:
            ahead[1].cancel()
            await asyncio.gather(ahead[1], return_exceptions=True)
        try:
            await self._settled()
        except JetStreamError as error:
            batch = self._found.batch
            log.warning(
                "batch %d is committed, and the next run settles it, because this one could not: %s", batch, error
            )
        holds, self._holds = self._holds, {}
        for hold, kept in holds.values():
            await hold.let_go()
            await kept.aclose()

    # The batch that is committed

    async def _commit(self, position: Position, *, again: bool = False) -> None:
        """Note that the checkpoint has committed a position, and begin to settle its claim, after the one before.

        again:  whether an earlier run has noted it, as a later batch in the checkpoint shows.
        """
        if position.claim is None or self._found.id == position.id:
            return
        await self._settled()
        await self._run.note(position, again=again)
        self._committed.add(position.claim, position.owed)
        self._found = self._settling = position
        self._next = None
        self._settle_committed()

    def _settle_committed(self) -> None:
        if self._settling is not None and self._task is None:
            self._task = asyncio.create_task(self._settle_position(self._settling))

    async def _settled(self) -> None:
        """Wait until the batch that was last found committed is settled, and its messages are acknowledged. An
        interruption is raised, and this may be repeated."""
        self._settle_committed()
        if self._task is not None:
            try:
                await self._task
            finally:
                self._task = None
            self._settling = None

    async def _settle_position(self, position: Position) -> None:
        """Settle the claim of a position, or note that it is owed."""
        claim = position.claim
        if claim is not None and not await self._settle(claim, position.batch, position.reader):
            log.warning(
                "batch %d of reader %s is committed, but its claim %s cannot be settled: its %d messages are "
                "acknowledged when they are redelivered, and are not processed again",
                position.batch,
                position.reader,
                claim.id,
                claim.count,
            )
            self._committed.unsettled(claim)

    async def _settle(self, claim: Claim, batch: int, reader: str) -> bool:
        """Settle a claim that the checkpoint has committed. Returns whether it is settled."""
        hold, kept = self._holds.get(claim.id, (None, None))
        try:
            if hold is not None:
                try:
                    await hold.settle()
                except (HoldLost, HeldByAnother) as lost:  # such as a release by hand: nobody else reads this consumer
                    log.warning("claim %s of a committed batch is held again: %s", claim.id, lost)
                    hold = None
            if hold is None:
                async with self._hold_of(claim, batch, reader) as again:
                    await again.settle()
        except AlreadyDone:
            done = True
        except Superseded as gone:
            log.warning("%s", gone)
            done = False
        else:
            done = True
        if kept is not None:
            await kept.aclose()
            del self._holds[claim.id]
        return done

    # The next batch

    def _is_idle(self, start: Position) -> bool:
        """Whether the batch that ends at ``start`` is settled, and this run has looked for messages before."""
        return self._looked > 0 and self._found.id == start.id and self._settling is None and self._ahead is None

    async def _look(self, start: Position) -> Claim | None:
        if not await self._may_look(start):
            return None
        claim = await self._take(start)
        if claim:
            self._counted = -math.inf
        if claim or not self._pending:
            self._vain = None
        elif self._vain is None:
            self._vain = self._clock() + _LONGER
        elif self._clock() >= self._vain:
            self._vain = self._clock() + EVERY
            log.warning("consumer %s delivers nothing: %s", self.consumer, await self._held_up(start))
        return claim

    async def _held_up(self, start: Position) -> str:
        record, _ = await self._ledger.read()
        return Waiting(self._ledger, self._taking(start)).held_up(record, await self._ledger.info())

    async def _may_look(self, start: Position) -> bool:
        """Whether messages may be delivered now. An idle reader only asks for INFO. A claim that was settled, and whose
        settlement a killed server has forgotten, is settled again."""
        if start.batch or self._looked > 0:
            info = await self._ledger.info()
            if self._last is not None and info.floor >= self._last:
                return False
            if not (info.pending or info.ack_pending or await self._uncounted(info)):
                return False
            if (self._vain is not None or not info.pending) and self._clock() - self._looked < _LOOK_EVERY:
                return False
            self._pending = info.pending
            settling = self._settling.id if self._settling else ""
            known = {*(each.id for each in self._committed.claims), start.after} - {settling}
            record, _ = await self._ledger.read()
            for claim_id, entry in record.open.items() if record else ():
                if claim_id in known:
                    await self._ledger.locate()
                    created = (await self._ledger.stream.info(patience=PATIENCE)).created
                    claim = self._ledger.claim_of(claim_id, entry, created, record.created)  # type: ignore[union-attr]
                    _, reader, batch = entry.owner
                    if await self._settle(claim, int(batch), str(reader)):
                        self._committed.settled(claim.sequences)
        return True

    async def _uncounted(self, info: ConsumerInfo) -> bool:
        """Whether there may be messages that the server does not count as pending. nats-server 2.15.1 counts none any
        more when the filter of a consumer is removed, and delivers them to a pull that waits."""
        if self._clock() < self._counted + _COUNT_EVERY:
            return False
        self._counted = self._clock()
        return int((await self._ledger.stream.info(patience=PATIENCE)).state["last_seq"]) > info.delivered

    async def _take_ahead(self, end: Position) -> Claim | None:
        """Take the batch after the one that ends at ``end``, and hold it, if it would be full: a batch that is taken
        when it is needed may be larger."""
        info = await self._ledger.info()
        if info.deliverable < self._most or (self._last is not None and info.delivered >= self._last):
            return None
        claim = await self._take(end)
        if claim is not None:
            await self._hold(claim, end.batch + 1, end.reader)
        return claim

    async def _taken_ahead(self, start: Position) -> Claim | None:
        """The batch after ``start``, if it was taken while the one that ends there was processed."""
        if self._ahead is None or self._ahead[0] != start.id:
            return None
        _, task = self._ahead
        self._ahead = None
        try:
            return await task
        except JetStreamError as error:
            log.info("the next batch could not be taken ahead, and is taken now: %s", error)
            return None

    async def _take(self, start: Position) -> Claim | None:
        """Take the next batch; None if no messages can be delivered now. A batch that an earlier run took, and did not
        log, is this one."""
        take = Take(self._js, self._taking(start), self._run.taker(start.reader))
        take.pace = self._pace
        self._began = self._clock()
        try:
            await (take.create() if start.batch else take.prepare())
            self._ack_wait = (await self._ledger.info()).config["ack_wait"] / 1e9
            claims = await take.look()
            self._looked = self._clock()
            if claims and start.claim:
                self._run.check_same(start.reader, start.claim, claims[0].stream_created, claims[0].consumer_created)
            take.handed_on()
        finally:
            self._pace = take.pace
            await take.put_back()
        return claims[0] if claims else None

    def _taking(self, start: Position) -> Taking:
        return Taking(
            stream=start.stream,
            consumer=start.consumer,
            owner=owner_of_batch(start.reader, start.batch + 1),
            max_messages=self._most,
            max_claims=1,
            gather=GATHER,
            even_if_held=True,
            create_consumer=not start.batch,
        )

    async def _exhausted(self, start: Position, since: float) -> bool:
        """Whether everything that was in the stream when the run began is processed, as far as the server delivers it.

        since:  when the reader began to wait for it.

        Raises:
            JetStreamError: messages wait, and the server delivers none.
        """
        info = await self._ledger.info()
        self._ack_wait = info.config["ack_wait"] / 1e9
        if info.floor >= (self._last or 0) or not (info.pending or info.ack_pending):
            return True
        if self._clock() < since + self._ack_wait + _LONGER:
            return False
        if info.pending:
            raise JetStreamError(f"consumer {self.consumer!r} delivers nothing: {await self._held_up(start)}")
        text = "the run ends although %d messages of consumer %s are leased; the next run gets them"
        log.warning(text, info.ack_pending, self.consumer)
        return True

    # Holding

    async def _hold(self, claim: Claim, batch: int, reader: str, *, again: bool = False) -> None:
        """Hold the claim of a batch until it is committed.

        again:  whether it is in the checkpoint. Then the batch must be processed, whatever became of its claim.
        """
        leased = not again and self._clock() - self._began < self._ack_wait / HEARTBEATS
        kept = AsyncExitStack()
        try:
            hold = await kept.enter_async_context(self._hold_of(claim, batch, reader, leased=leased))
        except AlreadyDone as done:
            problem = f"its batch {batch} is not committed, but was settled at {done.at}: it is an older copy"
            raise CheckpointRefused(self.consumer, reader, problem) from done
        except Superseded as gone:
            if not again:
                raise
            log.warning("batch %d of reader %s is processed again without a hold: %s", batch, reader, gone)
        else:
            self._holds[claim.id] = hold, kept

    def _hold_of(self, claim: Claim, batch: int, reader: str, *, leased: bool = False) -> Any:
        piece = owner_of_batch(reader, batch)
        kind = _JustTaken if leased else Hold
        return kind.begin(self._js, claim, try_number=1, holder=(*piece, 1), piece=piece)
